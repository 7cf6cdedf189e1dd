"""Validation of pods that name a group or ask for a share: their creation, changed metadata, new ephemeral containers.

The mutating admission runs before, but may have been unavailable: pods that it has not injected are refused here.
A refusal names the field and what to do; an empty one allows.
"""

from collections.abc import Collection, Mapping, Sequence

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.concern import concerns, is_ours_alone, metadata_fault
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.admission.injection import reads
from deviceshare.domain.admission.injection_settings import EXTENDER, GATES
from deviceshare.domain.admission.share_review import Largest, no_largest, review_share
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.requests import token_fault
from deviceshare.domain.objects.shares import SYSTEMS
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

MAX_ANNOTATIONS = 192 << 10
"""Bytes. Kubernetes takes 256 KiB: the rest is for what deviceshare, and others, write after the pod's creation."""
_TOO_LARGE = "metadata.annotations take more than 192 KiB, and deviceshare writes its own besides: leave some out"
_NOT_INJECTED = "deviceshare did not inject {}, so containers could see other devices than theirs: retry"
_NOT_GATED = (
    f"{contract.PLACEMENT_GATE} is missing, so the pod could be scheduled before it has devices: deviceshare adds it,"
    " and Kubernetes keeps it from 1.27 on; retry"
)
_OWN_DEVICES = (
    "the group supplies the devices; leave the limit out, or leave the annotation out to get devices of the pod's own"
)
_BOTH = (
    "the pod asks for a share, too, and gets devices from deviceshare alone; leave one of the two limits out"
    " (deviceshare.io/gpu-percent: 100 is a whole device)"
)


def review_new_pod(
    pod: Pod,
    group: Group | None,
    *,
    largest: Largest = no_largest,
    dialects: Collection[str] = SYSTEMS,
    placement: str = EXTENDER,
    outsider: Reason | None = None,
) -> str:
    """Why this pod may not be created, or "".

    `group` is the one it names, as far as that is known; `dialects` are the other systems' that are served, and
    `placement` is one of PLACEMENTS. `outsider` is why the group takes no pods of the pod's namespace.
    """
    labels, annotations, share = pod.metadata.labels, pod.metadata.annotations, pod.share
    if not concerns(labels, annotations, share, dialects):
        return ""
    if fault := metadata_fault(labels, annotations, share, dialects):
        return fault
    if ours := sorted(filter(is_ours_alone, annotations)):
        return f"metadata.annotations[{ours[0]}] is written by deviceshare only: leave it out"
    if _size(annotations) > MAX_ANNOTATIONS:
        return _TOO_LARGE
    if outsider:
        return f"metadata.annotations[{contract.GROUP}]: {outsider}"
    return _spec_fault(pod, group, placement) or review_share(pod, group, largest)


def review_changed_pod(old: Pod, new: Pod, *, by_deviceshare: bool) -> str:
    """Why a pod's metadata may not change in this way, or "".

    The devices of a pod are read from its annotations at each start of a container, so a user who can write them can
    take any device. How much a container asks for needs no protection of ours: the API server refuses a change of its
    limits, and its subresource `resize`, from 1.27 on, takes CPU and memory only.
    """
    metadata = (old.metadata, new.metadata)
    if by_deviceshare or not any(concerns(each.labels, each.annotations) for each in metadata):
        return ""
    if changed := _changed(old.metadata.labels, new.metadata.labels, {contract.GROUP}):
        return f"metadata.labels[{changed}] can't be changed: delete the pod and create it with another group or share"
    if fault := _rebind_fault(old, new):
        return f"metadata.annotations[{contract.REBIND}]: {fault}"
    if _ungated(old, new):
        return (
            f"spec.schedulingGates: {contract.PLACEMENT_GATE} is removed by deviceshare, together with the pod's"
            " devices and its node: leave it as it is"
        )
    ours = {key for each in metadata for key in each.annotations if is_ours_alone(key)} | contract.USERS
    ours -= {contract.REBIND}
    changed = _changed(old.metadata.annotations, new.metadata.annotations, ours)
    if changed in contract.USERS:
        what = changed.removeprefix(contract.PREFIX)
        return f"metadata.annotations[{changed}] can't be changed: delete the pod and create it with another {what}"
    if changed:
        return f"metadata.annotations[{changed}] is written by deviceshare only: leave it as it is"
    size = _size(new.metadata.annotations)
    return _TOO_LARGE if size > MAX_ANNOTATIONS and size > _size(old.metadata.annotations) else ""


def _size(annotations: Mapping[str, str]) -> int:
    """Bytes, as the API server counts them."""
    return sum(len(text.encode()) for pair in annotations.items() for text in pair)


def _rebind_fault(old: Pod, new: Pod) -> str:
    """Why this may not be requested, or "". Who may change a pod may ask for it: nothing but its own share is moved."""
    token = new.metadata.annotations.get(contract.REBIND)
    if token is None or token == old.metadata.annotations.get(contract.REBIND):
        return ""
    if contract.SHARES not in new.metadata.annotations:
        return (
            "the pod has no share of a device that could be replaced: leave it out"
            " (a group's devices are replaced by deviceshare rebind GROUP)"
        )
    return token_fault(token)


def review_ephemeral_containers(pod: Draft, existing: Collection[str], group: Group | None) -> str:
    """Why ephemeral containers may not be added in this way, or ""; `existing` names those that the pod already has."""
    annotations = pod.metadata.annotations or {}
    if not concerns(pod.metadata.labels, annotations):
        return ""
    if group and annotations.get(contract.GROUP_UID, group.uid) != group.uid:
        group = None  # The pod has devices of an earlier group of this name.
    added = [each for each in pod.spec.ephemeral_containers or () if each.name not in existing]
    wanted = _vendors(annotations.get(contract.GROUP, ""), group, pod.spec.share.of)
    lacking = [vendor.env for vendor in wanted if not all(reads(each.env or [], vendor) for each in added)]
    return f"spec.ephemeralContainers: {_NOT_INJECTED.format(f'the env {listed(lacking)}')}" if lacking else ""


def _changed(old: Mapping[str, str], new: Mapping[str, str], keys: Collection[str]) -> str:
    return next((key for key in sorted(keys) if old.get(key) != new.get(key)), "")


def _ungated(old: Pod, new: Pod) -> bool:
    before, after = ({gate.name for gate in each.spec.scheduling_gates} for each in (old, new))
    return contract.PLACEMENT_GATE in before - after


def _spec_fault(pod: Pod, group: Group | None, placement: str) -> str:
    if pod.node:
        node, nodes = ("the group's node", "the group's spec.nodeSelector") if pod.group else ("what is free", "")
        return (
            f"spec.nodeName: a pod that shares devices is placed by {contract.SCHEDULER_NAME}, which knows {node}; "
            f"leave it out and choose nodes with {nodes or 'spec.nodeSelector'}"
        )
    if placement == GATES:
        if contract.PLACEMENT_GATE not in (gate.name for gate in pod.spec.scheduling_gates):
            return f"spec.schedulingGates: {_NOT_GATED}"
    elif pod.spec.scheduler_name != contract.SCHEDULER_NAME:
        what = "the devices of a group" if pod.group else "a share"
        return (
            f"spec.schedulerName: {pod.spec.scheduler_name!r} can't give a pod {what}; "
            f"leave it out or set it to {contract.SCHEDULER_NAME}"
        )
    own = _BOTH if pod.share else _OWN_DEVICES
    for field, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for position, container in enumerate(containers):
            for resource in sorted(container.resources.devices):
                return f"spec.{field}[{position}].resources.limits[{resource}]: {own}"
    for resource in sorted(pod.spec.resources.devices):
        return f"spec.resources.limits[{resource}]: {own}"
    lacking = pod.lacking(_vendors(pod.group, group, pod.share.of))
    return "spec.containers: " + _NOT_INJECTED.format(listed(lacking)) if lacking else ""


def _vendors(name: str, group: Group | None, share: Sequence[str]) -> Sequence[Vendor]:
    """Those whose variables a pod needs: all where it isn't known what the group of this name requests."""
    if not name:
        return vendors.vendors_of(share)
    known = group is not None and not group.metadata.unreadable
    return vendors.vendors_of(group.spec.resources) if group and known else vendors.VENDORS
