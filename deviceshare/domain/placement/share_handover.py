"""The hand-over of shares: the annotations by which each container of a pod gets its own devices and their limits.

The names of devices follow the node's hand-over, as those of groups do. gpushare's own annotations are written beside
them for tools that read those (AliyunContainerService/gpushare-device-plugin, `cmd/inspect`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects import container_keys
from deviceshare.domain.objects.container_keys import container_annotation
from deviceshare.domain.objects.devices import Device, visible
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import ALIYUN_GPU_MEM, MIB_PER_GIB, WHOLE, Share, as_stored
from deviceshare.domain.placement.rooms import capacity, mib, units

_LONGEST_FOR_NRI: Final = 53
"""Characters of a container's name behind `nvidia.cdi.k8s.io/container.`, of the 63 that a name may have."""
_RESERVE_MIB: Final = 512
"""What a process takes of a device beside its framework's memory pool: the CUDA context, and libraries' workspaces."""


def share_annotations(pod: Pod, ledger: NodeDevices, shares: Sequence[Share]) -> dict[str, str]:
    """What a Binding writes for these shares of the pod's containers."""
    written = {contract.SHARES: msgspec.json.encode(as_stored(shares)).decode()}
    for container in sorted({share.container for share in shares}):
        mine = [share for share in shares if share.container == container]
        written |= _names(container, {share.device for share in mine}, ledger.status.handover)
        written |= _limits(container, mine, ledger)
    return written | (_of_gpushare(pod, ledger, shares) if ALIYUN_GPU_MEM in pod.share.resources else {})


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
            written[container_keys.devices_of_container(vendor, container)] = names[vendor.annotation]
        if vendor.cdi_annotation and vendor.cdi_annotation in names:
            key = f"{vendor.cdi_annotation.partition('/')[0]}/container.{container}"
            written[key] = names[vendor.cdi_annotation]
    return written


def _limits(container: str, shares: Sequence[Share], ledger: NodeDevices) -> dict[str, str]:
    sizes = [ledger.memory_of(ledger.present(share.device)) for share in shares]
    costs = [units(share, size) or capacity(size) for share, size in zip(shares, sizes, strict=True)]
    fractions = [cost / capacity(size) for cost, size in zip(costs, sizes, strict=True)]
    percent = sum(int(WHOLE * fraction + 1e-9) for fraction in fractions)
    values = {
        container_keys.PERCENT: str(percent),
        container_keys.MEMORY_FRACTION: _fraction(min(fractions)),
        container_keys.DEVICE_INDEX: ",".join(str(ledger.present(share.device).index) for share in shares),
    }
    if all(sizes):
        limits = [mib(cost, size) for cost, size in zip(costs, sizes, strict=True)]
        values[container_keys.MEMORY_LIMIT] = str(sum(limits))
        values[container_keys.DEVICE_GIB] = str(min(sizes) // MIB_PER_GIB)
        # Half of a small share is left to the framework in any case.
        heaps = [max(limit - _RESERVE_MIB, limit / 2) / size for limit, size in zip(limits, sizes, strict=True)]
    else:
        heaps = [0.9 * fraction for fraction in fractions]
    if min(fractions) < 1:  # who has whole devices is left to the frameworks' own defaults
        values[container_keys.HEAP_FRACTION] = _fraction(min(heaps))
        values[container_keys.PYTORCH] = f"per_process_memory_fraction:{_fraction(min(heaps))}"
    return {container_annotation(kind, container): value for kind, value in values.items()}


def _fraction(value: float) -> str:
    """Rounded down, so that it is never more than the share."""
    return f"{max(int(value * 10_000), 1) / 10_000:.4f}"


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
