"""Which pods have a process on the node: what the kernel says of them, where the API server's word may be late.

A pod's address may be the next pod's as soon as its last process has ended, before a mirror can know. The one that asks
is a process of its pod, so a pod without any is not the one that asks.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deviceshare.domain.device_health.process_owners import owner_of

FRESH_SECONDS: Final = 1.0
"""Between two walks over all processes: one takes some 10 µs for each of them."""


class PodProcesses:
    """Remembers a process of each pod, and looks again when that one has ended."""

    def __init__(self, proc: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._clock = clock
        self._pids: dict[str, str] = {}
        """Pod UID → one of its processes."""
        self._walked = float("-inf")
        self._walk: asyncio.Task[dict[str, str]] | None = None

    async def may_run(self, uid: str) -> bool:
        """Whether a process of the pod runs on the node, or it can't be seen here which pods' processes do."""
        if self._pod_of(self._pids.get(uid, "")) == uid:
            return True
        if self._walk is None and self._clock() - self._walked >= FRESH_SECONDS:
            self._walk = asyncio.create_task(asyncio.to_thread(self._find_all), name="find pods' processes")
            self._walk.add_done_callback(self._take)
        if self._walk is not None:
            # Shielded: others wait for the same walk when one is cancelled.
            await asyncio.shield(self._walk)
        return uid in self._pids or not self._pids

    def _take(self, walk: "asyncio.Task[dict[str, str]]") -> None:
        self._walk, self._walked = None, self._clock()
        if not walk.cancelled():
            self._pids = walk.result()

    def _find_all(self) -> dict[str, str]:
        """In a thread. Without the agent's own pod, which it sees in any case."""
        found = {}
        for entry in self._proc.iterdir():
            pid = entry.name
            if pid.isdecimal() and (uid := self._pod_of(pid)):
                found[uid] = pid
        found.pop(self._pod_of("self"), None)
        return found

    def _pod_of(self, pid: str) -> str:
        """The UID of the pod of a process, "" where it has none or has ended."""
        try:
            owner = owner_of((self._proc / pid / "cgroup").read_bytes().decode(errors="replace")) if pid else None
        except OSError:
            return ""
        return owner.pod_uid if owner else ""
