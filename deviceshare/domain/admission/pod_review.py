"""Validation of pods of groups: their creation, changed metadata, and new ephemeral containers.

The mutating webhook runs before, but may have been unavailable: pods that it has not injected are refused here.
A refusal names the field and what to do; an empty one allows.
"""

from collections.abc import Collection, Mapping, Sequence

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.injection import concerns, group_fault, is_ours_alone, reads
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

_NOT_INJECTED = (
    "deviceshare's mutating webhook did not inject {}, so containers could see other devices than the group's: retry"
)
_OWN_DEVICES = (
    "the group supplies the devices; leave the limit out, or leave the annotation out to get devices of the pod's own"
)


def review_new_pod(pod: Pod, group: Group | None) -> str:
    """Why this pod may not be created, or ""; `group` is the one it names, as far as that is known."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if not concerns(labels, annotations):
        return ""
    if fault := group_fault(labels, annotations):
        return fault
    if ours := sorted(filter(is_ours_alone, annotations)):
        return f"metadata.annotations[{ours[0]}] is written by deviceshare only: leave it out"
    return _spec_fault(pod, group)


def review_changed_pod(old: Pod, new: Pod, *, by_deviceshare: bool) -> str:
    """Why a pod's metadata may not change in this way, or "".

    The devices of a pod are read from its annotations at each start of a container, so a user who can write them can
    take any device.
    """
    metadata = (old.metadata, new.metadata)
    if by_deviceshare or not any(concerns(each.labels, each.annotations) for each in metadata):
        return ""
    if changed := _changed(old.metadata.labels, new.metadata.labels, {contract.GROUP}):
        return f"metadata.labels[{changed}] can't be changed: delete the pod and create it with another group"
    ours = {key for each in metadata for key in each.annotations if is_ours_alone(key)} | {contract.GROUP}
    changed = _changed(old.metadata.annotations, new.metadata.annotations, ours)
    if changed == contract.GROUP:
        return f"metadata.annotations[{changed}] can't be changed: delete the pod and create it with another group"
    if changed:
        return f"metadata.annotations[{changed}] is written by deviceshare only: leave it as it is"
    return ""


def review_ephemeral_containers(pod: Draft, existing: Collection[str], group: Group | None) -> str:
    """Why ephemeral containers may not be added in this way, or ""; `existing` names those that the pod already has."""
    annotations = pod.metadata.annotations or {}
    if contract.GROUP not in annotations:
        return ""
    if group and annotations.get(contract.GROUP_UID, group.uid) != group.uid:
        group = None  # The pod has devices of an earlier group of this name.
    added = [each for each in pod.spec.ephemeral_containers or () if each.name not in existing]
    lacking = [vendor.env for vendor in _vendors(group) if not all(reads(each.env or [], vendor) for each in added)]
    return f"spec.ephemeralContainers: {_NOT_INJECTED.format(f'the env {listed(lacking)}')}" if lacking else ""


def _changed(old: Mapping[str, str], new: Mapping[str, str], keys: Collection[str]) -> str:
    return next((key for key in sorted(keys) if old.get(key) != new.get(key)), "")


def _spec_fault(pod: Pod, group: Group | None) -> str:
    if pod.node:
        return (
            f"spec.nodeName: a pod of a group is placed by {contract.SCHEDULER_NAME}, which knows the group's node; "
            "leave it out and choose nodes with the group's spec.nodeSelector"
        )
    if pod.spec.scheduler_name != contract.SCHEDULER_NAME:
        return (
            f"spec.schedulerName: {pod.spec.scheduler_name!r} can't give a pod the devices of a group; "
            f"leave it out or set it to {contract.SCHEDULER_NAME}"
        )
    for field, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for position, container in enumerate(containers):
            for resource in sorted(container.resources.devices):
                return f"spec.{field}[{position}].resources.limits[{resource}]: {_OWN_DEVICES}"
    for resource in sorted(pod.spec.resources.devices):
        return f"spec.resources.limits[{resource}]: {_OWN_DEVICES}"
    lacking = pod.lacking(_vendors(group))
    return "spec.containers: " + _NOT_INJECTED.format(listed(lacking)) if lacking else ""


def _vendors(group: Group | None) -> Sequence[Vendor]:
    """Those whose variables a pod of the group needs: all where it isn't known what the group requests."""
    known = group is not None and not group.metadata.unreadable
    return vendors.vendors_of(group.spec.resources) if group and known else vendors.VENDORS
