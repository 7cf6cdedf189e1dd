"""`deviceshare agent`: the command that starts a node's agent."""

import sys
from typing import Any

import click

from deviceshare import logs
from deviceshare.agent import process, settings


@click.command(
    short_help="Run a node's agent.",
    epilog="""\b
Examples:
  deviceshare agent --node-name gpu-1 --kubeconfig ~/.kube/config
  deviceshare agent --node-name gpu-1 --enforce evict

\b
Exit codes: 0 stopped as asked, 1 failed, 2 wrong flags.""",
)
@settings.options
def agent(**flags: Any) -> None:
    """Run the agent of one node: report its devices, their health and their use.

    The chart runs it as a DaemonSet. It sees processes of pods only in the node's own PID namespace.
    """
    chosen = settings.AgentSettings(**flags)
    if chosen.placeholders and not chosen.pod_resources:
        why = "only the kubelet knows what such pods have."
        raise click.UsageError(f"--placeholders needs --pod-resources SOCKET: {why}")
    logs.configure(chosen.log_format, chosen.log_level)
    sys.exit(process.main(chosen))
