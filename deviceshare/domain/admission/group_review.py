"""Verdicts of the validating webhook on groups: what the CRD's schema can't say, and what others depend on.

A refusal names the field or the pods and the way out; an empty one allows.
"""

from collections.abc import Iterable

from deviceshare.domain.objects.groups import Group, name_fault, spec_faults
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.wording import listed

_LISTED = 10
"""Pods named in a refusal; a screen holds no more."""


def review_new_group(group: Group) -> str:
    """Why this group may not be created, or ""."""
    fault = name_fault(group.name)
    return "; ".join([*([f"metadata.name: {fault}"] if fault else []), *spec_faults(group.spec)])


def review_changed_group(old: Group, new: Group) -> str:
    """Why a group may not change in this way, or ""."""
    before, now = old.metadata.hides("spec"), new.metadata.hides("spec")
    unreadable = f"spec can't be read ({new.metadata.fault})" if now else ""
    if now and not before:
        return unreadable
    if old.spec == new.spec:
        return ""
    if before:  # whoever corrects it can't be told what it was
        return unreadable or "; ".join(spec_faults(new.spec))
    if old.node or old.metadata.hides("status.nodeName"):
        return (
            f"spec can't be changed while the group is bound to node {old.node or '(unreadable)'}: "
            f"delete the group (kubectl delete sdg {old.name}) and create it again"
        )
    return "; ".join(spec_faults(new.spec))


def review_deleted_group(group: Group, pods: Iterable[Pod]) -> str:
    """Why a group may not be deleted, or "": pods that live on a node use its devices."""
    users = sorted(pod.metadata.key for pod in pods if _uses(pod, group))
    if not users:
        return ""
    number = "1 pod" if len(users) == 1 else f"{len(users)} pods"
    return (
        f"SharedDeviceGroup {group.name!r} is used by {number}: {listed(users, most=_LISTED)}; "
        "delete them or scale their workloads to 0 first"
    )


def _uses(pod: Pod, group: Group) -> bool:
    """A pod that was given devices says of which group, by UID; another that runs may have been forgotten: count it."""
    return pod.lives and (pod.holder_uid == group.uid if pod.holder_uid else pod.group == group.name)
