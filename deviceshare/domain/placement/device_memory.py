"""The memory of a node's devices by its labels and its capacity, for devices of which no agent reports it.

Each source has one number for all devices of a resource. Whoever may write nodes may write it, so what can't be true of
a device, or contradicts what else is known of the node, is left out: pods that ask for memory then don't go there.

NVIDIA: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md
AMD: ROCm/k8s-device-plugin, `cmd/k8s-node-labeller`
gpushare: AliyunContainerService/gpushare-device-plugin, `cmd/inspect`
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from deviceshare.domain import vendors
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import whole
from deviceshare.domain.objects.shares import ALIYUN_GPU_MEM, MIB_PER_GIB
from deviceshare.domain.placement import counted_devices, dialect_leftovers
from deviceshare.domain.placement.counted_devices import Counted
from deviceshare.domain.vendors import MemoryLabels, Vendor

LEAST_MIB: Final = 512
"""Of a device; a smaller number is in another unit."""
MOST_MIB: Final = 4 << 20

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MIG_OFF: Final = ("", "all-disabled")
_VRAM_SIZE: Final = re.compile(r"([0-9]{1,5})G")
_MOST_GIB: Final = 100
"""Units per device; more are MiB, as gpushare's own `inspect` has it."""


def memory_mib(node: Node) -> dict[str, int]:
    """MiB of each device, by resource, as far as they are known; labels come before capacity."""
    counted = counted_devices.count(node)
    found = {
        vendor.resource: _READERS[vendor.memory_labels](node, vendor, counted.get(vendor.resource))
        for vendor in vendors.VENDORS
        if vendor.memory_labels
    }
    return {resource: mib for resource, mib in found.items() if LEAST_MIB <= mib <= MOST_MIB}


def _by_feature_discovery(node: Node, vendor: Vendor, counted: Counted | None) -> int:
    if _is_split(node, vendor) or (counted and counted.number is None and not counted.overrules):
        return 0  # By MIG, and the label is of one part; or models differ, and it is of one of them.
    if (text := node.metadata.labels.get(f"{vendor.resource}.memory")) is not None:
        return int(text) if _NUMBER.fullmatch(text) else 0
    return _of_gpushare(node, counted.number if counted else None)


def _is_split(node: Node, vendor: Vendor) -> bool:
    """Whether MIG is in use, or about to be. Its strategy says nothing: it is set on nodes without MIG, too."""
    labels, prefix = node.metadata.labels, vendor.split_prefix
    about_to = labels.get(f"{vendor.domain}/mig.config", "") not in _MIG_OFF
    return about_to or (bool(prefix) and any(key.startswith(prefix) for key in labels))


def _of_gpushare(node: Node, counted: int | None) -> int:
    """What its device plugin divides: whole GiB of each GPU, or MiB."""
    number, units = dialect_leftovers.gpu_count(node), whole(node.status.capacity.get(ALIYUN_GPU_MEM, 0))
    if not number or not units or units % number or counted not in (None, number):
        return 0
    each = units // number
    return each if each > _MOST_GIB else each * MIB_PER_GIB


def _by_node_labeller(node: Node, vendor: Vendor, counted: Counted | None) -> int:
    """By AMD's node labeller: GiB, rounded to the nearest, so that half of one may be missing."""
    labels, vram = node.metadata.labels, f"{vendor.resource}.vram"
    sizes = {text for key in (vram, f"beta.{vram}") if (text := labels.get(key))}
    # One label for each size, with how many devices have it.
    sizes |= {key.rpartition(".")[2] for key in labels if key.startswith((f"{vram}.", f"beta.{vram}."))}
    if len(sizes) != 1 or (counted and counted.number is None):
        return 0
    size = _VRAM_SIZE.fullmatch(sizes.pop())
    return int(size[1]) * MIB_PER_GIB - MIB_PER_GIB // 2 if size else 0


_READERS: Final[Mapping[MemoryLabels, Callable[[Node, Vendor, Counted | None], int]]] = {
    MemoryLabels.FEATURE_DISCOVERY: _by_feature_discovery,
    MemoryLabels.NODE_LABELLER: _by_node_labeller,
}
