"""A Namespace, of which only name and labels are read."""

from msgspec import Struct, field
from msgspec.structs import replace

from deviceshare.domain.objects.object_meta import ObjectMeta


class NamespaceObject(Struct, frozen=True, gc=False):
    """https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/namespace-v1/"""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)

    @property
    def labels(self) -> dict[str, str] | None:
        """None where they can't be read."""
        return None if self.metadata.hides("metadata.labels") else self.metadata.labels


def without_annotations(namespace: NamespaceObject) -> NamespaceObject:
    """What is worth holding of it, since a cluster may have thousands."""
    return replace(namespace, metadata=replace(namespace.metadata, annotations={}))
