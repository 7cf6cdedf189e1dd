"""The claim protocol's repair: fills lost ledgers, and restores claims and statuses, from other evidence (claims.md).

Ownership is written in three places (the claim, the group's status, the annotations of live pods), so any one of them
can be deleted by hand and is recreated from the others. What contradicts is reported, never guessed.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import identities
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import holdings
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.holdings import Holding
from deviceshare.domain.placement.holds import hold_of, is_allocated
from deviceshare.domain.placement.rooms import used
from deviceshare.loops.kinds import GROUPS, HOLDS, NODE_DEVICES, PODS, find
from deviceshare.loops.ports import Cluster, Undecodable
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.bind import new_mark, write_claims


class Evidence(NamedTuple):
    """The groups, and then the pods of groups, as fresh lists show them. Repairs of several nodes may share one."""

    groups: list[Group]
    pods: list[Pod]


Gather = Callable[[], Awaitable[Evidence]]


async def evidence(cluster: Cluster) -> Evidence:
    """Who lives where."""
    groups = await cluster.list(GROUPS)
    return Evidence(groups, await cluster.list(PODS, label_selector=contract.GROUP))


async def fill(
    cluster: Cluster, node: str, *, gather: Gather, wait_out_binds: Callable[[str], Awaitable[None]]
) -> tuple[NodeDevices, list[Holding]]:
    """Writes the claims of all who live on the node into its new ledger, which was missing or came from elsewhere.

    It names no devices yet: nothing in it is free. An earlier one may have been lost with claims that only binds and
    updates of pods know which are under way. So where there may be any they are waited out first, by the UID of this
    very ledger. Returns the ledger, and the holdings that contradict others and were left out.

    Args:
        gather: `evidence`, or a share in one that begins after this call.
        wait_out_binds: called with the ledger's UID; returns when every bind has ended that began before this process
            saw that ledger.
    """
    # 1. Wait out binds.
    seen = await cluster.get(NODE_DEVICES, node)
    if seen.filled:
        return seen, []
    found = await gather()
    if any(pod.pending or pod.lives_on(node) for pod in found.pods):
        await wait_out_binds(seen.metadata.uid)
        found = await gather()
    # 2. Who lives here, and 3. the claims.
    claims, disputed = _held(seen, found, seen.claims)
    return await write_claims(cluster, seen, ledger.filled_patch(seen, claims)), disputed


async def restore_claims(
    cluster: Cluster, seen: NodeDevices, *, gather: Gather, wait_out_binds: Callable[[object], Awaitable[None]]
) -> NodeDevices:
    """Writes claims that can't be read again, all in one write, from what groups and live pods say that they hold.

    A CRD of an older release pruned them, or a person edited them. Nobody joins by such a claim, as if it were marked;
    so once the binds have ended that read it before, who lives nowhere holds nothing, and its claim is dropped. What
    contradicts other claims stays as it is. The arguments are as for `fill`; the wait is by these very claims.
    """
    hidden = seen.hidden_claims
    await wait_out_binds((seen.metadata.uid, hidden))
    others = {uid: claim for uid, claim in seen.claims.items() if uid not in hidden}
    held, disputed = _held(seen, await gather(), others)
    claims = {uid: held.get(uid) for uid in sorted(hidden - {holding.holder.uid for holding in disputed})}
    return await write_claims(cluster, seen, ledger.restoring_patch(seen, claims))


def _held(seen: NodeDevices, found: Evidence, claims: Mapping[str, Claim]) -> tuple[dict[str, Claim], list[Holding]]:
    """The claims of all who hold devices of the node, by these claims or by the evidence, and what contradicts others.

    A release may be under way by a mark that was lost. So groups' claims bear a new mark: collect takes it away, once
    that release can't commit any more. Raises Undecodable where what somebody holds there may be what can't be read.
    """
    node = seen.node
    for group in found.groups:
        known = group.metadata
        if known.hides("status.nodeName") or (group.node == node and known.hides("status.selectedDevices")):
            raise Undecodable(f"group {group.name} may hold devices of node {node}, but can't be read ({known.fault})")
    for pod in found.pods:
        meta = pod.metadata
        if pod.lives_on(node) and (not pod.node or meta.hides("metadata.annotations")):
            raise Undecodable(f"pod {meta.key} may hold devices of node {node}, but can't be read ({meta.fault})")
    claimed = [holdings.of_claim(uid, claim) for uid, claim in claims.items()]
    others = holdings.beside_claims(claimed, found.groups, found.pods, node)
    kept, disputed = holdings.reconcile_holdings(others, seen.present, claimed)
    tokens = {group.uid: group.status.claim_token for group in found.groups if group.node == node}
    mark = new_mark()
    return {h.holder.uid: _marked(h.claim, mark, tokens.get(h.holder.uid, "")) for h in kept}, disputed


def _marked(claim: Claim, mark: str, token: str) -> Claim:
    """With the mark, and with a new token where the group names none; a share's needs neither."""
    return claim if claim.pod else replace(claim, releasing=mark, token=token or mark)


async def readopt(cluster: Cluster, name: str) -> Group | None:
    """Restores the node of a group whose status was wiped, from its live pods and their claim; the group as written.

    None when there is nothing to repair or the pods contradict each other.
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
    claim = seen.claims.get(group.uid)
    if claim is None:
        by_claim = await _of_hold(cluster, group, seen) if group.claim else []
        claim = await cover(cluster, seen, mine, group.uid, by_claim=by_claim)
    elif claim.releasing:
        # A collector is at it and may have looked for pods already. Without the mark its last write fails; were it
        # to mark the claim again, its fence would fail our settling.
        await write_claims(cluster, seen, ledger.unmark_patch(seen, group.uid))
    return await _settle(cluster, group, node, claim) if claim else None


async def _of_hold(cluster: Cluster, group: Group, seen: NodeDevices) -> list[Holding]:
    """What the group's pods have by its ResourceClaim, which kube-scheduler allocated on the node."""
    namespace, _, name = group.claim.partition("/")
    claim = await find(cluster, HOLDS, name, namespace)
    hold = hold_of(claim, "") if claim and is_allocated(claim) else None
    if hold is None or hold.node != seen.node:
        return []
    devices = tuple(part.device for part in seen.status.published.devices if part.uuid in hold.uuids)
    return [Holding(group.holder, ledger.claim_of(group.holder, devices))] if len(devices) == len(hold.uuids) else []


async def _settle(cluster: Cluster, group: Group, node: str, claim: Claim) -> Group:
    return await holders.settle(cluster, group, node, tuple(sorted(claim.devices)), token=claim.token)


async def name_claim(cluster: Cluster, name: str) -> Group | None:
    """Writes the token of a bound group's claim into its status, where another is there, or none.

    So it is where a version of deviceshare bound the group that knows no tokens, or where somebody changed the status.
    The claim is the only one that the group has on its node, and who takes the group from there writes it first.
    Returns the group as written, or None.
    """
    group = await find(cluster, GROUPS, name)
    if group is None or not group.node:
        return None
    seen = await find(cluster, NODE_DEVICES, group.node)
    claim = seen.claims.get(group.uid) if seen else None
    if claim is None or claim.releasing or claim.token in ("", group.status.claim_token):
        return None
    return await _settle(cluster, group, group.node, claim)


async def cover(
    cluster: Cluster,
    seen: NodeDevices,
    pods: Iterable[Pod],
    uid: str,
    group: Group | None = None,
    *,
    by_claim: Sequence[Holding] = (),
) -> Claim | None:
    """Claims what live pods of the holder have on the node without a claim; None when others hold some of it.

    Where none lives there, but the `group` is bound to the node, what its status names is claimed, or nothing where
    others hold that: then it has to leave the node. A group's claim is marked, and its release decides about it.

    `pods` and `group` were read after `seen`; `by_claim` is what they have by a ResourceClaim.
    """
    here = [*by_claim, *(each for each in holdings.of_pods(pods, seen.node) if each.holder.uid == uid)]
    evidence = here or list(holdings.of_groups([group] if group else [], seen.node))
    if not evidence:
        return None
    claimed = [holdings.of_claim(each, claim) for each, claim in seen.claims.items()]
    held, disputed = holdings.reconcile_holdings(evidence, seen.present, claimed)
    others_have_it = any(each.holder.uid == uid for each in disputed)
    claim = ledger.claim_of(evidence[0].holder, ())
    if mine := [each for each in held if each.holder.uid == uid and not others_have_it and _has_room(each, seen)]:
        claim = mine[0].claim
    elif here:
        return None
    claim = _marked(claim, new_mark(), group.status.claim_token if group else "")
    await write_claims(cluster, seen, ledger.claims_patch(seen, {uid: claim}))
    return claim


def _has_room(holding: Holding, seen: NodeDevices) -> bool:
    """Whether what it has is there, where the ledger says what is, and the shares fit beside the others' on each."""
    # What a pod had before need not be there any more: that may be why it was replaced.
    there = identities((*seen.devices, *seen.kept_out))
    if seen.status.devices and not identities(map(seen.present, holding.claim.devices)) <= there:
        return False
    group = seen.claims.get(holding.claim.within)
    theirs = identities(seen.reserved(group)) if group else ()  # Elsewhere the group's shares are counted as any.
    for state in device_states(seen):
        mine = [share for share in holding.claim.shares if seen.present(share.device).identity == state.device.identity]
        within = holding.claim.within if state.device.identity in theirs else ""
        if used(mine, state.memory_mib) > state.room_within(within).free:
            return False
    return True
