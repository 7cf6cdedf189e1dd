"""The claim protocol's repair: recreates lost ledgers and statuses from other evidence (claims.md, repair).

Ownership is written in three places (the claim, the group's status, the annotations of live pods), so any one of them
can be deleted by hand and is recreated from the others. What contradicts is reported, never guessed.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from deviceshare.domain import contract
from deviceshare.domain.answers.ledger_status import devices_patch
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Device, Devices, Identity, identities, parse_selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.requests import Holder
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, Conflict, NotFound, Undecodable
from deviceshare.loops.protocol import holders


class Holding(NamedTuple):
    """Devices that somebody holds by the evidence of a claim, a group's status or a live pod.

    `former` were replaced by a rebind, and pods may hold them still.
    """

    holder: Holder
    devices: Devices
    former: Devices = ()


class Recreated(NamedTuple):
    """A recreated ledger, and the holdings that contradict it and were left out."""

    ledger: NodeDevices
    disputed: list[Holding]


class Evidence(NamedTuple):
    """The groups, and then the pods of groups, as fresh lists show them. Repairs of several nodes may share one."""

    groups: list[Group]
    pods: list[Pod]


Gather = Callable[[], Awaitable[Evidence]]


async def evidence(cluster: Cluster) -> Evidence:
    """Who lives where; raises ApiError."""
    groups = await cluster.list(GROUPS)
    return Evidence(groups, await cluster.list(PODS, label_selector=contract.GROUP))


async def fenced_evidence(cluster: Cluster) -> Evidence:
    """The same, with every bind made to fail that read an unbound group before this call.

    Where somebody writes a group between our LIST and our fence, that write has made those binds fail. So no group is
    fenced twice, and hundreds that are written all the time don't keep a node from its ledger. Raises ApiError.
    """
    groups = [await _fenced(cluster, group) for group in await cluster.list(GROUPS)]
    return Evidence(
        [group for group in groups if group is not None], await cluster.list(PODS, label_selector=contract.GROUP)
    )


async def _fenced(cluster: Cluster, group: Group) -> Group | None:
    """The group with a version newer than `group`, by our write or by another's; None when it is gone.

    A bound one is as it is. One that can't be read is bound by nobody, and a bind that read it before loses to who made
    it so.
    """
    if group.node or group.metadata.unreadable:
        return group
    try:
        return await holders.fence(cluster, group)
    except NotFound:
        return None
    except Conflict:
        # It may just have been bound: what it says now counts.
        return await find(cluster, GROUPS, group.name)


async def recreate(
    cluster: Cluster, node: Node, *, gather: Gather, wait_out_binds: Callable[[], Awaitable[None]]
) -> Recreated:
    """Creates the node's ledger, with the claims of groups bound there and of live pods in the same write.

    A bind may be under way that claimed in the ledger that was lost. Those of unbound groups are fenced off: `gather`
    is `fenced_evidence`, or a share in one that begins after this call. Those of groups that are gone are waited out,
    since there is nothing left to fence; and so are those of groups that were rebound: they, and leaders that update
    pods, may have read other devices in the ledger than anything else names.

    Raises:
        AlreadyExists: somebody else created it.
        ApiError: a request failed; retry.
    """
    name = node.metadata.name
    groups, pods = await gather()
    known = {group.name for group in groups}
    gone = any(pod.group not in known for pod in pods if pod.pending or (pod.lives and pod.node == name))
    if gone or any(group.rebind and group.node == name for group in groups):
        await wait_out_binds()
        pods = await cluster.list(PODS, label_selector=contract.GROUP)
    _refuse_hidden(groups, pods, name)
    kept, disputed = reconcile_holdings(_all_holdings([], groups, pods, name))
    body = ledger.new_ledger(node, {h.holder.uid: ledger.claim_of(*h) for h in kept})
    return Recreated(await cluster.create(NODE_DEVICES, body), disputed)


async def open_ledger(cluster: Cluster, node: str, devices: Devices, *, gather: Gather) -> list[Holding]:
    """Writes which devices the node has into a ledger that names none yet; from then on binders can claim them.

    Until then the ledger is closed: nothing is free, so nothing that the evidence of a moment ago left out can have
    gone to somebody else. It is looked at once more, and only then, if nobody wrote the ledger meanwhile, opened.
    `gather` is `evidence`, or a share in one that begins after this call.

    Returns:
        The holdings that contradict the claims.

    Raises:
        NotFound: the ledger is gone again.
        Conflict: somebody else wrote it; retry.
        ApiError: a request failed; retry.
    """
    seen = await cluster.get(NODE_DEVICES, node)
    groups, pods = await gather()
    _refuse_hidden(groups, pods, node)
    claims = [Holding(c.holder(uid), tuple(c.devices), tuple(c.former)) for uid, c in seen.claims.items()]
    kept, disputed = reconcile_holdings(_all_holdings(claims, groups, pods, node), present=seen.present)
    for holding in kept:
        uid = holding.holder.uid
        claim = seen.claims.get(uid)
        if claim is None:
            patch = ledger.claim_patch(seen, uid, ledger.claim_of(*holding))
        elif len(holding.former) > len(claim.former):
            patch = ledger.former_patch(seen, uid, holding.former)
        else:
            continue
        seen = await cluster.patch(NODE_DEVICES, node, patch)
    await cluster.patch(NODE_DEVICES, node, devices_patch(seen, devices), subresource="status")
    return disputed


async def readopt(cluster: Cluster, name: str) -> Group | None:
    """Restores the node of a group whose status was wiped, from its live pods and their claim.

    Returns:
        The group as written, or None when there is nothing to repair or the pods contradict each other.

    Raises:
        Conflict: somebody else wrote G or L; retry.
        ApiError: a request failed; retry.
    """
    group = await find(cluster, GROUPS, name)
    if group is None or group.node or group.deleting:
        return None
    pods = await holders.pods(cluster, group.holder)
    mine = [pod for pod in pods if pod.holds(group.uid, pod.node)]
    homes = {pod.node for pod in mine}
    if len(homes) != 1 or any(pod.metadata.hides("metadata.annotations") for pod in mine):
        return None
    node = homes.pop()
    seen = await find(cluster, NODE_DEVICES, node)
    if seen is None:
        return None
    if (claim := seen.claims.get(group.uid)) is not None:
        if claim.releasing:
            # A collector is at it and may have looked for pods already. Without the mark its last write fails; were it
            # to mark the claim again, its fence would fail our settling.
            await cluster.patch(NODE_DEVICES, node, ledger.unmark_patch(seen, group.uid))
        return await holders.settle(cluster, group, node, tuple(sorted(claim.devices)))
    covered = await cover(cluster, seen, mine)
    return await holders.settle(cluster, group, node, covered) if covered else None


async def cover(cluster: Cluster, seen: NodeDevices, pods: Iterable[Pod]) -> Devices:
    """Claims what live pods of one holder have on the node without a claim; empty when others hold some of it.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    holdings, disputed = reconcile_holdings(_of_pods(pods, seen.node), seen.present)
    if len(holdings) != 1 or disputed:
        return ()
    [(holder, devices, former)] = holdings
    # What a pod had before need not be there any more: that may be why it was replaced.
    there, taken = identities((*seen.devices, *seen.kept_out)), identities(seen.claimed())
    wanted, before = identities(map(seen.present, devices)), identities(map(seen.present, former))
    if not wanted <= there - taken or not taken.isdisjoint(before):
        return ()
    await cluster.patch(NODE_DEVICES, seen.node, ledger.claim_patch(seen, holder.uid, ledger.claim_of(*holdings[0])))
    return devices


def _refuse_hidden(groups: Iterable[Group], pods: Iterable[Pod], node: str) -> None:
    """Raises Undecodable, naming the object, where what somebody holds on the node may be what can't be read."""
    for group in groups:
        meta = group.metadata
        if meta.hides("status.nodeName") or (group.node == node and meta.hides("status.selectedDevices")):
            raise Undecodable(f"group {group.name} may hold devices of node {node}, but can't be read ({meta.fault})")
    for pod in pods:
        meta = pod.metadata
        if pod.lives_on(node) and (not pod.node or meta.hides("metadata.annotations")):
            raise Undecodable(f"pod {meta.key} may hold devices of node {node}, but can't be read ({meta.fault})")


_BY_NUMBER = NodeDevices().present
"""As in a ledger that is gone: it has no UUIDs."""


def reconcile_holdings(
    holdings: Iterable[Holding], present: Callable[[Device], Device] = _BY_NUMBER
) -> tuple[list[Holding], list[Holding]]:
    """Joins the holdings of each holder, earlier evidence first, and sets aside what would give a device two owners.

    `present` says which device is meant (NodeDevices.present): a reboot may have changed the numbers since.
    """
    kept: dict[str, list[Holding]] = {}
    owners: dict[Identity, str] = {}
    disputed = []
    for holding in holdings:
        meant = identities(present(device) for device in (*holding.devices, *holding.former))
        if any(owners.get(device, holding.holder.uid) != holding.holder.uid for device in meant):
            disputed.append(holding)
            continue
        kept.setdefault(holding.holder.uid, []).append(holding)
        owners.update(dict.fromkeys(meant, holding.holder.uid))
    return [_joined(mine, present) for mine in kept.values()], disputed


def _joined(holdings: list[Holding], present: Callable[[Device], Device]) -> Holding:
    """One holding with the devices of one of these, and all others as former.

    They differ when a rebind was under way. Its newest devices are those that nobody had to give up yet.
    """
    given_up = {present(device) for holding in holdings for device in holding.former}
    current = (h for h in holdings if h.devices and given_up.isdisjoint(map(present, h.devices)))
    newest = next(current, holdings[0])
    every = {present(device): device for holding in holdings for device in (*holding.devices, *holding.former)}
    for device in newest.devices:
        every.pop(present(device), None)
    return newest._replace(former=tuple(sorted(every.values())))


def _all_holdings(claims: list[Holding], groups: Iterable[Group], pods: Iterable[Pod], node: str) -> list[Holding]:
    """All evidence for the node. A group's status names no UUIDs, so it counts only where nothing else is evidence."""
    named = [*claims, *_of_pods(pods, node)]
    known = {holding.holder.uid for holding in named}
    return [*named, *(holding for holding in _of_groups(groups, node) if holding.holder.uid not in known)]


def _of_groups(groups: Iterable[Group], node: str) -> Iterable[Holding]:
    for group in groups:
        if group.node == node:
            try:
                yield Holding(group.holder, parse_selected(group.status.selected_devices))
            except ValueError:
                continue  # Somebody edited the status by hand; the pods' annotations still speak for the group.


def _of_pods(pods: Iterable[Pod], node: str) -> Iterable[Holding]:
    for pod in pods:
        if pod.lives and pod.node == node and pod.holder_uid and pod.devices and not pod.impostor:
            yield Holding(pod.holder, pod.devices, pod.former)
