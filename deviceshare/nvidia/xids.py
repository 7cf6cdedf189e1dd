"""NVIDIA's names for Xid errors. `domain/device_health/examination.py` says which of them make a GPU unhealthy.

The names are those of the Xid catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, shortened.
"""

from typing import Final

_NAMES: Final = {
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


def describe(number: int) -> str:
    """`Xid 79: GPU has fallen off the bus`; the number alone where there is no well-known name."""
    name = _NAMES.get(number)
    return f"Xid {number}: {name}" if name else f"Xid {number}"
