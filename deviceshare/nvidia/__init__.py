"""NVIDIA's GPUs, read through NVML. The only importer of `pynvml`.

All of it blocks, and an unhealthy GPU makes NVML answer late: call it in one thread of its own, never on an event loop.
One thread, because `Driver.restart` voids the handles of all others.

NVML shows processes by the PIDs of its caller's PID namespace, and only those: the agent's pod needs `hostPID`.
"""

from deviceshare.nvidia.driver import Driver, Lost, NoDriver, NoLibrary, NvmlRefused
from deviceshare.nvidia.events import Watch, XidError
from deviceshare.nvidia.inventory import Inventory, read_boot_id, read_inventory
from deviceshare.nvidia.usage import DeviceUse, ProcessUse, read_usage
from deviceshare.nvidia.xids import describe

__all__ = [
    "DeviceUse",
    "Driver",
    "Inventory",
    "Lost",
    "NoDriver",
    "NoLibrary",
    "NvmlRefused",
    "ProcessUse",
    "Watch",
    "XidError",
    "describe",
    "read_boot_id",
    "read_inventory",
    "read_usage",
]
