"""Validation of what a pod asks for as a share, beside the groups and the devices that there are."""

from collections.abc import Callable, Sequence

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pod_spec import PodSpec
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DIALECTS, GPU_PERCENT, MIB_PER_GIB, in_gib
from deviceshare.domain.wording import listed

Largest = Callable[[Sequence[str]], int]
"""MiB of the largest device of these resources on any shared node; 0 where none is known."""


def no_largest(_: Sequence[str]) -> int:
    """Where nothing is known of nodes."""
    return 0


def review_share(pod: Pod, group: Group | None, largest: Largest) -> str:
    """Why a pod whose request can be read may not ask for its share, or ""; `group` is the one it names, if known."""
    for resource in sorted(pod.spec.resources.parts):
        return (
            f"spec.resources.limits[{resource}]: a container asks for a share, not the pod as a whole; "
            "move the limit to the container that uses it"
        )
    if not pod.share:
        return ""
    return _foreign(pod, group) or _too_large(pod, largest(pod.share.of))


def _foreign(pod: Pod, group: Group | None) -> str:
    """Of a share that no device of the group can serve."""
    of = pod.share.of
    if group is None or group.metadata.unreadable or not set(of).isdisjoint(group.spec.resources):
        return ""
    has = listed(map(vendors.label_of, sorted(group.spec.resources))) or "no devices"
    where, asked = _first(pod.spec, pod.share.resources)
    return (
        f"{where}.resources.limits[{asked}]: the share is taken from the devices of {group.name!r}, and that group has"
        f" {has}, not {listed(map(vendors.label_of, of), link='or')}: name another group, or leave the annotation"
        f" {contract.GROUP} out to get a share of any device"
    )


def _too_large(pod: Pod, most: int) -> str:
    """Of a share that no device can ever serve."""
    for need in pod.share.needs:
        if most and need.memory_mib > most:
            where, asked = _first(pod.spec, pod.share.resources, need.container)
            return (
                f"{where}.resources.limits[{asked}]: {need} of one device, but the largest on any shared node has"
                f" {in_gib(most)}: ask for at most {most // MIB_PER_GIB}, or for a part in percent ({GPU_PERCENT})"
            )
    return ""


def _first(spec: PodSpec, resources: Sequence[str], container: str = "") -> tuple[str, str]:
    """Where one of these resources is asked for first, by this container or any, and as which of them."""
    for field, containers in (("initContainers", spec.init_containers), ("containers", spec.containers)):
        for position, each in enumerate(containers):
            found = sorted(each.resources.parts.intersection(resources, DIALECTS))
            if found and container in ("", each.name):
                return f"spec.{field}[{position}]", found[0]
    return "spec.containers", resources[0]
