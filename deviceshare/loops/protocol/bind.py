"""The claim protocol's bind: devices for groups and shares, and a Binding for each pod (claims.md, bind; shares).

Every step is one request; `Binder` (replica/binder.py) puts them in order, step 4 being `holders.settle`. A process may
stop for ever between any two, and any number of processes may be at work: tests/unit/loops/test_protocol.py explores
what holds then, and drives the Binder. Change them only with it.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.answers.ledger_status import with_summary
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.devices import Devices
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.objects.shares import Holder, Request, Share
from deviceshare.domain.placement import allocation, ledger_budget
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.handover import as_claimed, too_long_for_cdi
from deviceshare.domain.placement.holds import digest
from deviceshare.domain.placement.join_obstacles import counted_only, joining_obstacle, ledger_fault, not_claimable
from deviceshare.domain.placement.node_choice import pinned_to
from deviceshare.loops.kinds import HOLDS, NODE_DEVICES, PODS, find
from deviceshare.loops.ports import Cluster, Conflict, NotFound, Undecodable

BIND_SECONDS = 8.0
"""A bind gives up after this long, whatever it waits for."""
BINDING_SECONDS = 4.0
"""The API server gives up on a Binding after this long, also when its client has gone."""
BINDS_OVER_SECONDS = BIND_SECONDS + BINDING_SECONDS + 1
"""After this long no bind that began before can still take effect, see `binds_over`."""
QUEUE_SECONDS = 15.0
"""Kubernetes before 1.21 starts a request's timeout behind its priority queue, where it may wait for this long."""


class Refused(Exception):
    """The pod can't be bound now. The text becomes an event of the pod; kube-scheduler retries it."""


class Moved(Conflict):
    """Somebody wrote the pod since it was read; `pod` is the new one. The ledger must be read again after it."""

    def __init__(self, pod: Pod) -> None:
        super().__init__(f"pod {pod.metadata.key} was written meanwhile")
        self.pod = pod


def binds_over(server: tuple[int, int] | None) -> float:
    """Seconds after which no bind that began before can still take effect, at a server of this Kubernetes version.

    It rests on clocks: the binder's, which drops a bind that took too long, and the server's time limit for a request.
    From Kubernetes 1.23 on, where a Binding also fails once its pod was written, nothing rests on it alone.
    """
    return BINDS_OVER_SECONDS + (0.0 if server and server >= (1, 21) else QUEUE_SECONDS)


def compares(server: tuple[int, int] | None) -> bool:
    """Whether every API server refuses a Binding whose pod was written since, as from 1.23 on (kubernetes#105913).

    Several may differ by one minor version while they are upgraded, and the Binding may go to the older.
    """
    return server is not None and server >= (1, 24)


def new_mark() -> str:
    """A mark, or a claim's token, that was never written before: RFC 3339, its last digits random."""
    return f"{timestamps.micro_now()[:-1]}{random.randrange(1000):03}Z"


class WantedClaim(NamedTuple):
    """What the holder with this UID wants: its claim, one that is there or a new one, or why it can't have one."""

    uid: str
    choose: Callable[[NodeDevices, Sequence[Assumption]], Claim | Reason]
    """By the ledger, beside what others get in the same write."""


def wanted_devices(request: Request, *, token: str) -> WantedClaim:
    """The wish of a group that lives nowhere yet: whole devices of a node.

    `token` was never written before; a claim that is there keeps its own.
    """
    return WantedClaim(request.holder.uid, lambda seen, beside: _choose_devices(request, token, seen, beside))


def wanted_share(request: Request, opaque: Callable[[], Collection[str]] = tuple) -> WantedClaim:
    """The wish of a pod for parts of devices, of a node's own or of its group's (claims.md, shares).

    `opaque` gives the resources of which a device plugin allocated devices, unknown which, when the claim is chosen.
    """
    return WantedClaim(request.taker.uid, lambda seen, beside: _choose_share(request, seen, opaque(), beside))


class Claimed(NamedTuple):
    """The ledger with the claims of those that got one, and why the others did not, by the holders' UIDs."""

    ledger: NodeDevices
    refused: Mapping[str, Reason]


async def claim_all(
    cluster: Cluster,
    wanted: Iterable[WantedClaim],
    node: str,
    known: NodeDevices | None = None,
    *,
    on_conflict: Callable[[], None] = lambda: None,
) -> Claimed:
    """The ledger with a claim for each of the holders; writes those that aren't there.

    A claim that is there unmarked is used, since it is of a bind that ended half-way. `known` is a copy of the ledger
    of any age. A write by its version proves that it was the newest when it was written, which is after this call.
    Where nothing is written nothing is proven: so where a claim is there already, or somebody is refused, as where the
    copy turns out to be old (`on_conflict`), the ledger is read, after this call began.

    Raises Refused where the node has no ledger.
    """
    wishes = list(wanted)
    if known is not None and not known.metadata.unreadable and not any(wish.uid in known.claims for wish in wishes):
        chosen, refused = _choose(known, wishes)
        if not refused:
            try:
                return Claimed(await _claim(cluster, known, chosen), {})
            except Conflict:
                on_conflict()
            except NotFound:
                pass  # As below, unless somebody has recreated it.
    seen = await read_ledger(cluster, node)
    chosen, refused = _choose(seen, wishes)
    return Claimed(await _claim(cluster, seen, chosen), refused)


async def write_claims(cluster: Cluster, seen: NodeDevices, patch: Patch) -> NodeDevices:
    """CAS L: each write of claims, which brings the summary that follows from them; the ledger as written."""
    return await cluster.patch(NODE_DEVICES, seen.node, with_summary(seen, patch))


def _choose(seen: NodeDevices, wanted: Iterable[WantedClaim]) -> tuple[dict[str, Claim], dict[str, Reason]]:
    """The claims to write, each chosen beside those before it, and why others get none."""
    after, beside, chosen, refused = seen, list[Assumption](), dict[str, Claim](), dict[str, Reason]()
    for uid, choose in wanted:
        if uid in chosen:
            continue  # Its pod is being bound twice.
        unknown = ledger_fault(seen) if uid in seen.hidden_claims or uid not in seen.claims else None
        found = unknown or choose(seen, beside)
        if isinstance(found, Reason):
            refused[uid] = found
        elif uid not in seen.claims and (reason := ledger_budget.obstacle(after, uid, found)):
            refused[uid] = reason
        elif uid not in seen.claims:
            chosen[uid] = found
            beside.append(_assumed(found, seen))
            after = after.with_claims({**after.claims, uid: found})
    return chosen, refused


def _assumed(claim: Claim, seen: NodeDevices) -> Assumption:
    """What the claim takes of the node, in its present numbering: so many claims of one write cost one look at all."""
    shares = [(share, seen.present(share.device)) for share in claim.shares]
    parts = [replace(share, index=device.index, uuid=device.uuid) for share, device in shares]
    return Assumption(seen.node, tuple(map(seen.present, claim.whole)), tuple(parts), claim.within)


async def _claim(cluster: Cluster, seen: NodeDevices, chosen: Mapping[str, Claim]) -> NodeDevices:
    return await write_claims(cluster, seen, ledger.claims_patch(seen, chosen)) if chosen else seen


def _choose_devices(request: Request, token: str, seen: NodeDevices, beside: Sequence[Assumption]) -> Claim | Reason:
    holder = request.holder
    if mine := seen.claims.get(holder.uid):
        # An unbound group may change its mind after a bind died half-way; its claim is then collected.
        if not allocation.meets(request, mine.devices):
            text = f"{holder} has changed, and what it claimed on node {seen.node} is being released"
            return Reason(ReasonKind.CLAIM_RELEASING, text)
        return mine
    if bare := not_claimable(request, seen.claimable):
        return bare
    chosen = allocation.choose(request, allocation.available(seen, beside=beside))
    if chosen is None:
        text = f"{holder} no longer fits on node {seen.node}: others took its devices meanwhile"
        return Reason(ReasonKind.TOO_FULL, text)
    return ledger.claim_of(holder, as_claimed(chosen, seen.status.handover), token=token)


def _choose_share(
    request: Request, seen: NodeDevices, opaque: Collection[str], beside: Sequence[Assumption]
) -> Claim | Reason:
    states, sharer, within = device_states(seen), request.taker, ""
    if request.sharer:
        within = request.holder.uid
        if within not in seen.claims:
            text = f"the claim of {request.holder} on node {seen.node} is missing; it is being repaired"
            return Reason(ReasonKind.CLAIM_MISSING, text)
        if reason := joining_obstacle(seen, states, request.holder):
            return reason
    if mine := seen.claims.get(sharer.uid):
        if mine.within != within or (within and not _is_inside(mine, seen, within)):
            # A bind ended half-way, and since then the group was recreated, or left the node and came back.
            text = f"what {sharer} claimed on node {seen.node} is no part of the group's devices, and is being released"
            return Reason(ReasonKind.CLAIM_RELEASING, text)
        return joining_obstacle(seen, states, sharer) or mine
    if reason := counted_only(request, seen.counts_only):
        return reason
    left = allocation.available(seen, within, beside).rooms
    rooms = [(device, room) for device, room in left if within or device.resource not in opaque]
    shares = allocation.choose_shares(request.share, request.strategy, rooms)
    if shares is None:
        lacks = allocation.share_shortage(request.share, [room for _, room in rooms])
        return lacks or Reason(ReasonKind.TOO_FULL, f"{sharer} no longer fits on node {seen.node}")
    if container := too_long_for_cdi(seen, shares):
        text = f"the name of container {container} is too long for the hand-over by CDI on node {seen.node}"
        return Reason(ReasonKind.NOT_HANDED_OVER, text, "give it one of at most 53 characters")
    return ledger.share_claim_of(sharer, (_named(share, seen, within) for share in shares), within)


def _is_inside(mine: Claim, seen: NodeDevices, within: str) -> bool:
    """Whether the parts are of devices that the group has, or had before a rebind."""
    theirs = {device.identity for device in seen.reserved(seen.claims[within])}
    return all(seen.present(share.device).identity in theirs for share in mine.shares)


def _named(share: Share, seen: NodeDevices, within: str) -> Share:
    """Named as in the pod's annotations: by number alone where those do, and as the group's claim names its device."""
    for device in seen.claims[within].devices if within else ():
        if seen.present(device).identity == share.device.identity:
            return replace(share, uuid=device.uuid)
    [named] = as_claimed([share.device], seen.status.handover)
    return replace(share, uuid=named.uuid)


def joinable(seen: NodeDevices, holder: Holder, token: str) -> Devices:
    """Step 2: the devices of a holder that lives on the ledger's node.

    `seen` is of a GET that began after the bind arrived and its pod was read; several binds may share that GET. `token`
    is that of the claim by which the holder said to be bound, where it was read: a holder that left the node since may
    have another claim there, left by a bind that lost to one elsewhere. Claims of older versions have none.

    Raises Refused where the claim is not there or there is a `joining_obstacle`, and Conflict where the holder was
    bound again since it was read.
    """
    claim = seen.claims.get(holder.uid)
    if claim is None:
        raise Refused(f"the claim of {holder} on node {seen.node} is missing; it is being repaired")
    if claim.token and not token:
        raise Conflict(f"{holder} doesn't say which claim on node {seen.node} is its own; that is being repaired")
    if claim.token not in ("", token):
        raise Conflict(f"{holder} was bound again meanwhile")
    if not claim.devices:
        raise Refused(f"others have the devices that {holder} had on node {seen.node}, which it is leaving")
    if reason := joining_obstacle(seen, device_states(seen), holder):
        raise Refused(reason)
    return tuple(sorted(claim.devices))


async def list_holds(cluster: Cluster, namespace: str, node: str) -> list[ResourceClaim]:
    """The holds of the node's devices (claims.md, holds). `namespace` is deviceshare's own."""
    return await cluster.list(HOLDS, namespace=namespace, label_selector=f"{contract.HOLD}={digest(node)}")


async def attach(
    cluster: Cluster, pod: Pod, holder: Holder, node: str, devices: Mapping[str, str], *, timeout: float
) -> None:
    """Step 5: writes the pod's node and its devices in one Binding, within `timeout` seconds.

    `devices` are the annotations that name them, as the ledger says in which the claim was seen.

    The Binding fails if anybody wrote the pod since `pod` was read, which must have been before the ledger was: so who
    touches the pod after marking its claim (`holders.fence_pod`) stops every bind that has not seen the mark, however
    late it is. A pod that already is on that node is a success, since kube-scheduler asks again after a time-out.

    Raises Refused where the pod is gone, was recreated, or is bound elsewhere, and Moved where it was written
    meanwhile.
    """
    written, version = _written_with(pod, holder, devices), pod.metadata.resource_version
    await post_binding(cluster, pod, node, written, version=version, timeout=timeout)


async def lift(
    cluster: Cluster, pod: Pod, holder: Holder, node: str, devices: Mapping[str, str], *, timeout: float
) -> None:
    """Step 5 behind a scheduling gate, with `attach`'s arguments and errors: one patch in place of the Binding.

    It needs the same version of the pod, writes the devices, allows no node but the chosen one, and lifts the gate.
    From then on the pod lives on that node for everybody who reads claims (`Pod.placed_on`): kube-scheduler can bind it
    there or nowhere, and neither gate nor affinity can be changed back.
    https://kubernetes.io/docs/concepts/scheduling-eviction/pod-scheduling-readiness/

    Raises Refused, too, where the gate isn't there any more: somebody else removed it, so the pod may be on any node.
    """
    meta = pod.metadata
    if not pod.awaits_placement:
        raise Refused(f"pod {meta.key} isn't behind the scheduling gate {contract.PLACEMENT_GATE} alone")
    if meta.hides("spec.affinity"):
        raise Refused(f"the affinity of pod {meta.key} can't be read ({meta.fault})")
    annotations = {**_written_with(pod, holder, devices), contract.PLACED_ON: node}
    body = {
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "annotations": annotations},
        "spec": {"schedulingGates": None, "affinity": pinned_to(node, pod.spec.affinity)},
    }
    try:
        await cluster.patch(PODS, meta.name, body, namespace=meta.namespace, timeout=timeout)
    except NotFound:
        raise Refused(f"pod {meta.key} is gone") from None
    except Conflict:
        await after_conflict(cluster, pod, node)


def _written_with(pod: Pod, holder: Holder, devices: Mapping[str, str]) -> dict[str, str]:
    """The annotations that the pod gets together with its node."""
    return {**devices, contract.GROUP_UID: holder.uid, contract.POD_UID: pod.metadata.uid}


async def post_binding(
    cluster: Cluster, pod: Pod, node: str, annotations: dict[str, str], *, version: str = "", timeout: float
) -> None:
    """The Binding of any pod, ours or not; see `attach`. With a `version` the pod must still have it."""
    meta = pod.metadata
    try:
        await cluster.bind(
            meta.namespace,
            meta.name,
            uid=meta.uid,
            resource_version=version,
            node=node,
            annotations=annotations,
            timeout=timeout,
        )
    except NotFound:
        raise Refused(f"pod {meta.key} is gone") from None
    except Conflict:
        await after_conflict(cluster, pod, node)


async def after_conflict(cluster: Cluster, pod: Pod, node: str) -> None:
    """Returns if the pod has this node after all; raises as `attach` does."""
    meta = pod.metadata
    found = await cluster.get(PODS, meta.name, meta.namespace)
    if found.metadata.uid != meta.uid:
        raise Refused(f"pod {meta.key} was recreated; the new pod is scheduled separately")
    if found.node == node:
        return
    if found.node:
        raise Refused(f"pod {meta.key} is already bound to node {found.node}")
    if found.metadata.deletion_timestamp:
        raise Refused(f"pod {meta.key} is being deleted")
    raise Moved(found)


async def read_ledger(cluster: Cluster, node: str) -> NodeDevices:
    """GET L. Binders never create one, and raise Refused: only the leader knows which claims a lost ledger held."""
    try:
        if seen := await find(cluster, NODE_DEVICES, node):
            return seen
    except Undecodable:
        # One holder's claim can't be read; the others' can.
        listed = await cluster.list(NODE_DEVICES, field_selector=f"metadata.name={node}")
        if seen := next((each for each in listed if each.hidden_claims), None):
            return seen
        raise
    raise Refused(f"the devices of node {node} are not known yet, or its ledger is being repaired")
