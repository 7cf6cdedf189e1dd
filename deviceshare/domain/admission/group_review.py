"""Validation of groups beyond the CRD's schema: spec, changes while bound, and deletion while pods use one.

A refusal names the field or the pods and what to do; an empty one allows.
"""

from collections.abc import Iterable

from deviceshare.domain.objects.groups import Group, name_fault, spec_faults
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.wording import listed

_LISTED = 10
"""Pods named in a refusal, to fit on a screen."""


def review_new_group(group: Group) -> str:
    """Why this group may not be created, or ""."""
    named = [f"metadata.name: {fault}"] if (fault := name_fault(group.name)) else []
    return "; ".join([*named, *spec_faults(group.spec)])


def review_changed_group(old: Group, new: Group) -> str:
    """Why a group may not change in this way, or ""."""
    before, now = old.metadata.hides("spec"), new.metadata.hides("spec")
    unreadable = f"spec can't be read ({new.metadata.fault})" if now else ""
    if now and not before:
        return unreadable
    if old.spec == new.spec:
        return ""
    if before:  # a spec that could not be read can't be compared
        return unreadable or "; ".join(spec_faults(new.spec))
    if old.node or old.metadata.hides("status.nodeName"):
        return (
            f"spec can't be changed while the group is bound to node {old.node or '(unreadable)'}: "
            f"delete the group (kubectl delete sdg {old.name}) and recreate it"
        )
    return "; ".join(spec_faults(new.spec))


def review_deleted_group(group: Group, pods: Iterable[Pod]) -> str:
    """Why a group may not be deleted, or "": running pods use its devices."""
    users = sorted(pod.metadata.key for pod in pods if _uses(pod, group))
    if not users:
        return ""
    number = "1 pod" if len(users) == 1 else f"{len(users)} pods"
    return (
        f"SharedDeviceGroup {group.name!r} is used by {number}: {listed(users, most=_LISTED)}; "
        "delete them or scale their workloads to 0 first"
    )


def _uses(pod: Pod, group: Group) -> bool:
    """A pod with devices names their group by UID; one that runs without may have lost that record, so it counts."""
    return pod.lives and (pod.holder_uid == group.uid if pod.holder_uid else pod.group == group.name)
