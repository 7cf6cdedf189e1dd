"""Processes that end when the one that started them has died, however it died.

Without this a `kill -9` of the supervisor, or of a test run, would leave a control plane behind that nobody knows of.
"""

import ctypes
import sys

_PR_SET_PDEATHSIG = 1
# Loaded before any fork: what runs between fork and exec must not import or allocate much.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(signal_number: int) -> None:
    """Has the kernel send this process `signal_number` when the thread that started it ends (prctl(2)).

    It lasts over an exec. On other systems than Linux this does nothing.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number)
