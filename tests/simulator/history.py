"""One history: what happened by a seed, and what was wrong."""

import asyncio
import logging
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import structlog

from deviceshare import timestamps
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from tests.simulator.api_server import Faults
from tests.simulator.checker import Checker
from tests.simulator.cluster import SimulatedCluster
from tests.simulator.machines import SimulatedMachine
from tests.simulator.people import People
from tests.unit.loops import virtual_time
from tests.unit.loops.virtual_time import now

BUSY_SECONDS = 120.0
GAP_SECONDS = 0.8
REST_SECONDS = 400.0
LOOK_SECONDS = 20.0
JUDGED = {kind.plural for kind in (GROUPS, NODE_DEVICES, NODES, PODS)}
FAULTS = Faults(lost_request=0.01, lost_reply=0.02, late=0.02, slow=0.1, deaf=0.01)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class HistoryOutcome:
    """What a history was."""

    seed: int
    faults: list[str] = field(default_factory=list)
    """What was wrong first; empty where nothing was."""
    told: list[str] = field(default_factory=list)
    """All that happened, in order."""
    writes: int = 0


class Broken(Exception):
    """Something may never be so, and was."""


class ClusterHistory:
    """Runs once."""

    def __init__(self, seed: int, without: Collection[str] = ()) -> None:
        self._rng = random.Random(seed)
        self._without = without
        self.outcome = HistoryOutcome(seed)
        self._broken = asyncio.Event()

    def run(self) -> HistoryOutcome:
        """All of it, in virtual time."""
        random.seed(self.outcome.seed)  # the product's own backoffs
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        with (
            patch.object(timestamps, "now", lambda: timestamps.timestamp(_moment())),
            patch.object(timestamps, "micro_now", lambda: f"{_moment():%Y-%m-%dT%H:%M:%S.%fZ}"),
        ):
            virtual_time.run(self._run())
        return self.outcome

    async def _run(self) -> None:
        rng = self._rng
        machines = {
            name: SimulatedMachine(name, [f"GPU-{name[-1]}{letter}" for letter in "abc"], agent=rng.random() < 0.5)
            for name in ("n1", "n2")
        }
        self._cluster = cluster = SimulatedCluster(rng, machines)
        if "agents" in self._without:
            for machine in machines.values():
                machine.agent = True
        self._checker = checker = Checker(cluster.server.objects, machines)
        cluster.say, cluster.on_physical = self._say, self._look
        cluster.on_stopped = checker.stopped.add
        cluster.server.on_write = self._written
        cluster.start()
        try:
            await self._live(People(cluster, checker.wiped.add, checker.forced.add))
        finally:
            cluster.say = lambda text: None
            await cluster.close()

    async def _live(self, people: People) -> None:
        chosen = {name: event for name, event in people.events.items() if name not in self._without}
        weights = [weight for weight, _ in chosen.values()]
        await self._sleep(self._rng.uniform(1, 5))
        self._cluster.server.faults = FAULTS if "faults" not in self._without else Faults()
        under_way = set()
        while now() < BUSY_SECONDS and not self._broken.is_set():
            [(_, event)] = self._rng.choices(list(chosen.values()), weights)
            task = asyncio.create_task(event())
            under_way.add(task)
            await self._sleep(self._rng.expovariate(1 / GAP_SECONDS))
        self._cluster.server.faults = Faults()
        if under_way and not self._broken.is_set():
            await asyncio.gather(*under_way)
        self._say("people rest")
        await self._rest()
        for task in under_way:
            task.cancel()

    async def _rest(self) -> None:
        end = now() + REST_SECONDS
        while not self._broken.is_set():
            await self._sleep(LOOK_SECONDS)
            faults = self._checker.at_rest()
            if not faults:
                return
            if now() > end:
                self._break([f"at rest: {fault}" for fault in faults])

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._broken.wait()
        except TimeoutError:
            return

    def _written(self, verb: str, plural: str, key: str) -> None:
        self.outcome.writes += 1
        if plural in JUDGED:
            self._look()

    def _look(self) -> None:
        if not self._broken.is_set() and (faults := self._checker.look()):
            self._break(faults)

    def _break(self, faults: list[str]) -> None:
        self.outcome.faults = faults
        for fault in faults:
            self._say(f"WRONG: {fault}")
        self._broken.set()

    def _say(self, text: str) -> None:
        if not self._broken.is_set():
            self.outcome.told.append(f"{now():8.3f}  {text}")


def _moment() -> datetime:
    return EPOCH + timedelta(seconds=now())


def run(seed: int, without: Collection[str] = ()) -> HistoryOutcome:
    """The history of this seed, without some kinds of events."""
    return ClusterHistory(seed, without).run()
