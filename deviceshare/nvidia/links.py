"""The links between GPUs: NVLink, directly or through NVSwitches, or else PCIe."""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import pynvml

from deviceshare.domain.objects.hardware import NUMA, NVLINK, SWITCH, Link, Part
from deviceshare.nvidia.driver import Gpu, NvmlRefused, ask, ask_if_known, read_pci

_NVSWITCH: Final = "NVSwitch"
_LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: SWITCH,  # two GPUs on one board
    pynvml.NVML_TOPOLOGY_SINGLE: SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: SWITCH,  # several switches, but no host bridge between
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: NUMA,
    pynvml.NVML_TOPOLOGY_NODE: NUMA,
}


def read_links(gpus: Sequence[tuple[Gpu, Part]]) -> list[Link]:
    """The pairs that are closer than two NUMA nodes, the lower index first."""
    lanes = {part.index: _lanes(gpu) for gpu, part in gpus}
    links = []
    for (one, a), (other, b) in combinations(gpus, 2):
        nvlinks = _nvlinks(lanes[a.index], a.pci, lanes[b.index], b.pci)
        kind = NVLINK if nvlinks else _pcie(one, other) or _same_node(a, b)
        if kind:
            links.append(Link(resource=a.resource, a=a.index, b=b.index, kind=kind, lanes=nvlinks))
    return links


def _nvlinks(ours: Counter[str], a: str, theirs: Counter[str], b: str) -> int:
    direct = max(ours[b], theirs[a])  # One end may have stopped answering meanwhile.
    # Through the switches each GPU reaches every other with all its lanes; `nvidia-smi topo -m` counts likewise.
    return direct + min(ours[_NVSWITCH], theirs[_NVSWITCH])


def _lanes(gpu: Gpu) -> Counter[str]:
    """The GPU's active NVLinks, counted by the PCI address at their other end."""
    lanes: Counter[str] = Counter()
    try:
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            # A GPU that has fewer links returns an error.
            if ask_if_known(pynvml.nvmlDeviceGetNvLinkState, gpu.handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            remote = ask_if_known(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu.handle, link)
            if remote == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                lanes[_NVSWITCH] += 1
            elif address := read_pci(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu.handle, link):
                lanes[address] += 1
    except NvmlRefused:
        lanes.clear()  # Lost between two calls: the next inventory reports it.
    return lanes


def _pcie(one: Gpu, other: Gpu) -> str:
    try:
        return _LEVELS.get(ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle), "")
    except NvmlRefused:
        return ""


def _same_node(a: Part, b: Part) -> str:
    return NUMA if a.numa_node is not None and a.numa_node == b.numa_node else ""
