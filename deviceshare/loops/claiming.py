"""The claim protocol's bind: how a group gets its devices and a pod its Binding (claims.md, bind, steps 2 to 5).

Every step is one request. A process may stop for ever between any two, and any number of processes may be at it: what
holds then is explored by tests/unit/loops/test_protocol.py, which drives these very coroutines. Change them only with
it.

G is the group, L the NodeDevices of the node, P the pod.
"""

from collections import Counter
from collections.abc import Mapping

from deviceshare.domain import allocation, contract, ledger
from deviceshare.domain.devices import Devices, selected
from deviceshare.domain.groups import BOUND, Group
from deviceshare.domain.handover import as_claimed
from deviceshare.domain.ledger import NodeDevices
from deviceshare.domain.pods import Pod
from deviceshare.domain.rebinding import told, untellable
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import Cluster, Conflict, NotFound

BIND_SECONDS = 8.0
"""A bind gives up after this long, whatever it waits for."""
BINDING_SECONDS = 4.0
"""The API server gives up on a Binding after this long, also when its client has gone."""
BINDS_OVER_SECONDS = BIND_SECONDS + BINDING_SECONDS + 1
"""After this long no bind that began before can still take effect."""


class Refused(Exception):
    """The pod can't be bound now. The text is for the person who waits; the scheduler tries the pod again."""


async def bind(cluster: Cluster, pod: Pod, group: Group, node: str, *, home: str = "", timeout: float) -> Group:
    """The whole bind of one pod, for a group as it was read in step 1; answers with the group as written.

    `home` is the node to which a group that says it is unbound is held (Fleet.home).

    Raises:
        Refused, ApiError: as each step says; nothing needs to be undone.
    """
    home = group.node or home
    if home and home != node:
        raise Refused(f"group {group.name} lives on node {home}")
    if group.node:
        seen = await read_ledger(cluster, node)
        devices = joinable(seen, group)
    else:
        seen = await claim(cluster, group, node)
        devices = joinable(seen, group)
        group = await settle(cluster, group, node, devices)
    await attach(cluster, pod, group, node, devices, handover=seen.status.handover, timeout=timeout)
    return group


def joinable(seen: NodeDevices, group: Group) -> Devices:
    """Step 2: the devices of a group, from a ledger whose GET began after the bind arrived; several may share it.

    Raises:
        Refused: the claim is not there, is being released, or holds a device that is unhealthy or can't be handed over.
    """
    claim = seen.claims.get(group.uid)
    if claim is None:
        raise Refused(f"the claim of group {group.name} on node {seen.node} is missing; it is being repaired")
    if claim.releasing:
        raise Refused(f"the devices of group {group.name} on node {seen.node} are being released")
    broken = seen.ailing(claim)
    if broken:
        raise Refused(f"{broken} of group {group.name}: deviceshare rebind {group.name}")
    if fault := untellable(seen, claim):
        raise Refused(f"group {group.name} on node {seen.node}: {fault}")
    return tuple(sorted(claim.devices))


async def claim(cluster: Cluster, group: Group, node: str) -> NodeDevices:
    """Step 3: the ledger with a claim of an unbound group, which is made unless it is there.

    Raises:
        Refused: too few devices are free, or the claim is for what the group wanted before its spec was changed.
        Conflict: somebody else wrote the ledger; begin again.
        ApiError: the ledger could not be read or written.
    """
    seen = await read_ledger(cluster, node)
    if group.uid in seen.claims:
        # An unbound group may change its mind after a bind died half-way; its claim is then collected.
        if Counter(device.resource for device in seen.claims[group.uid].devices) != group.spec.resources:
            raise Refused(f"group {group.name} has changed, and what it claimed on node {node} is being released")
        return seen
    chosen = allocation.choose(group.spec.resources, seen.free(), seen.hardware.links)
    if chosen is None:
        raise Refused(f"group {group.name} no longer fits on node {node}: others took its devices meanwhile")
    named = as_claimed(chosen, seen.status.handover)
    return await cluster.patch(NODE_DEVICES, node, ledger.claim_patch(seen, group.uid, group.name, named))


async def settle(cluster: Cluster, group: Group, node: str, devices: Devices) -> Group:
    """Step 4: makes the node the group's home, if nobody wrote the group since it was read (before L was).

    The loser leaves its claim where it is: the winner may be using it, and a collector finds what nobody uses.

    Raises:
        Conflict: the group was written meanwhile; begin again.
        ApiError: the group could not be written.
    """
    body = {
        "metadata": {"resourceVersion": group.metadata.resource_version},
        "status": {"phase": BOUND, "nodeName": node, "selectedDevices": selected(devices)},
    }
    return await cluster.patch(GROUPS, group.name, body, subresource="status")


async def attach(
    cluster: Cluster,
    pod: Pod,
    group: Group,
    node: str,
    devices: Devices,
    *,
    handover: Mapping[str, str],
    timeout: float,
) -> None:
    """Step 5: gives the pod its node and its devices in one write, within `timeout` seconds.

    `handover` is that of the ledger from which the devices were read.

    A pod that already is on that node is a success, since kube-scheduler asks again after a time-out.

    Raises:
        Refused: the pod is gone, was made again, or is bound elsewhere.
        ApiError: the Binding could not be written.
    """
    meta = pod.metadata
    annotations = {
        **told(devices, handover),
        contract.GROUP_UID: group.uid,
        contract.POD_UID: meta.uid,
    }
    await post_binding(cluster, pod, node, annotations, timeout=timeout)


async def post_binding(cluster: Cluster, pod: Pod, node: str, annotations: dict[str, str], *, timeout: float) -> None:
    """The Binding of any pod, ours or not; see `attach`."""
    meta = pod.metadata
    try:
        await cluster.bind(meta.namespace, meta.name, uid=meta.uid, node=node, annotations=annotations, timeout=timeout)
    except NotFound:
        raise Refused(f"pod {meta.key} is gone") from None
    except Conflict:
        found = await cluster.get(PODS, meta.name, meta.namespace)
        if found.metadata.uid != meta.uid:
            raise Refused(f"pod {meta.key} was deleted and made again; the new one is tried by itself") from None
        if found.node != node:
            raise Refused(f"pod {meta.key} is already bound to node {found.node or '(none)'}") from None


async def fence(cluster: Cluster, group: Group) -> None:
    """Makes every bind fail that read the unbound group before; raises Conflict when somebody else wrote it."""
    body = {
        "metadata": {"resourceVersion": group.metadata.resource_version},
        "status": {"fence": group.status.fence + 1},
    }
    await cluster.patch(GROUPS, group.name, body, subresource="status")


async def read_ledger(cluster: Cluster, node: str) -> NodeDevices:
    """GET L. Binders never create one: only the leader knows which claims a lost ledger held.

    Raises:
        Refused: the node has no ledger.
        ApiError: it could not be read.
    """
    try:
        return await cluster.get(NODE_DEVICES, node)
    except NotFound:
        raise Refused(f"the devices of node {node} are not known yet, or its ledger is being repaired") from None
