"""Whose a pod is by its metadata, as the Binding wrote it: whose devices it has, and for which pod they were."""

from deviceshare.domain import contract
from deviceshare.domain.objects.object_meta import ObjectMeta


def holder_uid_of(meta: ObjectMeta) -> str:
    """The UID of the holder whose devices a pod with this metadata got, or "".

    Trusted only together with the label, since admission protects the annotations of labelled pods alone.
    """
    return meta.annotations.get(contract.GROUP_UID, "") if contract.GROUP in meta.labels else ""


def is_impostor(meta: ObjectMeta) -> bool:
    """Whether it bears what was written for another pod, see `Pod.impostor`."""
    return meta.annotations.get(contract.POD_UID, meta.uid) != meta.uid and not meta.hides("metadata.uid")
