"""The process's memory: how often garbage is looked for, and when free pages go back to the system."""

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable
from typing import Final

GARBAGE_THRESHOLD: Final = 20_000
"""Objects made and not freed, between two collections of the youngest."""
TRIM_SECONDS: Final = 60.0


def collect_less_often() -> None:
    """The mirrors' objects form no cycles: looking through them as often as Python does cost 4 to 10% of a request."""
    gc.set_threshold(GARBAGE_THRESHOLD)


async def keep_small(listed: Callable[[], Awaitable[None]]) -> None:
    """Spares the garbage collector what was listed: it would stop the loop for as long as it looks through that.

    And has the C library return its heap's free pages, first those of the lists, then each minute; only glibc keeps
    them, and has the call for it. Each TLS connection has buffers of 256 KiB. In the holes that they leave lie a few
    small blocks, and around those an hour of churn left 20 MiB (docs/reliability.md, Soak).
    https://man7.org/linux/man-pages/man3/malloc_trim.3.html
    """
    await listed()
    gc.freeze()
    while malloc_trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        malloc_trim(0)
        await asyncio.sleep(TRIM_SECONDS)
    await asyncio.Event().wait()
