"""The claim protocol's repair: recreates lost ledgers and statuses from other evidence (claims.md, repair).

Ownership is written in three places (the claim, the group's status, the annotations of live pods), so any one of them
can be deleted by hand and is recreated from the others. What contradicts is reported, never guessed.
"""

from collections.abc import Awaitable, Callable, Container, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.ledger_status import devices_patch
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Devices, identities
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.holdings import Holding, all_holdings, of_claim, of_pods, reconcile_holdings
from deviceshare.domain.placement.rooms import used
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, Conflict, NotFound, Undecodable
from deviceshare.loops.protocol import holders


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
    cluster: Cluster, node: Node, *, gather: Gather, mark: str, wait_out_binds: Callable[[], Awaitable[None]]
) -> Recreated:
    """Creates the node's ledger, with the claims of groups bound there and of live pods in the same write.

    A release may be under way of a group that was bound there, by an earlier mark that was lost with the ledger. So
    groups' claims bear the new `mark` from the start: collect takes it away, once that release can't commit any more.
    A node without a UID is gone, and its ledger has no owner.

    A bind may be under way that claimed in the ledger that was lost. Those of unbound groups are fenced off: `gather`
    is `fenced_evidence`, or a share in one that begins after this call. What nothing fences is waited out: binds of
    groups that are gone, of pods with shares, and of groups and shares that were rebound, since they, and leaders that
    update pods, may have read other devices in the ledger than anything else names.

    Raises:
        AlreadyExists: somebody else created it.
        ApiError: a request failed; retry.
    """
    name = node.metadata.name
    groups, pods = await gather()
    known = {group.name for group in groups}
    unfenced = any(_unfenced(pod, known, name) for pod in pods)
    rebound = any(group.rebind and group.node == name for group in groups)
    if unfenced or rebound or any(pod.rebind and pod.lives_on(name) for pod in pods):
        await wait_out_binds()
        pods = await cluster.list(PODS, label_selector=contract.GROUP)
    _refuse_hidden(groups, pods, name)
    kept, disputed = reconcile_holdings(all_holdings([], groups, pods, name))
    tokens = {group.uid: group.status.claim_token for group in groups if group.node == name}
    claims = {h.holder.uid: _marked(h.claim, mark, tokens.get(h.holder.uid, mark)) for h in kept}
    body = ledger.new_ledger(node, claims)
    return Recreated(await cluster.create(NODE_DEVICES, body), disputed)


def _marked(claim: Claim, mark: str, token: str) -> Claim:
    return claim if claim.pod else replace(claim, releasing=mark, token=token)


async def open_ledger(cluster: Cluster, node: str, devices: Devices, *, gather: Gather, mark: str) -> list[Holding]:
    """Writes which devices the node has into a ledger that names none yet; from then on binders can claim them.

    Until then the ledger is closed: nothing is free, so nothing that the evidence of a moment ago left out can have
    gone to somebody else. It is looked at once more, and only then, if nobody wrote the ledger meanwhile, opened.
    `gather` is `evidence`, or a share in one that begins after this call. Claims of groups that are added bear the
    `mark`, as in a recreated ledger, and for the same reason.

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
    claims = [of_claim(uid, claim) for uid, claim in seen.claims.items()]
    kept, disputed = reconcile_holdings(all_holdings(claims, groups, pods, node), present=seen.present)
    tokens = {group.uid: group.status.claim_token for group in groups if group.node == node}
    for holding in kept:
        uid = holding.holder.uid
        claim = seen.claims.get(uid)
        if claim is None:
            patch = ledger.claim_patch(seen, uid, _marked(holding.claim, mark, tokens.get(uid, mark)))
        elif holding.shares and len(holding.shares) > len(claim.shares):
            patch = ledger.claim_patch(seen, uid, replace(claim, shares=list(holding.shares)))
        elif len(holding.former) > len(claim.former) and not holding.shares:
            patch = ledger.former_patch(seen, uid, holding.former)
        else:
            continue
        seen = await cluster.patch(NODE_DEVICES, node, patch)
    await cluster.patch(NODE_DEVICES, node, devices_patch(seen, devices), subresource="status")
    return disputed


async def restore_claims(
    cluster: Cluster, seen: NodeDevices, *, gather: Gather, mark: str, wait_out_binds: Callable[[], Awaitable[None]]
) -> NodeDevices:
    """Writes claims that can't be read again, all in one write, from what groups and live pods say that they hold.

    A CRD of an older release pruned them, or a person edited them. Nobody joins by such a claim, as if it were marked;
    so once the binds have ended that read it before, and unbound groups were fenced (`gather` is `fenced_evidence`, or
    a share in one that begins after this call), who lives nowhere holds nothing, and its claim is dropped. Groups'
    claims bear the `mark`, as in a recreated ledger. What contradicts other claims stays as it is.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    await wait_out_binds()
    hidden = seen.hidden_claims
    groups, pods = await gather()
    _refuse_hidden(groups, pods, seen.node)
    others = [of_claim(uid, claim) for uid, claim in seen.claims.items() if uid not in hidden]
    kept, disputed = reconcile_holdings(all_holdings(others, groups, pods, seen.node), seen.present)
    tokens = {group.uid: group.status.claim_token for group in groups if group.node == seen.node}
    held = {h.holder.uid: _marked(h.claim, mark, tokens.get(h.holder.uid, mark)) for h in kept}
    claims = {uid: held.get(uid) for uid in sorted(hidden - {holding.holder.uid for holding in disputed})}
    return await cluster.patch(NODE_DEVICES, seen.node, ledger.restoring_patch(seen, claims))


async def readopt(cluster: Cluster, name: str, *, token: str) -> Group | None:
    """Restores the node of a group whose status was wiped, from its live pods and their claim.

    A claim that has to be written gets the `token`, which was never written before.

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
        return await holders.settle(cluster, group, node, tuple(sorted(claim.devices)), claim.token)
    covered = await cover(cluster, seen, mine, group.uid, token=token)
    return await holders.settle(cluster, group, node, covered, token) if covered else None


async def name_claim(cluster: Cluster, name: str) -> Group | None:
    """Writes the token of a bound group's claim into its status, where another is there, or none.

    So it is where a version of deviceshare bound the group that knows no tokens, or where somebody changed the status.
    The claim is the only one that the group has on its node, and who takes the group from there writes it first.

    Returns:
        The group as written, or None when there is nothing to write.

    Raises:
        Conflict: somebody else wrote G; retry.
        ApiError: a request failed; retry.
    """
    group = await find(cluster, GROUPS, name)
    if group is None or not group.node:
        return None
    seen = await find(cluster, NODE_DEVICES, group.node)
    claim = seen.claims.get(group.uid) if seen else None
    if claim is None or claim.releasing or claim.token in ("", group.status.claim_token):
        return None
    return await holders.settle(cluster, group, group.node, tuple(sorted(claim.devices)), claim.token)


async def cover(cluster: Cluster, seen: NodeDevices, pods: Iterable[Pod], uid: str, *, token: str) -> Devices:
    """Claims what live pods of the holder have on the node without a claim; empty when others hold some of it.

    `token`: of the claim that the group's status names, or one that was never written before.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    mine = [each for each in of_pods(pods, seen.node) if each.holder.uid == uid]
    holdings, disputed = reconcile_holdings(mine, seen.present)
    if len(holdings) != 1 or disputed:
        return ()
    [holding] = holdings
    devices, former = holding.devices, holding.former
    # What a pod had before need not be there any more: that may be why it was replaced.
    there = identities((*seen.devices, *seen.kept_out))
    others = (of_claim(each, claim) for each, claim in seen.claims.items())
    taken = {
        seen.present(device).identity
        for other in others
        if other.owner != holding.owner and other.holder.uid != holding.within
        for device in (*other.devices, *other.former)
    }
    wanted, before = identities(map(seen.present, devices)), identities(map(seen.present, former))
    if not wanted <= there - taken or not taken.isdisjoint(before) or not _has_room(holding, seen):
        return ()
    claim = holding.claim if holding.shares else replace(holding.claim, token=token)
    await cluster.patch(NODE_DEVICES, seen.node, ledger.claim_patch(seen, uid, claim))
    return devices


def _has_room(holding: Holding, seen: NodeDevices) -> bool:
    """Whether the shares fit beside the others' on each device."""
    for state in device_states(seen):
        mine = [share for share in holding.shares if seen.present(share.device).identity == state.device.identity]
        if used(mine, state.memory_mib) > state.room_within(holding.within).free:
            return False
    return True


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


def _unfenced(pod: Pod, groups: Container[str], node: str) -> bool:
    """Whether a bind of the pod may be under way that no group's fence stops."""
    if pod.pending:
        return bool(pod.share) or pod.group not in groups
    return bool(pod.group) and pod.group not in groups and pod.lives and pod.node == node
