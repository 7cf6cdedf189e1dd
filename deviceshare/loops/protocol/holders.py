"""Holders in the API server, groups and pods with shares: where one lives, its pods, and the fences that stop binds.

The rest of the protocol knows claims and their `Holder`s only; which object a holder is, is known here.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Devices, selected
from deviceshare.domain.objects.groups import BOUND, PENDING, Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import POD, Holder
from deviceshare.loops.kinds import GROUPS, PODS, annotate, find
from deviceshare.loops.ports import ApiError, Cluster, Conflict, Forbidden, Invalid, NotFound, TooLarge, Unavailable

REFUSALS = (Forbidden, Invalid, TooLarge)
"""What a stranger's pod may answer to a write of ours for as long as it is as it is."""


async def read(cluster: Cluster, holder: Holder) -> Group | Pod | None:
    """The holder as it is now; None when it is gone, though another may have its name.

    A pod that got the Binding of a pod with shares stands for it.
    """
    if holder.kind != POD:
        return await read_group(cluster, holder)
    namespace, _, name = holder.name.partition("/")
    pod = await find(cluster, PODS, name, namespace)
    return pod if pod and stands_for(pod, holder.uid) else None


def stands_for(found: Group | Pod, uid: str) -> bool:
    """Whether it is the holder with this UID, or a pod that got the Binding of that pod with shares."""
    return uid == found.metadata.uid or (isinstance(found, Pod) and uid == found.share_uid)


async def read_group(cluster: Cluster, holder: Holder) -> Group | None:
    """`read`, of a group."""
    group = await find(cluster, GROUPS, holder.name)
    return group if group and group.uid == holder.uid else None


def home(found: Group | Pod | None) -> str:
    """The node that a holder lives on, as it was read; or ""."""
    return found.node if isinstance(found, Group) or (found and found.lives) else ""


async def pods(cluster: Cluster, holder: Holder) -> list[Pod]:
    """The pods that have the holder's devices or may yet get them."""
    if holder.kind == POD:
        pod = await read(cluster, holder)
        return [pod] if isinstance(pod, Pod) else []
    return await cluster.list(PODS, label_selector=f"{contract.GROUP}={holder.name}")


async def settle(
    cluster: Cluster, group: Group, node: str, devices: Devices, *, token: str, said: Mapping[str, Any] | None = None
) -> Group:
    """Bind's step 4: binds the group to the node, if nobody wrote it since it was read (before L was).

    `token` is that of the claim; `said` are further fields of the status, for people.

    The loser leaves its claim where it is: the winner may be using it, and a collector finds what nobody uses.
    """
    bound = {"phase": BOUND, "nodeName": node, "selectedDevices": selected(devices), "claimToken": token or None}
    return await _write(cluster, group, {**(said or {}), **bound})


async def unsettle(cluster: Cluster, group: Group, said: Mapping[str, Any]) -> Group:
    """Release's step 4: takes the group from its node, and makes every bind fail that read it before; see `settle`."""
    gone = dict.fromkeys(group.status.selected_devices)
    unbound = {"phase": PENDING, "nodeName": "", "selectedDevices": gone or None, "idleSince": None, "claimToken": None}
    return await _write(cluster, group, {**said, **unbound, "fence": group.status.fence + 1})


async def fence(cluster: Cluster, group: Group) -> Group:
    """Makes every bind and release fail that read the group before."""
    return await _write(cluster, group, {"fence": group.status.fence + 1})


async def _write(cluster: Cluster, group: Group, status: dict[str, Any]) -> Group:
    return await cluster.patch(GROUPS, group.name, {"metadata": group.as_read, "status": status}, subresource="status")


OnUnwritable = Callable[[Pod, ApiError], object]
"""Called with a pod that takes no write of ours at all, and why."""


class BindStop(NamedTuple):
    """How a leader stops the binds of pending pods that are under way: it writes the pods, and it waits."""

    wait: Callable[[Any], Awaitable[None]]
    """Called with a mark, or the state of a claim; returns once that has stood for as long as a bind may take."""
    on_unwritable: OnUnwritable = lambda _pod, _why: None
    compares: bool = False
    """Whether every API server refuses a Binding whose pod was written since (bind.compares)."""

    async def __call__(self, cluster: Cluster, pods: Iterable[Pod], mark: str) -> bool:
        """Touches those of the pods that are pending, and waits out their binds; whether there were any.

        Where all took the touch and the API server `compares` versions, nothing is left to be waited for.

        From here on nobody writes such a pod who read the ledger before the mark. One may have done so meanwhile: list
        them again.
        """
        pending = [pod for pod in pods if pod.pending]
        fenced = [await fence_pod(cluster, pod, mark, self.on_unwritable) for pod in pending]
        if pending and not (self.compares and all(fenced)):
            await self.wait(mark)
        return bool(pending)


async def fence_pod(cluster: Cluster, pod: Pod, mark: str, on_unwritable: OnUnwritable) -> bool:
    """Makes every Binding fail that was decided before the mark was written, where the API server compares versions.

    Once is enough: the pod then bears the mark. Where somebody else wrote the pod since it was listed, they have done
    as much. A stranger's pod may refuse the annotation: its annotations fill what Kubernetes allows, or a webhook is
    against it, or away. Then its status is written, for which neither counts. A pod that refuses that, too, holds up
    nobody: False says that binds of it rest on time, as those of all pods do before Kubernetes 1.23.
    """
    if pod.metadata.annotations.get(contract.BIND_FENCE) == mark:
        return True
    with suppress(Conflict):
        try:
            await annotate(cluster, pod, {contract.BIND_FENCE: mark})
        except (*REFUSALS, Unavailable):
            try:
                await _fence_status(cluster, pod, mark)
            except REFUSALS as refusal:
                on_unwritable(pod, refusal)
                return False
    return True


async def _fence_status(cluster: Cluster, pod: Pod, mark: str) -> None:
    """The field is empty before a pod has a node, and the kubelet writes it as it likes."""
    meta, text = pod.metadata, f"deviceshare can't annotate this pod; binds from before {mark} fail"
    body = {"metadata": {"resourceVersion": meta.resource_version}, "status": {"message": text}}
    with suppress(NotFound):
        await cluster.patch(PODS, meta.name, body, namespace=meta.namespace, subresource="status")
