"""Holders in the API server, groups and pods with shares: the node that one lives on, its pods, and its fence.

The rest of the protocol knows claims and their `Holder`s only; which object a holder is, is known here.
"""

from collections.abc import Mapping
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Devices, selected
from deviceshare.domain.objects.groups import BOUND, PENDING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.requests import POD, Holder
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.loops.ports import Cluster


async def read_group(cluster: Cluster, holder: Holder) -> Group | None:
    """The group as it is now; None when it is gone, though another may have its name. Raises ApiError."""
    group = await find(cluster, GROUPS, holder.name)
    return group if group and group.uid == holder.uid else None


async def read_pod(cluster: Cluster, holder: Holder) -> Pod | None:
    """Likewise, of a pod with shares. One that got the Binding of the holder stands for it. Raises ApiError."""
    namespace, _, name = holder.name.partition("/")
    pod = await find(cluster, PODS, name, namespace)
    return pod if pod and holder.uid in (pod.metadata.uid, pod.share_uid) else None


async def home(cluster: Cluster, holder: Holder, node: str) -> str:
    """The node that the holder lives on, or "" once every bind fails that read before that it may choose.

    Where a group lives on `node`, every release fails that read it before: without the mark that is then taken away,
    pods may join. For a pod binds end in time, or by its fence (bind.fence_pod), since there is nothing else to commit.

    Raises:
        Conflict: somebody else wrote the holder; retry.
        ApiError: a request failed; retry.
    """
    if holder.kind == POD:
        pod = await read_pod(cluster, holder)
        return pod.node if pod and pod.lives else ""
    group = await read_group(cluster, holder)
    if group is not None and group.node in ("", node):
        await fence(cluster, group)
    return group.node if group is not None else ""


async def settle(
    cluster: Cluster, group: Group, node: str, devices: Devices, *, token: str, said: Mapping[str, Any] | None = None
) -> Group:
    """Bind's step 4: makes the node the holder's home, if nobody wrote the holder since it was read (before L was).

    `token` is that of the claim; `said` are further fields of the status, for people.

    The loser leaves its claim where it is: the winner may be using it, and a collector finds what nobody uses.

    Raises:
        Conflict: the holder was written meanwhile; retry.
        ApiError: the holder could not be written.
    """
    bound = {"phase": BOUND, "nodeName": node, "selectedDevices": selected(devices), "claimToken": token or None}
    return await _write(cluster, group, {**(said or {}), **bound})


async def unsettle(cluster: Cluster, group: Group, said: Mapping[str, Any]) -> Group:
    """Release's step 4: takes the group from its node, and makes every bind fail that read it before.

    `said` are further fields of the status, for people.

    Raises:
        Conflict: the group was written meanwhile.
        ApiError: the group could not be written.
    """
    gone = dict.fromkeys(group.status.selected_devices)
    unbound = {"phase": PENDING, "nodeName": "", "selectedDevices": gone or None, "idleSince": None, "claimToken": None}
    return await _write(cluster, group, {**said, **unbound, "fence": group.status.fence + 1})


async def fence(cluster: Cluster, group: Group) -> Group:
    """Makes every bind and release fail that read the group before; raises Conflict when somebody else wrote it."""
    return await _write(cluster, group, {"fence": group.status.fence + 1})


async def pods(cluster: Cluster, holder: Holder) -> list[Pod]:
    """The pods that have the holder's devices or may yet get them. Raises ApiError."""
    if holder.kind == POD:
        pod = await read_pod(cluster, holder)
        return [pod] if pod else []
    return await cluster.list(PODS, label_selector=f"{contract.GROUP}={holder.name}")


async def _write(cluster: Cluster, group: Group, status: dict[str, Any]) -> Group:
    body = {"metadata": {"resourceVersion": group.metadata.resource_version}, "status": status}
    return await cluster.patch(GROUPS, group.name, body, subresource="status")
