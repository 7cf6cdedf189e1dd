"""The model API server with everything around it that a reconciler lives on, in virtual time.

Requests take a moment, mirrors lag behind by another, and the test may have a request fail. A test is
`@in_virtual_time`: what it awaits takes no real time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import DEFAULT_LIFE, EVERYTHING, Group, GroupLife, LabelSelector
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GPU_PERCENT
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import HandoverSetting
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, HOLDS, NAMESPACES, NODE_DEVICES, NODES, PODS, RESOURCE_SLICES
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.leader.controller import Controller
from deviceshare.loops.ports import ApiError, Kind, ObjectChange, Subject, Unavailable, Watcher
from deviceshare.loops.replica.binder import Binder
from deviceshare.loops.replica.feed import Feed
from tests.unit.domain.objects import GPU, INJECTED, a_sharing_container
from tests.unit.loops.model import ModelCluster, Raw
from tests.unit.loops.virtual_time import now

T = TypeVar("T")

REQUEST_SECONDS = 0.005
LAG_SECONDS = 0.01
MIRRORED: tuple[Kind[Any], ...] = (GROUPS, NODE_DEVICES, NODES, PODS, NAMESPACES, DEVICE_QUOTAS)


class MemoryMirror:
    """Implements the Mirror port; told of changes by the cluster, a little late."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.watchers: list[Watcher] = []

        self.deaf = False
        """Whether the watch tells nothing for now."""

    synced = True

    def get(self, key: str) -> Any:
        return self.objects.get(key)

    def values(self) -> Iterable[Any]:
        return tuple(self.objects.values())

    def subscribe(self, watcher: Watcher) -> None:
        self.watchers.append(watcher)
        for key, obj in tuple(self.objects.items()):
            watcher(ObjectChange(key, None, obj))

    def unsubscribe(self, watcher: Watcher) -> None:
        self.watchers = [each for each in self.watchers if each != watcher]

    def put(self, obj: Any) -> None:
        old = self.objects.get(obj.metadata.key)
        if old is None or int(old.metadata.resource_version) < int(obj.metadata.resource_version):
            self.set(obj.metadata.key, obj)

    def hear(self, key: str, new: Any) -> None:
        """What the watch tells."""
        if not self.deaf:
            self.set(key, new)

    def set(self, key: str, new: Any) -> None:
        old = self.objects.get(key)
        if old and new and int(new.metadata.resource_version) <= int(old.metadata.resource_version):
            return
        self.objects.pop(key, None)
        if new is not None:
            self.objects[key] = new
        if old and new and old.metadata.uid != new.metadata.uid:
            self._notify(ObjectChange(key, old, None))
            old = None
        if old is not None or new is not None:
            self._notify(ObjectChange(key, old, new))

    def _notify(self, change: ObjectChange[Any]) -> None:
        for watcher in self.watchers:
            watcher(change)


class MemoryRecorder:
    """Implements the Recorder port."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []
        """Kind, name, reason and message of each."""

    def note(self, subject: Subject, reason: str, message: str) -> None:
        self.events.append((subject.kind.kind, subject.name, reason, message))

    warn = note

    def reasons(self, name: str) -> list[str]:
        return [reason for _, about, reason, _ in self.events if about == name]


class LiveCluster(ModelCluster):
    """The model under asyncio: each request takes a moment and may be made to fail; mirrors hear of every change."""

    def __init__(self) -> None:
        super().__init__()
        self.mirrors = {kind.plural: MemoryMirror() for kind in MIRRORED}
        self.requests: list[tuple[str, str, str]] = []
        """Verb, resource and name of each, as they were sent."""
        self.bodies: list[Mapping[str, Any]] = []
        """What the patches among them said."""
        self.bindings: list[Mapping[str, Any]] = []
        """What the Bindings among them said."""
        self.fail: Callable[[str, str, str], ApiError | None] = lambda verb, plural, name: None
        self.latency: Callable[[], float] = lambda: REQUEST_SECONDS
        self.lag = LAG_SECONDS
        self._untold: deque[tuple[MemoryMirror, str, Any]] = deque()
        self.lose: Callable[[], bool] = lambda: False
        """Whether an answer is lost, after its request took effect."""

    def writes(self, plural: str, verb: str = "patch") -> list[str]:
        return [name for done, what, name in self.requests if (done, what) == (verb, plural)]

    def put(self, kind: Kind[Any], body: Mapping[str, Any], namespace: str = "") -> Raw:
        raw = super().put(kind, body, namespace)
        self._tell(kind, raw["metadata"]["name"], namespace)
        return raw

    def edit(self, kind: Kind[Any], name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        super().edit(kind, name, patch, namespace)
        if self._key(name, namespace) in self._table(kind):
            self._tell(kind, name, namespace)

    def remove(self, kind: Kind[Any], name: str, namespace: str = "") -> None:
        super().remove(kind, name, namespace)
        self._tell(kind, name, namespace)

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return await self._request("get", kind, name, super().get(kind, name, namespace))

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        return await self._request("list", kind, "", super().list(kind, label_selector=label_selector))

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        return await self._request("create", kind, body["metadata"]["name"], super().create(kind, body, namespace))

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
        self.bodies.append(body)
        work = super().patch(kind, name, body, namespace=namespace, subresource=subresource)
        return await self._request("patch", kind, name, work)

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> None:
        work = super().delete(kind, name, namespace, uid=uid, resource_version=resource_version)
        await self._request("delete", kind, name, work)

    async def evict(self, namespace: str, pod: str, *, uid: str, dry_run: bool = False) -> None:
        work = super().evict(namespace, pod, uid=uid, dry_run=dry_run)
        await self._request("review" if dry_run else "evict", PODS, pod, work)

    async def bind(self, namespace: str, pod: str, **binding: Any) -> None:
        self.bindings.append(binding)
        await self._request("bind", PODS, pod, super().bind(namespace, pod, **binding))

    async def _request(self, verb: str, kind: Kind[Any], name: str, work: Coroutine[Any, Any, T]) -> T:
        self.requests.append((verb, kind.plural, name))
        try:
            await asyncio.sleep(self.latency())
            error = self.fail(verb, kind.plural, name)
            if error:
                raise error
            while True:
                work.send(None)
        except StopIteration as end:
            if self.lose():
                raise Unavailable("the answer was lost") from None
            result: T = end.value
            return result
        finally:
            work.close()

    def _tell(self, kind: Kind[Any], name: str, namespace: str) -> None:
        mirror, key = self.mirrors.get(kind.plural), self._key(name, namespace)
        if mirror is not None:
            # In the order of the writes: timers of one moment have none.
            self._untold.append((mirror, key, self.read(kind, name, namespace)))
            asyncio.get_running_loop().call_later(self.lag, self._tell_next)

    def _tell_next(self) -> None:
        mirror, key, found = self._untold.popleft()
        mirror.hear(key, found)


class World:
    """A cluster with a leading controller, and what people and schedulers do in it."""

    def __init__(
        self,
        cluster: LiveCluster | None = None,
        *,
        gates: bool = False,
        life: GroupLife = DEFAULT_LIFE,
        uninjected: bool = False,
        namespace_selector: LabelSelector = EVERYTHING,
        claims_known: Callable[[], bool] = lambda: True,
        compares: bool = False,
        scaling_namespace: str = "",
        holds: bool = False,
    ) -> None:
        """With `gates` the leader places pods itself; `uninjected`: it deletes those that slipped past admission."""
        self.cluster = cluster or LiveCluster()
        self.jumped = 0.0
        self.recorder = MemoryRecorder()
        self.fleet = Fleet()
        self.uncovered: list[int] = []
        self.released = 0
        self.recreated = 0
        mirrors = self.cluster.mirrors
        groups, ledgers, nodes, pods = (mirrors[kind.plural] for kind in (GROUPS, NODE_DEVICES, NODES, PODS))
        self.others = MemoryMirror()
        namespaces, quotas = mirrors[NAMESPACES.plural], mirrors[DEVICE_QUOTAS.plural]
        Feed(
            self.fleet,
            nodes=nodes,
            ledgers=ledgers,
            pods=pods,
            others=self.others,
            namespaces=namespaces,
            quotas=quotas,
            groups=groups,
        )
        self.unlabelled = MemoryMirror()
        if uninjected:
            pods.subscribe(self._see_unlabelled)
        lifting = self.binder(lifts=True) if gates else None
        self.context = ControllerContext(
            cluster=self.cluster,
            fleet=self.fleet,
            groups=groups,
            ledgers=ledgers,
            nodes=nodes,
            pods=pods,
            others=self.others,
            slices=mirrors.get("resourceslices", MemoryMirror()),
            resource_claims=mirrors.get("resourceclaims", MemoryMirror()),
            claims_known=claims_known,
            compares=compares,
            scaling_namespace=scaling_namespace,
            holds=holds,
            holds_namespace=contract.NAMESPACE,
            group_binder=self.binder() if holds else None,
            namespaces=namespaces,
            quotas=quotas,
            recorder=self.recorder,
            clock=lambda: now() + self.jumped,
            lifting=lifting,
            share_resources={GPU_PERCENT},
            life=life,
            handover=HandoverSetting(),
            uninjected=self.unlabelled,
            namespace_selector=namespace_selector,
            on_recreated=self._count_recreation,
            on_released=self._count_release,
            on_uncovered=self.uncovered.append,
        )
        self.controller = Controller(self.context)

    def successor(self, cluster: LiveCluster | None = None) -> "World":
        """The same cluster, seen by a process that has just started, through `cluster` where that is special."""
        cluster = cluster or LiveCluster()
        cluster.objects, cluster.versions, cluster.uids = self.cluster.objects, self.cluster.versions, self.cluster.uids
        context = self.context
        world = World(cluster, gates=context.lifting is not None, life=context.life, holds=context.holds)
        kinds: tuple[Kind[Any], ...] = (PODS, NODE_DEVICES, GROUPS, NODES)
        if "resourceslices" in cluster.mirrors:
            kinds = (*kinds, RESOURCE_SLICES[0], HOLDS)
        for kind in kinds:
            for obj in cluster.all(kind):
                cluster.mirrors[kind.plural].set(obj.metadata.key, obj)
        return world

    def _see_unlabelled(self, change: ObjectChange[Pod]) -> None:
        """As the API server selects them."""
        shown = change.new and contract.GROUP not in change.new.metadata.labels and not change.new.spec.node_name
        self.unlabelled.set(change.key, change.new if shown else None)

    def _count_recreation(self) -> None:
        self.recreated += 1

    def _count_release(self) -> None:
        self.released += 1

    def clock_jumps(self, seconds: float) -> None:
        """The process was not scheduled for so long."""
        self.jumped += seconds

    # What happens.

    def node(self, name: str, devices: int = 4, **changes: Any) -> None:
        """Adds a shared, ready node."""
        status = {"allocatable": {GPU: str(devices)}, "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {"name": name, "labels": {contract.MODE_LABEL: contract.MODE_SHARED}, **changes}
        self.cluster.put(NODES, {"metadata": meta, "status": status})

    def group(self, name: str, count: int = 2, *, mutated: bool = False, **spec: Any) -> Group:
        """`mutated`, as the webhook does, it has its finalizer from the beginning."""
        meta = {"name": name, "finalizers": [contract.PODS_FINALIZER] if mutated else []}
        self.cluster.put(GROUPS, {"metadata": meta, "spec": {"resources": {GPU: count}, **spec}})
        return self.read_group(name)

    def pod(self, name: str, group: str, *, refused: bool = False, **more: Any) -> Pod:
        named = {contract.GROUP: group}
        spec = {"containers": [{"name": "main", "env": INJECTED}], **more}
        meta = {"name": name, "labels": named, "annotations": named}
        self.cluster.put(PODS, {"metadata": meta, "spec": spec}, "ns")
        if refused:
            self.refuse(name)
        return self.read_pod(name)

    def share(self, name: str, percent: int, *, group: str = "", refused: bool = False, **more: Any) -> Pod:
        """A pod that asks for a part of a device."""
        named = {contract.GROUP: group} if group else {}
        meta = {"name": name, "labels": {contract.GROUP: group}, "annotations": named}
        container = a_sharing_container("main", {GPU_PERCENT: percent})
        self.cluster.put(PODS, {"metadata": meta, "spec": {"containers": [container], **more}}, "ns")
        if refused:
            self.refuse(name)
        return self.read_pod(name)

    def refuse(self, name: str, reason: str = "Unschedulable") -> None:
        """As the scheduler writes it when no node fits; `SchedulerError` when the extender didn't answer."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason}
        self.cluster.edit(PODS, name, {"status": {"conditions": [condition]}}, "ns")

    def binder(
        self, on_conflict: Callable[[], None] = lambda: None, lifts: bool = False, *, keeps_nodes: bool = False
    ) -> Binder:
        """A process that binds, with the mirrors of this one."""
        mirrors = self.cluster.mirrors
        return Binder(
            self.cluster,
            self.fleet,
            groups=mirrors[GROUPS.plural],
            ledgers=mirrors[NODE_DEVICES.plural],
            quotas=mirrors[DEVICE_QUOTAS.plural],
            on_conflict=on_conflict,
            lifts=lifts,
            clock=now,
            keeps_nodes=keeps_nodes,
            holds_namespace=contract.NAMESPACE,
        )

    async def bind(self, pod: str, node: str) -> None:
        """As the extender does it, once it knows the pod's group."""
        found = self.read_pod(pod)
        if found.group:
            self.cluster.mirrors[GROUPS.plural].put(self.read_group(found.group))
        binder = self.binder()
        binder.remember(found)
        await binder.bind("ns", pod, found.metadata.uid, node)
        await binder.close()

    def end(self, pod: str) -> None:
        self.cluster.edit(PODS, pod, {"status": {"phase": "Succeeded"}}, "ns")

    # What is seen.

    def read_group(self, name: str) -> Group:
        found = self.cluster.read(GROUPS, name)
        assert found is not None, f"no group {name}"
        return found

    def read_pod(self, name: str) -> Pod:
        found = self.cluster.read(PODS, name, "ns")
        assert found is not None, f"no pod {name}"
        return found

    def ledger(self, node: str) -> NodeDevices:
        found = self.cluster.read(NODE_DEVICES, node)
        assert found is not None, f"no ledger {node}"
        return found

    def open(self, node: str) -> bool:
        """Whether devices can be claimed on the node."""
        found = self.cluster.read(NODE_DEVICES, node)
        return found is not None and bool(found.devices)

    def holders(self, node: str) -> dict[str, str]:
        """Name of the holder → its device indices on the node, with a `*` where the claim is marked."""
        return {
            claim.holder_name: ",".join(str(d.index) for d in sorted(claim.devices)) + ("*" if claim.releasing else "")
            for claim in self.ledger(node).claims.values()
        }

    def condition(self, group: str, type_: str) -> tuple[str, str]:
        """Status and reason; empty while there is none."""
        for condition in self.read_group(group).status.conditions:
            if condition.type == type_:
                return condition.status, condition.reason
        return "", ""

    def message(self, group: str, type_: str = "Bound") -> str:
        return next(c.message for c in self.read_group(group).status.conditions if c.type == type_)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """The controller runs for the length of the block."""
        async with running(self.controller.run(), "controller"):
            yield


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """It runs for the length of the block, and neither ends nor fails before."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled(), task.exception()


@asynccontextmanager
async def led_world(devices: int = 4, **changes: Any) -> AsyncIterator[World]:
    """A world with the node n1, in which a controller leads."""
    world = World(scaling_namespace=changes.pop("scaling_namespace", ""))
    world.node("n1", devices, **changes)
    async with world.leading():
        yield world


async def a_bound_group(world: World) -> None:
    """The group team on the node n1, with the pod a."""
    await soon(lambda: world.open("n1"))
    world.group("team")
    world.pod("a", "team")
    await world.bind("a", "n1")
    await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))


async def soon(true: Callable[[], object], seconds: float = 2.0) -> None:
    """Waits until it is true; fails after so many virtual seconds."""
    end = now() + seconds
    while not true():
        assert now() < end, f"not true after {seconds:g} s"
        await asyncio.sleep(0.01)
