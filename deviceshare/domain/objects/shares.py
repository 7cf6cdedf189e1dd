"""Shares of devices, asked for and granted."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.quantities import Quantity, amount
from deviceshare.domain.vendors import Vendor
from deviceshare.domain.wording import listed, printable, quoted

# The annotations by which the Binding gives each container of a pod its own devices, and how large its part is.
#
# The name of a container is the end of the annotation's; names that are too long for that end in their digest.

MEMORY_LIMIT: Final = "memory-limit-mib"
"""MiB of device memory that the container may use, over all its devices."""
PERCENT: Final = "percent"
"""A container's share in hundredths of a device: 150 is one and a half."""
HARD_LIMIT, SOFT_LIMIT = "gpu-memory-limit", "gpu-memory-request"
"""MiB that a container may use of each of its devices, and that are kept for it: for NVIDIA's hook, where it is."""
INTERCEPTED: Final = "cuda-memory-limit"
"""The same as HAMi-core reads it, where that is loaded: `8192m`."""
MEMORY_FRACTION: Final = "memory-fraction"
"""A container's share as a fraction of each of its devices; of several the least."""
HEAP_FRACTION: Final = "heap-fraction"
"""That fraction without a reserve for what a framework's memory pool doesn't count, such as the CUDA context."""
PYTORCH: Final = "pytorch-alloc-conf"
"""A container's share as PyTorch's allocator takes it."""
DEVICE_INDEX: Final = "device-index"
"""The numbers of its devices."""
DEVICE_GIB: Final = "device-gib"
"""The memory of one of its devices in GiB, rounded down, as gpushare counts."""

_SIZES: Final = (MEMORY_LIMIT, HARD_LIMIT, SOFT_LIMIT, INTERCEPTED, PERCENT, MEMORY_FRACTION)
LIMITS: Final = (*_SIZES, HEAP_FRACTION, PYTORCH, DEVICE_INDEX, DEVICE_GIB)

LONGEST: Final = 40
"""Characters of a container's name: an annotation has 63 behind its domain.

https://kubernetes.io/docs/concepts/overview/working-with-objects/annotations/#syntax-and-character-set
"""


def container_annotation(kind: str, container: str) -> str:
    """The annotation of this kind for one container."""
    end = container
    if len(container) > LONGEST:
        end = f"{container[:31]}.{hashlib.sha256(container.encode()).hexdigest()[:8]}"
    return f"{contract.PREFIX}{kind}.{end}"


def devices_of_container(vendor: Vendor, container: str) -> str:
    """The annotation with the container's devices of one vendor."""
    return container_annotation(f"{vendor.name}-devices", container)


def is_annotation(key: str) -> bool:
    """Whether an annotation of pods with this name means anything to deviceshare, whoever writes it."""
    return key in contract.ON_PODS or key in _OF_PODS or key.startswith(OF_CONTAINERS)


_OF_PODS: Final = frozenset(vendor.annotation for vendor in vendors.VENDORS)
OF_CONTAINERS: Final = tuple(
    f"{contract.PREFIX}{kind}." for kind in (*LIMITS, *(f"{vendor.name}-devices" for vendor in vendors.VENDORS))
)
"""How the annotations of single containers begin."""


def field_path(annotation: str) -> str:
    """The annotation, as a variable refers to it by the downward API."""
    return f"metadata.annotations['{annotation}']"


WHOLE: Final = 100
"""Percent of a device."""
MIB_PER_GIB: Final = 1024
MAX_DEVICES: Final = 64
"""Devices of one pod, each container's counted apart; more than any node has."""
MAX_GIB: Final = 4095
"""Of one share: more than any device has, and less than most numbers of MiB, as 16276 is of a T4."""

MAIN: Final = ""
"""A container that runs as long as its pod."""
SIDECAR: Final = "sidecar"
"""An init container that keeps running beside the others (`restartPolicy: Always`)."""
INIT: Final = "init"
"""A container that ends before the next ones start, which then have its part.

https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
"""
FIRST: Final = "first"
"""Such a container before the first sidecar, so that none runs beside it."""
INITS: Final = (INIT, FIRST)


_FORMER: Final = "former"


class Dialect(NamedTuple):
    """A resource by which containers ask for parts of devices."""

    resource: str
    system: str
    """Whose it is: the name by which a setting turns it off; "" for our own, which is always on."""
    devices: tuple[str, ...]
    """The resources whose devices serve it; all parts of a pod come from one of them."""
    mib: int = 0
    """How much device memory one unit is; 0 where it is a hundredth of a device."""
    divided: bool = False
    """Whether DEVICE_COUNT divides it among devices; else each of them has all of it."""

    @property
    def unit(self) -> str:
        """What it counts, for people."""
        return {0: "hundredths of a device", 1: "MiB"}.get(self.mib, "GiB")

    @property
    def family(self) -> str:
        """How a limit begins that may mean this one, such as `aliyun.com/gpu_mem`; its domain may have others."""
        return self.resource.partition("-")[0] if self.system else contract.PREFIX


_GPUS: Final = tuple(vendor.resource for vendor in vendors.VENDORS if vendor.has_shares)
GPU_MEM: Final = f"{contract.PREFIX}gpu-mem"
GPU_MEM_MIB: Final = f"{contract.PREFIX}gpu-mem-mib"
GPU_PERCENT: Final = f"{contract.PREFIX}gpu-percent"
DEVICE_COUNT: Final = f"{contract.PREFIX}gpu-count"
"""On how many devices the container has such a part; the limit beside it says how large that is."""
ALIYUN_GPU_MEM: Final = "aliyun.com/gpu-mem"
METAGPU: Final = "cnvrg.io/metagpu"
GPUSHARE: Final = "gpushare"
METAGPU_SYSTEM: Final = "metagpu"

DIALECTS: Final = {
    dialect.resource: dialect
    for dialect in (
        Dialect(GPU_MEM, "", _GPUS, mib=MIB_PER_GIB),
        Dialect(GPU_MEM_MIB, "", _GPUS, mib=1),
        Dialect(GPU_PERCENT, "", _GPUS),
        Dialect(ALIYUN_GPU_MEM, GPUSHARE, (vendors.NVIDIA.resource,), mib=MIB_PER_GIB, divided=True),
        Dialect(METAGPU, METAGPU_SYSTEM, (vendors.NVIDIA.resource,)),
    )
}
FAMILIES: Final = tuple(sorted({dialect.family for dialect in DIALECTS.values()}))
SYSTEMS: Final = tuple(sorted({dialect.system for dialect in DIALECTS.values() if dialect.system}))


class Need(NamedTuple):
    """A part of one device that a container asks for: by memory or by percent, the other is 0."""

    container: str
    memory_mib: int = 0
    percent: int = 0
    role: str = MAIN
    """MAIN, SIDECAR, INIT or FIRST."""

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent else in_gib(self.memory_mib)


class ShareRequest(NamedTuple):
    """What the containers of a pod ask for; falsy where none asks for a share."""

    needs: tuple[Need, ...] = ()
    resources: tuple[str, ...] = ()
    """The limits by which they ask, sorted."""
    faults: tuple[str, ...] = ()
    """What is wrong with it, each naming the field and what to do. With a fault nothing is allocated."""

    def __bool__(self) -> bool:
        return bool(self.needs or self.faults)

    @property
    def of(self) -> tuple[str, ...]:
        """The resources whose devices serve all of it, preferred ones first."""
        return _serving(self.resources)

    @property
    def wanted(self) -> str:
        """What it asks for, in a sentence: `8 GiB of a GPU`, `2 whole GPUs and 50% of a GPU`."""
        texts = Counter("whole GPU" if need.percent == WHOLE else f"{need} of a GPU" for need in self.needs)
        whole = texts.pop("whole GPU", 0)
        parts = (f"{count} x {text}" if count > 1 else text for text, count in texts.items())
        return listed([*([f"{whole} whole GPUs" if whole > 1 else "a whole GPU"] if whole else []), *parts])

    @property
    def devices(self) -> int:
        """Of how many devices it needs parts at least; each part of a container is of another one."""
        together = math.ceil(sum(need.percent for need in self.needs if need.role not in INITS) / WHOLE)
        return max(together, *Counter(need.container for need in self.needs).values())

    def container(self, name: str) -> list[Need]:
        """What the container with this name asks for."""
        return [need for need in self.needs if need.container == name]


@cache
def _serving(resources: tuple[str, ...]) -> tuple[str, ...]:
    """Asked for each node; there are no more answers than subsets of DIALECTS."""
    rows = [DIALECTS[resource].devices for resource in resources]
    return tuple(each for each in rows[0] if all(each in row for row in rows)) if rows else ()


NO_SHARE: Final = ShareRequest()


class Asking(Protocol):
    """What of a container says which share it asks for."""

    @property
    def name(self) -> str: ...
    @property
    def limits(self) -> Mapping[str, Any]: ...
    @property
    def restart_policy(self) -> str | None: ...


def share_request(containers: Sequence[Asking], inits: Sequence[Asking] = ()) -> ShareRequest:
    """What a pod's containers and init containers ask for together."""
    if all(DIALECTS.keys().isdisjoint(each.limits) for each in (*containers, *inits)):  # as most pods of groups
        return NO_SHARE
    every = [(each, MAIN, f"spec.containers[{i}]") for i, each in enumerate(containers)]
    sidecars = [i for i, each in enumerate(inits) if each.restart_policy == "Always"]
    for i, each in enumerate(inits):
        role = SIDECAR if i in sidecars else FIRST if sidecars and i < sidecars[0] else INIT
        every.append((each, role, f"spec.initContainers[{i}]"))
    needs: list[Need] = []
    resources: set[str] = set()
    faults: list[str] = []
    for container, role, where in every:
        mine = {r: q for r, q in container.limits.items() if r in DIALECTS and amount(q) != 0}
        if not mine:
            continue
        resources |= mine.keys()
        if len(mine) > 1:
            use = "keep one of them, since each of them alone asks for a part of a device"
            faults.append(f"{where}.resources.limits: {listed(sorted(mine))} are both there; {use}")
            continue
        [(resource, quantity)] = mine.items()
        whole = Need(container.name, role=role)
        found, fault = _needs(whole, DIALECTS[resource], quantity, _device_count(container.limits))
        needs += found
        faults += [f"{where}.resources.limits[{resource}]: {fault}"] if fault else []
    if len(needs) > MAX_DEVICES:
        faults.append(f"the pod asks for parts of {len(needs)} devices; at most {MAX_DEVICES} are possible")
    return ShareRequest(() if faults else tuple(needs), tuple(sorted(resources)), tuple(faults))


def _device_count(limits: Mapping[str, Any]) -> int | str:
    """On how many devices a container wants its part, or what is wrong with the number."""
    quantity = limits.get(DEVICE_COUNT)
    count = amount(quantity)
    if not quantity or count == 0:  # Charts write zeros.
        return 1
    if count is None or count.denominator != 1 or not 0 < count <= MAX_DEVICES:
        return f"{printable(str(quantity))} ({DEVICE_COUNT}) is not a number of devices; give 1 to {MAX_DEVICES}"
    return int(count)


def _needs(whole: Need, dialect: Dialect, quantity: Quantity, count: int | str) -> tuple[list[Need], str]:
    size = amount(quantity)
    unit = f"{dialect.unit} of device memory" if dialect.mib else dialect.unit
    if size is None:
        return [], f"{quoted(str(quantity))} is not a number; give whole {unit}, such as 3"
    shown = printable(str(quantity))
    if size < 0:
        return [], f"{shown} is negative; give whole {unit}, or leave it out"
    if size.denominator != 1:
        counts, part = (
            (f"whole {dialect.unit}", f", or a part in percent ({GPU_PERCENT})") if dialect.mib else (unit, "")
        )
        return [], f"{shown} is not a whole number; it counts {counts}, so give {int(size) + 1}{part}"
    number = int(size)
    if isinstance(count, str):
        return [], count
    if dialect.mib:
        if number * dialect.mib > MAX_GIB * MIB_PER_GIB:
            smaller = "bytes" if number >= 1 << 30 or dialect.mib == 1 else "MiB"
            return [], f"{shown} {dialect.unit} are more than any device has; it counts {dialect.unit}, not {smaller}"
        each = number * dialect.mib
        return [whole._replace(memory_mib=-(-each // count) if dialect.divided else each)] * count, ""
    if count > 1 and number > WHOLE:
        return [], f"{shown} are more than one device, on each of {count}; give at most {WHOLE}"
    if number > WHOLE * MAX_DEVICES:
        return [], f"{shown} are parts of {number // WHOLE} devices; at most {MAX_DEVICES} are possible"
    parts = [WHOLE] * (number // WHOLE) + [number % WHOLE] * bool(number % WHOLE)
    return [whole._replace(percent=percent) for percent in parts * count], ""


class Share(Struct, frozen=True, gc=False, order=True, omit_defaults=True, rename="camel"):
    """The part of one device that a container has: by memory or by percent, as it asked for it.

    A `former` one was replaced by a rebind. It counts like any other: the container may use it until its pod ends.
    """

    container: str
    resource: str
    index: int
    uuid: str = ""
    memory_mib: int = 0
    percent: int = 0
    role: str = MAIN
    former: bool = False

    def __post_init__(self) -> None:
        if min(self.memory_mib, self.percent) < 0 or bool(self.memory_mib) == bool(self.percent):
            raise ValueError("a share is an amount of memory or a percentage")

    @property
    def device(self) -> Device:
        """The device that it is a part of, as it was called when it was allocated."""
        return Device(self.resource, self.index, self.uuid)

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent else in_gib(self.memory_mib)


def share_of(need: Need, device: Device) -> Share:
    """The need met from this device."""
    names = device.resource, device.index, device.uuid
    return Share(need.container, *names, need.memory_mib, need.percent, need.role)


def need_of(share: Share) -> Need:
    """What the share meets."""
    return Need(share.container, share.memory_mib, share.percent, share.role)


def current(shares: Iterable[Share]) -> tuple[Share, ...]:
    """The shares that no rebind replaced."""
    return tuple(share for share in shares if not share.former)


def stored_once(shares: Iterable[Share]) -> tuple[Share, ...]:
    """Without the init containers that coincide with another, for which the first of them by name stands.

    They ask for the same and got the same devices; they run one after the other, so that one counts as much as all.
    """
    alike: dict[tuple[tuple[int, int], ...], dict[str, list[Share]]] = {}
    for container, mine in _by_init_container(shares).items():
        alike.setdefault(_amounts(current(mine)), {})[container] = mine
    needless = {
        container
        for same in alike.values()
        if len({tuple(sorted(replace(share, container="") for share in mine)) for mine in same.values()}) == 1
        for container in sorted(same)[1:]
    }
    return tuple(sorted(share for share in shares if share.container not in needless))


def in_full(shares: Iterable[Share], request: ShareRequest) -> tuple[Share, ...]:
    """The inverse of `stored_once`, for the pod that asks for this."""
    stored, asked = tuple(shares), dict[str, list[Need]]()
    for need in request.needs:
        if need.role in INITS:
            asked.setdefault(need.container, []).append(need)
    models = {_amounts(current(mine)): mine for _, mine in sorted(_by_init_container(stored).items(), reverse=True)}
    there = {share.container for share in stored}
    others = ((name, models.get(_amounts(needs), [])) for name, needs in asked.items() if name not in there)
    return tuple(sorted((*stored, *(replace(share, container=name) for name, mine in others for share in mine))))


def _by_init_container(shares: Iterable[Share]) -> dict[str, list[Share]]:
    found: dict[str, list[Share]] = {}
    for share in shares:
        if share.role in INITS:
            found.setdefault(share.container, []).append(share)
    return found


def _amounts(parts: Iterable[Share | Need]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((part.memory_mib, part.percent) for part in parts))


def packed(shares: Iterable[Share]) -> list[str]:
    """Shares in lines, a container's parts of one size in one: `main 100% nvidia.com/gpu 0=GPU-a,1=GPU-b`."""
    lines: dict[tuple[str, ...], list[str]] = {}
    for share in sorted(shares):
        size = f"{share.percent}%" if share.percent else f"{share.memory_mib}Mi"
        words = (share.role, _FORMER * share.former)
        devices = lines.setdefault((share.container, size, share.resource, *words), [])
        devices.append(f"{share.index}={share.uuid}" if share.uuid else str(share.index))
    return [" ".join(filter(None, (*key[:3], ",".join(devices), *key[3:]))) for key, devices in lines.items()]


def unpacked(lines: Iterable[str]) -> list[Share]:
    """The inverse of `packed`; raises ValueError."""
    found = []
    for line in lines:
        container, size, resource, devices, *words = line.split(" ")
        mib, percent = size.removesuffix("Mi"), size.removesuffix("%")
        amounts = (0, int(percent)) if percent != size else (int(mib), 0)
        role = next((word for word in words if word in (*INITS, SIDECAR)), MAIN)
        for device in devices.split(","):
            index, _, uuid = device.partition("=")
            found.append(Share(container, resource, int(index), uuid, *amounts, role, _FORMER in words))
    return sorted(found)


def in_gib(mib: int) -> str:
    """`8 GiB`, `7.5 GiB`."""
    return f"{mib / MIB_PER_GIB:.1f}".removesuffix(".0") + " GiB"


# Holders of devices and what they request.
# What places, claims and collects speaks in these words, and knows nothing of the objects behind them.

# The token of a rebind request: the value of the annotation by which a pod's user asks for another device.
#
# The leader writes it into the node's ledger, which all pods of the node share, so a long one is none.

PATTERN: Final = "[A-Za-z0-9._:+-]{1,63}"
CURE: Final = "set it to 1 to 63 letters, digits or characters of ._:+-, other ones for each request, such as the time"


def token_fault(value: str) -> str:
    """What is wrong with the token and what to do, or ""."""
    return "" if re.fullmatch(PATTERN, value) else CURE


GROUP = "group"
POD = "pod"
"""A pod with shares; its name is `namespace/name`."""


class Holder(NamedTuple):
    """Who has a claim. The UID is its identity; the rest is how its pods and people call it."""

    uid: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Request(NamedTuple):
    """What a holder wants: all of it on one node, or nothing."""

    holder: Holder
    resources: Mapping[str, int]
    """Device resource → number of whole devices."""
    strategy: str
    node_selector: Mapping[str, str]
    node: str
    """Where the holder lives already, by its own word, or ""."""
    share: ShareRequest = NO_SHARE
    """Parts of devices: of the holder's, where it requests whole ones, else of any."""
    sharer: Holder | None = None
    """Who has the parts, where that isn't the holder: a pod of the group."""

    labels: Mapping[str, str] = {}
    """The labels of a group, by which quotas count it."""
    priority: int = 0
    """Of the pod that is to be placed."""
    isolated: bool = False
    """Whether its parts have to be of devices whose memory limits are enforced."""
    by_claim: bool = False
    """Whether its devices are handed over by a ResourceClaim."""

    @property
    def taker(self) -> Holder:
        """Who has the parts."""
        return self.sharer or self.holder

    @property
    def within(self) -> str:
        """The UID of the group of whose devices they are parts, as in a claim."""
        return self.holder.uid if self.sharer else ""

    @property
    def wants(self) -> Collection[str]:
        """The device resources that may be allocated to it."""
        return self.resources.keys() or self.share.of
