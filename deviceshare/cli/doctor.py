"""`deviceshare doctor`: runs the checks and prints their findings, each with its cure."""

import asyncio
import signal
import sys
from typing import IO, TYPE_CHECKING

import click

from deviceshare.cli.cluster import Target
from deviceshare.cli.output import JSON, TABLE, Cell, joined, print_answer, show, styled
from deviceshare.cli.parameters import on_cluster
from deviceshare.doctor.findings import OK, PROBLEM, UNTESTED, WARNING, Check
from deviceshare.domain import contract

if TYPE_CHECKING:
    from deviceshare.kube.api import Api

_COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "red", UNTESTED: "cyan"}
_TERMINATED = 128 + signal.SIGTERM
_MARK, _NAME = 12, 14
"""Columns of the two words that begin a line."""


@click.command(
    short_help="Find what is wrong, with its cure.",
    epilog="""\b
Examples:
  deviceshare doctor                                run every check, and schedule a canary
  deviceshare doctor --no-canary                    create nothing in the cluster
  deviceshare doctor --gpu                          run a canary that opens a GPU, too: do GPUs reach containers?
  deviceshare doctor --namespace team-a             create the canary in a namespace of yours
  deviceshare doctor -o json | jq '.checks[].findings[]'
  ssh NODE cat /etc/nvidia-container-runtime/config.toml | deviceshare doctor --runtime-config -

\b
Exit codes: 0 no problem found (warnings may be), 1 a problem or no cluster, 2 wrong flags.""",
)
@click.option("--namespace", "-n", default="default", show_default=True, help="Where the canary is created.")
@click.option(
    "--release-namespace", default=contract.NAMESPACE, show_default=True, help="Where deviceshare itself runs."
)
@click.option(
    "--canary/--no-canary", default=True, help="Whether a group of one device and a pod are created for a moment."
)
@click.option("--gpu", is_flag=True, help="Run a pod of a new group that opens its NVIDIA GPU, and report what it saw.")
@click.option(
    "--gpu-image", default="", metavar="IMAGE", help="The image of that pod.  [default: the Deployment's image]"
)
@click.option(
    "--runtime-config",
    type=click.File(),
    metavar="FILE",
    help="A node's config.toml of NVIDIA's container toolkit; - for stdin.",
)
@click.option("--output", "-o", type=click.Choice([TABLE, JSON]), default=TABLE, show_default=True)
@on_cluster
def doctor(
    namespace: str,
    release_namespace: str,
    output: str,
    *,
    canary: bool,
    gpu: bool,
    gpu_image: str,
    runtime_config: IO[str] | None,
    target: Target,
) -> None:
    """Check CRDs, rights, replicas, admission, nodes and runtime, and schedule a canary.

    The canary is a group of one free device and a pod that runs nothing; both are deleted afterwards, at Ctrl-C too.
    The canary of --gpu runs deviceshare's own image for a moment.
    """
    if gpu and not canary:
        raise click.UsageError("--gpu creates a canary, which --no-canary forbids: leave one of them out")
    from deviceshare.doctor import checkup  # noqa: PLC0415 - help doesn't need the checks

    settings = runtime_config.read() if runtime_config else None
    checks: list[Check] = []

    async def examine(api: "Api") -> None:
        task = asyncio.current_task()
        assert task is not None
        # As at Ctrl-C, which asyncio turns into the same: a canary must not stay behind.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        where, image = (release_namespace, namespace), gpu_image if gpu else None
        async for each in checkup.look(api, *where, settings, with_canary=canary, gpu_image=image):
            checks.append(each)
            if output == TABLE:
                show(*_lines(each))

    try:
        target.ask(examine, seconds=None)
    except asyncio.CancelledError:
        sys.exit(_TERMINATED)
    healthy = all(each.mark != PROBLEM for each in checks)  # warnings and what could not be tested don't count
    if output == JSON:
        print_answer({"healthy": healthy, "checks": checks}, JSON)
    sys.exit(0 if healthy else 1)


def _lines(check: Check) -> list[Cell]:
    """One line where nothing was found; else one for each finding, with its cure below."""
    lines = [_line(check.mark, check.name, check.said)] if check.mark == OK else []
    for finding in check.findings:
        lines.append(_line(finding.mark, check.name, finding.what))
        if finding.cure:
            lines.append(styled(" " * (_MARK + _NAME) + "cure: " + finding.cure, "dim"))
    return lines


def _line(mark: str, name: str, said: str) -> Cell:
    return joined(styled(mark.ljust(_MARK), _COLOURS[mark]), styled(name.ljust(_NAME), "bold"), said)
