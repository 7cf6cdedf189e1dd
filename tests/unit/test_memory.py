"""The C heap's free pages go back to the system while the process runs."""

import subprocess
import sys

_PROGRAM = """
import asyncio, ctypes
from pathlib import Path
from deviceshare import daemon

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype, LIBC.malloc.argtypes, LIBC.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
LARGE, SMALL = 100_000, 1_000

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def leave_holes() -> None:
    for _ in range(5_000):
        LIBC.malloc(SMALL)  # what imports left
    large = []
    for _ in range(400):
        large.append(LIBC.malloc(LARGE))
        ctypes.memset(large[-1], 1, LARGE)
        LIBC.malloc(SMALL)
    for each in large:
        LIBC.free(each)

async def listed() -> None:
    pass

async def main() -> None:
    leave_holes()
    daemon.TRIM_SECONDS = 0.05
    before = resident()
    trimming = asyncio.create_task(daemon.keep_small(listed))
    await asyncio.sleep(0.5)
    print(before - resident())
    trimming.cancel()

asyncio.run(main())
"""


def test_free_pages_among_small_blocks_are_returned() -> None:
    """Of 40 MB that were freed; glibc, which keeps them, is what the image has."""
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    assert int(ran.stdout) > 20_000_000
