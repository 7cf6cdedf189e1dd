"""A GPU's memory, total and in use, without what the driver reserves where it reports that."""

from typing import Any, Final

import pynvml

from deviceshare.nvidia.driver import Gpu, ask_if_known

MIB: Final = 1024 * 1024


def read_memory(gpu: Gpu) -> Any:
    """NVML's `total` and `used`, in bytes; None where the GPU has no memory of its own. Raises NoDriver and Lost.

    Drivers before R510 count as used what they reserve. Later ones report that separately, in version 2 of the call.
    """
    memory = ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, pynvml.nvmlMemory_v2)
    return memory if memory is not None else ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)
