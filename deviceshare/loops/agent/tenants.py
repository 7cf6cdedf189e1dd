"""The pods and containers that processes on the node belong to.

A pod's owner writes its annotations, and may know the UIDs of others. So a pod is what its own UID says; an annotation
never stands in for another pod's UID, and alone never makes a pod a member of a group.
"""

from typing import Final

from msgspec import Struct

from deviceshare.domain.device_health.process_owners import Owner
from deviceshare.loops.agent.own_node import OwnNode
from deviceshare.loops.agent.ports import MIRROR_ANNOTATION, NodePod

_HASH: Final = "kubernetes.io/config.hash"
"""The UID by which the kubelet counts a static pod; the one that the API server shows is its mirror pod's."""


class Tenant(Struct, frozen=True):
    """Who a process belongs to; all empty for one outside of any pod."""

    pod: str = ""
    """`namespace/name`; the UID where the API server shows no such pod (any more)."""
    uid: str = ""
    container: str = ""
    holder_uid: str = ""


class Tenants:
    """The pods of one moment on this node, by the UIDs of their control groups."""

    def __init__(self, node: OwnNode) -> None:
        self._node = node
        every = list(node.pods.values())
        self._pods = {pod.metadata.uid: pod for pod in every}
        self._static = {found: pod for pod in every if (found := _static_uid(pod, node.name))}

    def of(self, owner: Owner | None) -> Tenant:
        if owner is None:
            return Tenant()
        if pod := self._pods.get(owner.pod_uid):
            meta = pod.metadata
            return Tenant(meta.key, meta.uid, pod.container(owner.container), self._node.holder_uid(pod))
        if pod := self._static.get(owner.pod_uid):
            # A static pod is never bound, so it has no group, whatever its mirror pod says.
            return Tenant(pod.metadata.key, pod.metadata.uid, pod.container(owner.container))
        return Tenant(pod=owner.pod_uid)


def _static_uid(pod: NodePod, node: str) -> str:
    """The UID under which the kubelet runs the static pod that this one mirrors, or "".

    https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-mirror
    """
    meta = pod.metadata
    static = meta.annotations.get(_HASH, "")
    owned = any(owner.kind == "Node" and owner.name == node and owner.controller for owner in meta.owner_references)
    return static if owned and meta.annotations.get(MIRROR_ANNOTATION) == static else ""
