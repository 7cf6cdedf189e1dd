"""A cluster whose pods are seen through the guard, so that nobody believes one that the webhooks don't look after."""

from collections.abc import Mapping
from typing import Any, TypeVar

from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.ports import Cluster, Kind

T = TypeVar("T")


class GuardedCluster:
    """Implements the port `Cluster` over another one."""

    def __init__(self, cluster: Cluster, guard: PodGuard) -> None:
        self._cluster = cluster
        self._guard = guard

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return self._seen(await self._cluster.get(kind, name, namespace))

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        listed = await self._cluster.list(
            kind, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        return [self._seen(obj) for obj in listed]

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        return self._seen(await self._cluster.create(kind, body, namespace))

    async def patch(
        self, kind: Kind[T], name: str, body: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        return self._seen(await self._cluster.patch(kind, name, body, namespace=namespace, subresource=subresource))

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> None:
        await self._cluster.delete(kind, name, namespace, uid=uid, resource_version=resource_version)

    async def bind(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
        timeout: float,
    ) -> None:
        version = resource_version
        await self._cluster.bind(
            namespace, pod, uid=uid, resource_version=version, node=node, annotations=annotations, timeout=timeout
        )

    def _seen(self, obj: T) -> T:
        return self._guard(obj) if isinstance(obj, Pod) else obj  # type: ignore[return-value]
