"""Limits of device memory: set for each container with a share, by its control group, and audited.

NVIDIA's driver (r615) or the kernel (AMD's GPUs) enforces them, whatever a program does. Where the node has NVIDIA's
hook, that sets them before the container starts, and this repairs what it finds otherwise. A thread of its own looks
for control groups a few times a second: the kubelet's report of a container comes a second later.
"""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from deviceshare import amd, nvidia
from deviceshare.agent.own_node import OwnNode, pod_subject
from deviceshare.domain.device_health.containers import ControlGroup, control_group_of
from deviceshare.domain.device_health.examination import DriverTrouble
from deviceshare.domain.device_health.memory_limits import (
    MIB,
    UNLIMITED,
    GroupMemory,
    LimitKey,
    Limits,
    PodLimits,
    limits_of,
    unintercepted,
)
from deviceshare.domain.objects.hardware import BY_AGENT, DMEM, HOOK, INTERCEPT, MAX_LIMITS, NO_LIMITS, LimitReport
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.shares import in_gib

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 0.2
"""Between two looks for new containers, while any pod on the node has a share."""
AUDIT_SECONDS: Final = 5.0
"""Between two readings of all limits."""
PROBE_SECONDS: Final = 60.0
"""Between two questions whether the node can limit memory at all."""
SEARCH_SECONDS: Final = 2.0
"""Between two searches for pods' control groups, while those of a pod weren't found."""
GATHER_SECONDS: Final = 0.05
SLOW_SECONDS: Final = 30.0
"""For so long a look may last; then the driver hangs."""
_HUNG: Final = "the driver doesn't answer: run nvidia-smi or amd-smi on the node"
_DEPTH: Final = 6
"""Of the control groups of all pods below the root, with nested clusters."""
_SWITCHED_OFF: Final = "the agent is not to set memory limits: set shares.memoryLimits=agent in the chart's values"
_EVADABLE: Final = "HAMi-core alone keeps programs to their shares, which they can evade"
_LIBRARY: Final = "libvgpu.so"
"""HAMi-core (https://github.com/Project-HAMi/HAMi-core)."""
_VERSION_1: Final = (
    "the node has control groups of version 1: boot it with version 2 (systemd.unified_cgroup_hierarchy=1)"
)


class LimitsOutcome(NamedTuple):
    """Of one look."""

    mode: str = ""
    """One of ENFORCING, INTERCEPT, or "" where memory isn't limited."""
    obstacle: str = ""
    """Why it isn't, with the cure."""
    reports: tuple[LimitReport, ...] = ()
    groups: int = 0
    """Control groups that have all their limits."""
    complete: bool = False
    """Whether pods and ledger were known, and every limit has been read once."""


LimitDriver = amd.Dmem | nvidia.Driver
"""What limits the memory of the node's GPUs. It is used between its entry and its exit, and each call raises
DriverTrouble."""


class _LimitedGroup(NamedTuple):
    """A container's, or a sandbox's, which has no name, as one that the kubelet hasn't reported yet."""

    pod: PodLimits
    container: str
    limits: Limits
    group: Path


_News = tuple[PodLimits, str, str]
"""Of a pod, the reason of an Event and its text."""


@dataclass(eq=False)
class MemoryLimits:
    """Sets and audits limits while `run` runs."""

    node: OwnNode
    find_driver: Callable[[], LimitDriver]
    """Says which one the node has."""
    _: KW_ONLY
    mode: str
    """One of LIMIT_MODES."""
    root: Path = Path("/sys/fs/cgroup")
    """Where control groups are mounted."""
    intercepts: bool = False
    """Whether HAMi-core is loaded in programs where the driver doesn't limit memory."""
    hook: Callable[[], bool] = lambda: False
    """Whether the node's CDI specifications have NVIDIA's hook."""
    on_limited: Callable[[float], object] = lambda _: None
    """Called with the seconds from a control group's making to its limit."""
    on_repaired: Callable[[], object] = lambda: None
    """Called where a limit was missing."""

    def __post_init__(self) -> None:
        self._otherwise = INTERCEPT if self.intercepts and self.mode != NO_LIMITS else ""
        self._unintercepted: tuple[LimitReport, ...] = ()
        self._by_driver = self.mode in (BY_AGENT, HOOK)
        self.outcome = LimitsOutcome()
        # What the last agent reported stands until the first look: pods that need a node that enforces wait for none.
        if not self._by_driver:
            self._tell(self._none(_SWITCHED_OFF))
        self._driver = self.find_driver()
        self._lowered: dict[LimitKey, int] = {}
        """What was lowered on request, for as long as a report may say so."""
        self._wanted: tuple[bool, tuple[PodLimits, ...]] = (False, ())
        self._closing = threading.Event()
        self._dirty = asyncio.Event()
        self._looked = time.monotonic()
        # Of the thread.
        self._known: dict[tuple[Path, str], GroupMemory] = {}
        self._held: dict[LimitKey, GroupMemory] = {}
        """What was lowered since the event loop last said what is wanted."""
        self._refused: dict[LimitKey, int] = {}
        """What those use, in MiB, that were to have less."""
        self._retry: dict[Path, tuple[float, str]] = {}
        """When limits that were refused are retried, and why they were."""
        self._audited = self._probed = self._searched = float("-inf")
        self._obstacle = ""
        self._kubepods: list[Path] = []
        """The control groups below which all pods' are."""

    @property
    def enabled(self) -> bool:
        """Whether it has anything to do."""
        return self._by_driver or bool(self._otherwise)

    @property
    def fault(self) -> str:
        """Why the agent isn't ready: containers may have no limit yet."""
        if not self.enabled or self.outcome.complete or self.outcome.obstacle:
            return ""
        return "the limits of device memory have not been audited yet"

    async def run(self) -> None:
        """Until cancelled; only where it is `enabled`."""
        self.node.ledgers.subscribe(lambda _: self._dirty.set())
        self.node.pods.subscribe(lambda _: self._dirty.set())
        loop = asyncio.get_running_loop()
        if self._by_driver:
            threading.Thread(target=self._look_on, args=(loop,), name="memory-limits", daemon=True).start()
        try:
            while True:
                self._want()
                try:
                    async with asyncio.timeout(SLOW_SECONDS):
                        await self._dirty.wait()
                except TimeoutError:
                    if self._by_driver and time.monotonic() - self._looked > SLOW_SECONDS:
                        self._take(self._none(_HUNG), ())
                self._dirty.clear()
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            self._closing.set()

    def _want(self) -> None:
        # A limit may grow again once no report says any more that it was lowered: the leader decides by that.
        if (written := self.node.report.written) is not None:
            said = {each.key for each in (*written.limits, *self.outcome.reports)}
            self._lowered = {key: limit for key, limit in self._lowered.items() if key in said}
        ledger, known = self.node.ledger or NodeDevices(), self.node.ledgers.synced and self.node.pods.synced
        by_uid = {pod.metadata.uid: pod for pod in self.node.pods.values() if not pod.finished}
        self._wanted = known and not ledger.metadata.unreadable, tuple(limits_of(ledger, by_uid, self._lowered))
        self._unintercepted = tuple(unintercepted(ledger, by_uid)[:MAX_LIMITS]) if self._otherwise else ()
        if self.outcome.mode == INTERCEPT and self.outcome.reports != self._unintercepted:
            self._take(self.outcome._replace(reports=self._unintercepted), ())

    def _none(self, obstacle: str) -> LimitsOutcome:
        """That the driver limits nothing, and why."""
        if not self._otherwise:
            return LimitsOutcome("", obstacle)
        return LimitsOutcome(INTERCEPT, f"{_EVADABLE}; {obstacle}", self._unintercepted)

    def _take(self, outcome: LimitsOutcome, news: Collection[_News]) -> None:
        """On the event loop: what a look found."""
        for pod, reason, text in news:
            log.warning("Memory limit", reason=reason, pod=pod.pod, text=text)
            self.node.recorder.warn(pod_subject(pod.pod, pod.uid), reason, text)
        if outcome != self.outcome:
            if (outcome.mode, outcome.obstacle) != (self.outcome.mode, self.outcome.obstacle):
                log.info("Memory limits of shares", mode=outcome.mode, obstacle=outcome.obstacle)
            self._tell(outcome)
            self._lowered |= {each.key: each.limit_mib for each in outcome.reports if each.limit_mib}
        self._dirty.set()

    def _tell(self, outcome: LimitsOutcome) -> None:
        self.outcome = outcome
        self.node.report.tell(memory_limits=outcome.mode, counts_only=outcome.obstacle, limits=list(outcome.reports))

    # Everything below runs in the thread.

    def _look_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            news: list[_News] = []
            try:
                outcome = self._look(*self._wanted, news)
            except Exception as error:  # a bug of the agent must not look like limits that hold
                log.exception("Failed to look at memory limits")
                outcome = self._none(f"the agent failed: {error}")
            self._looked = time.monotonic()
            if outcome != self.outcome or news:
                try:
                    loop.call_soon_threadsafe(self._take, outcome, tuple(news))
                except RuntimeError:
                    return  # the loop is closed, and the process ends

    def _look(self, known: bool, wanted: Collection[PodLimits], news: list[_News]) -> LimitsOutcome:
        now = time.monotonic()
        if now - self._probed >= (AUDIT_SECONDS if self._obstacle else PROBE_SECONDS):
            self._obstacle, self._probed = self._probe(), now
        if self._obstacle:
            return self._none(self._obstacle)
        mode = self._driver.mode
        if (self.mode, mode) == (HOOK, BY_AGENT) and self.hook():
            mode = HOOK
        audit, first = now - self._audited >= AUDIT_SECONDS, self._audited == float("-inf")
        found = self._groups({pod.uid: pod for pod in wanted}) if wanted else []
        here = {each.group for each in found}
        self._known = {key: limit for key, limit in self._known.items() if key[0] in here}
        self._retry = {group: each for group, each in self._retry.items() if group in here}
        reports: list[LimitReport] = []
        todo = [each for each in found if audit or self._is_new(each, now)]
        if todo:
            with self._driver:
                for each in todo:
                    self._apply(each, news, silent=mode != HOOK and not first)
        lowered = list(self._lower(found, news)) if any(pod.wanted for pod in wanted) else []
        for each in found:
            for uuid in each.limits:
                if (each.group, uuid) not in self._known and each.group.exists():  # else it has ended meanwhile
                    _, why = self._retry.get(each.group, (now, "not tried yet"))
                    reports.append(
                        LimitReport(each.pod.pod, each.pod.uid, each.container, uuid, missing=f"not set: {why}")
                    )
        if audit and known:
            self._audited = now
        groups = len(here) - len({report.uid for report in reports})
        return LimitsOutcome(mode, "", tuple(sorted({*reports, *lowered})[:MAX_LIMITS]), groups, known and not first)

    def _probe(self) -> str:
        if not (self.root / "cgroup.controllers").exists():
            return _VERSION_1
        if any(part.mig for part in self.node.report.known.devices):
            return "a GPU of the node is split by MIG: label such nodes otherwise, or turn MIG off"
        self._driver = self.find_driver()  # One may be installed, or removed, while the agent runs.
        try:
            with self._driver:
                return self._driver.limits_obstacle()
        except DriverTrouble as error:
            return str(error)

    def _groups(self, pods: Mapping[str, PodLimits]) -> list[_LimitedGroup]:
        """The control groups of these pods' containers, by UID, and of their sandboxes."""
        now = time.monotonic()
        found = list(self._below(pods))
        if {each.pod.uid for each in found} != pods.keys() and now - self._searched >= SEARCH_SECONDS:
            # The kubelet makes the first one's with its first pod, wherever its --cgroup-root is.
            self._searched, self._kubepods = now, list(_kubepods(self.root))
            found = list(self._below(pods))
        return found

    def _below(self, pods: Mapping[str, PodLimits]) -> Iterator[_LimitedGroup]:
        for top, names, _ in chain.from_iterable(map(os.walk, self._kubepods)):
            directory, below, names[:] = Path(top), list(names), []
            of_pod = self._named_by(directory)
            for name in below:
                group = self._named_by(directory / name)
                pod = pods.get(group.pod_uid) if group else None
                if of_pod and pod and group and group.container_id:
                    yield _LimitedGroup(pod, *self._limits(pod, group.container_id), directory / name)
                elif not of_pod and (pod or (not group and ("pod" in name or name in _CLASSES))):
                    names.append(name)

    def _named_by(self, directory: Path) -> ControlGroup | None:
        return _group_at(f"0::/{directory.relative_to(self.root)}")

    def _limits(self, pod: PodLimits, container_id: str) -> tuple[str, Limits]:
        name, limits = pod.of(container_id)
        if not name and self._driver.mode == DMEM:
            # It may be the sandbox, which uses nothing, and the groups above keep what those below keep together.
            return name, {uuid: limit._replace(soft=0) for uuid, limit in limits.items()}
        for uuid, limit in limits.items() if self._held else ():
            held = self._held.get((pod.uid, name, uuid), limit)
            if (held.hard, held.soft) < (limit.hard, limit.soft):
                limits = {**limits, uuid: held}
            else:
                self._held.pop((pod.uid, name, uuid), None)
        return name, limits

    def _is_new(self, found: _LimitedGroup, now: float) -> bool:
        changed = any(self._known.get((found.group, uuid)) != limit for uuid, limit in found.limits.items())
        return changed and now >= self._retry.get(found.group, (now, ""))[0]

    def _apply(self, found: _LimitedGroup, news: list[_News], *, silent: bool) -> None:
        """Has the container have its limits. `silent`: that a new one has none yet is no news."""
        for uuid, limit in found.limits.items():
            key = found.group, uuid
            before = self._known.get(key)
            try:
                now = self._driver.read_limits(uuid, found.group)
                if (now.soft, now.hard) != (limit.soft, limit.hard):
                    self._driver.set_limits(uuid, found.group, limit)
                    if before is None:
                        self._count(found.group)
                    # The hook takes one limit for all devices, so that one of several may have a larger one.
                    missing = now.hard == UNLIMITED.hard if before is None else before.hard < now.hard
                    if missing and limit != UNLIMITED and not (before is None and silent):
                        self.on_repaired()
                        who = f"container {found.container}" if found.container else "a container"
                        text = f"{who} was without its limit of {in_gib(limit.hard // MIB)} of device {uuid}: set again"
                        news.append((found.pod, "MemoryLimitMissing", text))
                self._known[key] = limit
            except DriverTrouble as error:
                self._known.pop(key, None)
                self._retry[found.group] = time.monotonic() + 1, str(error)
                if found.group.exists():  # else it has ended meanwhile
                    log.warning(
                        "Failed to limit memory",
                        pod=found.pod.pod,
                        container=found.container,
                        uuid=uuid,
                        error=str(error),
                    )

    def _count(self, group: Path) -> None:
        with suppress(OSError):  # it has ended meanwhile
            self.on_limited(max(time.time() - group.stat().st_ctime, 0.0))

    def _lower(self, found: Collection[_LimitedGroup], news: list[_News]) -> Iterator[LimitReport]:
        """Lowers limits on request, of containers that use no more than that."""
        with self._driver:
            for each in found:
                name = each.container
                for uuid, limit in each.pod.wanted.get(name, {}).items() if name else ():
                    key = each.pod.uid, name, uuid
                    used = self._lowered_to(each, uuid, limit)
                    if used is None:
                        self._refused.pop(key, None)
                        yield LimitReport(each.pod.pod, *key, limit.soft // MIB)
                    elif used:
                        if key not in self._refused:
                            text = f"container {name} uses {used} MiB of device {uuid}, more than the"
                            text += f" {limit.soft // MIB} MiB asked for: it keeps its share until it uses less"
                            news.append((each.pod, "ResizeRefused", text))
                        yield LimitReport(each.pod.pod, *key, used_mib=self._refused.setdefault(key, used))

    def _lowered_to(self, found: _LimitedGroup, uuid: str, limit: GroupMemory) -> int | None:
        """Lowers the limit; where the container uses more, what that is in MiB, and the limit is as before."""
        if self._known.get((found.group, uuid)) == limit:
            return None
        try:
            if (used := self._driver.read_limits(uuid, found.group).used) <= limit.soft:
                self._driver.set_limits(uuid, found.group, limit)
                used = self._driver.read_limits(uuid, found.group).used
                if used <= limit.soft:
                    self._known[found.group, uuid] = limit
                    self._held[found.pod.uid, found.container, uuid] = limit
                    return None
                if before := found.limits.get(uuid):  # It allocated in between.
                    self._driver.set_limits(uuid, found.group, before)
        except DriverTrouble as error:
            log.warning("Failed to lower a limit", pod=found.pod.pod, uuid=uuid, error=str(error))
            return 0
        return -(-used // MIB)


def is_intercepted(proc: Path) -> bool:
    """Whether HAMi-core is loaded in this process, as in others whose containers get devices from the same runtime."""
    try:
        return _LIBRARY in (proc / "self/maps").read_text(errors="replace")
    except OSError:
        return False


def _kubepods(root: Path) -> Iterator[Path]:
    for top, names, _ in os.walk(root):
        yield from (Path(top, name) for name in names if "kubepods" in name)
        deep = len(Path(top).relative_to(root).parts) >= _DEPTH
        names[:] = [] if deep else [name for name in names if "kubepods" not in name]


_group_at = lru_cache(4096)(control_group_of)  # asked of each pod of the node at each look
_CLASSES: Final = ("burstable", "besteffort", "guaranteed")
