"""Shared resources: what a device plugin counts, the memory of devices, and what other sharing schedulers left."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.quantities import Quantity, is_some, whole
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import ALIYUN_GPU_MEM, DIALECTS, MIB_PER_GIB
from deviceshare.domain.vendors import Counting, Vendor
from deviceshare.domain.wording import listed

# The format of node annotations that name devices, such as `deviceshare.io/devices`: what a node has for groups.
#     nvidia.com/gpu=4                        the four devices 0 to 3
#     nvidia.com/gpu=1-3                      these devices; 0 is kept out
#     nvidia.com/gpu=0,2-3,amd.com/gpu=2      a comma joins a list, until the next resource
#     nvidia.com/gpu=5-5                      device 5 alone: one whole number is how many, not which
#     nvidia.com/gpu=GPU-8a56a4bc-…           by UUID, where the node's agent reports these
# An entry that can't be read is never guessed: nobody then gets anything of that resource.

MOST: Final = 1024
"""Devices of one resource on a node: more than any machine has, and a bound on what a text may make us count."""

_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_COUNT: Final = re.compile(r"[0-9]{1,9}")
DEVICE_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,80}|0x[0-9a-f]{1,16}")
"""NVIDIA's and AMD's."""


class Listed(NamedTuple):
    """What the annotation names of one resource."""

    indices: frozenset[int] = frozenset()
    uuids: frozenset[str] = frozenset()
    fault: str = ""
    """Why the entry can't be read, or ""."""


class Annotated(NamedTuple):
    """The whole annotation; `faults` are of what belongs to no resource that is known."""

    resources: Mapping[str, Listed]
    faults: list[str]


def read_annotated(text: str) -> Annotated:
    """The annotation's value, as the grammar above says."""
    entries: list[tuple[str, list[str]]] = []
    for word in filter(None, (each.strip() for each in text.split(","))):
        resource, equals, value = word.partition("=")
        if equals or not entries:
            entries.append((resource.strip(), [value.strip()]))
        else:
            entries[-1][1].append(word)
    found: dict[str, Listed] = {}
    faults = []
    for resource, values in entries:
        if not vendors.vendor_of(resource):
            faults.append(f"unknown resource {resource[:80]!r} (known: {listed(vendors.known_resources())})")
        elif resource in found:
            found[resource] = Listed(fault=f"{resource} is named twice; name it once")
        else:
            found[resource] = _parsed(resource, values)
    return Annotated(found, faults)


def _parsed(resource: str, values: list[str]) -> Listed:
    too_many = Listed(fault=f"{resource}: no node has more than {MOST} devices of one resource")
    if len(values) == 1 and _COUNT.fullmatch(values[0]):
        count = int(values[0])
        return Listed(frozenset(range(count))) if count <= MOST else too_many
    indices: set[int] = set()
    uuids = set()
    for value in values:
        if DEVICE_UUID.fullmatch(value):
            uuids.add(value)
            continue
        if not (match := _RANGE.fullmatch(value)):
            wants = "a number of devices, a list such as 0,2-3, or UUIDs"
            return Listed(fault=f"{resource} wants {wants}, not {','.join(values)[:80]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return Listed(fault=f"{resource}: the range {value} ends before it begins")
        if last >= MOST:
            return too_many
        indices.update(range(first, last + 1))
    return Listed(frozenset(indices), frozenset(uuids))


def named_devices(resource: str, entry: Listed, there: Iterable[Device], *, agent: bool) -> tuple[Devices, list[str]]:
    """The devices meant, where these of the resource are there, and what is wrong; `agent` reports them with UUIDs."""
    faults = [entry.fault] if entry.fault else []
    by_uuid = {device.uuid: device for device in there if device.uuid}
    if entry.uuids and not agent:
        faults.append(f"{resource}: only deviceshare's agent knows UUIDs; run it on the node, or give numbers")
    elif missing := sorted(entry.uuids - by_uuid.keys()):
        faults.append(f"{resource}: the node has no {listed(missing, link='or')}; see kubectl get ndev -o yaml")
    # By its UUID where that is how it was named: the number may be another device's after a reboot.
    chosen = [by_uuid[uuid] for uuid in entry.uuids & by_uuid.keys()]
    numbers = entry.indices - {device.index for device in chosen}
    return tuple(sorted([*chosen, *(Device(resource, index) for index in numbers)])), faults


# Other systems' device plugins on a node: whether one allocates its GPUs, and what one that is gone leaves behind.
# While a plugin runs, it allocates GPUs to pods that deviceshare doesn't place. When it is gone, the kubelet sets its
# resource to 0 instead of removing it, and refuses every pod that asks for more (kubernetes/kubernetes,
# `pkg/kubelet/nodestatus/setters.go`, `pkg/kubelet/lifecycle/predicate.go`). An administrator can remove it; for five
# minutes after the plugin has gone the kubelet still refuses (`pkg/kubelet/cm/devicemanager`).

GPU_COUNT: Final = "aliyun.com/gpu-count"
"""How many GPUs gpushare's device plugin found. It writes that once, and nobody removes it."""


def advertised(node: Node) -> frozenset[str]:
    """The resources of shares that the node's kubelet counts, be it as 0: it refuses pods that ask for more."""
    told = node.status.allocatable
    return frozenset(each for each in told.keys() & DIALECTS.keys() if not uncounted(told[each]))


def leftover_reason(resources: Collection[str]) -> Reason:
    """Why no pod that asks for one of these, which the node advertises, can run there."""
    names = listed(sorted(resources))
    text = f"the node's kubelet counts {names} itself, since another device plugin runs or ran there, and refuses pods"
    return Reason(ReasonKind.OTHER_PLUGIN, text, f"without that plugin, {removal(resources)}")


def removal(resources: Iterable[str]) -> str:
    """The command that removes the resources from a node's status, for good."""
    gone = dict.fromkeys(sorted(resources))
    body = json.dumps({"status": {"capacity": gone, "allocatable": gone}}, separators=(",", ":"))
    return f"kubectl patch node NODE --subresource=status --type=merge -p '{body}' (kubectl 1.24 or later)"


def allocating(node: Node) -> dict[str, str]:
    """By resource, the systems whose device plugins allocate the node's GPUs; their plugins' names may be longer."""
    every = [*node.status.capacity.items(), *node.status.allocatable.items()]
    return {
        name: dialect.system
        for name, quantity in sorted(every, key=lambda entry: entry[0])
        for dialect in DIALECTS.values()
        if dialect.system and name.startswith(dialect.resource) and is_some(quantity) and not uncounted(quantity)
    }


def gpu_count(node: Node) -> int:
    """How many GPUs gpushare's device plugin found; 0 where it never ran, or can't be read."""
    number = whole(node.status.capacity.get(GPU_COUNT, 0)) or 0
    return number if number <= MOST else 0


# The number of a node's devices by its labels, annotations and allocatable resources, for nodes without an agent.
# What a plugin makes allocatable is how many containers it would serve, which is the number of devices only where
# nothing splits or shares them. The kubelet writes all this, and whoever may write nodes. Where two contradict,
# neither counts.
# NVIDIA: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md HAMi:
# https://github.com/Project-HAMi/HAMi/blob/master/docs/develop/protocol.md AMD:
# https://instinct.docs.amd.com/projects/k8s-device-plugin/en/latest/user-guide/resource-allocation.html

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


def count_devices(node: Node) -> dict[str, Counted]:
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
    if others and (systems := allocating(node)):
        return _allocated_by_others(node, resource, systems)
    if (quantities := _quantities(node, (resource, vendor.in_turns))) is None:
        return _unreadable(node, resource)
    capacity, healthy = quantities
    if not capacity and others and (said := gpu_count(node)):
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
    gone = f"5 minutes later {removal(systems)}"
    cure = f"keep its DaemonSet off the node, and {gone}; or {_which(resource, agent=False)}"
    return Counted(gpu_count(node) or None, trouble, cure, found, overrules=True)


def _shared(node: Node, vendor: Vendor, resource: str, capacity: int, healthy: int) -> Counted:
    """By GPU feature discovery: the number of GPUs, and how many pods take turns on each."""
    labels, by_count, by_replicas = node.metadata.labels, f"{resource}.count", f"{resource}.replicas"
    said = {key: labels[key] for key in (by_count, by_replicas) if key in labels}
    numbers = {key: whole(text) for key, text in said.items()}
    if garbled := [f"{key}={said[key]}" for key, number in numbers.items() if number is None]:
        return _unknown(resource, f"its label {garbled[0]} is not a number", garbled[0])
    replicas, number = max(numbers.get(by_replicas) or 1, 1), numbers.get(by_count)
    strategy = labels.get(f"{resource}.sharing-strategy", "none")
    told = strategy != "none" or labels.get(f"{resource}.product", "").endswith("-SHARED")
    shared = told or replicas > 1 or bool(_reported(node, vendor.in_turns))
    found = f"{strategy if strategy != 'none' else 'shared'}, {replicas} replicas" if shared else ""
    if shared and replicas == 1:
        # Older versions have no label of replicas: the number of GPUs then says how many replicas each has.
        if not number or capacity % number:
            return _unknown(resource, "several pods share each of its GPUs, unknown how many there are", "shared")
        replicas, found = capacity // number, f"shared, {capacity // number} replicas"
    if capacity % replicas or (number is not None and number * replicas != capacity):
        labelled = ", ".join(f"{key}={text}" for key, text in said.items())
        # So they do where GPUs are of several models, too: the labels are then those of one model.
        contradiction = f"its labels ({labelled}) contradict {capacity} allocatable"
        return _unknown(resource, contradiction, contradiction)
    return _healthy(resource, capacity // replicas, healthy // replicas, found)


def _hami(register: str, resource: str, capacity: int, healthy: int) -> Counted:
    """By HAMi's annotation, which lists the GPUs and into how many it splits each."""
    splits = _registered(register)
    found = f"HAMi, {len(splits)} GPUs split into {sum(splits)}"
    if not splits:
        return _unknown(resource, "HAMi's annotation can't be read, or it splits GPUs by MIG", "HAMi")
    if capacity not in (sum(splits), len(splits)):  # the latter where HAMi is gone and left the annotation behind
        return _unknown(resource, f"HAMi's annotation contradicts {capacity} allocatable", found)
    return _healthy(resource, len(splits), len(splits) * healthy // capacity, found)


def _registered(register: str) -> list[int]:
    """Into how many each device is split; empty where that can't be read, or where HAMi splits some by MIG."""
    if register.lstrip().startswith("["):
        try:
            entries: list[dict[str, Any]] = msgspec.json.decode(register, type=list[dict[str, Any]])
        except (ValueError, RecursionError):
            return []
        found = [(entry.get("count"), entry.get("mode")) for entry in entries]
    else:
        fields = [entry.split(",") for entry in register.split(":") if entry.strip()]
        found = [(whole(each[1]) if len(each) >= 7 else None, each[8] if len(each) > 8 else "") for each in fields]
    splits = [split for split, mode in found if type(split) is int and 0 < split <= MOST and mode != "mig"]
    return splits if len(splits) == len(found) else []


def _by_partition_label(node: Node, vendor: Vendor, resource: str) -> Counted:
    partition = node.metadata.labels.get(f"{vendor.domain}/compute-memory-partition", "")
    parts = [name for name in _reported(node, f"{vendor.domain}/") if name != resource and vendor.allocates(name)]
    if parts or (partition and not partition.startswith("spx")):
        found = f"partitioned ({', '.join(parts) or partition})"
        return _unknown(resource, f"its GPUs are {found}", found, agent=False)
    # What the plugin finds unhealthy stays withheld: the agent doesn't hear of faults of these.
    return _plain(node, vendor, resource)._replace(overrules=True)


def _by_hami_register(node: Node, vendor: Vendor, resource: str) -> Counted:
    register = _HAMI_PARTS + vendor.resource.partition("/")[2].removesuffix(vendors.ANY)
    if any(key.startswith(register) for key in node.metadata.annotations):
        return _unknown(resource, "HAMi splits its NPUs", "HAMi")
    if "-" in resource:
        return Counted(None, "these are parts of NPUs (vNPU), not NPUs", "have groups ask for whole NPUs", "vNPU")
    return _plain(node, vendor, resource)


def _plain(node: Node, _: Vendor, resource: str) -> Counted:
    quantities = _quantities(node, (resource,))
    return _healthy(resource, *quantities, "") if quantities else _unreadable(node, resource)


def _healthy(resource: str, number: int, healthy: int, found: str) -> Counted:
    if number > MOST:
        return _unknown(resource, f"it reports {number} {resource}", found)
    if healthy >= number:
        return Counted(number, found=found)
    if healthy:
        unhealthy = f"{number - healthy} of its {number} {resource} are unhealthy, unknown which"
        return Counted(number, unhealthy, _which(resource), found)
    cure = f"see why its device plugin does, or {_which(resource)}"
    return Counted(number, f"its device plugin reports none of its {number} {resource} as healthy", cure, found)


def _unreadable(node: Node, resource: str) -> Counted:
    said = node.status.allocatable.get(resource) or node.status.capacity.get(resource)
    return _unknown(resource, f"its quantity {str(said)[:40]!r} of {resource} is not a number of devices", "")


def _reported(node: Node, prefix: str) -> list[str]:
    """The resources with this prefix, unless that is "", of which the node reports any."""
    every = [*node.status.capacity.items(), *node.status.allocatable.items()]
    return sorted({name for name, quantity in every if prefix and name.startswith(prefix) and is_some(quantity)})


def _quantities(node: Node, resources: Iterable[str]) -> tuple[int, int] | None:
    """Capacity and allocatable of all these together: the difference is what is unhealthy. None: not to be read."""
    capacity = allocatable = 0
    for resource in resources:
        told = node.status.allocatable.get(resource, 0)
        most, now = whole(node.status.capacity.get(resource, told)), whole(told)
        if most is None or now is None:
            return None
        capacity, allocatable = capacity + most, allocatable + now
    return capacity, allocatable


def _unknown(resource: str, trouble: str, found: str, *, agent: bool = True) -> Counted:
    return Counted(None, trouble, _annotate("how many there are", resource, "NUMBER", agent=agent), found)


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


# Share capacity: what nodes advertise of the resources by which pods ask for shares, where no scheduler of ours runs:
# more than any pods can ask for, so that neither the cluster's own nor a kubelet has anything to count (decision 16).

UNCOUNTED: Final = 1_000_000_000
"""More GiB, and more hundredths of devices, than the pods of a node can ask for; a kubelet's plugin never says it."""


def uncounted(quantity: Quantity) -> bool:
    """Whether this is what deviceshare advertises, not a device plugin's number."""
    return whole(quantity) == UNCOUNTED


def lacking(node: Node, resources: Collection[str]) -> list[str]:
    """The resources that the node doesn't advertise, or as 0: left by a plugin that is gone, or by a reboot."""
    allocatable = node.status.allocatable
    return sorted(each for each in resources if not is_some(allocatable.get(each, 0)))


def capacity_patch(node: Node, resources: Collection[str]) -> Mapping[str, Any]:
    """A JSON merge patch of the node's status that advertises them, if nobody wrote the node meanwhile."""
    told = dict.fromkeys(sorted(resources), str(UNCOUNTED))
    version = {"resourceVersion": node.metadata.resource_version}
    return {"metadata": version, "status": {"capacity": told, "allocatable": told}}


# The memory of a node's devices by its labels and its capacity, for devices of which no agent reports it.
# Each source has one number for all devices of a resource. Whoever may write nodes may write it, so what can't be true
# or contradicts what else is known is left out: pods that ask for memory then don't go there. Beside the sources above:
# ROCm/k8s-device-plugin, `cmd/k8s-node-labeller`; AliyunContainerService/gpushare-device-plugin, `cmd/inspect`

LEAST_MIB: Final = 512
"""Of a device; a smaller number is in another unit."""
MOST_MIB: Final = 4 << 20

_MIG_OFF: Final = ("", "all-disabled")
_VRAM_SIZE: Final = re.compile(r"([0-9]{1,5})G")
_MOST_GIB: Final = 100
"""Units per device; more are MiB, as gpushare's own `inspect` has it."""


def memory_mib(node: Node) -> dict[str, int]:
    """MiB of each device, by resource, as far as they are known; labels come before capacity."""
    counted = count_devices(node)
    found = {
        vendor.resource: read(node, vendor, counted.get(vendor.resource))
        for vendor in vendors.VENDORS
        if (read := _READERS.get(vendor.counting))
    }
    return {resource: mib for resource, mib in found.items() if LEAST_MIB <= mib <= MOST_MIB}


def _memory_by_feature_discovery(node: Node, vendor: Vendor, counted: Counted | None) -> int:
    labels, prefix = node.metadata.labels, vendor.split_prefix
    # MIG is in use, or about to be. Its strategy says nothing: it is set on nodes without MIG, too.
    about_to = labels.get(f"{vendor.domain}/mig.config", "") not in _MIG_OFF
    split = about_to or (prefix and any(key.startswith(prefix) for key in labels))
    if split or (counted and counted.number is None and not counted.overrules):
        return 0  # By MIG, and the label is of one part; or models differ, and it is of one of them.
    if (text := labels.get(f"{vendor.resource}.memory")) is not None:
        return int(text) if _COUNT.fullmatch(text) else 0
    # What gpushare's device plugin divides: whole GiB of each GPU, or MiB.
    number, units = gpu_count(node), whole(node.status.capacity.get(ALIYUN_GPU_MEM, 0))
    if not number or not units or units % number or (counted and counted.number not in (None, number)):
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


_READERS: Final[Mapping[Counting, Callable[[Node, Vendor, Counted | None], int]]] = {
    Counting.FEATURE_DISCOVERY: _memory_by_feature_discovery,
    Counting.PARTITION_LABEL: _by_node_labeller,
}
