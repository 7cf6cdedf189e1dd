"""The reader of the node's devices, in a thread of its own, of their processes, and of CDI specifications.

AMD's GPUs are read through sysfs, NVIDIA's through NVML. A call of NVML may hang as long as a device is unhealthy, and
the thread with it: it is a daemon that is never joined, and silence beyond a limit counts as a driver that doesn't
answer. Between two readings the thread listens for Xid errors, which the driver reports once, and only to those already
listening.
"""

import asyncio
import json
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import yaml
from msgspec.structs import replace

from deviceshare import amd, nvidia
from deviceshare.agent.process_table import ProcessTable
from deviceshare.domain.device_health.examination import DeviceUse, DriverTrouble, Inventory, Reading, Xid
from deviceshare.domain.vendors import NVIDIA

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
HUNG: Final = (
    f"the driver has not answered for {HANG_SECONDS:.0f} s: run nvidia-smi or amd-smi on the node, it may need a reboot"
)
MAX_FILES: Final = 128
"""Of one directory; vendors write one or two."""
MAX_BYTES: Final = 1 << 20
"""Of one file; eight GPUs take 60 kB."""
MAX_KINDS: Final = 64
"""Reported at most."""
_HOOK: Final = "apply-cuda-memory-limits"
"""Of NVIDIA's container toolkit 1.20.1 and later (NVIDIA/nvidia-container-toolkit#2075)."""

_Listing = tuple[tuple[str, int, int, int], ...]
"""The files of a directory: path, inode, time and size."""


class CdiSpecs:
    """The node's CDI specifications, in some directories; a name in several is taken from the last.

    A kind such as `k8s.device-plugin.nvidia.com/gpu` qualifies a device's name where a runtime injects devices by CDI.
    A container whose device no specification names doesn't start, so only kinds that name every device are reported.

    https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._listings: list[_Listing | None] = []
        self._names: Mapping[str, set[str]] = {}
        self.memory_hook = False
        """Whether NVIDIA's hook sets memory limits (memory_limits.py): some specification of its devices has it."""

    def kinds(self, uuids: Collection[str]) -> list[str] | None:
        """The kinds that name every one of these devices, sorted; None where no directory can be read."""
        names = self._read()
        if names is None:
            return None
        return sorted(kind for kind, devices in names.items() if devices.issuperset(uuids))[:MAX_KINDS]

    def injected(self, variable: str | None) -> str:
        """How this process got its devices, `cdi` or `variable`, by the value of its own variable; "" if unset.

        A runtime that injects devices by CDI sets `void`. So does one that generates specifications in memory (NVIDIA's
        in mode `auto`), which accepts numbers and UUIDs too, and needs no specification on the node.
        """
        if variable is None:
            return ""
        if variable != "void" and "=" not in variable:
            return "variable"
        names = self._read()
        known = names is None or any(kind.partition("/")[0].endswith("nvidia.com") for kind in names)
        return "cdi" if known else "variable"

    def _read(self) -> Mapping[str, set[str]] | None:
        """Kind → devices' names; read again only when a directory's listing has changed."""
        listings = [_listing(directory) for directory in self._directories]
        if all(files is None for files in listings):
            return None
        if listings != self._listings:
            sound: dict[tuple[str, str], bool] = {}
            hooked = set[str]()
            for files in listings:
                # As runtimes do: a device named by two specifications of one directory is unknown.
                counts = Counter(name for path, *_ in files or () for name in _devices_of(Path(path), hooked))
                sound |= {name: count == 1 for name, count in counts.items()}
            names: dict[str, set[str]] = {}
            for kind, device in (name for name, alone in sound.items() if alone):
                names.setdefault(kind, set()).add(device)
            self._listings, self._names, self.memory_hook = listings, names, not hooked.isdisjoint(NVIDIA.kinds)
            log.info("Read CDI specifications", files=sum(map(len, filter(None, listings))), kinds=sorted(names))
        return self._names


def _listing(directory: Path) -> _Listing | None:
    """A directory's specifications, by path, with inode, time and size; None where it can't be read."""
    entries = []
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix in (".json", ".yaml"))
    except OSError:
        return None
    for path in paths[:MAX_FILES]:
        with suppress(OSError):  # it has gone meanwhile
            state = path.stat()
            if stat.S_ISREG(state.st_mode):
                entries.append((str(path), state.st_ino, state.st_mtime_ns, state.st_size))
    return tuple(entries)


def _devices_of(path: Path, hooked: set[str]) -> set[tuple[str, str]]:
    """Kind and name of each device of one specification; empty where the file isn't one.

    Kinds whose devices come with the hook that limits memory are added to `hooked`.
    """
    try:
        spec = _load(path)
        kind, devices = spec["kind"], spec["devices"]
        edits = [each.get("containerEdits") or {} for each in (spec, *devices)]
        if any(_HOOK in (hook.get("args") or ()) for edit in edits for hook in edit.get("hooks") or ()):
            hooked.add(kind)
        return {(kind, name) for each in devices if isinstance(name := each["name"], str)} if "/" in kind else set()
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
        log.warning("Skipped an unreadable CDI specification", file=str(path), error=str(error)[:200])
        return set()


def _load(path: Path) -> Any:
    # Non-blocking, in case the file has been replaced by a pipe.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ValueError(f"it is longer than {MAX_BYTES} bytes")
    # Not by libyaml: it overflows the stack of the process on deeply nested lists.
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


@dataclass(eq=False)
class DeviceReader:
    """Reports a `Reading` every few seconds while `run` runs."""

    report: Callable[[Reading], object]
    """Called on the event loop."""
    _: KW_ONLY
    processes: ProcessTable
    sysfs: Path
    specs: CdiSpecs
    visible: str | None = None
    """This container's variable (vendors.NVIDIA)."""
    missing: Callable[[], bool] = lambda: False
    """Whether a device is known to be lost."""

    def __post_init__(self) -> None:
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
        threading.Thread(target=self._read_on, args=(loop,), name="device-reader", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                if time.monotonic() - self._reported > HANG_SECONDS:
                    self.report(self._trouble(HUNG))
        finally:
            self._closing.set()

    def _trouble(self, text: str) -> Reading:
        return Reading(boot_id=self.processes.boot_id, trouble=text)

    # Everything below runs in the thread.

    def _read_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing.is_set():
            begun = time.monotonic()
            try:
                if amd.is_here(self.sysfs):
                    # At each look all of it: it takes files that cost nothing.
                    inventory, uses = amd.read_inventory(self.sysfs), amd.read_usage(self.sysfs)
                    self._send(loop, self._reading(inventory, uses, begun))
                    self._closing.wait(LOOK_SECONDS)
                    continue
                with nvidia.Driver():
                    self._read_and_listen(loop)
            except DriverTrouble as error:
                self._send(loop, self._trouble(str(error)))
            except Exception as error:  # a bug of the agent must not look like a healthy device
                log.exception("Failed to read the devices")
                self._send(loop, self._trouble(f"the agent failed: {error}"))
            if time.monotonic() - begun < RESTART_SECONDS:
                self._closing.wait(RETRY_SECONDS)

    def _read_and_listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Returns when NVML has to be restarted."""
        # Subscribe to Xid errors before reading the inventory: an error in between would be in neither.
        watch = nvidia.Watch()
        if watch.unwatched:
            log.warning("Failed to subscribe to some devices' Xid errors", devices=watch.unwatched)
        started = time.monotonic()
        inventory, read_at = None, started
        try:
            while not self._closing.is_set():
                now = time.monotonic()
                uses = nvidia.read_usage()
                if inventory is None or self._xids or now - read_at > INVENTORY_SECONDS or _differs(inventory, uses):
                    inventory, read_at = nvidia.read_inventory(self.sysfs), now
                self._send(loop, self._reading(inventory, uses, now))
                if (self.missing() or inventory.silent or watch.deaf) and now - started > RESTART_SECONDS:
                    return
                self._listen(watch)
        except nvidia.Lost:
            # The inventory says which device it was; the watch reports nothing more until NVML is restarted.
            now = time.monotonic()
            self._send(loop, self._reading(nvidia.read_inventory(self.sysfs), nvidia.read_usage(), now))
        finally:
            watch.close()

    def _listen(self, watch: nvidia.Watch) -> None:
        """Until the next look is due."""
        until = time.monotonic() + LOOK_SECONDS
        while (rest := until - time.monotonic()) > 0 and not self._closing.is_set():
            if error := watch.next(min(rest, _WAIT_SECONDS)):
                self._xids.append(error)
                until = min(until, time.monotonic() + _GATHER_SECONDS)
        if watch.deaf not in ("", self._deafness):  # once: NVML is restarted every minute
            self._deafness = watch.deaf
            log.warning("Failed to subscribe to Xid errors", error=watch.deaf)

    def _reading(self, inventory: Inventory, uses: list[DeviceUse], read_at: float) -> Reading:
        xids, self._xids = self._xids, []
        whole = [part for part in inventory.devices if not part.mig]
        described = [
            replace(use, processes=[seen for each in use.processes if (seen := self.processes.described(each))])
            for use in uses
        ]
        self._warn_of_unseen(_pids(uses) - _pids(described))
        return Reading(
            inventory,
            described,
            xids,
            boot_id=self.processes.boot_id,
            cdi_kinds=self.specs.kinds([part.uuid for part in whole]),
            runtime=self.specs.injected(self.visible) if whole and whole[0].resource == NVIDIA.resource else "",
            read_at=read_at,
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

    def _send(self, loop: asyncio.AbstractEventLoop, reading: Reading) -> None:
        self._reported = time.monotonic()
        try:
            loop.call_soon_threadsafe(self.report, reading)
        except RuntimeError:
            self._closing.set()  # the loop is closed, and the process ends


def _differs(inventory: Inventory, uses: list[DeviceUse]) -> bool:
    return [(part.index, part.uuid) for part in inventory.devices] != [(use.index, use.uuid) for use in uses]


def _pids(uses: list[DeviceUse]) -> set[int]:
    return {process.pid for use in uses for process in use.processes}
