"""NVIDIA's GPUs, read through NVML. The only importer of `pynvml`.

All of it blocks, and an unhealthy GPU makes NVML answer late: call it in a thread of its own, never on an event loop.
NVML counts its starts and stops, and restarts only when nobody else has it started: a second thread is to be brief.

NVML shows processes by the PIDs of its caller's PID namespace, and only those: the agent's pod needs `hostPID`.
Reference: https://docs.nvidia.com/deploy/nvml-api/
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import c_void_p, cast
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Self

import pynvml
from msgspec import Struct

from deviceshare.domain.device_health.containers import ProcessUse
from deviceshare.domain.device_health.examination import DeviceUse, DriverTrouble, Inventory, Xid
from deviceshare.domain.device_health.memory_limits import MIB, GroupMemory
from deviceshare.domain.objects.hardware import BY_AGENT, NUMA, NVLINK, SWITCH, Link, Part
from deviceshare.domain.vendors import NVIDIA

_NVSWITCH: Final = "NVSwitch"
_LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: SWITCH,  # two GPUs on one board
    pynvml.NVML_TOPOLOGY_SINGLE: SWITCH,
    pynvml.NVML_TOPOLOGY_MULTIPLE: SWITCH,  # several switches, but no host bridge between
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: NUMA,
    pynvml.NVML_TOPOLOGY_NODE: NUMA,
}
_LISTS: Final = (
    (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2),
    (pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v2),
    (pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3, pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v2),
)
"""Each list's function, and the one that drivers before R510 have."""
_LOST: Final = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "the driver has lost the GPU",
    pynvml.NVML_ERROR_RESET_REQUIRED: "the GPU needs a reset",
}
_NO_DRIVER: Final = {
    pynvml.NVML_ERROR_UNINITIALIZED: "NVML has not been started.",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "The library of NVIDIA's driver, libnvidia-ml.so.1, is not in the container. Run nvidia-smi on the node: if it "
        "works, give the pod the runtime class of NVIDIA's container toolkit, or recreate a pod that is older than the "
        "toolkit; if not, install the driver."
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "NVIDIA's kernel module isn't loaded. Run nvidia-smi on the node: it reports the cause."
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "NVIDIA's kernel module and its library are of different versions, as after an upgrade. Reboot the node; where "
        "nvidia-smi works on it already, recreate this pod, which has the library from before."
    ),
}
_XIDS: Final = {
    8: "GPU stopped processing",
    13: "graphics engine exception",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    38: "driver firmware error",
    43: "GPU stopped processing",
    45: "preemptive cleanup, due to previous errors",
    46: "GPU stopped processing",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint or warning",
    62: "internal micro-controller halt",
    63: "GPU memory remapping event",
    64: "GPU memory remapping failure",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained memory error",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link error",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    154: "GPU recovery action changed",
}
"""NVIDIA's names, those of the Xid catalog, shortened. `domain/device_health/examination.py` says which are unhealthy.

https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""


class NoDriver(DriverTrouble):
    """NVML can't be used at all; the text says why, and what to do."""


class NoLibrary(NoDriver):
    """The library of NVIDIA's driver is not in the container."""


class NvmlRefused(DriverTrouble):
    """NVML answered with an error that says nothing about the GPU's health."""


class Lost(NvmlRefused):
    """The driver can't reach the GPU any more, or not before it is reset."""


class _Gpu(Struct, frozen=True):
    """A GPU that answers. `handle` is NVML's, valid until the driver is stopped."""

    index: int
    uuid: str
    handle: Any


def _ask(function: Callable[..., Any], *arguments: object) -> Any:
    """The result of a function of `pynvml`.

    Raises:
        NoDriver: NVML is missing or not initialized.
        Lost: the GPU can't be reached.
        NvmlRefused: any other error.
    """
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NO_DRIVER:
            kind = NoLibrary if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND else NoDriver
            raise kind(_NO_DRIVER[error.value]) from error
        if error.value in _LOST:
            raise Lost(_LOST[error.value]) from error
        raise NvmlRefused(f"{error} ({function.__name__})") from error
    except UnicodeDecodeError as error:  # by pynvml: a board's memory may hold anything
        raise NvmlRefused(f"an answer that is no text ({function.__name__})") from error


def _ask_if_known(function: Callable[..., Any], *arguments: object) -> Any:
    """Like `_ask`, but None where this driver or this GPU doesn't support it."""
    try:
        return _ask(function, *arguments)
    except Lost:
        raise
    except NvmlRefused:
        return None


class Driver:
    """NVML, started and stopped by `with`. Inside of it the other functions of this module may be called.

    NVML finds a GPU that it lost only when it starts again. Handles and event sets from before are void then.

    From r615 on it limits memory by control groups: https://docs.nvidia.com/deploy/mps/ (memory partitioning).
    """

    mode: Final = BY_AGENT

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        """`root` is where control groups are mounted."""
        self._root = root

    def __enter__(self) -> Self:
        """Raises NoDriver."""
        try:
            _ask(pynvml.nvmlInit)
        except NvmlRefused as error:
            raise NoDriver(f"NVML doesn't start: {error}. Run nvidia-smi on the node: it reports the cause.") from error
        return self

    def __exit__(self, *_: object) -> None:
        """Releases NVML's hold on the GPUs; a GPU can't be reset before."""
        # NVML that didn't start needs no shutdown.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def limits_obstacle(self) -> str:
        """Why memory can't be limited by control groups here, with the cure; "" where it can."""
        gpus, _ = _find_gpus()
        for gpu in gpus:
            try:
                _limits_of(gpu.handle, self._root)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                    version = _ask_if_known(pynvml.nvmlSystemGetDriverVersion) or "of this node"
                    return f"NVIDIA's driver {version} has no memory limits: install r615 or later"
                if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                    return f"GPU {gpu.index} supports no memory limits: use whole GPUs or MIG there"
                # Of this group alone: each container's is asked for in turn.
        return "" if gpus else "no GPU answers: run nvidia-smi on the node"

    def read_limits(self, uuid: str, group: Path) -> GroupMemory:
        """The control group's limits on a GPU. Raises NoDriver and NvmlRefused."""
        found = _ask(_limits_of, _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid), group)
        return GroupMemory(found.softLimit, found.hardLimit, found.currentUsed)

    def set_limits(self, uuid: str, group: Path, limits: GroupMemory) -> None:
        """Sets the control group's limits on a GPU, which takes CAP_SYS_ADMIN. Raises NoDriver and NvmlRefused."""
        wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(os.fsencode(group), limits.soft, limits.hard)
        _ask(pynvml.nvmlDeviceSetMemoryLimits_v1, _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid), wanted)


def _limits_of(handle: Any, group: Path) -> Any:
    found = pynvml.c_nvmlGetMemoryLimits_v1_t(os.fsencode(group))
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, found)
    return found


def _find_gpus() -> tuple[list[_Gpu], dict[int, str]]:
    """The GPUs that answer, and by index why each other one doesn't. Raises NoDriver and NvmlRefused."""
    answering: list[_Gpu] = []
    silent: dict[int, str] = {}
    for index in range(_ask(pynvml.nvmlDeviceGetCount)):
        try:
            handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
            answering.append(_Gpu(index, _ask(pynvml.nvmlDeviceGetUUID, handle), handle))
        except NvmlRefused as error:
            # Unknown errors too: without a UUID the GPU can't be identified.
            silent[index] = str(error)
    return answering, silent


def read_inventory(sysfs: Path = Path("/sys")) -> Inventory:
    """Reads the GPUs and how they are connected; needs a started Driver. `sysfs` is where Linux shows its devices.

    Raises:
        NoDriver: NVML is missing or not initialized.
        NvmlRefused: NVML doesn't report how many GPUs there are.
    """
    gpus, silent = _find_gpus()
    read: list[tuple[_Gpu, Part]] = []
    for gpu in gpus:
        try:
            read.append((gpu, _part(gpu, sysfs)))
        except NvmlRefused as error:
            silent[gpu.index] = str(error)
    return Inventory(
        driver=_ask_if_known(pynvml.nvmlSystemGetDriverVersion) or "",
        devices=[part for _, part in read],
        links=_links(read),
        silent=silent,
    )


def _part(gpu: _Gpu, sysfs: Path) -> Part:
    address = _pci(pynvml.nvmlDeviceGetPciInfo, gpu.handle)
    mig = _ask_if_known(pynvml.nvmlDeviceGetMigMode, gpu.handle)
    return Part(
        resource=NVIDIA.resource,
        index=gpu.index,
        uuid=gpu.uuid,
        model=_ask_if_known(pynvml.nvmlDeviceGetName, gpu.handle) or "",
        memory_mib=_memory(gpu)[1] or 0,
        pci=address,
        numa_node=_numa_node(sysfs, address) if address else None,
        # The current mode, not the one after the next reset.
        mig=mig is not None and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE,
    )


def _numa_node(sysfs: Path, address: str) -> int | None:
    """The NUMA node of the GPU's PCI slot; Linux writes -1 where there is only one or the BIOS reports none.

    nvmlDeviceGetNumaNodeId is something else: the node that the GPU's own memory is, where it is one.
    """
    try:
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _links(gpus: Sequence[tuple[_Gpu, Part]]) -> list[Link]:
    """The pairs that are closer than two NUMA nodes, the lower index first: by NVLink, or else by PCIe."""
    lanes = {part.index: _lanes(gpu) for gpu, part in gpus}
    links = []
    for (one, a), (other, b) in combinations(gpus, 2):
        ours, theirs = lanes[a.index], lanes[b.index]
        direct = max(ours[b.pci], theirs[a.pci])  # One end may have stopped answering meanwhile.
        # Through the switches each GPU reaches every other with all its lanes; `nvidia-smi topo -m` counts likewise.
        nvlinks = direct + min(ours[_NVSWITCH], theirs[_NVSWITCH])
        same_node = NUMA if a.numa_node is not None and a.numa_node == b.numa_node else ""
        if kind := NVLINK if nvlinks else _pcie(one, other) or same_node:
            links.append(Link(resource=a.resource, a=a.index, b=b.index, kind=kind, lanes=nvlinks))
    return links


def _lanes(gpu: _Gpu) -> Counter[str]:
    """The GPU's active NVLinks, counted by the PCI address at their other end."""
    lanes: Counter[str] = Counter()
    try:
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            # A GPU that has fewer links returns an error.
            if _ask_if_known(pynvml.nvmlDeviceGetNvLinkState, gpu.handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            remote = _ask_if_known(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, gpu.handle, link)
            if remote == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                lanes[_NVSWITCH] += 1
            elif address := _pci(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, gpu.handle, link):
                lanes[address] += 1
    except NvmlRefused:
        lanes.clear()  # Lost between two calls: the next inventory reports it.
    return lanes


def _pcie(one: _Gpu, other: _Gpu) -> str:
    try:
        return _LEVELS.get(_ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, one.handle, other.handle), "")
    except NvmlRefused:
        return ""


def read_usage() -> list[DeviceUse]:
    """Reads all GPUs that answer, by index; needs a started Driver. Raises NoDriver and NvmlRefused."""
    uses = []
    for gpu in _find_gpus()[0]:
        with suppress(NvmlRefused):  # lost meanwhile; the inventory reports it
            memory, rates = _memory(gpu), _ask_if_known(pynvml.nvmlDeviceGetUtilizationRates, gpu.handle)
            uses.append(DeviceUse(gpu.index, gpu.uuid, *memory, rates.gpu if rates else None, _processes(gpu)))
    return uses


def _processes(gpu: _Gpu) -> list[ProcessUse]:
    """A process in two lists has the same memory in both; one list has it once for each MIG instance it uses."""
    used = defaultdict[int, list[int]](list)
    for present, former in _LISTS:
        entries = _ask_if_known(present, gpu.handle)
        if entries is None:
            entries = _ask_if_known(former, gpu.handle) or []
        for pid in {entry.pid for entry in entries}:
            parts = [each.usedGpuMemory for each in entries if each.pid == pid and each.usedGpuMemory is not None]
            used[pid] += [sum(parts)] if parts else []
    return [ProcessUse(pid, max(each) // MIB if each else None) for pid, each in sorted(used.items())]


def _memory(gpu: _Gpu) -> tuple[int | None, int | None]:
    """MiB in use and in all; None where the GPU has no memory of its own. Raises NoDriver and Lost.

    Drivers before R510 count as used what they reserve. Later ones report that separately, in version 2 of the call.
    """
    memory = _ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, pynvml.nvmlMemory_v2)
    memory = memory or _ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)
    return (memory.used // MIB, memory.total // MIB) if memory else (None, None)


def _pci(function: Callable[..., Any], *arguments: object) -> str:
    """The PCI address that this function of `pynvml` answers, as Linux writes it, "" where there is none.

    NVML's `00000000:3B:00.0` is `0000:3b:00.0`. Raises NoDriver and Lost.
    """
    info = _ask_if_known(function, *arguments)
    try:
        domain, _, rest = info.busId.lower().partition(":") if info else ("", "", "")
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:  # of a GPU without PCI, or no text at all
        return ""


class Watch:
    """A subscription to the Xid errors of all GPUs that answer. Create it before reading the inventory.

    Earlier errors aren't reported: those between the two would be in neither. `unwatched` says why the other GPUs are
    not watched, by UUID, or by index where a GPU doesn't report it; and `deaf` why there is nothing to hear at all, as
    with some virtual GPUs. The devices answer all the same, and the next start of NVML subscribes again.
    """

    def __init__(self) -> None:
        """Needs a started Driver. Raises NoDriver."""
        self.deaf, self._events = "", None
        self.unwatched: dict[str, str] = {}
        self._uuids: dict[int | None, str] = {}
        try:
            gpus, silent = _find_gpus()
            self._events = _ask(pynvml.nvmlEventSetCreate)
        except NvmlRefused as error:
            self.deaf = str(error)
            return
        self.unwatched |= {str(index): reason for index, reason in silent.items()}
        for gpu in gpus:
            try:
                _ask(pynvml.nvmlDeviceRegisterEvents, gpu.handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
            except NvmlRefused as error:
                self.unwatched[gpu.uuid] = str(error)
            else:
                self._uuids[_address(gpu.handle)] = gpu.uuid

    def next(self, timeout: float) -> Xid | None:
        """The next Xid error, or None when none came within `timeout` seconds, or none can be heard any more.

        Raises:
            Lost: NVML lost a GPU, and doesn't say which. Each later call raises it at once: read the inventory,
                restart the driver before the next watch, and pause between retries.
            NoDriver: the driver was unloaded.
        """
        if self.deaf or not self._uuids:
            # NVML doesn't document what waiting on an empty event set does.
            time.sleep(timeout)
            return None
        try:
            event = _ask(_wait, self._events, round(timeout * 1000))
        except Lost:
            raise
        except NvmlRefused as error:
            self.deaf = str(error)
            return None
        if event is None:
            return None
        number, name = event.eventData, _XIDS.get(event.eventData)
        return Xid(self._uuid(event.device), number, f"Xid {number}: {name}" if name else f"Xid {number}")

    def close(self) -> None:
        """Ends the watch; idempotent. Call it before the driver is stopped or restarted."""
        events, self._events = self._events, None
        if events is not None:  # NVML would free it twice.
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _uuid(self, handle: Any) -> str:
        # A GPU that just fell off the bus may not answer, but its handle is unchanged.
        try:
            return str(_ask(pynvml.nvmlDeviceGetUUID, handle))
        except NvmlRefused:
            return self._uuids.get(_address(handle), "")


def _wait(events: Any, milliseconds: int) -> Any:
    try:
        return pynvml.nvmlEventSetWait_v2(events, milliseconds)
    except pynvml.NVMLError_Timeout:
        return None


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value
