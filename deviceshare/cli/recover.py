"""`deviceshare recover NODE DEVICE…`: reports unhealthy devices as repaired, so that they are allocated again."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import click

from deviceshare.cli.cluster import OUTCOME_SECONDS, Target, deleted, poll, retry_on_conflict
from deviceshare.cli.output import say
from deviceshare.cli.parameters import complete_nodes, named_object, on_cluster
from deviceshare.domain import contract
from deviceshare.domain.device_health.examination import finding, reported_repaired
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import NODE_DEVICES, annotate
from deviceshare.loops.ports import Cluster, Forbidden, NotFound

_AGENTS: Final = f"kubectl get pods -A -l app.kubernetes.io/name={contract.AGENT}"


@click.command(
    short_help="Report that unhealthy devices were repaired.",
    epilog="""\b
Examples:
  deviceshare recover node-1 3           GPU 3 of node-1 was repaired
  deviceshare recover node-1 0 GPU-8f6e  several at once, by number or UUID
  deviceshare inspect node-1             see which are unhealthy, and why

\b
Exit codes: 0 allocatable again; 1 failed, no such device, or it is not marked unhealthy; 2 wrong flags.""",
)
@click.argument("node", shell_complete=complete_nodes)
@click.argument("devices", metavar="DEVICE...", nargs=-1, required=True)
@on_cluster
def recover(target: Target, node: str, devices: tuple[str, ...]) -> None:
    """Have the agent of NODE lift the marks of unhealthy DEVICEs, named by number or UUID.

    The errors found so far are then regarded as repaired. An error that recurs marks the device again.

    The ClusterRole deviceshare-recover permits it: writes to the status of NodeDevices, not to claims.
    """
    for line in target.ask(lambda api: lift(api, node, devices)):
        say(line)


async def lift(api: Cluster, node: str, names: Sequence[str]) -> list[str]:
    """Requests that the agent lifts the marks of the named devices, and returns a line for each.

    Raises ApiError, and ClickException where the marks were not lifted, which says why and what to do.
    """
    parts, asked = await retry_on_conflict(lambda: _annotate(api, node, names))
    findings = {finding(part) for part in parts}

    async def look() -> bool | None:
        left = {finding(part) for part in (await _ledger(api, node, asked)).status.hardware.devices if part.unhealthy}
        return True if left.isdisjoint(findings) else None

    if not await poll(look, doing=f"Waiting for the agent of node {node}"):
        silent = f"The agent of node {node} has not lifted the mark within {OUTCOME_SECONDS:g} s. It will when it runs"
        raise click.ClickException(f"{silent}; see it with {_AGENTS} --field-selector spec.nodeName={node}")
    again = f"of node {node} can be allocated again"
    return [f"{part.resource} {part.index} {again} (it was: {part.unhealthy})." for part in parts]


async def _annotate(api: Cluster, node: str, names: Sequence[str]) -> tuple[list[Part], str]:
    """The devices of these names, and the UID of the ledger in which their repair is now reported."""
    seen = await _ledger(api, node)
    parts = [_marked(seen.status.hardware, node, name) for name in names]
    # Keep recoveries reported earlier as long as the finding that they name stands.
    standing = {finding(part) for part in seen.status.hardware.devices if part.unhealthy}
    recovered = sorted(reported_repaired(seen) & standing | {finding(part) for part in parts})
    written: NodeDevices | None = None
    with suppress(NotFound):
        try:  # agents of earlier releases read the annotation, too
            written = await annotate(api, seen, {contract.RECOVERED: ",".join(recovered)})
        except Forbidden:  # who may not write claims may still report a repair
            read = {"resourceVersion": seen.metadata.resource_version}
            reported = {"metadata": read, "status": {"recovered": recovered}}
            written = await api.patch(NODE_DEVICES, node, reported, subresource="status")
    if written is None:
        raise _deleted(node)
    return parts, written.metadata.uid


def _deleted(node: str) -> click.ClickException:
    return deleted(f"The NodeDevices of node {node}", f"deviceshare inspect {node}")


async def _ledger(api: Cluster, node: str, uid: str = "") -> NodeDevices:
    """The node's ledger; raises ClickException where there is none, it has another UID, or no agent reports in it."""
    missing = f"{node} is not a shared node; see them with deviceshare inspect"
    seen = await named_object(api, NODE_DEVICES, node, missing=missing)
    if uid not in ("", seen.metadata.uid):
        raise _deleted(node)
    if not seen.status.hardware.devices:
        nobody = f"No agent reports on node {node}, so none of its devices is marked"
        raise click.ClickException(f"{nobody}; see whether one should with {_AGENTS} -o wide")
    return seen


def _marked(hardware: Hardware, node: str, name: str) -> Part:
    """The unhealthy device of this number or UUID. A lost device and a present one may have the same number."""
    named = [part for part in hardware.devices if name in (part.uuid, str(part.index))]
    marked = [part for part in named if part.unhealthy]
    if len(marked) == 1:
        return marked[0]
    look = f"see them with deviceshare inspect {node}"
    if not named:
        raise click.ClickException(f"Node {node} has no device {name}; {look}")
    if not marked:
        raise click.ClickException(f"{named[0].resource} {named[0].index} of node {node} is healthy; {look}")
    several = f"Several unhealthy devices of node {node} have the number {name}; name one by UUID:"
    raise click.ClickException(f"{several} {listed((part.uuid for part in marked), link='or')}")
