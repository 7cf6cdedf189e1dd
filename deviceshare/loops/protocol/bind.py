"""The claim protocol's bind: devices for a group, and a Binding for each of its pods (claims.md, bind, steps 2 to 5).

Every step is one request; `Binder` (replica/binder.py) puts them in order, step 3 being `claiming.claim_all` and step 4
`holders.settle`. A process may stop for ever between any two, and any number of processes may be at work: what holds
then is explored by tests/unit/loops/test_protocol.py, which drives the Binder. Change them only with it.
"""

from collections.abc import Mapping

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Devices
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.objects.shares import Holder
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.holds import digest
from deviceshare.domain.placement.join_obstacles import joining_obstacle
from deviceshare.domain.placement.node_choice import pinned_to
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import HOLDS, NODE_DEVICES, PODS
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
