"""`deviceshare sandbox`: a real local control plane to try deviceshare in."""

import re
import shlex
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from deviceshare.cli.output import JSON, TABLE, FilteringConsole, print_answer, say, show, styled, table
from deviceshare.domain.admission import settings
from deviceshare.domain.admission.dialects import OPT_IN
from deviceshare.domain.admission.settings import EXTENDER, GATES
from deviceshare.domain.objects.shares import SYSTEMS
from deviceshare.domain.vendors import NVIDIA
from deviceshare.run.settings import SYSTEM_NAMES
from deviceshare_sandbox import (
    Layout,
    Options,
    Sandbox,
    SandboxError,
    SandboxStatus,
    default_directory,
    running,
    start,
    status,
    stop,
)
from deviceshare_sandbox.demo import run_demo
from deviceshare_sandbox.reports import Progress
from deviceshare_sandbox.simulated_gpus import MOST_NODES

_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class _Commands(click.Group):
    """Shows a SandboxError of any command as `Error: …`, exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SandboxError as error:
            raise click.ClickException(str(error)) from error


def _resource(_: click.Context, __: click.Parameter, value: str) -> str:
    if not _RESOURCE.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no resource name; name one like nvidia.com/gpu")
    return value


_directory = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=default_directory,
    show_default="~/.local/state/deviceshare/sandbox",
    help="Where the sandbox keeps its kubeconfig, logs and data.",
)


@click.group(cls=_Commands, short_help="A real Kubernetes on this machine, to try it on.")
def sandbox() -> None:
    """Run a real Kubernetes control plane on this machine, with simulated nodes or a real one."""


@sandbox.command(
    short_help="Start a cluster.",
    epilog="""\b
Examples:
  deviceshare sandbox up                                   in the foreground, until Ctrl-C
  deviceshare sandbox up --nodes 20 --devices 8 --detach --dir /tmp/big
  deviceshare sandbox up --resource amd.com/gpu
  deviceshare sandbox up --agents                          for deviceshare top, over-use and turns
  deviceshare sandbox up --real-node                       with containers that really run, as root""",
)
@click.option("--nodes", type=click.IntRange(0, 5000), show_default="2", help="Simulated nodes.")
@click.option("--real-node", is_flag=True, help="One real node instead, which runs containers. Needs root.")
@click.option("--devices", type=click.IntRange(0, 1024), default=4, show_default=True, help="Devices on each node.")
@click.option(
    "--resource", callback=_resource, default=NVIDIA.resource, show_default=True, help="The devices' resource."
)
@_directory
@click.option("--detach", is_flag=True, help="Return when everything is ready, and leave it running.")
@click.option(
    "--admission",
    type=click.Choice([settings.AUTO, *settings.MODES]),
    default=settings.AUTO,
    show_default=True,
    help="What admits pods and groups; auto: policies from Kubernetes 1.36 on.",
)
@click.option(
    "--no-deviceshare", is_flag=True, help="Leave deviceshare, webhooks and policies out, to run it yourself."
)
@click.option(
    "--gates", is_flag=True, help="Place pods by scheduling gates, without a scheduler of ours. Kubernetes 1.27."
)
@click.option(
    "--dialects",
    type=SYSTEM_NAMES,
    default=",".join(SYSTEMS),
    show_default=True,
    help=f"In whose words pods may ask for shares, besides ours: {', '.join((*SYSTEMS, *OPT_IN))}.",
)
@click.option(
    "--agents", is_flag=True, help="Run an agent on each simulated node, over GPUs by a script, for top and turns."
)
@click.option("--bare", is_flag=True, help="Leave CRDs, RBAC and scheduler out too, for the chart to install them.")
def up(
    nodes: int | None,
    devices: int,
    resource: str,
    directory: Path,
    admission: str,
    *,
    dialects: frozenset[str],
    real_node: bool,
    detach: bool,
    no_deviceshare: bool,
    gates: bool,
    agents: bool,
    bare: bool,
) -> None:
    """Start a control plane, deviceshare, and simulated nodes or one real node.

    Each start begins with an empty cluster. Without --detach, Ctrl-C ends everything.
    """
    if real_node and nodes is not None:
        raise click.UsageError("--real-node starts one real node and no simulated ones; leave --nodes out.")
    if agents and (real_node or (nodes or 0) > MOST_NODES or resource != NVIDIA.resource):
        raise click.UsageError(f"--agents is for up to {MOST_NODES} simulated nodes with {NVIDIA.resource}.")
    options = Options(
        nodes=2 if nodes is None else nodes,
        devices=devices,
        resource=resource,
        real_node=real_node,
        admission=admission,
        dialects=tuple(sorted(dialects)),
        placement=GATES if gates else EXTENDER,
        agents=agents and not bare,
        deviceshare=not (no_deviceshare or bare),
        bare=bare,
    )
    if detach:
        _welcome(start(options, directory, Progress()), detached=True)
        return
    with running(options, directory, progress=Progress()) as started:
        _welcome(started, detached=False)
        _await_end(started)


@sandbox.command(short_help="Show pods sharing GPUs, step by step.")
def demo() -> None:
    """Show pods sharing GPUs, step by step, in a sandbox that ends with the demo.

    The exit status is 0 only if every step went as described.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Exit as at Ctrl-C, which stops the sandbox.
    sys.exit(0 if run_demo(FilteringConsole(), Progress()) else 1)


@sandbox.command(short_help="Import an image into the real node.")
@click.argument("archive", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_directory
def load(archive: Path, directory: Path) -> None:
    """Import the images in ARCHIVE, as `docker save` writes it, into the real node.

    The node can't reach a registry. A pod's image needs a tag other than `latest`, or imagePullPolicy: IfNotPresent.
    """
    with Progress().stage(f"Importing {archive}"):
        Sandbox(Layout(directory)).import_image(archive)


@sandbox.command()
@_directory
def down(directory: Path) -> None:
    """End a sandbox. Its logs stay until the next start."""
    with Progress().stage("Ending the sandbox"):
        ran = stop(directory)
    say(f"The sandbox in {directory} has ended." if ran else f"No sandbox runs in {directory}.")


@sandbox.command("status")
@_directory
@click.option("-o", "--output", type=click.Choice([TABLE, JSON]), default=TABLE, help="For people or programs.")
def show_status(directory: Path, output: str) -> None:
    """Show each process. The exit status is 0 when all are healthy."""
    answer = status(directory)
    if output == JSON:
        print_answer(answer, JSON)
    else:
        _print(answer)
    sys.exit(0 if answer.ready else 1)


def _print(answer: SandboxStatus) -> None:
    if answer.processes:
        rows = []
        for process in answer.processes:
            healthy = styled("yes", "green") if process.healthy else styled("no", "red")
            rows.append((process.name, str(process.pid), healthy, str(process.restarts), process.message))
        show(table(("NAME", "PID", "HEALTHY", "RESTARTS", "LAST EXIT"), rows))
    if answer.message:
        say(answer.message, err=True)


def _welcome(started: Sandbox, *, detached: bool) -> None:
    options, directory = started.plan.options, started.layout.directory
    nodes = "one real node" if options.real_node else f"{options.nodes} simulated nodes"
    say(f"Kubernetes {started.plan.binaries.version} with {nodes} is ready.\n")
    say(f"  export KUBECONFIG={started.kubeconfig}")
    say("  kubectl get nodes" if options.bare else "  kubectl get nodes,sdg,ndev")
    if options.agents:
        say("  deviceshare top")
    if options.deviceshare:
        say(f"\nThe cluster as a picture: {started.ui_url}")
    if not options.deviceshare and not options.bare:
        say("\nTo run deviceshare yourself:\n")
        say(f"  {shlex.join(started.deviceshare_command)}")
        say(f"  kubectl apply -f {started.admission_manifest}")
    say(f"\n  deviceshare sandbox status --dir {directory}")
    if detached:
        say(f"  deviceshare sandbox down --dir {directory}")
    else:
        say("\nCtrl-C ends everything.")


def _await_end(started: Sandbox) -> None:
    """Returns at Ctrl-C or SIGTERM; raises SandboxError when the sandbox ends by itself."""
    ended = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: ended.set())
    while not ended.wait(1.0):
        if not started.layout.running():
            raise SandboxError(f"The sandbox has ended; see {started.layout.logs}")
    say("\nEnding everything.")
