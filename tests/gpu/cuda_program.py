"""A program that uses GPUs: it allocates memory on each that it sees, says so, and holds it for a while.

    python -m tests.gpu.cuda_program MIB [SECONDS]

Without a number of seconds it holds the memory until its input ends.
Writes one line of JSON with the UUIDs of the GPUs that it sees. Exits with 3 where the memory isn't to be had.
"""

import ctypes
import json
import os
import sys
import time
from typing import Final, NoReturn

OUT_OF_MEMORY: Final = 3
"""The exit status; CUDA_ERROR_OUT_OF_MEMORY is 2, as is a usage error."""
_CUDA_OUT_OF_MEMORY: Final = 2
_MIB: Final = 2**20


class Cuda:
    """The driver API: https://docs.nvidia.com/cuda/cuda-driver-api/."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)

    def uuids(self) -> list[str]:
        """Of the GPUs that this process sees, in NVML's form."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self._uuid(index) for index in range(count.value)]

    def allocate(self, index: int, mib: int) -> None:
        """Takes memory of a GPU until the process ends."""
        device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(mib * _MIB))

    def _uuid(self, index: int) -> str:
        device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
        text = bytes(uuid).hex()
        return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result == _CUDA_OUT_OF_MEMORY:
            _end(f"{name}: out of memory", OUT_OF_MEMORY)
        if result != 0:
            _end(f"{name}: error {result}", 1)


def _end(message: str, status: int) -> NoReturn:
    print(message, file=sys.stderr, flush=True)
    os._exit(status)


def main() -> None:
    cuda, mib = Cuda(), int(sys.argv[1])
    uuids = cuda.uuids()
    for index in range(len(uuids)):
        cuda.allocate(index, mib)
    print(json.dumps(uuids), flush=True)
    if len(sys.argv) > 2:
        time.sleep(float(sys.argv[2]))
    else:
        sys.stdin.read()


if __name__ == "__main__":
    main()
