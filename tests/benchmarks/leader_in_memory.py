"""A leader over a large cluster that is held in memory, and what changes cost it: no API server, no HTTP.

Writes of the leader take effect at once, and its mirrors hear of them at the next turn of the event loop.
"""

import asyncio
import gc
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
from msgspec import Struct

import deviceshare
from deviceshare import daemon
from deviceshare.domain.objects.groups import DEFAULT_LIFE, EVERYTHING
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import HandoverSetting
from deviceshare.kube.mirror import Cache
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.leader.controller import Controller
from deviceshare.loops.leader.ledgers import GATHER_SECONDS
from deviceshare.loops.ports import Conflict, Kind, NotFound, Subject
from deviceshare.loops.queue import Queue
from deviceshare.loops.replica.feed import Feed
from tests.benchmarks import large_cluster
from tests.benchmarks.large_cluster import CREATED, Raw, Size, uid_of

OURS = str(Path(deviceshare.__file__).parent)
COUNTED = 10
"""Changes over which calls are counted."""
QUIET_SECONDS = GATHER_SECONDS + 0.2
"""Keys that are due later wait for their time: what is due sooner belongs to what was begun."""


class HeldMirror(Cache[Any]):
    """A mirror that nothing feeds but the benchmark."""

    synced = True


class NoEvents:
    """A Recorder that forgets."""

    def note(self, subject: Subject, reason: str, message: str) -> None:
        """Nobody reads it."""

    warn = note


class Holds:
    """The longest that one callback had the event loop, in processor time, so that others on the machine don't count.

    Asyncio's own loop is measured; uvloop has no such hook.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self.whose = ""

    @contextmanager
    def measured(self) -> Iterator["Holds"]:
        """While the block runs."""
        run, self.longest = asyncio.Handle._run, 0.0

        def timed(handle: Any) -> None:
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.longest:
                self.longest, self.whose = took, repr(handle)

        asyncio.Handle._run = timed  # type: ignore[method-assign,assignment]
        try:
            yield self
        finally:
            asyncio.Handle._run = run  # type: ignore[method-assign]


class HeldCluster:
    """Implements the requests of a leader that has nothing to repair."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.writes = 0
        self._versions = itertools.count(1)
        self.mirrors: dict[str, HeldMirror] = {
            kind.plural: HeldMirror() for kind in (GROUPS, NODE_DEVICES, NODES, PODS)
        }
        names = [f"group-{number}" for number in range(size.groups)]
        uids = [uid_of(name) for name in names]
        self._fill(NODES, large_cluster.nodes(size))
        self._fill(NODE_DEVICES, (self._owned(raw) for raw in large_cluster.ledgers(size, uids)))
        self._fill(GROUPS, large_cluster.groups(size))
        self._fill(PODS, large_cluster.pods(size, uids))

    def _owned(self, raw: Raw) -> Raw:
        name = raw["metadata"]["name"]
        raw["metadata"]["ownerReferences"] = [{"kind": "Node", "name": name, "uid": uid_of(name)}]
        return raw

    def _fill(self, kind: Kind[Any], raws: Iterator[Raw]) -> None:
        def objects() -> Iterator[Any]:
            for raw in raws:
                raw["metadata"] |= {"uid": uid_of(raw["metadata"]["name"]), "creationTimestamp": CREATED}
                raw["metadata"]["resourceVersion"] = str(next(self._versions))
                yield decoder_of(kind.type).decode(msgspec.json.encode(raw))

        self.mirrors[kind.plural].replace(list(objects()), "0")

    def change(self, kind: Kind[Any], key: str, patch: Mapping[str, Any]) -> Any:
        """Somebody's write: a merge patch. The mirror has it at once."""
        mirror = self.mirrors[kind.plural]
        seen = mirror.get(key)
        if seen is None:
            raise NotFound(key)
        version = patch.get("metadata", {}).get("resourceVersion", seen.metadata.resource_version)
        if version != seen.metadata.resource_version:
            raise Conflict(key)
        whole = _merged(msgspec.json.decode(msgspec.json.encode(seen)), patch)
        whole["metadata"]["resourceVersion"] = str(next(self._versions))
        written = decoder_of(kind.type).decode(msgspec.json.encode(whole))
        mirror.apply(written)
        return written

    async def patch(self, kind: Kind[Any], name: str, body: Mapping[str, Any], *, namespace: str = "", **_: Any) -> Any:
        self.writes += 1
        await asyncio.sleep(0)
        return self.change(kind, f"{namespace}/{name}" if namespace else name, body)

    async def get(self, kind: Kind[Any], name: str, namespace: str = "") -> Any:
        await asyncio.sleep(0)
        found = self.mirrors[kind.plural].get(f"{namespace}/{name}" if namespace else name)
        if found is None:
            raise NotFound(name)
        return found

    async def list(self, kind: Kind[Any], **_: Any) -> list[Any]:
        await asyncio.sleep(0)
        return list(self.mirrors[kind.plural].values())


def _merged(target: Raw, patch: Mapping[str, Any]) -> Raw:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            target[key] = _merged(dict(target.get(key) or {}), value)
        else:
            target[key] = value
    return target


class ChangeCost(Struct):
    """What a kind of change, or the start, cost the leader."""

    what: str
    cpu_ms: float
    """Of one change; of the whole start."""
    longest_ms: float
    """That one callback had the event loop."""
    whose: str
    """That callback."""
    writes: float
    """A change."""
    calls: float = 0.0
    """Of Python functions of deviceshare, for one change and all that follows."""


class HeldLeader:
    """A cluster and who leads it."""

    def __init__(self, size: Size) -> None:
        self.cluster = HeldCluster(size)
        self.fleet = Fleet()
        mirrors = self.cluster.mirrors
        self._named = {
            "groups": mirrors[GROUPS.plural],
            "ledgers": mirrors[NODE_DEVICES.plural],
            "nodes": mirrors[NODES.plural],
            "pods": mirrors[PODS.plural],
        }
        fed = {name: mirror for name, mirror in self._named.items() if name != "groups"}
        Feed(self.fleet, **fed, others=HeldMirror())
        daemon.collect_less_often()
        gc.collect()
        gc.freeze()

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """One term; entered when its reconcilers have their first keys."""
        unused = ("others", "uninjected", "namespaces", "quotas", "slices", "resource_claims")
        named: dict[str, Any] = {**self._named, **{name: HeldMirror() for name in unused}}
        named |= {"life": DEFAULT_LIFE, "handover": HandoverSetting(), "namespace_selector": EVERYTHING}
        self._term = ControllerContext(cluster=self.cluster, fleet=self.fleet, recorder=NoEvents(), **named)  # type: ignore[arg-type]
        task = asyncio.create_task(Controller(self._term).run())
        try:
            while not self._busy():  # noqa: ASYNC110 the mirrors are never empty
                await asyncio.sleep(0)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _busy(self) -> bool:
        """Whether any key is worked on, or due soon."""
        soon = time.monotonic() + QUIET_SECONDS
        return any(queue._busy or min(queue._due.values(), default=soon) < soon for queue in self._queues)

    @property
    def _queues(self) -> list[Queue[Any]]:
        return self._term.queues

    async def settle(self) -> None:
        """Returns when nothing is under way but what waits for its time."""
        while self._busy():  # noqa: ASYNC110 no event marks its end
            await asyncio.sleep(0.05)

    async def start(self, what: str) -> ChangeCost:
        """The cost of a term's first moments, until all is written."""
        holds, writes, cpu = Holds(), self.cluster.writes, time.process_time()
        with holds.measured():
            async with self.leading():
                await self.settle()
        cpu = time.process_time() - cpu
        return ChangeCost(what, cpu * 1000, holds.longest * 1000, holds.whose, self.cluster.writes - writes)

    async def changes(self, what: str, change: Callable[[int], object], number: int, apart: float) -> ChangeCost:
        """The cost of one of `number` changes, `apart` seconds from each other."""
        await self.settle()
        holds, writes, cpu = Holds(), self.cluster.writes, time.process_time()
        with holds.measured():
            for each in range(number):
                change(each)
                await asyncio.sleep(apart)
            await asyncio.sleep(1.5)
        cpu, writes = time.process_time() - cpu, self.cluster.writes - writes
        calls = await self._calls(change, number)
        return ChangeCost(what, cpu * 1000 / number, holds.longest * 1000, holds.whose, writes / number, calls)

    async def _calls(self, change: Callable[[int], object], first: int) -> float:
        """Of further changes: a profiler has its price."""
        calls = 0

        def note(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

        sys.setprofile(note)
        try:
            for each in range(first, first + COUNTED):
                change(each)
            await asyncio.sleep(1.5)
        finally:
            sys.setprofile(None)
        return calls / COUNTED

    def change_ledger(self, number: int) -> None:
        """A bind claims a node's device for a waiting group, and the next change takes the claim away."""
        node, group = self.cluster.size.bound + (number // 2) * 4, f"group-{self.cluster.size.groups - 1 - number // 2}"
        device = {"resource": large_cluster.GPU, "index": 0}
        claim = None if number % 2 else {"group": group, "devices": [device]}
        self.cluster.change(NODE_DEVICES, f"node-{node}", {"spec": {"claims": {uid_of(group): claim}}})

    def change_group(self, number: int) -> None:
        """A waiting group asks for one device more, or fewer."""
        group = f"group-{self.cluster.size.bound + number // 2}"
        self.cluster.change(GROUPS, group, {"spec": {"resources": {large_cluster.GPU: 7 + number % 2}}})

    def change_pod(self, number: int) -> None:
        """kube-scheduler refuses a pod again, for another reason."""
        reason = ("Unschedulable", "SchedulerError")[number % 2]
        refused = large_cluster.REFUSED | {"message": f"0/{number} nodes are available", "reason": reason}
        pod = f"default/pod-{self.cluster.size.bound + number}"
        self.cluster.change(PODS, pod, {"status": {"conditions": [refused]}})

    def change_running(self, number: int) -> None:
        """A kubelet reports a condition of a pod that runs, by which nothing is decided."""
        ready = {"type": "Ready", "status": "True", "message": str(number)}
        self.cluster.change(
            PODS, f"default/pod-{number % self.cluster.size.bound}", {"status": {"conditions": [ready]}}
        )

    def change_node(self, number: int) -> None:
        """A node's owner gives it a label."""
        self.cluster.change(NODES, f"node-{number}", {"metadata": {"labels": {"example.com/seen": str(number)}}})


async def measure(size: Size, number: int, apart: float) -> AsyncIterator[ChangeCost]:
    """Every cost at this size; `number` changes of each kind, `apart` seconds from each other."""
    leader = HeldLeader(size)
    yield await leader.start("first start: every status is written")
    yield await leader.start("next leader: nothing is to be written")
    kinds: tuple[tuple[str, Callable[[int], object]], ...] = (
        ("a ledger", leader.change_ledger),
        ("a group", leader.change_group),
        ("a pod", leader.change_pod),
        ("a pod that runs on", leader.change_running),
        ("a node", leader.change_node),
    )
    async with leader.leading():
        for what, change in kinds:
            yield await leader.changes(what, change, number, apart)
