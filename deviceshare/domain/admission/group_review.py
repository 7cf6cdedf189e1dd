"""Validation of groups beyond the CRD's schema: spec, changes while bound, and deletion while pods use one.

A refusal names the field or the pods and what to do; an empty one allows.
"""

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import fields

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import (
    DEFAULT_LIFE,
    AllowedNamespaces,
    Group,
    GroupLife,
    GroupSpec,
    name_fault,
    spec_faults,
    users,
)
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.wording import listed

_DELETE_PODS = "delete them or scale their workloads to 0 first, or set spec.deletionPolicy to AfterLastPod"
_NOT_YET = "deviceshare has yet to put the finalizer of deletionPolicy AfterLastPod on it: retry in a moment"
_LISTED = 10
"""Pods named in a refusal, to fit on a screen."""


_FIELDS: Final = {
    path: sorted(each.encode_name for each in fields(type_))
    for path, type_ in (("spec", GroupSpec), ("spec.allowedNamespaces", AllowedNamespaces))
}


class GroupFields(Struct, frozen=True):
    """A group's spec as it was written, whatever this release knows of it."""

    spec: dict[str, Raw] = field(default_factory=dict)

    @property
    def names(self) -> list[tuple[str, str]]:
        """Where a field is, and its name."""
        try:
            inner = msgspec.json.decode(self.spec.get("allowedNamespaces", b"{}"), type=dict[str, Raw])
        except msgspec.DecodeError:
            inner = {}  # it is refused for that
        return [*(("spec", name) for name in self.spec), *(("spec.allowedNamespaces", name) for name in inner)]


def review_fields(old: GroupFields, new: GroupFields) -> str:
    """Why a group may not get fields that this release doesn't know, such as misspelt ones, or "".

    The API server keeps them, so that going back from a later release drops nothing. Those that are there may stay.
    """
    unknown = [each for each in new.names if each[1] not in _FIELDS[each[0]] and each not in old.names]
    return "; ".join(
        f"{path}: unknown field {quoted(name)}; known are {listed(_FIELDS[path])}" for path, name in sorted(unknown)
    )


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
    if old.spec.binding != new.spec.binding and (old.node or old.metadata.hides("status.nodeName")):
        return (
            f"spec can't be changed while the group is bound to node {old.node or '(unreadable)'}: "
            f"delete the group (kubectl delete sdg {old.name}) and recreate it"
        )
    return "; ".join(spec_faults(new.spec))


def review_quota(group: Group, before: Group | None, excess: Reason | None) -> str:
    """Why the group may not be created, or changed from what it was before, or "": `excess`, of a quota.

    What is bound stays as it is, and who writes its labels is left to RBAC.
    """
    same = before is not None and (before.spec.resources, before.metadata.labels) == (
        group.spec.resources,
        group.metadata.labels,
    )
    return "" if same or group.node else str(excess or "")


def review_deleted_group(group: Group, pods: Iterable[Pod], life: GroupLife = DEFAULT_LIFE) -> str:
    """Why a group may not be deleted, or "": running pods use its devices.

    With AfterLastPod it may, once the finalizer is there that keeps it until the last of them has ended.
    """
    if group.deleting or not (found := users(group, pods)):
        return ""
    later = life.outlives_deletion(group.spec.deletion_policy)
    if later and contract.PODS_FINALIZER in group.metadata.finalizers:
        return ""
    number = "1 pod" if len(found) == 1 else f"{len(found)} pods"
    cure = _NOT_YET if later else _DELETE_PODS
    return f"SharedDeviceGroup {group.name!r} is used by {number}: {listed(found, most=_LISTED)}; {cure}"
