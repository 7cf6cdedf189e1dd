"""Linux system calls that Python 3.11 doesn't offer: namespaces, mounts, and a signal at the parent's death.

Loaded before any fork: what runs between fork and exec must not import or allocate much.
"""

import ctypes
import os
import sys
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
MS_SHARED: Final = 1 << 20
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(signal_number: int) -> None:
    """Has the kernel send this process `signal_number` when the thread that started it ends (prctl(2)).

    It lasts over an exec. Without it a `kill -9` of the supervisor, or of a test run, would leave a control plane
    running unnoticed. On other systems than Linux this does nothing.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal_number)


def unshare(flags: int) -> None:
    """Moves this process, or for CLONE_NEWPID its children, to new namespaces (unshare(2)); raises OSError."""
    _call("unshare", flags)


def setns(descriptor: int, flag: int) -> None:
    """Joins a namespace by a file of /proc/PID/ns (setns(2)); raises OSError."""
    _call("setns", descriptor, flag)


def mount(source: str, target: str, file_system: str = "", flags: int = 0) -> None:
    """mount(2); raises OSError."""
    arguments = (source.encode(), target.encode(), file_system.encode() or None, ctypes.c_ulong(flags), None)
    _call("mount", *arguments, what=target)


def _call(name: str, *arguments: object, what: str = "") -> None:
    if _LIBC is None:
        raise OSError(f"{name} is a system call of Linux, and this is {sys.platform}")
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}", what or None)
