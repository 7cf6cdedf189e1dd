"""A GPU's memory."""

from typing import Any, Final

import pynvml

from deviceshare.nvidia.driver import Gpu, ask_if_known

MIB: Final = 1024 * 1024


def read_memory(gpu: Gpu) -> Any:
    """NVML's `total` and `used`, in bytes; None where the GPU has no memory of its own. Raises NoDriver and Lost.

    Drivers before R510 count as used what they keep for themselves. Later ones tell that apart, if asked so.
    """
    memory = ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle, pynvml.nvmlMemory_v2)
    return memory if memory is not None else ask_if_known(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)
