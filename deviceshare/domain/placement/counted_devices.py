"""The number of a node's devices by its labels, annotations and allocatable resources, for nodes without an agent.

What a plugin makes allocatable is how many containers it would serve, which is the number of devices only where nothing
splits or shares them. The kubelet writes all this, and whoever may write nodes. Where two contradict, neither counts.

NVIDIA: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md
HAMi: https://github.com/Project-HAMi/HAMi/blob/master/docs/develop/protocol.md
AMD: https://instinct.docs.amd.com/projects/k8s-device-plugin/en/latest/user-guide/resource-allocation.html
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import is_some, whole
from deviceshare.domain.objects.shares import DIALECTS
from deviceshare.domain.placement import dialect_leftovers
from deviceshare.domain.placement.annotated_devices import MOST
from deviceshare.domain.vendors import Counting, Vendor
from deviceshare.domain.wording import listed

_HAMI_PARTS: Final = "hami.io/node-register-"


class Counted(NamedTuple):
    """The devices of one resource, numbered from 0."""

    number: int | None
    """None where it is unknown."""
    trouble: str = ""
    """Why it is unknown which of them may be offered to groups; "" where all may."""
    cure: str = ""
    found: str = ""
    """What was found that isn't a mere number of devices, for people."""
    overrules: bool = False
    """Whether the trouble is there, too, where an agent sees the devices."""


def count(node: Node) -> dict[str, Counted]:
    """Every known resource that the node reports; none that it doesn't have."""
    counted = dict[str, Counted]()
    for vendor in vendors.VENDORS:
        # What is split isn't reported under its resource's own name.
        named = set() if vendor.resource.endswith(vendors.ANY) else {vendor.resource}
        for resource in named.union(filter(vendor.supplies, _reported(node, f"{vendor.domain}/"))):
            counted[resource] = _COUNTERS[vendor.counting](node, vendor, resource)
    return {resource: each for resource, each in sorted(counted.items()) if each.number != 0}


def _by_feature_discovery(node: Node, vendor: Vendor, resource: str) -> Counted:
    labels, by_slices = node.metadata.labels, f"{resource}.slices.gi"
    product, slices = labels.get(f"{resource}.product", ""), _reported(node, vendor.split_prefix)
    if slices or "-MIG-" in product or by_slices in labels:
        found = f"MIG ({', '.join(slices) or product or by_slices})"
        return Counted(None, "its GPUs are split by MIG, unknown which", _which(resource), found)
    others = any(each.system and resource in each.devices for each in DIALECTS.values())
    if others and (systems := dialect_leftovers.allocating(node)):
        return _allocated_by_others(node, resource, systems)
    capacity, healthy = _quantities(node, (resource, vendor.in_turns))
    if capacity is None or healthy is None:
        return _unreadable(node, resource)
    if not capacity and others and (said := dialect_leftovers.gpu_count(node)):
        trouble = f"gpushare's device plugin, which is gone, found {said} GPUs, and nobody says how many there are now"
        return Counted(None, trouble, _annotate("how many there are", resource, str(said)), "gpushare was here")
    if not capacity:
        return Counted(0)
    if register := node.metadata.annotations.get(f"hami.io/node-{vendor.name}-register", ""):
        return _hami(register, resource, capacity, healthy)
    return _shared(node, vendor, resource, capacity, healthy)


def _allocated_by_others(node: Node, resource: str, systems: dict[str, str]) -> Counted:
    """Another system's plugin may allocate any GPU at any time, whatever claims deviceshare has."""
    found = f"{listed(sorted(set(systems.values())))} ({listed(systems)})"
    trouble = f"the device plugin of {found} allocates its GPUs to pods"
    gone = f"5 minutes later {dialect_leftovers.removal(systems)}"
    cure = f"keep its DaemonSet off the node, and {gone}; or {_which(resource, agent=False)}"
    number = dialect_leftovers.gpu_count(node) or None
    return Counted(number, trouble, cure, found, overrules=True)


def _shared(node: Node, vendor: Vendor, resource: str, capacity: int, healthy: int) -> Counted:
    """By GPU feature discovery: the number of GPUs, and how many pods take turns on each."""
    labels, by_count, by_replicas = node.metadata.labels, f"{resource}.count", f"{resource}.replicas"
    said = {key: labels[key] for key in (by_count, by_replicas) if key in labels}
    numbers = {key: whole(text) for key, text in said.items()}
    if garbled := [f"{key}={said[key]}" for key, number in numbers.items() if number is None]:
        return Counted(None, f"its label {garbled[0]} is not a number", _how_many(resource), garbled[0])
    replicas, number = max(numbers.get(by_replicas) or 1, 1), numbers.get(by_count)
    strategy = labels.get(f"{resource}.sharing-strategy", "none")
    told = strategy != "none" or labels.get(f"{resource}.product", "").endswith("-SHARED")
    shared = told or replicas > 1 or bool(_reported(node, vendor.in_turns))
    found = f"{strategy if strategy != 'none' else 'shared'}, {replicas} replicas" if shared else ""
    if shared and replicas == 1:
        # Older versions have no label of replicas: the number of GPUs then says how many replicas each has.
        if not number or capacity % number:
            return Counted(
                None, "several pods share each of its GPUs, unknown how many there are", _how_many(resource), "shared"
            )
        replicas, found = capacity // number, f"shared, {capacity // number} replicas"
    if capacity % replicas or (number is not None and number * replicas != capacity):
        labelled = ", ".join(f"{key}={text}" for key, text in said.items())
        # So they do where GPUs are of several models, too: the labels are then those of one model.
        contradiction = f"its labels ({labelled}) contradict {capacity} allocatable"
        return Counted(None, contradiction, _how_many(resource), contradiction)
    return _healthy(resource, capacity // replicas, healthy // replicas, found)


def _hami(register: str, resource: str, capacity: int, healthy: int) -> Counted:
    """By HAMi's annotation, which lists the GPUs and into how many it splits each."""
    splits = _registered(register)
    found = f"HAMi, {len(splits)} GPUs split into {sum(splits)}"
    if not splits:
        return Counted(None, "HAMi's annotation can't be read, or it splits GPUs by MIG", _how_many(resource), "HAMi")
    if capacity not in (sum(splits), len(splits)):  # the latter where HAMi is gone and left the annotation behind
        return Counted(None, f"HAMi's annotation contradicts {capacity} allocatable", _how_many(resource), found)
    return _healthy(resource, len(splits), len(splits) * healthy // capacity, found)


def _registered(register: str) -> list[int]:
    """Into how many each device is split; empty where that can't be read, or where HAMi splits some by MIG."""
    splits: list[int | None] = []
    if register.lstrip().startswith("["):
        try:
            entries: list[dict[str, Any]] = msgspec.json.decode(register, type=list[dict[str, Any]])
        except (ValueError, RecursionError):
            return []
        splits = [entry["count"] if type(entry.get("count")) is int else None for entry in entries]
        modes = [entry.get("mode") for entry in entries]
    else:
        fields = [entry.split(",") for entry in register.split(":") if entry.strip()]
        splits = [whole(each[1]) if len(each) >= 7 else None for each in fields]
        modes = [each[8] if len(each) > 8 else "" for each in fields]
    if "mig" in modes or any(not split or not 0 < split <= MOST for split in splits):
        return []
    return [split for split in splits if split]


def _by_partition_label(node: Node, vendor: Vendor, resource: str) -> Counted:
    partition = node.metadata.labels.get(f"{vendor.domain}/compute-memory-partition", "")
    parts = [name for name in _reported(node, f"{vendor.domain}/") if name != resource and vendor.allocates(name)]
    if parts or (partition and not partition.startswith("spx")):
        found = f"partitioned ({', '.join(parts) or partition})"
        return Counted(None, f"its GPUs are {found}", _how_many(resource), found)
    return _plain(node, vendor, resource)


def _by_hami_register(node: Node, vendor: Vendor, resource: str) -> Counted:
    register = _HAMI_PARTS + vendor.resource.partition("/")[2].removesuffix(vendors.ANY)
    if any(key.startswith(register) for key in node.metadata.annotations):
        return Counted(None, "HAMi splits its NPUs", _how_many(resource), "HAMi")
    if "-" in resource:
        return Counted(None, "these are parts of NPUs (vNPU), not NPUs", "have groups ask for whole NPUs", "vNPU")
    return _plain(node, vendor, resource)


def _plain(node: Node, _: Vendor, resource: str) -> Counted:
    capacity, healthy = _quantities(node, (resource,))
    if capacity is None or healthy is None:
        return _unreadable(node, resource)
    return _healthy(resource, capacity, healthy, "")


def _healthy(resource: str, number: int, healthy: int, found: str) -> Counted:
    if number > MOST:
        return Counted(None, f"it reports {number} {resource}", _how_many(resource), found)
    if healthy >= number:
        return Counted(number, found=found)
    if healthy:
        unhealthy = f"{number - healthy} of its {number} {resource} are unhealthy, unknown which"
        return Counted(number, unhealthy, _which(resource), found)
    cure = f"see why its device plugin does, or {_which(resource)}"
    return Counted(number, f"its device plugin reports none of its {number} {resource} as healthy", cure, found)


def _unreadable(node: Node, resource: str) -> Counted:
    said = node.status.allocatable.get(resource) or node.status.capacity.get(resource)
    return Counted(
        None, f"its quantity {str(said)[:40]!r} of {resource} is not a number of devices", _how_many(resource)
    )


def _reported(node: Node, prefix: str) -> list[str]:
    """The resources with this prefix, unless that is "", of which the node reports any."""
    every = [*node.status.capacity.items(), *node.status.allocatable.items()]
    return sorted({name for name, quantity in every if prefix and name.startswith(prefix) and is_some(quantity)})


def _quantities(node: Node, resources: Collection[str]) -> tuple[int | None, int | None]:
    """Capacity and allocatable of all these together: the difference is what is unhealthy. None: not to be read."""
    allocatable = {resource: node.status.allocatable.get(resource, 0) for resource in resources}
    capacity = {resource: node.status.capacity.get(resource, allocatable[resource]) for resource in resources}
    return _sum(map(whole, capacity.values())), _sum(map(whole, allocatable.values()))


def _sum(numbers: Iterable[int | None]) -> int | None:
    every = list(numbers)
    readable = [number for number in every if number is not None]
    return sum(readable) if len(readable) == len(every) else None


def _how_many(resource: str) -> str:
    return _annotate("how many there are", resource, "NUMBER")


def _which(resource: str, *, agent: bool = True) -> str:
    return _annotate("which may be used", resource, "0,2-3", agent=agent)


def _annotate(what: str, resource: str, value: str, *, agent: bool = True) -> str:
    vendor = vendors.vendor_of(resource)
    run = " or run deviceshare's agent there" if agent and vendor and vendor.has_agent else ""
    return f"say {what} (kubectl annotate node NODE {contract.INVENTORY_ANNOTATION}={resource}={value}){run}"


_COUNTERS: Final[Mapping[Counting, Callable[[Node, Vendor, str], Counted]]] = {
    Counting.ALLOCATABLE: _plain,
    Counting.FEATURE_DISCOVERY: _by_feature_discovery,
    Counting.PARTITION_LABEL: _by_partition_label,
    Counting.HAMI_REGISTER: _by_hami_register,
}
