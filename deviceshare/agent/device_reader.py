"""The reader of the node's devices through NVML, in a thread of its own, and of their processes through /proc.

A call of NVML may hang as long as a device is unhealthy, and the thread with it: it is a daemon that is never joined,
and silence beyond a limit counts as a driver that doesn't answer. Between two readings the thread listens for Xid
errors, which the driver reports once, and only to those already listening.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from deviceshare import nvidia
from deviceshare.agent.cdi_specs import CdiSpecs
from deviceshare.domain.device_health.process_owners import owner_of
from deviceshare.loops.agent.ports import ReadUse, Running, Sight, Xid

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""Between two readings. An Xid error starts the next one at once."""
INVENTORY_SECONDS: Final = 60.0
"""Between two readings of the inventory, which hardly ever changes, unless a change is seen."""
RETRY_SECONDS: Final = 5.0
RESTART_SECONDS: Final = 60.0
"""Between two restarts of NVML while a device is lost: NVML finds it again only when it starts."""
HANG_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.2
"""One fault is reported as several errors."""
HUNG: Final = f"the driver has not answered for {HANG_SECONDS:.0f} s: run nvidia-smi on the node, it may need a reboot"


class DeviceReader:
    """Reports a `Sight` every few seconds while `run` runs."""

    def __init__(
        self, report: Callable[[Sight], object], *, proc: Path, sysfs: Path, specs: CdiSpecs, visible: str | None = None
    ) -> None:
        """`report` is called on the event loop. `visible` is this container's variable (vendors.NVIDIA)."""
        self.missing = False
        """To be set while a device is known to be lost."""
        self._report = report
        self._proc = proc
        self._sysfs = sysfs
        self._specs = specs
        self._visible = visible
        self._boot_id = self._read_boot_id()
        self._closing = threading.Event()
        self._reported = time.monotonic()
        self._xids: list[Xid] = []
        self._unseen: set[int] = set()
        """The PIDs that the driver showed last and /proc didn't."""
        self._unseen_told = False
        self._deafness = ""
        """Why Xid errors weren't reported last."""

    async def run(self) -> None:
        """Reads until cancelled."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._read_on, args=(loop,), name="device-reader", daemon=True)
        thread.start()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if time.monotonic() - self._reported > HANG_SECONDS:
                    self._report(Sight(boot_id=self._boot_id, trouble=HUNG))
        finally:
            self._closing.set()

    # Everything below runs in the thread.

    def _read_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                with nvidia.Driver():
                    self._read_and_listen(loop)
            except (nvidia.NoDriver, nvidia.NvmlRefused) as error:
                self._send(loop, Sight(boot_id=self._boot_id, trouble=str(error)))
            except Exception as error:  # a bug of the agent must not look like a healthy device
                log.exception("Failed to read the devices")
                self._send(loop, Sight(boot_id=self._boot_id, trouble=f"the agent failed: {error}"))
            if time.monotonic() - begun < RESTART_SECONDS:
                self._closing.wait(RETRY_SECONDS)

    def _read_and_listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Returns when NVML has to be restarted."""
        # Subscribe to Xid errors before reading the inventory: an error in between would be in neither.
        watch = self._subscribed()
        started = time.monotonic()
        inventory, read_at = None, started
        try:
            while not self._closing.is_set():
                now = time.monotonic()
                uses = nvidia.read_usage()
                if inventory is None or self._xids or now - read_at > INVENTORY_SECONDS or _differs(inventory, uses):
                    inventory, read_at = nvidia.read_inventory(self._sysfs), now
                self._send(loop, self._sight(inventory, uses, now))
                if (self.missing or inventory.silent or not watch) and now - started > RESTART_SECONDS:
                    return
                watch = self._listen(watch)
        except nvidia.Lost:
            # The inventory says which device it was; the watch reports nothing more until NVML is restarted.
            now = time.monotonic()
            self._send(loop, self._sight(nvidia.read_inventory(self._sysfs), nvidia.read_usage(), now))
        finally:
            if watch:
                watch.close()

    def _subscribed(self) -> nvidia.Watch | None:
        """None where this driver reports no errors, as on some virtual GPUs."""
        try:
            watch = nvidia.Watch()
        except nvidia.NvmlRefused as error:
            self._warn_of_deafness(str(error))
            return None
        if watch.unwatched:
            log.warning("Failed to subscribe to some devices' Xid errors", devices=watch.unwatched)
        return watch

    def _warn_of_deafness(self, error: str) -> None:
        """Once: NVML is restarted every minute."""
        if error != self._deafness:
            self._deafness = error
            log.warning("Failed to subscribe to Xid errors", error=error)

    def _listen(self, watch: nvidia.Watch | None) -> nvidia.Watch | None:
        """Returns the watch, None once it can't be listened to."""
        if watch is None:
            self._closing.wait(LOOK_SECONDS)
            return None
        until = time.monotonic() + LOOK_SECONDS
        while (rest := until - time.monotonic()) > 0 and not self._closing.is_set():
            try:
                error = watch.next(min(rest, _WAIT_SECONDS))
            except nvidia.Lost:
                raise
            except nvidia.NvmlRefused as refusal:
                # The devices answer all the same. The next start of NVML subscribes again.
                self._warn_of_deafness(str(refusal))
                watch.close()
                return None
            if error is not None:
                self._xids.append(Xid(error.uuid, error.number, nvidia.describe(error.number)))
                until = min(until, time.monotonic() + _GATHER_SECONDS)
        return watch

    def _sight(self, inventory: nvidia.Inventory, uses: list[nvidia.DeviceUse], read_at: float) -> Sight:
        xids, self._xids = self._xids, []
        uuids = [part.uuid for part in inventory.devices if not part.mig]
        read = [self._use(use) for use in uses]
        found = {process.pid for use in read for process in use.processes}
        self._warn_of_unseen({process.pid for use in uses for process in use.processes} - found)
        return Sight(
            parts=inventory.devices,
            links=inventory.links,
            uses=read,
            xids=xids,
            absent=inventory.silent,
            driver=inventory.driver,
            cdi_kinds=self._specs.kinds(uuids),
            runtime=self._specs.injected(self._visible) if uuids else "",
            boot_id=self._boot_id,
            read_at=read_at,
        )

    def _use(self, use: nvidia.DeviceUse) -> ReadUse:
        return ReadUse(
            use.uuid,
            use.memory_used_mib,
            use.memory_total_mib,
            use.utilization,
            [running for process in use.processes if (running := self._running(process))],
        )

    def _warn_of_unseen(self, pids: set[int]) -> None:
        """Of those that don't end between two looks; once, while there are any."""
        stayed = sorted(pids & self._unseen)
        if stayed and not self._unseen_told:
            log.warning(
                "Driver shows processes that /proc doesn't, so whose they are isn't known: the agent needs hostPID, and"
                " a /proc without hidepid",
                pids=stayed[:8],
            )
        self._unseen, self._unseen_told = pids, bool(stayed) or (self._unseen_told and bool(pids))

    def _running(self, process: nvidia.ProcessUse) -> Running | None:
        directory = self._proc / str(process.pid)
        try:
            name = (directory / "comm").read_text(errors="replace").strip()
            owner = owner_of((directory / "cgroup").read_bytes().decode(errors="replace"))
            started = _started((directory / "stat").read_text(errors="replace"))
        except OSError:
            return None  # it has ended
        return Running(process.pid, name, process.memory_mib or 0, owner, started)

    def _send(self, loop: asyncio.AbstractEventLoop, sight: Sight) -> None:
        self._reported = time.monotonic()
        try:
            loop.call_soon_threadsafe(self._report, sight)
        except RuntimeError:
            self._closing.set()  # the loop is closed, and the process ends

    def _read_boot_id(self) -> str:
        try:
            return nvidia.read_boot_id(self._proc)
        except OSError as error:
            log.warning("Failed to read the boot ID: unhealthy devices stay marked after reboots", error=str(error))
            return ""


def _started(stat: str) -> int:
    """When the process of this /proc/PID/stat started: its field 22 (proc_pid_stat(5)).

    The second field is the process's name in parentheses, which may contain blanks and parentheses.
    """
    return int(stat.rpartition(")")[2].split()[19])


def _differs(inventory: nvidia.Inventory, uses: list[nvidia.DeviceUse]) -> bool:
    return [(part.index, part.uuid) for part in inventory.devices] != [(use.index, use.uuid) for use in uses]
