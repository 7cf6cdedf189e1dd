"""What must hold at every moment, whoever was killed just now (design.md, decision 2), judged on plain lists.

The lists are read one after another, so their order matters: a pod's claim is there before the pod has its node, and a
group says that it's bound after its claim was written. Neither goes while the pod lives.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from deviceshare.domain.contract import GROUP
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.replacement import covers
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS


class Snapshot(NamedTuple):
    """Groups by UID, live pods of groups, ledgers by node; read in this order."""

    groups: dict[str, Group]
    pods: list[Pod]
    ledgers: dict[str, NodeDevices]


async def snapshot(api: Api) -> Snapshot:
    """Reads everything, past every cache."""
    groups = {group.uid: group for group in await api.list(GROUPS)}
    pods = [pod for pod in await api.list(PODS) if pod.group and pod.lives]
    ledgers = {ledger.node: ledger for ledger in await api.list(NODE_DEVICES)}
    return Snapshot(groups, pods, ledgers)


def violations(seen: Snapshot) -> list[str]:
    """Every invariant that doesn't hold, with the particulars; empty when all is well."""
    return [*_claims(seen.ledgers.values()), *_bound_groups(seen), *_pods(seen)]


def _claims(ledgers: Iterable[NodeDevices]) -> Iterable[str]:
    for ledger in ledgers:
        owners: dict[Device, str] = {}
        for uid, claim in ledger.claims.items():
            for device in ledger.reserved(claim):
                other = owners.setdefault(device, uid)
                if other != uid and not _shared(ledger, uid, other):
                    yield f"{ledger.node}: {device} is in the claims of {other} and {uid}"


def _shared(ledger: NodeDevices, *uids: str) -> bool:
    """Whether two claims are parts of one device, or one of them of the other's devices."""
    one, other = (ledger.claims[uid] for uid in uids)
    return bool(one.shares and other.shares) or one.within == uids[1] or other.within == uids[0]


def _bound_groups(seen: Snapshot) -> Iterable[str]:
    for group in seen.groups.values():
        if group.deleting:  # Its last status stays when its claim has gone; that no pod lives on it, `_pods` finds.
            continue
        if group.status.phase == "Bound" and group.uid not in seen.ledgers[group.node].claims:
            yield f"group {group.name} says it is bound to {group.node}, where it has no claim"


def _pods(seen: Snapshot) -> Iterable[str]:
    homes: dict[str, set[str]] = defaultdict(set)
    users: dict[tuple[str, Device], set[str]] = defaultdict(set)
    for pod in seen.pods:
        key = pod.metadata.key
        if not pod.injected or pod.metadata.labels.get(GROUP) != pod.group:
            yield f"{key} was bound, though the webhook never saw it"
        ledger = seen.ledgers[pod.node]
        claim = ledger.claims.get(pod.holder_uid)
        if claim is None:
            yield f"{key} lives on {pod.node}, where its group {pod.group} has no claim"
        elif not covers(ledger, claim, pod.received):
            yield f"{key} was given {pod.received}, but the claim of its group has {claim}"
        elif sorted(pod.devices) != sorted(claim.devices) and not claim.rebound:
            yield f"{key} was told {pod.devices}, but the claim of its group has {claim.devices} and was never rebound"
        homes[pod.holder_uid].add(pod.node)
        for device in pod.received:
            users[pod.node, device].add(pod.holder_uid)
    yield from (f"group {uid} lives on {sorted(nodes)}" for uid, nodes in homes.items() if len(nodes) > 1)
    yield from (
        f"{node}: {device} is used by {len(uids)} groups" for (node, device), uids in users.items() if len(uids) > 1
    )
