"""Concern: which pods are deviceshare's to inject and to review, and whether their metadata says so in the right way.

A pod concerns deviceshare that names a group, or whose containers ask for a share in their limits. Its label has the
group's name, and is empty where it names none: mirrors and webhooks select by the label's existence.
"""

from collections.abc import Collection, Mapping
from typing import Final

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.groups import name_fault
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.objects.shares import DIALECTS, NO_SHARE, SYSTEMS, ShareRequest
from deviceshare.domain.wording import listed

STRATEGIES: Final = ("binpack", "spread")
"""Where a share is taken: from the device with the least room for it, or the most."""

Names = Mapping[str, str] | None


def concerns(
    labels: Names, annotations: Names, share: ShareRequest = NO_SHARE, dialects: Collection[str] = SYSTEMS
) -> bool:
    """Whether a pod names a group, or asks for a share by a resource that is served here.

    Every other pod is left unchanged, also one that asks by another system's resource which a setting turned off.
    """
    named = contract.GROUP in (labels or {}) or contract.GROUP in (annotations or {})
    return named or (bool(share) and any(resource not in _off(dialects) for resource in share.resources))


def is_ours_alone(key: str) -> bool:
    """Whether only deviceshare may write the annotation with this name on a pod that concerns it."""
    return (key.startswith(contract.PREFIX) and key not in contract.USERS) or vendors.is_cdi_annotation(key)


def metadata_fault(
    labels: Names, annotations: Names, share: ShareRequest = NO_SHARE, dialects: Collection[str] = SYSTEMS
) -> str:
    """What is wrong with the way in which a pod asks for devices, and what to do, or ""."""
    if unserved := sorted(set(share.resources) & _off(dialects)):
        return (
            f"spec.containers: the limit {listed(unserved)} asks for a share by a resource that deviceshare doesn't"
            f" serve in this cluster (--dialects, shares.dialects): ask by deviceshare.io/gpu-mem or"
            f" deviceshare.io/gpu-percent, or leave {contract.GROUP} out"
        )
    if share.faults:
        return "; ".join(share.faults)
    return _group_fault(labels or {}, annotations or {}, share) or _strategy_fault(annotations or {}, share)


def _group_fault(labels: Mapping[str, str], annotations: Mapping[str, str], share: ShareRequest) -> str:
    name, label = annotations.get(contract.GROUP), labels.get(contract.GROUP)
    field = f"metadata.labels[{contract.GROUP}]"
    if name is None and share and not label:
        return ""
    if name is None and not label:
        return (
            f"{field} is empty, as deviceshare sets it on pods that ask for a share, and no container does: "
            "leave the label out"
        )
    if name is None:
        return (
            f"{field} is written by deviceshare only: "
            f"join the group with the annotation {contract.GROUP}: {label} and leave the label out"
        )
    if fault := name_fault(name):
        return f"metadata.annotations[{contract.GROUP}]: {fault}; `kubectl get sdg` lists the groups"
    if label not in (None, name):
        return (
            f"{field} says {label!r}, but the annotation of that name says {name!r}: "
            "leave the label out, deviceshare sets it"
        )
    return ""


def _strategy_fault(annotations: Mapping[str, str], share: ShareRequest) -> str:
    value, field = annotations.get(contract.STRATEGY), f"metadata.annotations[{contract.STRATEGY}]"
    if value is None:
        return ""
    if not share:
        return f"{field} is for pods that ask for a share: leave it out and set the group's spec.schedulingStrategy"
    if value not in STRATEGIES:
        return f"{field} is {quoted(value)}: set it to {listed(STRATEGIES, link='or')}, or leave it out"
    return ""


def _off(dialects: Collection[str]) -> set[str]:
    """The resources that aren't served."""
    return {each.resource for each in DIALECTS.values() if each.system and each.system not in dialects}
