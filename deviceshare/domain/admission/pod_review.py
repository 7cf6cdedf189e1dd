"""Validation of pods of groups: their creation, changed metadata, and new ephemeral containers.

The mutating webhook runs before, but may have been unavailable: pods that it has not injected are refused here.
A refusal names the field and what to do; an empty one allows.
"""

from collections.abc import Collection, Mapping

from deviceshare.domain import contract
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.injection import concerns, group_fault, inject_ephemeral
from deviceshare.domain.objects.pods import Pod

_NOT_INJECTED = (
    "deviceshare's mutating webhook was unavailable when {what} created, so {it} could see other devices than the"
    " group's: recreate it"
)
_OWN_DEVICES = (
    "the group supplies the devices; leave the limit out, or leave the annotation out to get devices of the pod's own"
)


def review_new_pod(pod: Pod) -> str:
    """Why this pod may not be created, or ""."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if not concerns(labels, annotations):
        return ""
    return group_fault(labels, annotations) or _preset(pod) or _spec_fault(pod)


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
    ours = {key for each in metadata for key in each.annotations if contract.is_ours_alone(key)} | {contract.GROUP}
    changed = _changed(old.metadata.annotations, new.metadata.annotations, ours)
    if changed == contract.GROUP:
        return f"metadata.annotations[{changed}] can't be changed: delete the pod and create it with another group"
    if changed:
        return f"metadata.annotations[{changed}] is written by deviceshare only: leave it as it is"
    return ""


def review_ephemeral_containers(pod: Draft, existing: Collection[str]) -> str:
    """Why ephemeral containers may not be added in this way, or ""; `existing` names those that the pod already has."""
    if inject_ephemeral(pod, existing).patch:
        return "spec.ephemeralContainers: " + _NOT_INJECTED.format(what="the container was", it="it")
    return ""


def _changed(old: Mapping[str, str], new: Mapping[str, str], keys: Collection[str]) -> str:
    return next((key for key in sorted(keys) if old.get(key) != new.get(key)), "")


def _preset(pod: Pod) -> str:
    for key in sorted(pod.metadata.annotations):
        if contract.is_ours_alone(key):
            return f"metadata.annotations[{key}] is written by deviceshare only: leave it out"
    return ""


def _spec_fault(pod: Pod) -> str:
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
    if not pod.injected or contract.GROUP not in pod.metadata.labels:
        return "spec.containers: " + _NOT_INJECTED.format(what="the pod was", it="its containers")
    return ""
