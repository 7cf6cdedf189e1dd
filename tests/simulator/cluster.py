"""The cluster of one history: processes of deviceshare, machines with kubelets and agents, and a kube-scheduler."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deviceshare.domain import contract
from deviceshare.domain.objects.groups import DEFAULT_LIFE, EVERYTHING
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import HandoverSetting
from deviceshare.domain.placement.join_obstacles import pod_obstacle, request_of
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS, NAMESPACES, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader.context import ControllerContext
from deviceshare.loops.leader.controller import Controller
from deviceshare.loops.ports import ApiError
from deviceshare.loops.protocol.bind import Refused, binds_over, compares
from deviceshare.loops.replica.binder import Binder
from deviceshare.loops.replica.feed import Feed
from tests.simulator.api_server import SimulatedClient, SimulatedServer
from tests.simulator.machines import SimulatedMachine
from tests.unit.loops.live import MemoryMirror, MemoryRecorder
from tests.unit.loops.virtual_time import now

NAMESPACE = "ns"


class Process:
    """One replica: it binds, and may lead."""

    def __init__(self, server: SimulatedServer, name: str) -> None:
        self.name = name
        self.client = SimulatedClient(server, name)
        self.fleet = Fleet()
        mirrors = self.client.mirrors
        self._of_kind: dict[str, Any] = {
            "nodes": mirrors[NODES.plural],
            "ledgers": mirrors[NODE_DEVICES.plural],
            "pods": mirrors[PODS.plural],
            "others": MemoryMirror(),
            "namespaces": mirrors[NAMESPACES.plural],
            "quotas": mirrors[DEVICE_QUOTAS.plural],
        }
        self.groups: Any = mirrors[GROUPS.plural]
        self._server = server
        Feed(self.fleet, **self._of_kind, groups=self.groups)
        self.binder = Binder(
            self.client,
            self.fleet,
            groups=self.groups,
            ledgers=self._of_kind["ledgers"],
            quotas=self._of_kind["quotas"],
            on_conflict=lambda: None,
            clock=now,
        )
        self.client.start_watching()
        self.leading: asyncio.Task[None] | None = None

    def lead(self) -> None:
        """Begins a term."""
        version = (1, 36) if self._server.compares else None
        term = ControllerContext(
            cluster=self.client,
            fleet=self.fleet,
            groups=self.groups,
            recorder=MemoryRecorder(),
            clock=now,
            binds_over=binds_over(version),
            compares=compares(version),
            uninjected=MemoryMirror(),
            slices=MemoryMirror(),
            resource_claims=MemoryMirror(),
            life=DEFAULT_LIFE,
            handover=HandoverSetting(),
            namespace_selector=EVERYTHING,
            **self._of_kind,
        )
        self.leading = asyncio.create_task(Controller(term).run())

    async def resign(self) -> None:
        """Ends the term; what it sent may still take effect."""
        task, self.leading = self.leading, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def die(self) -> None:
        """Stops for ever."""
        self.client.stop()
        await self.resign()
        await self.binder.close()

    def fits(self, pod: Pod, names: list[str]) -> list[str]:
        """What filter answers."""
        self.binder.remember(pod)
        group = self.groups.get(pod.group) if pod.group else None
        request = request_of(pod, group)
        if request is None or pod_obstacle(pod, group, self.fleet.namespaces):
            return []
        return list(self.fleet.filter(request, names).fits)


@dataclass
class SimulatedCluster:
    """Everything but people."""

    rng: random.Random
    machines: dict[str, SimulatedMachine]
    server: SimulatedServer = field(init=False)
    processes: list[Process] = field(default_factory=list)
    say: Callable[[str], None] = lambda text: None
    on_physical: Callable[[], None] = lambda: None
    """Called when what numbers mean has changed."""
    on_stopped: Callable[[str], None] = lambda uid: None
    """Called with the UID of a pod whose containers have ended."""

    def __post_init__(self) -> None:
        self.server = SimulatedServer(self.rng)
        self.server.compares = self.rng.random() < 0.7
        self.server.put(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {}}})
        self._born = 0

    def start(self) -> None:
        """Machines join; two processes begin, of which one leads."""
        for machine in self.machines.values():
            self.join(machine)
            self.server.start(self._kubelet(machine))
            self.server.start(self._agent(machine))
        self.processes = [self.new_process(), self.new_process()]
        self.processes[0].lead()
        self.server.start(self._elect())
        self.server.start(self._schedule_pods())
        self.server.start(self._collect_pods())

    def new_process(self) -> Process:
        self._born += 1
        return Process(self.server, f"process-{self._born}")

    async def _elect(self) -> None:
        """Nobody leads for long."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 10))
            if not any(process.leading for process in self.processes):
                self.processes[0].lead()
                self.say(f"{self.processes[0].name} leads")

    async def close(self) -> None:
        """Stops everything."""
        for process in self.processes:
            await process.die()
        for task in list(self.server.tasks):
            task.cancel()
        await asyncio.gather(*self.server.tasks, return_exceptions=True)

    # Machines.

    def join(self, machine: SimulatedMachine) -> None:
        """The kubelet registers its Node."""
        meta = {"name": machine.name, "labels": {contract.MODE_LABEL: contract.MODE_SHARED}}
        self.server.put(NODES, {"metadata": meta, "spec": {}, "status": machine.node_status()})

    def go_down(self, machine: SimulatedMachine) -> None:
        """The machine stops: nothing runs on it any more."""
        machine.up = False
        self.server.edit(NODES, machine.name, {"status": machine.node_status()})

    async def boot(self, machine: SimulatedMachine, order: list[str]) -> None:
        """The machine comes up with these cards, in this order; its containers start again by their annotations."""
        machine.order, machine.up = order, True
        machine.boot += 1
        self.say(f"{machine.name} boots with {', '.join(f'{n}={card}' for n, card in enumerate(order))}")
        self.on_physical()
        if self.server.read(NODES, machine.name) is None:
            self.join(machine)
        self.server.edit(NODES, machine.name, {"spec": {"taints": None}, "status": machine.node_status(plugin=False)})
        await asyncio.sleep(self.rng.uniform(0.5, 4))
        self.server.edit(NODES, machine.name, {"status": machine.node_status()})

    async def _agent(self, machine: SimulatedMachine) -> None:
        """Reports what it sees, unless that is known."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.5, 3))
            ledger = self.server.objects.get(NODE_DEVICES.plural, {}).get(machine.name)
            if not machine.up or not machine.agent or ledger is None:
                continue
            report = machine.hardware()
            if ledger.get("status", {}).get("hardware") != report:
                self.server.edit(NODE_DEVICES, machine.name, {"status": {"hardware": report}})

    async def _kubelet(self, machine: SimulatedMachine) -> None:
        """Stops pods that are deleted."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.2, 2))
            for raw in list(self.server.objects.get(PODS.plural, {}).values()):
                meta = raw["metadata"]
                if machine.up and raw["spec"].get("nodeName") == machine.name and meta.get("deletionTimestamp"):
                    self.on_stopped(meta["uid"])
                    self.server.remove(PODS, meta["name"], NAMESPACE)

    async def _collect_pods(self) -> None:
        """As the pod garbage collector does: pods of nodes that are gone, or out of service."""
        while True:
            await asyncio.sleep(self.rng.uniform(5, 20))
            for raw in list(self.server.objects.get(PODS.plural, {}).values()):
                node = raw["spec"].get("nodeName")
                machine = self.machines.get(node or "")
                if machine is None or machine.up:
                    continue
                found = self.server.objects[NODES.plural].get(machine.name)
                if found is None or found["spec"].get("taints"):
                    self.on_stopped(raw["metadata"]["uid"])
                    self.server.remove(PODS, raw["metadata"]["name"], NAMESPACE)

    # kube-scheduler.

    async def _schedule_pods(self) -> None:
        begun: set[str] = set()
        while True:
            await asyncio.sleep(0.2)
            for pod in self.server.all(PODS):
                if pod.metadata.uid not in begun and not pod.node:
                    begun.add(pod.metadata.uid)
                    self.server.start(self._schedule(pod.metadata.name, pod.metadata.uid))

    async def _schedule(self, name: str, uid: str) -> None:
        """Tries to bind one pod until it is bound or gone."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.05, 1.5))
            pod = self.server.read(PODS, name, NAMESPACE)
            if pod is None or pod.metadata.uid != uid or pod.node or pod.metadata.deletion_timestamp:
                return
            process = self.rng.choice(self.processes)
            up = [
                n.metadata.name
                for n in self.server.all(NODES)
                if n.ready and not (n.spec.taints or n.spec.unschedulable)
            ]
            fits = process.fits(pod, up)
            if not fits:
                await self._refuse(name)
                continue
            node = self.rng.choice(fits)
            try:
                await process.binder.bind(NAMESPACE, name, uid, node)
                self.say(f"{name} is bound to {node} by {process.name}")
            except (Refused, ApiError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and not process.client.dead:
                    raise
                await self._refuse(name, wait=2.0)

    async def _refuse(self, name: str, wait: float = 15.0) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        self.server.edit(PODS, name, {"status": {"conditions": [condition]}}, NAMESPACE)
        await asyncio.sleep(self.rng.uniform(0.5, wait))
