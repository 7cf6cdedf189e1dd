"""The claim protocol's repair: fills lost ledgers, and restores claims and statuses, from other evidence (claims.md).

Ownership is written in three places (the claim, the group's status, the annotations of live pods), so any one of them
can be deleted by hand and is recreated from the others. What contradicts is reported, never guessed.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Devices, identities
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.holdings import (
    Holding,
    all_holdings,
    of_claim,
    of_groups,
    of_pods,
    reconcile_holdings,
)
from deviceshare.domain.placement.rooms import used
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, Undecodable
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.claiming import write_claims


class Evidence(NamedTuple):
    """The groups, and then the pods of groups, as fresh lists show them. Repairs of several nodes may share one."""

    groups: list[Group]
    pods: list[Pod]


Gather = Callable[[], Awaitable[Evidence]]


async def evidence(cluster: Cluster) -> Evidence:
    """Who lives where; raises ApiError."""
    groups = await cluster.list(GROUPS)
    return Evidence(groups, await cluster.list(PODS, label_selector=contract.GROUP))


async def fill(
    cluster: Cluster, node: str, *, gather: Gather, mark: str, wait_out_binds: Callable[[str], Awaitable[None]]
) -> tuple[NodeDevices, list[Holding]]:
    """Writes the claims of all who live on the node into its new ledger, which was missing or came from elsewhere.

    It names no devices yet: nothing in it is free. An earlier one may have been lost with claims that only binds and
    updates of pods know which are under way. So where there may be any they are waited out first, by the UID of this
    very ledger. `gather` is `evidence`, or a share in one that begins after this call.

    A release may be under way by a mark that was lost. So groups' claims bear the new `mark`: collect takes it away,
    once that release can't commit any more.

    Args:
        wait_out_binds: called with the ledger's UID; returns when every bind has ended that began before this process
            saw that ledger.

    Returns:
        The ledger, and the holdings that contradict others and were left out.

    Raises:
        NotFound: the ledger is gone again.
        Conflict: somebody else wrote it; retry.
        ApiError: a request failed; retry.
    """
    seen = await cluster.get(NODE_DEVICES, node)
    if seen.filled:
        return seen, []
    groups, pods = await gather()
    if any(pod.pending or pod.lives_on(node) for pod in pods):
        await wait_out_binds(seen.metadata.uid)
        groups, pods = await gather()
    _refuse_hidden(groups, pods, node)
    claims = [of_claim(uid, claim) for uid, claim in seen.claims.items()]
    kept, disputed = reconcile_holdings(all_holdings(claims, groups, pods, node), present=seen.present)
    tokens = {group.uid: group.status.claim_token for group in groups if group.node == node}
    found = {each.holder.uid: each for each in kept}
    filled = {uid: _marked(each.claim, mark, tokens.get(uid) or mark) for uid, each in found.items()}
    return await write_claims(cluster, seen, ledger.filled_patch(seen, filled)), disputed


def _marked(claim: Claim, mark: str, token: str) -> Claim:
    return claim if claim.pod else replace(claim, releasing=mark, token=token)


async def restore_claims(
    cluster: Cluster, seen: NodeDevices, *, gather: Gather, mark: str, wait_out_binds: Callable[[], Awaitable[None]]
) -> NodeDevices:
    """Writes claims that can't be read again, all in one write, from what groups and live pods say that they hold.

    A CRD of an older release pruned them, or a person edited them. Nobody joins by such a claim, as if it were marked;
    so once the binds have ended that read it before (`gather` is `evidence`, or a share in one that begins after this
    call), who lives nowhere holds nothing, and its claim is dropped. Groups'
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
    return await write_claims(cluster, seen, ledger.restoring_patch(seen, claims))


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
            await write_claims(cluster, seen, ledger.unmark_patch(seen, group.uid))
        return await holders.settle(cluster, group, node, tuple(sorted(claim.devices)), token=claim.token)
    covered = await cover(cluster, seen, mine, group.uid, token=token, mark=token)
    return await holders.settle(cluster, group, node, covered, token=token) if covered else None


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
    return await holders.settle(cluster, group, group.node, tuple(sorted(claim.devices)), token=claim.token)


async def cover(
    cluster: Cluster,
    seen: NodeDevices,
    pods: Iterable[Pod],
    uid: str,
    *,
    token: str,
    mark: str,
    group: Group | None = None,
) -> Devices:
    """Claims what live pods of the holder have on the node without a claim; empty when others hold some of it.

    Where none lives there, but the `group` is bound to the node, what its status names is claimed, or nothing where
    others hold that: then it has to leave the node. A group's claim bears the `mark`, and collect decides about it.

    `pods` and `group` were read after `seen`. `token`: of the claim that the group's status names, or one that was
    never written before.

    Raises:
        Conflict: somebody else wrote the ledger; retry.
        ApiError: a request failed; retry.
    """
    here = [each for each in of_pods(pods, seen.node) if each.holder.uid == uid]
    evidence = here or list(of_groups([group] if group else [], seen.node))
    holdings, disputed = reconcile_holdings(evidence, seen.present)
    if len(holdings) != 1 or disputed:
        return ()
    [holding] = holdings
    if not _free(holding, seen):
        if here:
            return ()
        holding = Holding(holding.holder, ())
    await write_claims(cluster, seen, ledger.claim_patch(seen, uid, _marked(holding.claim, mark, token)))
    return holding.devices


def _free(holding: Holding, seen: NodeDevices) -> bool:
    """Whether nobody else has any of it; and it is there, where the ledger says what is."""
    # What a pod had before need not be there any more: that may be why it was replaced.
    there = identities((*seen.devices, *seen.kept_out))
    others = (of_claim(each, claim) for each, claim in seen.claims.items())
    taken = {
        seen.present(device).identity
        for other in others
        if other.owner != holding.owner and other.holder.uid != holding.within
        for device in (*other.devices, *other.former)
    }
    wanted = identities(map(seen.present, holding.devices))
    before = identities(map(seen.present, holding.former))
    known = wanted <= there or not seen.status.devices
    return known and taken.isdisjoint(wanted | before) and _has_room(holding, seen)


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
