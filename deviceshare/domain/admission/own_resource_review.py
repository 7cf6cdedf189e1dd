"""Validation of our own resources, beyond the schemas of their CRDs: SharedDeviceGroups and NodeDevices.

Of groups: their spec, changes while they are bound, and deletion while pods use them. Of NodeDevices: agents report on
their own node, people report repairs, and nobody deletes claims. A refusal names the field or the pods and what to do;
an empty one allows.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import fields

from deviceshare.domain import contract
from deviceshare.domain.objects import groups
from deviceshare.domain.objects.groups import DEFAULT_LIFE, Group, GroupLife, GroupSpec, name_fault, spec_faults, users
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.wording import counted, listed, quoted

_DELETE_PODS = "delete them or scale their workloads to 0 first, or set spec.deletionPolicy to AfterLastPod"
_NOT_YET = "deviceshare has yet to put the finalizer of deletionPolicy AfterLastPod on it: retry in a moment"
_LISTED = 10
"""Pods named in a refusal, to fit on a screen."""


_FIELDS: Final = {
    path: sorted(each.encode_name for each in fields(type_))
    for path, type_ in (("spec", GroupSpec), ("spec.allowedNamespaces", groups.AllowedNamespaces))
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


def new_group_patch(group: Group, life: GroupLife = DEFAULT_LIFE) -> list[dict[str, Any]]:
    """The JSON Patch (RFC 6902) of a new group: the finalizer of deletionPolicy AfterLastPod, and no managed fields.

    Whoever deletes the group right after its first bind need not wait for the leader to put the finalizer on.
    """
    patch: list[dict[str, Any]] = []
    path, finalizers = "/metadata/finalizers", group.metadata.finalizers
    if life.outlives_deletion(group.spec.deletion_policy) and contract.PODS_FINALIZER not in finalizers:
        patch += [] if finalizers else [{"op": "add", "path": path, "value": []}]
        patch += [{"op": "add", "path": f"{path}/-", "value": contract.PODS_FINALIZER}]
    if group.has_idle_managers:
        patch += [{"op": "remove", "path": "/metadata/managedFields"}]
    return patch


def review_changed_group(old: Group, new: Group) -> str:
    """Why a group may not change in this way, or ""."""
    before, same = old.metadata.hides("spec"), old.spec == new.spec
    if new.metadata.hides("spec"):
        return "" if before and same else f"spec can't be read ({new.metadata.fault})"
    if same:
        return ""
    bound = old.node or old.metadata.hides("status.nodeName")
    if bound and not before and old.spec.binding != new.spec.binding:  # one that can't be read can't be compared
        return (
            f"spec can't be changed while the group is bound to node {old.node or '(unreadable)'}: "
            f"delete the group (kubectl delete sdg {old.name}) and recreate it"
        )
    return "; ".join(spec_faults(new.spec))


def review_quota(group: Group, before: Group | None, excess: Reason | None) -> str:
    """Why the group may not be created, or changed from what it was before, or "": `excess`, of a quota.

    What is bound stays as it is, and who writes its labels is left to RBAC.
    """
    now = group.spec.resources, group.metadata.labels
    same = before is not None and (before.spec.resources, before.metadata.labels) == now
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
    cure = _NOT_YET if later else _DELETE_PODS
    named = f"{counted(len(found), 'pod')}: {listed(found, most=_LISTED)}"
    return f"SharedDeviceGroup {group.name!r} is used by {named}; {cure}"


# NodeDevices. An agent runs on a node beside other programs, some of them as root. One that takes over the agent must
# not be able to write claims, or to other nodes. Who may write the status alone, as by the role `deviceshare-recover`,
# must not be able to misreport devices; RBAC knows no single fields. Deviceshare itself, and who may write all of the
# object, isn't restricted.

Object = Mapping[str, Any]
"""A NodeDevices in plain JSON: unknown fields are compared like all others."""

ADMINISTRATORS: Final = "system:masters"
"""The group that may do anything, whatever RBAC says."""


def review_report(old: Object, new: Object, node: str) -> str:
    """Why an agent may not change a NodeDevices in this way, or "".

    `node` is the node that its token is bound to; "" where tokens name none, before Kubernetes 1.30. Policies, which
    only later releases have, refuse those.
    """
    name = (new.get("metadata") or {}).get("name", "")
    if node and node != name:
        return f"the agent on node {node} may report on its own node only, not on {name!r}"
    changed = _changed(old, new, "hardware")
    return f"an agent may write status.hardware only, not {changed}" if changed else ""


def review_repair(old: Object, new: Object) -> str:
    """Why somebody who may write the status alone may not change a NodeDevices in this way, or ""."""
    others = "who may not patch nodedevices may change status.recovered alone, as deviceshare recover does"
    changed = _changed(old, new, "recovered")
    return f"only deviceshare and its agents write {changed}: {others}" if changed else ""


def review_deletion(old: Object) -> str:
    """Why nobody may delete a NodeDevices, or "".

    Its finalizer would keep it as long as it has claims. But it could not be kept any longer, whoever regrets it.
    """
    claims, name = len((old.get("spec") or {}).get("claims") or {}), (old.get("metadata") or {}).get("name", "")
    cure = "deviceshare deletes it once the node isn't shared any more and nobody holds any"
    return f"devices of node {name} are claimed ({claims} claims in its NodeDevices): {cure}" if claims else ""


def _changed(old: Object, new: Object, own: str) -> str:
    """The first field that differs, as `spec.claims`, but for the one of the status that may be written, `own`.

    What the API server writes beside the status may differ, too.
    """
    may_differ = {"metadata": {"managedFields", "resourceVersion", "generation"}, "status": {own}}
    for key in sorted({*old, *new}):
        before, after = ((each.get(key) or {} if key in may_differ else each.get(key)) for each in (old, new))
        if before != after and isinstance(before, dict) and isinstance(after, dict):
            differs = (name for name in sorted({*before, *after}) if before.get(name, ...) != after.get(name, ...))
            for name in differs:
                if name not in may_differ.get(key, ()):
                    return f"{key}.{name}"
        elif before != after:
            return key
    return ""
