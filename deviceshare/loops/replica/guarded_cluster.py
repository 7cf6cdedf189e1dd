"""A cluster whose pods are read through the pod guard: of a pod that the webhooks don't review, nothing is believed.

Its nodes are shared by other systems' labels, too (nodes.py). Nothing of ours is written while something is in the way,
such as CRDs by which fields would be dropped, and a write that is too large to be stored is reported, whoever writes.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.nodes import SharingLabels, may_be_shared
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES, NODES, PODS, SHARED_NODES
from deviceshare.loops.ports import Cluster, Kind, Subject, TooLarge, Unavailable

T = TypeVar("T")

_OURS = (GROUPS, NODE_DEVICES, DEVICE_QUOTAS)


class GuardedCluster:
    """Implements the port `Cluster` over another one."""

    def __init__(
        self,
        cluster: Cluster,
        guard: PodGuard,
        labels: SharingLabels = SharingLabels(),  # noqa: B008 it is never changed
        fault: Callable[[], str] = lambda: "",
        on_too_large: Callable[[Subject], None] = lambda _: None,
    ) -> None:
        """`fault`: why our own kinds may not be written now, or "". `on_too_large` is told which object a write would
        have made too large; its UID isn't known."""
        self._cluster = cluster
        self._guard = guard
        self._labels = labels
        self._fault = fault
        self._on_too_large = on_too_large
        # What answers with no object is the other one's as it is.
        self.delete = cluster.delete
        self.evict = cluster.evict

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._seen(kind, await self._cluster.get(kind, name, namespace))

    async def list(self, kind: Kind[T], *, label_selector: str = "", **more: str) -> list[T]:
        """Of the shared nodes all are listed where labels of others count: a selector can't say "or"."""
        widened = bool(self._labels) and kind.plural == NODES.plural and label_selector == SHARED_NODES
        listed = await self._cluster.list(kind, label_selector="" if widened else label_selector, **more)
        seen = [self._seen(kind, obj) for obj in listed]
        return [each for each in seen if may_be_shared(each)] if widened else seen

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        self._refuse_faulty(kind)
        return self._seen(kind, await self._cluster.create(kind, body, namespace))

    async def patch(self, kind: Kind[T], name: str, body: Mapping[str, Any], *, namespace: str = "", **how: Any) -> T:
        self._refuse_faulty(kind)
        try:
            return self._seen(kind, await self._cluster.patch(kind, name, body, namespace=namespace, **how))
        except TooLarge:
            self._on_too_large(Subject(kind, name, namespace))
            raise

    async def bind(self, namespace: str, pod: str, **binding: Any) -> None:
        """As the other one's."""
        try:
            await self._cluster.bind(namespace, pod, **binding)
        except TooLarge:
            self._on_too_large(Subject(PODS, pod, namespace))
            raise

    def _refuse_faulty(self, kind: Kind[T]) -> None:
        if kind in _OURS and (fault := self._fault()):
            raise Unavailable(fault)

    def _seen(self, kind: Kind[T], obj: T) -> T:
        if kind.plural == NODES.plural:
            return self._labels(obj)  # type: ignore[type-var]
        return self._guard(obj) if isinstance(obj, Pod) else obj  # type: ignore[return-value]
