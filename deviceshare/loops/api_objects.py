"""API objects that may be gone: reads that say so with None, and conditional writes of pods' annotations."""

from collections.abc import Mapping
from typing import TypeVar

from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import Cluster, Kind, NotFound

T = TypeVar("T")


async def find(cluster: Cluster, kind: Kind[T], name: str, namespace: str = "") -> T | None:
    """The object, read fresh; None where there is no such object. Raises ApiError."""
    try:
        return await cluster.get(kind, name, namespace)
    except NotFound:
        return None


async def annotate(cluster: Cluster, pod: Pod, annotations: Mapping[str, str | None]) -> Pod | None:
    """The pod with these annotations changed; None where it is gone.

    Raises:
        Conflict: somebody else wrote the pod since it was read.
        ApiError: the pod could not be written.
    """
    meta = pod.metadata
    body = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
    try:
        return await cluster.patch(PODS, meta.name, body, namespace=meta.namespace)
    except NotFound:
        return None
