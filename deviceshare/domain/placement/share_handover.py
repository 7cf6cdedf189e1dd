"""The hand-over of shares: the annotations by which each container of a pod gets its own devices and their limits.

The names of devices follow the node's hand-over, as those of groups do. gpushare's own annotations are written beside
them for tools that read those (AliyunContainerService/gpushare-device-plugin, `cmd/inspect`).
"""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Final

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, visible
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import (
    ALIYUN_GPU_MEM,
    DEVICE_GIB,
    DEVICE_INDEX,
    HEAP_FRACTION,
    LIMITS,
    MEMORY_FRACTION,
    MEMORY_LIMIT,
    MIB_PER_GIB,
    PERCENT,
    PYTORCH,
    WHOLE,
    Share,
    as_stored,
    container_annotation,
    current,
    devices_of_container,
    in_full,
)
from deviceshare.domain.placement.rooms import capacity, units
from deviceshare.domain.vendors import Vendor

_LONGEST_FOR_NRI: Final = 53
"""Characters of a container's name behind `nvidia.cdi.k8s.io/container.`, of the 63 that a name may have."""
_RESERVE_MIB: Final = 640
"""What a process takes of a device beside its framework's memory pool: the CUDA context, and libraries. With PyTorch
610 MiB on an H100 (docs/reliability.md)."""


def share_annotations(pod: Pod, ledger: NodeDevices, shares: Sequence[Share]) -> dict[str, str]:
    """What a Binding writes for a claim's shares of the pod's containers; former ones are on record only."""
    shares = in_full(shares, pod.share)
    written = {contract.SHARES: msgspec.json.encode(as_stored(shares)).decode()}
    shares = current(shares)
    for container in sorted({share.container for share in shares}):
        mine = [share for share in shares if share.container == container]
        written |= _names(container, {share.device for share in mine}, ledger.status.handover)
        written |= _limits(container, mine, ledger)
    return written | (_of_gpushare(pod, ledger, shares) if ALIYUN_GPU_MEM in pod.share.resources else {})


def container_annotations(containers: Iterable[str]) -> set[str]:
    """The names of all annotations that a Binding may write for the devices and limits of these containers."""
    names = set[str]()
    for container in containers:
        names |= {container_annotation(kind, container) for kind in LIMITS}
        names |= {devices_of_container(vendor, container) for vendor in vendors.VENDORS}
        names |= {_cdi(vendor, container) for vendor in vendors.VENDORS if vendor.cdi_annotation}
    return names


def too_long_for_cdi(ledger: NodeDevices, shares: Iterable[Share]) -> str:
    """The container that can't be given devices by NVIDIA's NRI plugin since its name is too long, or ""."""
    for share in shares:
        vendor = vendors.vendor_of(share.resource)
        by_cdi = vendor is not None and vendor.cdi_annotation and "/" in ledger.status.handover.get(vendor.name, "")
        if by_cdi and len(share.container) > _LONGEST_FOR_NRI:
            return share.container
    return ""


def _names(container: str, devices: Iterable[Device], handover: Mapping[str, str]) -> dict[str, str]:
    names = visible(devices, handover)
    written = {}
    for vendor in vendors.VENDORS:
        if vendor.annotation in names:
            written[devices_of_container(vendor, container)] = names[vendor.annotation]
        if vendor.cdi_annotation and vendor.cdi_annotation in names:
            written[_cdi(vendor, container)] = names[vendor.cdi_annotation]
    return written


def _cdi(vendor: Vendor, container: str) -> str:
    return f"{vendor.cdi_annotation.partition('/')[0]}/container.{container}"


def _limits(container: str, shares: Sequence[Share], ledger: NodeDevices) -> dict[str, str]:
    present = [ledger.present(share.device) for share in shares]
    sized = [(share, ledger.memory_of(device)) for share, device in zip(shares, present, strict=True)]
    values = {DEVICE_INDEX: ",".join(str(device.index) for device in present)}
    if all(size for _, size in sized):
        values[DEVICE_GIB] = str(min(size for _, size in sized) // MIB_PER_GIB)
    limits = [share.memory_mib or share.percent * size // WHOLE for share, size in sized]
    if all(limits):
        values[MEMORY_LIMIT] = str(sum(limits))
    if all(share.percent or size for share, size in sized):
        # Otherwise nobody knows which part of the device the memory is: the agent has stopped reporting since.
        values |= _fractions([(Fraction(units(share, size) or 0, capacity(size)), size) for share, size in sized])
    return {container_annotation(kind, container): value for kind, value in values.items()}


def _fractions(parts: Sequence[tuple[Fraction, int]]) -> dict[str, str]:
    """Of each device the container's part, and the device's memory in MiB."""
    values = {
        PERCENT: str(sum(int(WHOLE * part) for part, _ in parts)),
        MEMORY_FRACTION: _rounded_down(min(part for part, _ in parts)),
    }
    if min(part for part, _ in parts) < 1:  # who has whole devices is left to the frameworks' own defaults
        heap = min(_heap(part, size) for part, size in parts)
        values[HEAP_FRACTION] = _rounded_down(heap)
        values[PYTORCH] = f"per_process_memory_fraction:{_rounded_down(heap)}"
    return values


def _heap(part: Fraction, size: int) -> Fraction:
    """What of the part is left to a framework's pool: half of a small one in any case."""
    return max(part - Fraction(_RESERVE_MIB, size), part / 2) if size else part * Fraction(9, 10)


def _rounded_down(part: Fraction) -> str:
    """So that it is never more than the share, unless that is next to nothing."""
    steps = max(int(part * 10_000), 1)
    return f"{steps // 10_000}.{steps % 10_000:04}"


def _of_gpushare(pod: Pod, ledger: NodeDevices, shares: Sequence[Share]) -> dict[str, str]:
    positions = {container.name: str(number) for number, container in enumerate(pod.spec.containers)}
    allocation: dict[str, dict[str, int]] = {}
    for share in shares:
        if share.container in positions:
            index = str(ledger.present(share.device).index)
            allocation.setdefault(positions[share.container], {})[index] = share.memory_mib // MIB_PER_GIB
    first = ledger.present(shares[0].device)
    main = [share for share in shares if share.container in positions]
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(first.index),
        "ALIYUN_COM_GPU_MEM_DEV": str(ledger.memory_of(first) // MIB_PER_GIB),
        "ALIYUN_COM_GPU_MEM_POD": str(sum(share.memory_mib for share in main) // MIB_PER_GIB),
        # From the start, so that a device plugin of gpushare that still runs never takes the pod for one of its own.
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "scheduler.framework.gpushare.allocation": msgspec.json.encode(allocation).decode(),
    }
