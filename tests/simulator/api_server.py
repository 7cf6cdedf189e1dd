"""One API server in memory, and how the processes reach it: late, twice, or without ever learning the outcome.

It adds to the model of the unit tests what histories of whole clusters need: status as a subresource, writes that
change nothing, finalizers, the garbage collector of owners, and watches that lag.
"""

import asyncio
import copy
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import Conflict, Kind, NotFound, Unavailable
from tests.unit.loops.live import MIRRORED, MemoryMirror
from tests.unit.loops.model import ModelCluster, Raw, _merge
from tests.unit.loops.virtual_time import now

T = TypeVar("T")
BY_PLURAL: dict[str, Kind[Any]] = {kind.plural: kind for kind in MIRRORED}
WITH_STATUS = {kind.plural for kind in (GROUPS, NODE_DEVICES, DEVICE_QUOTAS)}
CLIENT_SECONDS = 10.0
"""After which a client gives up on an answer."""
TIE_SECONDS = 1e-6
QUEUE_SECONDS = 15.0
"""How long an old server lets a request wait before its time-out begins."""


@dataclass
class Faults:
    """How often what goes wrong between a process and the server, and with watches."""

    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    """Requests whose client has given up by the time that they take effect."""
    slow: float = 0.0
    deaf: float = 0.0
    """Watches that say nothing for a while, for each change."""


class SimulatedServer(ModelCluster):
    """Holds all objects. `on_write` is called after each write with the verb, the kind's plural and the key."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.faults = Faults()
        self.mirrors: list[LaggingMirror] = []
        self.on_write: Callable[[str, str, str], None] = lambda verb, plural, key: None
        self.tasks: set[asyncio.Task[Any]] = set()

    async def pause(self) -> None:
        """Requests take effect at once here: how long they take to arrive is the client's matter."""

    # What people, kubelets and controllers do directly.

    def put(self, kind: Kind[Any], body: Mapping[str, Any], namespace: str = "") -> Raw:
        raw = super().put(kind, body, namespace)
        self._changed("create", kind, raw["metadata"]["name"], namespace)
        return raw

    def edit(self, kind: Kind[Any], name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        raw = self._table(kind).get(self._key(name, namespace))
        if raw is None:
            return
        self.apply(kind, raw, patch)

    def apply(self, kind: Kind[Any], raw: Raw, patch: Mapping[str, Any]) -> None:
        """A write that changes nothing isn't one; the last finalizer of a deleted object takes it along."""
        after, asked = copy.deepcopy(raw), copy.deepcopy(dict(patch))
        asked.get("metadata", {}).pop("resourceVersion", None)
        _merge(after, asked)
        if after == raw:
            return
        meta, name = after["metadata"], raw["metadata"]["name"]
        namespace = meta.get("namespace", "")
        meta["generation"] += after.get("spec") != raw.get("spec")
        meta["resourceVersion"] = str(next(self.versions))
        self._table(kind)[self._key(name, namespace)] = after
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and kind is not PODS:
            self.remove(kind, name, namespace)
        else:
            self._changed("update", kind, name, namespace)

    def remove(self, kind: Kind[Any], name: str, namespace: str = "") -> None:
        """Takes it away whatever protects it; what it owns goes a little later."""
        raw = self._table(kind).pop(self._key(name, namespace), None)
        if raw is None:
            return
        self._changed("delete", kind, name, namespace, int(next(self.versions)))
        if kind is NODES:
            self.start(self._collect_garbage(raw["metadata"]["uid"]))

    def delete_now(self, kind: Kind[Any], name: str, namespace: str = "") -> None:
        """DELETE: what has finalizers stays, and bound pods until their kubelet has stopped them."""
        raw = self._table(kind).get(self._key(name, namespace))
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            return
        bound = kind is PODS and raw.get("spec", {}).get("nodeName")
        if bound or raw["metadata"].get("finalizers"):
            self.apply(kind, raw, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        else:
            self.remove(kind, name, namespace)

    async def _collect_garbage(self, owner: str) -> None:
        await asyncio.sleep(self.rng.uniform(0.05, 6))
        for key, raw in list(self._table(NODE_DEVICES).items()):
            owners = raw["metadata"].get("ownerReferences") or ()
            present = {each["metadata"]["uid"] for each in self._table(NODES).values()}
            if owner in {each["uid"] for each in owners} and not present & {each["uid"] for each in owners}:
                self.delete_now(NODE_DEVICES, key)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs something that goes on whoever waits for it."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    # The port, at the moment that a request takes effect.

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        timeout: float | None = None,
    ) -> T:
        raw = self._table(kind).get(self._key(name, namespace))
        if raw is None:
            raise NotFound(f"{kind.plural} {name}")
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in (None, raw["metadata"]["resourceVersion"]):
            raise Conflict(f"{kind.plural} {name}")
        if kind.plural in WITH_STATUS:
            kept = ("status", "metadata") if subresource == "status" else tuple({*body} - {"status"})
            body = {field: body[field] for field in kept if field in body}
        self.apply(kind, raw, body)
        after = self._table(kind).get(self._key(name, namespace), raw)
        return self._object(kind, after)

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        return await super().list(kind, label_selector=label_selector)

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> None:
        raw = self._table(kind).get(self._key(name, namespace))
        if raw is None:
            raise NotFound(f"{kind.plural} {name}")
        meta = raw["metadata"]
        if (uid or meta["uid"], resource_version or meta["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
            raise Conflict(f"{kind.plural} {name}")
        self.delete_now(kind, name, namespace)

    def _changed(self, verb: str, kind: Kind[Any], name: str, namespace: str, version: int = 0) -> None:
        key = self._key(name, namespace)
        new = self.read(kind, name, namespace)
        for mirror in self.mirrors:
            if mirror.kind is kind:
                mirror.tell(key, new, version, self.rng, self.faults)
        self.on_write(verb, kind.plural, key)


class LaggingMirror(MemoryMirror):
    """What one process knows of one kind: changes arrive in order, some of them much later."""

    def __init__(self, kind: Kind[Any]) -> None:
        super().__init__()
        self.kind = kind
        self._arrives = 0.0
        self._gone: dict[str, int] = {}

    def tell(self, key: str, new: Any, version: int, rng: random.Random, faults: Faults) -> None:
        """Has the change arrive behind all those before it."""
        lag = rng.uniform(0.002, 0.05) if rng.random() >= faults.deaf else rng.uniform(1, 25)
        self._arrives = max(self._arrives + TIE_SECONDS, now() + lag)  # a loop runs timers of one moment in any order
        asyncio.get_running_loop().call_at(self._arrives, self._hear, key, new, version)

    def _hear(self, key: str, new: Any, version: int) -> None:
        held = self.objects.get(key)
        if new is not None:
            self.put(new)
        elif held is None or int(held.metadata.resource_version) < version:
            self._gone[key] = version
            self.set(key, None)

    def put(self, obj: Any) -> None:
        """Nothing that is gone comes back."""
        if int(obj.metadata.resource_version) > self._gone.get(obj.metadata.key, 0):
            super().put(obj)


class SimulatedClient:
    """The port `Cluster` of one process. What it sent takes effect whatever became of the process."""

    def __init__(self, server: SimulatedServer, name: str) -> None:
        self.server = server
        self.name = name
        self.mirrors = {kind.plural: LaggingMirror(kind) for kind in MIRRORED}
        self.dead = False

    def start_watching(self) -> None:
        """Lists everything, and hears of all that changes from then on."""
        self.server.mirrors += self.mirrors.values()
        for kind in MIRRORED:
            for obj in self.server.all(kind):
                self.mirrors[kind.plural].put(obj)

    def stop(self) -> None:
        """The process is gone: it sends nothing more and hears of nothing."""
        self.dead = True
        self.server.mirrors = [each for each in self.server.mirrors if each not in self.mirrors.values()]

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return await self._request(lambda: self.server.get(kind, name, namespace))

    async def list(self, kind: Kind[T], **selectors: str) -> list[T]:
        return await self._request(lambda: self.server.list(kind, **selectors))

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        return await self._request(lambda: self.server.create(kind, body, namespace))

    async def patch(
        self, kind: Kind[T], name: str, body: Mapping[str, Any], *, timeout: float | None = None, **where: Any
    ) -> T:
        return await self._request(lambda: self.server.patch(kind, name, body, **where), timeout)

    async def delete(self, kind: Kind[Any], name: str, namespace: str = "", **preconditions: str) -> None:
        await self._request(lambda: self.server.delete(kind, name, namespace, **preconditions))

    async def evict(self, namespace: str, pod: str, *, uid: str, dry_run: bool = False) -> None:
        await self._request(lambda: self.server.evict(namespace, pod, uid=uid, dry_run=dry_run))

    async def bind(self, namespace: str, pod: str, *, timeout: float, **binding: Any) -> None:
        await self._request(lambda: self.server.bind(namespace, pod, timeout=timeout, **binding), timeout)

    async def _request(self, effect: Callable[[], Coroutine[Any, Any, T]], limit: float | None = None) -> T:
        if self.dead:
            raise asyncio.CancelledError
        rng, faults = self.server.rng, self.server.faults
        there, back = rng.uniform(0.001, 0.01), rng.uniform(0.001, 0.01)
        if rng.random() < faults.slow:
            there, back = rng.uniform(0.01, 3), rng.uniform(0.01, 3)
        gives_up = CLIENT_SECONDS
        chance = rng.random()
        if chance < faults.lost_request:
            await asyncio.sleep(rng.uniform(0.01, 2))
            raise Unavailable("the request never arrived")
        if (chance := chance - faults.lost_request) < faults.lost_reply:
            back, gives_up = CLIENT_SECONDS, rng.uniform(0.01, 2)
        elif chance - faults.lost_reply < faults.late:
            there, gives_up = rng.uniform(1, 20), rng.uniform(0.5, 4)
        task = self.server.start(self._serve(effect, there, back, limit))
        try:
            async with asyncio.timeout(gives_up):
                return await asyncio.shield(task)
        except TimeoutError:
            task.add_done_callback(_nobody_asks)
            raise Unavailable("no answer came in time") from None
        except asyncio.CancelledError:
            task.add_done_callback(_nobody_asks)
            raise

    async def _serve(
        self, effect: Callable[[], Coroutine[Any, Any, T]], there: float, back: float, limit: float | None
    ) -> T:
        await asyncio.sleep(there)
        waits = 0.0 if self.server.compares else QUEUE_SECONDS
        if limit is not None and there > limit + waits:
            raise Unavailable("the server gave up")
        try:
            return await effect()
        finally:
            await asyncio.sleep(back)


def _nobody_asks(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
