"""The node's pods: whose a process is."""

from typing import Final

from msgspec import Struct

from deviceshare.domain import contract
from deviceshare.domain.cgroups import Owner
from deviceshare.loops.agent.ports import NodePod
from deviceshare.loops.ports import Mirror

_STATIC: Final = "kubernetes.io/config.hash"
"""The UID by which the kubelet counts a static pod; the one that the API server shows is another."""


class Tenant(Struct, frozen=True):
    """Who a process belongs to; all empty for one outside of any pod."""

    pod: str = ""
    """`namespace/name`; the UID where the API server shows no such pod (any more)."""
    uid: str = ""
    container: str = ""
    group_uid: str = ""


class Tenants:
    """The pods of one moment, by the UIDs of their control groups."""

    def __init__(self, pods: Mirror[NodePod]) -> None:
        self._pods = {_counted_uid(pod): pod for pod in pods.values()}

    def of(self, owner: Owner | None) -> Tenant:
        if owner is None:
            return Tenant()
        pod = self._pods.get(owner.pod_uid)
        if pod is None:
            return Tenant(pod=owner.pod_uid)
        meta = pod.metadata
        group_uid = meta.annotations.get(contract.GROUP_UID, "")
        return Tenant(meta.key, meta.uid, pod.container(owner.container), group_uid)


def _counted_uid(pod: NodePod) -> str:
    return pod.metadata.annotations.get(_STATIC, pod.metadata.uid)
