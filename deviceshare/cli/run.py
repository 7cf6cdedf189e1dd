"""`deviceshare run`: the command that starts the controller-manager."""

import socket
import sys
from typing import Any

import click

from deviceshare import logs
from deviceshare.run import process
from deviceshare.run.settings import Settings, options


@click.command(
    short_help="Run deviceshare itself.",
    epilog="""\b
Examples:
  deviceshare run --kubeconfig ~/.kube/config --roles controller
  deviceshare run --tls-cert tls.crt --tls-key tls.key

\b
Exit codes: 0 stopped as asked, 1 failed, 2 wrong flags.""",
)
@options
def run(**flags: Any) -> None:
    """Run deviceshare: controller, scheduler extender and admission webhooks in one process."""
    chosen = Settings(**{**flags, "instance": flags["instance"] or socket.gethostname()})
    logs.configure(chosen.log_format, chosen.log_level)
    sys.exit(process.main(chosen))
