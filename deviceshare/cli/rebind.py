"""`deviceshare rebind`: replaces unhealthy or lost devices of a group, or of a pod's share, by healthy ones."""

import click

from deviceshare.cli import cluster
from deviceshare.cli.completion import complete_group_or_pod
from deviceshare.cli.namespace_option import in_namespace, pod_named
from deviceshare.cli.output import say
from deviceshare.cli.rebind_pod import ask_for_pod
from deviceshare.cli.rebind_request import ANSWER_SECONDS, Asked, answered
from deviceshare.cli.retries import retry_on_conflict
from deviceshare.cli.suggestions import did_you_mean, names
from deviceshare.domain.objects.devices import Devices, described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.placement import replacement, share_replacement
from deviceshare.domain.placement.device_states import device_states, held_by
from deviceshare.domain.placement.replacement import Replacement
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES
from deviceshare.loops.ports import Cluster, NotFound


@click.command(
    short_help="Replace unhealthy devices of a group, or of a pod's share.",
    epilog="""\b
Examples:
  deviceshare rebind team-a              replace what is unhealthy, lost or given to plain pods
  deviceshare rebind pod research/embed  move the pod's share to a healthy device with room
  deviceshare inspect -d                 list the unhealthy devices
  kubectl delete pod -n research train   let a pod's successor see its new devices at once
\b
Exit codes: 0 replaced, or nothing to replace; 1 failed, no such group, or no healthy device is free on its node,
or none has room; 2 wrong flags.""",
)
@click.argument(
    "name", nargs=-1, required=True, metavar="GROUP | pod [NAMESPACE/]NAME", shell_complete=complete_group_or_pod
)
@in_namespace
@cluster.options
def rebind(target: cluster.Target, name: tuple[str, ...], namespace: str | None) -> None:
    """Replace devices of GROUP that are unhealthy or lost, or that the device plugin gave or may give to plain pods.

    They are replaced by healthy ones of the same node. The others stay. Shares that the group's pods have of its
    devices move with them. With `pod`, this pod's share moves from such devices to healthy ones that have room for it.

    Containers see their new devices when they restart; where devices are injected by CDI, pods have to be recreated.
    What a pod had before stays reserved until the pod has ended.
    """
    if len(name) == 1:
        say(target.ask(lambda api: ask(api, name[0])))
        return
    if len(name) > 2 or name[0] != "pod":
        raise click.UsageError("Name a group, or a pod as pod NAMESPACE/NAME.")
    within, pod = pod_named(name[1], namespace, target)
    say(target.ask(lambda api: ask_for_pod(api, within, pod)))


async def ask(api: Cluster, name: str, *, seconds: float = ANSWER_SECONDS) -> str:
    """Requests a rebind of the group, and returns the outcome as a sentence.

    Raises:
        ClickException: the devices were not replaced; the text says why and what to do.
        ApiError: a request failed.
    """
    before, verdict = await retry_on_conflict(lambda: _request(api, name))
    if not verdict.broken:
        return f"All devices of group {name} are healthy: it keeps {described(before.claim.devices)} on {before.node}."
    if verdict.obstacle:
        raise click.ClickException(f"Group {name} {verdict.obstacle}: {_cure(before)}")
    after = await answered(
        lambda: _look(api, name),
        verdict.broken,
        who=f"group {name}",
        keeps="",
        outcome=f"kubectl describe sdg {name}",
        seconds=seconds,
    )
    return _outcome(after, verdict.broken)


async def _request(api: Cluster, name: str) -> tuple[Asked[Group], Replacement]:
    """Requests other devices from the leader, if any are free; returns the group as it was before."""
    seen = await _look(api, name)
    verdict = share_replacement.judge_group(seen.ledger, seen.by.uid)
    if verdict.replacements:
        await api.patch(GROUPS, name, seen.request)
    return seen, verdict


async def _look(api: Cluster, name: str) -> Asked[Group]:
    try:
        group = await api.get(GROUPS, name)
    except NotFound:
        near = did_you_mean(name, await names(api, GROUPS))
        raise click.ClickException(f"There is no group {name}; see them with kubectl get sdg{near}") from None
    if not group.node:
        raise click.ClickException(f"Group {name} holds no devices yet; see why with deviceshare explain group {name}")
    try:
        ledger = await api.get(NODE_DEVICES, group.node)
    except NotFound:
        ledger = NodeDevices()
    claim = ledger.claims.get(group.uid)
    if claim is None:
        raise click.ClickException(
            f"The claim of group {name} on node {group.node} is missing and is restored from its pods; without any the"
            f" group leaves the node. Retry once deviceshare inspect {group.node} shows it"
        )
    return Asked(group, ledger, claim)


def _outcome(after: Asked[Group], broken: Devices) -> str:
    now = described(after.claim.devices)
    lines = [f"Group {after.by.name} now holds {now} on {after.node}, and no longer {described(broken)}."]
    if pods := after.by.status.allocated_pods:
        if replacement.by_cdi(after.ledger, after.claim.devices):
            lines.append(
                "Its pods keep what they had, also when their containers restart, since devices are injected by CDI."
                " Recreate them; what they had stays reserved until they have ended:"
            )
        else:
            lines.append(
                "Containers see that when they restart. What these pods had before stays reserved until they have"
                " ended:"
            )
        lines += (f"  {pod}" for pod in pods)
    return "\n".join(lines)


def _cure(seen: Asked[Group]) -> str:
    mine = held_by(device_states(seen.ledger), seen.by.uid)
    names = " ".join(each.device.uuid or str(each.device.index) for each in mine if each.unhealthy)
    recover = f", or repair one and report it with deviceshare recover {seen.ledger.node} {names}" if names else ""
    return f"free a device{recover}"
