"""A cluster whose nodes are shared by other systems' labels, too (nodes.py)."""

from typing import Any, TypeVar

from deviceshare.domain.objects.nodes import SharingLabels, may_be_shared
from deviceshare.loops.kinds import NODES, SHARED_NODES
from deviceshare.loops.ports import Cluster, Kind

T = TypeVar("T")


class LabelledCluster:
    """Implements the port `Cluster` over another one.

    A list of the shared nodes lists all of them there, as a selector can't say "or".
    """

    def __init__(self, cluster: Cluster, labels: SharingLabels) -> None:
        self._cluster = cluster
        self._labels = labels
        # Nodes aren't written.
        self.create = cluster.create
        self.patch = cluster.patch
        self.delete = cluster.delete
        self.bind = cluster.bind

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._seen(kind, await self._cluster.get(kind, name, namespace))

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        shared = bool(self._labels) and kind.plural == NODES.plural and label_selector == SHARED_NODES
        selector = "" if shared else label_selector
        found = await self._cluster.list(
            kind, namespace=namespace, label_selector=selector, field_selector=field_selector
        )
        seen = [self._seen(kind, obj) for obj in found]
        return [each for each in seen if may_be_shared(each)] if shared else seen

    def _seen(self, kind: Kind[T], obj: T) -> T:
        node: Any = obj
        return self._labels(node) if kind.plural == NODES.plural else obj
