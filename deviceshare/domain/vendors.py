"""The vendors whose devices groups may ask for: one row each.

The injection, the hand-over, which devices have parts, how many a node has and how much memory, the texts, the CRD's
description, the policies' tables, the page's words and the documentation follow from this table.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Final

from msgspec import Struct

from deviceshare.domain import contract

ANY: Final = "…"
"""At the end of a resource: all resources that begin so."""
NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""Of a resource or a label, behind its domain: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""


class Counting(StrEnum):
    """How many devices a node without an agent has, and of what memory (placement/shared_resources.py)."""

    ALLOCATABLE = "allocatable"
    """As many as are allocatable: the vendor's device plugin neither shares nor splits them."""
    FEATURE_DISCOVERY = "feature-discovery"
    """By the labels of GPU feature discovery, under the resource's name, which tell sharing; and by HAMi's register.

    The memory in MiB, by a label of the same; where it doesn't run, by what gpushare's device plugin divides.
    """
    PARTITION_LABEL = "partition-label"
    """As many as are allocatable, unless a label or other resources of the vendor say that they are partitioned.

    The memory in GiB, by AMD's node labeller, in one label for each size.
    """
    HAMI_REGISTER = "hami-register"
    """As many as are allocatable, unless HAMi splits them; a resource with a dash in its name is of parts."""


class DraDriver(Struct, frozen=True, kw_only=True):
    """A vendor's driver for dynamic resource allocation, and how its ResourceSlices name the vendor's devices.

    Without `whole` only its name is known: what a ResourceClaim holds of it can't be matched with a device.
    """

    name: str
    whole: str = ""
    """How devices are called in a pool that are one whole device each: a pattern whose first group is the number."""
    part: str = ""
    """Matches the resources of parts of a device; the group is the number of the device that they are of."""


class Vendor(Struct, frozen=True, eq=False, kw_only=True, dict=True):
    """One vendor's devices, and how its container runtime learns which of them a container may see."""

    name: str
    """In a ledger's `status.handover`, and of its annotation."""
    label: str
    """What one device is called for people."""
    resource: str
    """What groups ask for; with ANY at its end a pattern."""
    env: str
    """The variable that the runtime reads."""
    runtime: str
    """What the runtime is called in texts."""
    kinds: tuple[str, ...] = ()
    """The CDI kinds whose device names the runtime takes, the preferred one first."""
    numbered_kinds: tuple[str, ...] = ()
    """The vendors that name devices by number, too."""
    cdi_tool: str = ""
    """The command that writes CDI specifications on a node."""
    cdi_annotation: str = ""
    """The pod annotation that the vendor's NRI plugin reads, or ""."""
    plugin_prefixes: tuple[str, ...] = ()
    """How resources begin by which device plugins allocate devices besides `resource`: whole, in turns or in parts.

    The vendor's own plugin, and those of other systems that share its devices (shares.DIALECTS).
    """
    in_turns: str = ""
    """What the device plugin calls `resource` where several pods take turns on one device, and it is set to rename."""
    device_list: str = ""
    """A mount of a container by which the runtime takes devices besides the variable."""
    node_paths: tuple[str, ...] = ()
    """Paths of a node that open devices to whoever mounts them."""
    has_agent: bool = False
    """Whether deviceshare's agent sees the devices."""
    has_shares: bool = False
    """Whether pods may ask for parts of the devices by deviceshare's own limits (shares.DIALECTS)."""
    counting: Counting = Counting.ALLOCATABLE
    split_prefix: str = ""
    """How resources begin that are parts of split devices, and labels that tell of them."""
    dra: DraDriver | None = None
    """Drivers of other names count for nothing, whatever their devices are called."""

    @cached_property
    def annotation(self) -> str:
        """The pod annotation that the variable refers to.

        By the downward API: https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
        """
        return f"{contract.PREFIX}{self.name}-visible-devices"

    @cached_property
    def field_path(self) -> str:
        """The annotation, as a variable refers to it."""
        return f"metadata.annotations['{self.annotation}']"

    @property
    def domain(self) -> str:
        """The domain of all the vendor's resources."""
        return self.resource.partition("/")[0]

    def supplies(self, resource: str) -> bool:
        """Whether groups may ask for it, and get the vendor's devices."""
        if resource == self.resource:
            return not resource.endswith(ANY)
        if not self.resource.endswith(ANY) or not resource.startswith(self.resource.removesuffix(ANY)):
            return False
        return NAME.fullmatch(resource.partition("/")[2]) is not None

    def allocates(self, resource: str) -> bool:
        """Whether a device plugin allocates the vendor's devices, or turns on or parts of them, as this resource."""
        return self.supplies(resource) or resource.startswith(self.plugin_prefixes)


MIG_PREFIX: Final = "nvidia.com/mig-"

NVIDIA: Final = Vendor(
    name="nvidia",
    label="NVIDIA GPU",
    resource="nvidia.com/gpu",
    env="NVIDIA_VISIBLE_DEVICES",
    runtime="NVIDIA's runtime",
    kinds=("k8s.device-plugin.nvidia.com/gpu", "nvidia.com/gpu"),
    numbered_kinds=("nvidia.com/gpu",),
    cdi_tool="nvidia-ctk cdi generate",
    cdi_annotation="nvidia.cdi.k8s.io/pod",
    plugin_prefixes=("nvidia.com/gpu", "nvidia.com/vgpu", MIG_PREFIX, "aliyun.com/gpu-mem", "cnvrg.io/metagpu"),
    in_turns="nvidia.com/gpu.shared",
    device_list="/run/nvidia-container-devices",
    node_paths=("/run/nvidia",),
    has_agent=True,
    has_shares=True,
    counting=Counting.FEATURE_DISCOVERY,
    split_prefix=MIG_PREFIX,
    dra=DraDriver(name="gpu.nvidia.com", whole=r"gpu-([0-9]{1,4})", part=r"gpu-([0-9]{1,4})-mig-[-a-z0-9]{1,80}"),
)
AMD: Final = Vendor(
    name="amd",
    label="AMD GPU",
    resource="amd.com/gpu",
    env="AMD_VISIBLE_DEVICES",
    runtime="AMD's runtime",
    plugin_prefixes=tuple(f"amd.com/{mode}_nps" for mode in ("spx", "dpx", "tpx", "qpx", "cpx")),
    has_agent=True,
    has_shares=True,
    counting=Counting.PARTITION_LABEL,
    dra=DraDriver(name="gpu.amd.com"),
)
"""Without kinds: the variable takes numbers, ranges and hexadecimal unique IDs. `amd-ctk cdi generate` names devices
`amd.com/gpu=0`, for `--device` of Docker and Podman; nothing takes such names from a pod (ROCm/container-toolkit,
`internal/gpu-tracker`; https://instinct.docs.amd.com/projects/container-toolkit/en/latest/)."""
ASCEND: Final = Vendor(
    name="ascend",
    label="Huawei Ascend",
    resource="huawei.com/Ascend…",
    env="ASCEND_VISIBLE_DEVICES",
    runtime="Ascend's runtime",
    plugin_prefixes=("huawei.com/npu",),
    counting=Counting.HAMI_REGISTER,
)
"""Without kinds: the variable takes numbers, ranges and names as in `Ascend910-0`. CDI specifications
(`ascend.com/npu`) are made by Huawei's DRA driver alone, for each claim
(Ascend/mind-cluster, `component/ascend-docker-runtime`)."""

VENDORS: tuple[Vendor, ...] = (NVIDIA, AMD, ASCEND)
TAINTS: Final = tuple(each.resource for each in VENDORS if not each.resource.endswith(ANY))
"""The keys of the taints that pods of groups tolerate: the resources that are called by one name."""


def dra_vendor(driver: str) -> Vendor | None:
    """The vendor whose devices a DRA driver of this name allocates, or None when deviceshare doesn't know the name."""
    return next((vendor for vendor in VENDORS if vendor.dra and vendor.dra.name == driver), None)


def known_resources() -> list[str]:
    """What groups may ask for, as texts name it."""
    return [vendor.resource for vendor in VENDORS]


@lru_cache(maxsize=1024)
def vendor_of(resource: str) -> Vendor | None:
    """The vendor of a device resource, or None when deviceshare does not know the resource."""
    # Every device of a large cluster is asked for its vendor many times, and resources are few.
    return next((vendor for vendor in VENDORS if vendor.supplies(resource)), None)


def vendors_of(resources: Iterable[str]) -> list[Vendor]:
    """The vendors of those of the resources that are known, in the table's order."""
    return list(_vendors_of(frozenset(resources), VENDORS))


@lru_cache(maxsize=1024)
def _vendors_of(resources: frozenset[str], table: tuple[Vendor, ...]) -> tuple[Vendor, ...]:
    # Asked several times for each pod, and groups ask for few different sets.
    return tuple(vendor for vendor in table if any(map(vendor.supplies, resources)))


def plugin_vendor_of(resource: str) -> Vendor | None:
    """The vendor of whose devices a device plugin allocates whole ones, turns or parts under this name.

    More names than groups may ask for: a device of which a pod has any part can't be allocated to others.
    """
    return next((vendor for vendor in VENDORS if vendor.allocates(resource)), None)


def counted_as(resource: str) -> str:
    """The resource under which devices are counted of which a plugin allocates turns as `resource`."""
    return next((vendor.resource for vendor in VENDORS if resource == vendor.in_turns), resource)


def label_of(resource: str) -> str:
    """What a device of this resource is called for people: `NVIDIA GPU`, `Huawei Ascend910`; unknown ones by name."""
    vendor = vendor_of(resource)
    if vendor is None:
        return resource.rpartition("/")[2]
    return vendor.label + resource.removeprefix(vendor.resource.removesuffix(ANY))


def is_cdi_annotation(key: str) -> bool:
    """Whether a vendor's NRI plugin takes devices from the pod annotation with this name.

    It reads the domain alone, with `/pod`, and with `/container.NAME` behind it, of which the latter wins.
    """
    return key.partition("/")[0] in cdi_domains(VENDORS)


@lru_cache(maxsize=2)
def cdi_domains(table: tuple[Vendor, ...]) -> frozenset[str]:
    return frozenset(vendor.cdi_annotation.partition("/")[0] for vendor in table if vendor.cdi_annotation)
