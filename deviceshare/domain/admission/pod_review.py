"""Validation of pods that name a group or ask for a share: their creation, changed metadata, new ephemeral containers.

The mutating admission runs before, but may have been unavailable: pods that it has not injected are refused here.
A refusal names the field and what to do; an empty one allows.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from deviceshare.domain import contract, vendors
from deviceshare.domain.admission.drafts import Draft, Systems, concern_of, concerns, is_ours_alone
from deviceshare.domain.admission.pod_injection import given_by_claim, reads
from deviceshare.domain.admission.settings import EXTENDER, GATES
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pod_spec import Container
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.share_wishes import resize_fault
from deviceshare.domain.objects.shares import DIALECTS, MIB_PER_GIB, SYSTEMS, ShareRequest, in_gib, token_fault
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed

Largest = Callable[[Sequence[str]], int]
"""MiB of the largest device of these resources on any shared node; 0 where none is known."""

MAX_ANNOTATIONS: Final = 192 << 10
"""Bytes. Kubernetes takes 256 KiB: the rest is for what deviceshare, and others, write after the pod's creation."""
_TOO_LARGE = "metadata.annotations take more than 192 KiB, and deviceshare writes its own besides: leave some out"
_NOT_INJECTED = "deviceshare did not inject {}, so containers could see other devices than theirs: retry"
_OF_ITS_CONTAINERS = (
    "spec.resources.limits[{}]: a container asks for a share, not the pod as a whole; move the limit to the container"
    " that uses it"
)
_NOT_GATED = (
    f"{contract.PLACEMENT_GATE} is missing, so the pod could be scheduled before it has devices: deviceshare adds it,"
    " and Kubernetes keeps it from 1.27 on; retry"
)


def no_largest(_: Sequence[str]) -> int:
    """Where nothing is known of nodes."""
    return 0


def review_new_pod(
    pod: Pod,
    group: Group | None,
    *,
    largest: Largest = no_largest,
    dialects: Systems = SYSTEMS,
    placement: str = EXTENDER,
    outsider: Reason | None = None,
    lacks_claim: str = "",
) -> str:
    """Why this pod may not be created, or "".

    `group` is the one it names, as far as that is known; `dialects` are the other systems' that are served, and
    `placement` is one of PLACEMENTS. `outsider` is why the group takes no pods of the pod's namespace, and
    `lacks_claim` what the pod lacks to get its devices by a ResourceClaim.
    """
    concern = concern_of(pod.metadata, pod.share, dialects)
    if concern is None:
        return ""
    share, whole = concern.share, pod.spec.resources
    if group is not None and group.claim:
        return concern.fault or _by_claim_fault(pod, group, concern.ours, outsider, lacks_claim)
    lacking = pod.lacking(_vendors(pod.group, group, share.of))
    return (
        concern.fault
        or _annotations_fault(concern.ours, pod.metadata.annotations)
        or (f"metadata.annotations[{contract.GROUP}]: {outsider}" if outsider else "")
        or _placement_fault(pod, placement)
        or _own_devices_fault(pod, share)
        or (f"spec.containers: {_NOT_INJECTED.format(listed(lacking))}" if lacking else "")
        or (_OF_ITS_CONTAINERS.format(min(whole.parts)) if whole.limits and whole.parts else "")
        or (_foreign_share(pod, group, share) or _too_large(pod, share, largest(share.of)) if share else "")
    )


def _by_claim_fault(pod: Pod, group: Group, ours: list[str], outsider: Reason | None, lacks_claim: str) -> str:
    given, annotations = given_by_claim(group), pod.metadata.annotations
    others = [key for key in ours if annotations[key] != given.get(key)]
    name, injected = f"metadata.annotations[{contract.GROUP}]", given.items() <= annotations.items()
    if pod.share:
        return (
            f"spec.containers: a share can't be taken from {group.name!r}, which hands its devices over by a"
            " ResourceClaim: leave the share or the group out"
        )
    return (
        (f"{name}: {outsider}" if outsider else "")
        or (f"{name}: {group.name!r} is being deleted: retry when it is gone" if group.deleting else "")
        or _annotations_fault(others, annotations)
        or ("" if injected and not lacks_claim else f"{lacks_claim or name}: {_NOT_INJECTED.format('the claim')}")
        or _own_devices_fault(pod, pod.share)
    )


def _annotations_fault(ours: list[str], annotations: Mapping[str, str]) -> str:
    if ours:
        return f"metadata.annotations[{ours[0]}] is written by deviceshare only: leave it out"
    return _TOO_LARGE if _size(annotations) > MAX_ANNOTATIONS else ""


def _size(annotations: Mapping[str, str]) -> int:
    """Bytes, as the API server counts them."""
    return sum(map(len, map(str.encode, chain(annotations, annotations.values()))))


def _placement_fault(pod: Pod, placement: str) -> str:
    if pod.node:
        node, nodes = ("the group's node", "the group's spec.nodeSelector") if pod.group else ("what is free", "")
        return (
            f"spec.nodeName: a pod that shares devices is placed by {contract.SCHEDULER_NAME}, which knows {node}; "
            f"leave it out and choose nodes with {nodes or 'spec.nodeSelector'}"
        )
    if placement == GATES:
        gates = (gate.name for gate in pod.spec.scheduling_gates)
        return "" if contract.PLACEMENT_GATE in gates else f"spec.schedulingGates: {_NOT_GATED}"
    if pod.spec.scheduler_name == contract.SCHEDULER_NAME:
        return ""
    what = "the devices of a group" if pod.group else "a share"
    return (
        f"spec.schedulerName: {pod.spec.scheduler_name!r} can't give a pod {what}; "
        f"leave it out or set it to {contract.SCHEDULER_NAME}"
    )


def _own_devices_fault(pod: Pod, share: ShareRequest) -> str:
    """Of devices that it asks the vendor's device plugin for."""
    cure = (
        "the pod asks for a share, too, and gets devices from deviceshare alone; leave one of the two limits out"
        " (deviceshare.io/gpu-percent: 100 is a whole device)"
        if share
        else "the group supplies the devices; leave the limit out, or leave the annotation out to get devices of the"
        " pod's own"
    )
    for where, container in _containers(pod):
        if container.resources.limits and (found := container.resources.devices):
            return f"{where}.resources.limits[{min(found)}]: {cure}"
    found = pod.spec.resources.devices if pod.spec.resources.limits else set()
    return f"spec.resources.limits[{min(found)}]: {cure}" if found else ""


def _vendors(name: str, group: Group | None, share: Sequence[str]) -> Sequence[Vendor]:
    """The vendors whose variables a pod needs: all where it isn't known what the group of this name requests."""
    if not name:
        return vendors.vendors_of(share)
    known = group is not None and not group.metadata.unreadable
    return vendors.vendors_of(group.spec.resources) if group and known else vendors.VENDORS


def _foreign_share(pod: Pod, group: Group | None, share: ShareRequest) -> str:
    """Of a share that no device of the group can serve."""
    if group is None or group.metadata.unreadable or not group.spec.resources.keys().isdisjoint(share.of):
        return ""
    has = listed(map(vendors.label_of, sorted(group.spec.resources))) or "no devices"
    where, asked = _first(pod, share)
    return (
        f"{where}.resources.limits[{asked}]: the share is taken from the devices of {group.name!r}, and that group has"
        f" {has}, not {listed(map(vendors.label_of, share.of), link='or')}: name another group, or leave the annotation"
        f" {contract.GROUP} out to get a share of any device"
    )


def _too_large(pod: Pod, share: ShareRequest, most: int) -> str:
    """Of a share that no device can ever serve."""
    need = next((need for need in share.needs if need.memory_mib > most > 0), None)
    if need is None:
        return ""
    where, asked = _first(pod, share, need.container)
    return (
        f"{where}.resources.limits[{asked}]: {need} of one device, but the largest on any shared node has"
        f" {in_gib(most)}: ask for at most {most // MIB_PER_GIB}, or for a part in percent ({shares.GPU_PERCENT})"
    )


def _first(pod: Pod, share: ShareRequest, container: str = "") -> tuple[str, str]:
    """Where a share is asked for first, by this container or any, and as which resource."""
    for where, each in _containers(pod):
        found = sorted(each.resources.parts.intersection(share.resources, DIALECTS))
        if found and container in ("", each.name):
            return where, found[0]
    return "spec.containers", share.resources[0]


def _containers(pod: Pod) -> Iterator[tuple[str, Container]]:
    for field, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for position, container in enumerate(containers):
            yield f"spec.{field}[{position}]", container


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
    if fault := _request_fault(old.metadata.annotations, new.metadata.annotations):
        return fault
    before, after = ({gate.name for gate in each.spec.scheduling_gates} for each in (old, new))
    if contract.PLACEMENT_GATE in before - after:
        return (
            f"spec.schedulingGates: {contract.PLACEMENT_GATE} is removed by deviceshare, together with the pod's"
            " devices and its node: leave it as it is"
        )
    ours = {key for each in metadata for key in each.annotations if is_ours_alone(key)} | contract.USERS
    ours -= _REQUESTS.keys()
    changed = _changed(old.metadata.annotations, new.metadata.annotations, ours)
    if changed in contract.USERS:
        what = changed.removeprefix(contract.PREFIX)
        return f"metadata.annotations[{changed}] can't be changed: delete the pod and create it with another {what}"
    if changed:
        return f"metadata.annotations[{changed}] is written by deviceshare only: leave it as it is"
    size = _size(new.metadata.annotations)
    return _TOO_LARGE if size > MAX_ANNOTATIONS and size > _size(old.metadata.annotations) else ""


_REQUESTS: Final = {
    contract.REBIND: (
        token_fault,
        "replaced: leave it out (a group's devices are replaced by deviceshare rebind GROUP)",
    ),
    contract.RESIZE: (resize_fault, "resized: leave it out"),
}


def _request_fault(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Why this may not be requested of a pod, or "". Who may change it may ask for it: only its own share changes."""
    for key, (fault_of, done) in _REQUESTS.items():
        wanted = new.get(key)
        if wanted is not None and wanted != old.get(key):
            none = "" if contract.SHARES in new else f"the pod has no share of a device that could be {done}"
            if fault := none or fault_of(wanted):
                return f"metadata.annotations[{key}]: {fault}"
    return ""


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
