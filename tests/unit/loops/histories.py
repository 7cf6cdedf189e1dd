"""The world of the protocol's random histories: replicas that bind, leaders that collect and repair, careless hands.

Hypothesis draws a schedule, a string of bytes. Each choice has a request take effect, lets a leader go to its next one,
puts a replica to sleep or stops one for ever, begins a bind, a collection or a repair, has mirrors catch up, lets time
pass, or lets the world change. After every request the invariants of design.md must hold.
"""

import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deviceshare.domain import contract
from deviceshare.domain.answers.ledger_status import devices_patch
from deviceshare.domain.objects.devices import as_json, devices_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, new_ledger
from deviceshare.domain.objects.pods import Pod
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS, find
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS, binds_over
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Cause, release
from tests.unit.domain.objects import GPU, INJECTED
from tests.unit.loops.model import Actor, ModelCluster, Pause
from tests.unit.loops.replicas import KINDS, Clock, SentRequest, SteppedReplica

T = TypeVar("T")

NODE_NAMES = ("n1", "n1", "n1", "n2")
GROUP_NAMES = ("a", "b")
POD_NAMES = ("p1", "p2", "p3")
BINDS_OVER = "every bind that began before is over"
EXAMPLES = int(os.environ.get("PROTOCOL_EXAMPLES", "200"))
STATUSES: tuple[dict[str, Any], ...] = ({}, {"containerStatuses": [{"name": "main", "state": {"running": {}}}]})
"""What a kubelet may say of the containers of a pod that it reports as failed before it kills them."""


class HistoryWorld:
    """Two nodes of two devices, two groups that want two each, three pods; whatever deviceshare does about them.

    The first byte says whether the API server compares what a Binding carries (Kubernetes 1.23 and later). Where it
    does, collectors don't wait at all: nothing may rest on clocks. Where it doesn't, it is blind to UIDs, too.
    """

    devices = 2
    wanted = 2
    pods: Sequence[str] = POD_NAMES
    known: ClassVar[Mapping[str, Any]] = {}
    """What else the ledgers' status says at first."""
    everywhere_at_once = False
    """Whether mirrors catch up with all kinds together."""

    def __init__(self, schedule: bytes, moves: Sequence["Move"]) -> None:
        self.moves = moves
        self.choices = iter(schedule)
        self.cluster = ModelCluster()
        self.clock = Clock()
        self.replicas: list[SteppedReplica] = []
        self.ghosts: list[tuple[SteppedReplica, SentRequest]] = []
        """Requests of replicas that are dead."""
        self.others: list[tuple[Actor, list[float]]] = []
        """Collections and repairs, each with the times until which it waits."""
        self.seen_mark: dict[str, float] = {}
        self.lost: set[str] = set()
        """Nodes whose ledger somebody deleted and nobody has recreated and opened yet."""
        self.refilled: set[str] = set()
        """Nodes whose ledger was: a bind of a pod that is gone may bind its group there late."""
        self.received: dict[str, set[int]] = {}
        """By the UID of a pod, the numbers of all devices that its annotations ever named."""
        self.stopped: set[str] = set()
        """The UIDs of pods whose containers have ended, whatever is said of them."""
        self.have = devices_of({GPU: self.devices})
        for name in ("n1", "n2"):
            self.cluster.put(NODES, {"metadata": {"name": name, "labels": {contract.MODE_LABEL: "shared"}}})
            status = {"devices": as_json(self.have), **self.known}
            self.cluster.put(NODE_DEVICES, {**new_ledger(name), "status": status})
            self.report(name)
        for name in GROUP_NAMES:
            self.make_group(name)
        for name, group in zip(self.pods, ("a", "a", "b", "b"), strict=False):
            self.make_pod(name, group)
        self.cluster.compares = self.pick((True, False))
        self.replicas = [self._replica(), self._replica()]
        if self.pick((True, False)):
            replica, task = self.begin_bind("p1", "n1")
            assert replica.finish(task) == ""

    def run(self) -> None:
        """Takes every step of the schedule and looks at the invariants after each."""
        try:
            while True:
                self.pick(self.moves)(self)
        except StopIteration:
            pass
        finally:
            self.close()
        self.settle()

    def close(self) -> None:
        """Stops everything where it is."""
        for actor, _ in self.others:
            actor.crash()
        for _, request in self.in_flight():
            request.work.close()
        for replica in self.replicas:
            replica.die()
        self.replicas, self.ghosts, self.others = [], [], []

    def pick(self, options: Sequence[T]) -> T:
        return options[next(self.choices) % len(options)]

    def in_flight(self) -> list[tuple[SteppedReplica, SentRequest]]:
        """What the API server has and has not done yet."""
        alive = [(replica, request) for replica in self.replicas for request in replica.requests]
        return [*alive, *self.ghosts]

    def report(self, node: str) -> None:
        """As the node's agent does, where there is one."""

    # The world's moves.

    def group_comes_or_goes(self) -> None:
        name = self.pick(GROUP_NAMES)
        if self.cluster.read(GROUPS, name):
            self.cluster.remove(GROUPS, name)
        else:
            self.make_group(name)

    def pod_comes_or_goes(self) -> None:
        name = self.pick(self.pods)
        if self.cluster.read(PODS, name, "ns"):
            self.cluster.remove(PODS, name, "ns")
        else:
            self.make_pod(name, self.pick(GROUP_NAMES))

    def pod_is_written(self) -> None:
        """By anybody, such as kube-scheduler that says why it waits."""
        name = self.pick(self.pods)
        if self.cluster.read(PODS, name, "ns"):
            self.cluster.edit(PODS, name, {}, "ns")

    def pod_refuses_writes(self) -> None:
        """Its annotations are full, or a webhook is against any write."""
        self.cluster.refusing[self.pick(self.pods)] = self.pick((True, False))

    def pod_ends(self) -> None:
        """In one of the ways in which pods do: at last, too early, and then as the kubelet or the leader says."""
        name = self.pick(self.pods)
        pod = self.cluster.read(PODS, name, "ns")
        if pod is None or not pod.node:
            return
        if not pod.status.phase and self.pick((True, False)):
            self.stopped.add(pod.metadata.uid)
            self.cluster.edit(PODS, name, {"status": {"phase": "Succeeded"}}, "ns")
        elif not pod.status.phase:
            self.cluster.edit(PODS, name, {"status": {"phase": "Failed", **self.pick(STATUSES)}}, "ns")
        elif pod.ending:
            ended = {"containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}
            waited = {"metadata": {"annotations": {contract.ENDED: pod.metadata.uid}}}
            said: dict[str, Any] = self.pick(({"status": ended}, waited))  # first: the schedule may be over here
            self.stopped.add(pod.metadata.uid)
            self.cluster.edit(PODS, name, said, "ns")

    def status_is_wiped(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node and self.claim_held(group):
            self.cluster.edit(GROUPS, group.name, {"status": None})

    def ledger_is_deleted(self) -> None:
        name = self.pick(NODE_NAMES)
        self.cluster.remove(NODE_DEVICES, name)
        self.lost.add(name)

    def time_passes(self) -> None:
        self.clock.now += self.pick((1.0, 5.0, 9.0, 30.0))
        for replica in self.replicas:
            replica.run()
        for actor, _ in self.others:
            if actor.name.startswith("tell") and self.clock.now > actor.until:
                actor.crash()
        self._tidy()

    # deviceshare's moves.

    def bind_begins(self) -> None:
        self.begin_bind(self.pick(self.pods), self.pick(NODE_NAMES))

    def begin_bind(self, pod: str, node: str) -> Any:
        """kube-scheduler shows a replica the pod, mostly, and has it bound; the mirrors may lag far behind."""
        found = self.cluster.read(PODS, pod, "ns")
        if found is None or not found.pending or sum(len(replica.binds) for replica in self.replicas) >= 3:
            return None
        replica = self.pick(self.replicas)
        if self.pick((True, True, False)):
            replica.binder.remember(found)
        return replica, replica.begin(pod, found.metadata.uid, node)

    def mirrors_catch_up(self) -> None:
        replica = self.pick(self.replicas)
        replica.hear(KINDS if self.everywhere_at_once else self.pick((KINDS, KINDS, *((kind,) for kind in KINDS))))

    def collection_begins(self) -> None:
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        if ledger is None or not ledger.claims:
            return
        self.begin_collection(ledger.node, self.pick(sorted(ledger.claims)))

    def begin_collection(self, node: str, uid: str) -> None:
        self.begin_release(node, uid, None)

    def begin_release(self, node: str, uid: str, cause: Cause | None) -> None:
        """As the leader does it, by how long it has seen each mark."""

        def work(wait: "Wait") -> Coroutine[Any, Any, Any]:
            return release(self.cluster, node, uid, self.stop_binds(wait), cause)

        self._begin(f"release {uid}" if cause else f"collect {uid}", work)

    def stop_binds(self, wait: "Wait") -> BindStop:
        async def wait_out(mark: str) -> None:
            await wait(self.seen_mark.setdefault(mark, self.clock.now) + self.binds_over())

        return BindStop(wait_out, compares=self.cluster.compares)

    def status_is_repaired(self) -> None:
        name = self.pick(GROUP_NAMES)
        self._begin(f"readopt {name}", lambda wait: repair.readopt(self.cluster, name))

    def ledger_is_recreated(self) -> None:
        """As the controller does it: created empty, filled, then opened."""
        if self.lost:
            name = self.pick(sorted(self.lost))
            self._begin("recreate", lambda wait: self.recreating(name, wait))

    async def recreating(self, node: str, wait: "Wait") -> None:
        if self.cluster.read(NODE_DEVICES, node) is None:
            await self.cluster.create(NODE_DEVICES, new_ledger(node))

        async def wait_out(uid: str) -> None:
            await wait(self.seen_mark.setdefault(uid, self.clock.now) + binds_over(None))

        gather = partial(repair.evidence, self.cluster)
        seen, _ = await repair.fill(self.cluster, node, gather=gather, wait_out_binds=wait_out)
        if not seen.status.devices:
            await self.cluster.patch(
                NODE_DEVICES, node, devices_patch(seen, self.have, seen.status), subresource="status"
            )
            self.refilled.add(node)

    def claim_is_written_again(self) -> None:
        """Of a group or a pod whose node has an open ledger without it; as the controller does it."""
        name = self.pick(NODE_NAMES)
        self._begin(f"cover {name}", lambda wait: self.covering(name))

    async def covering(self, name: str) -> None:
        seen = await find(self.cluster, NODE_DEVICES, name)
        if seen is None or not seen.devices:
            return
        groups, pods = await repair.evidence(self.cluster)
        bound = {group.uid: group for group in groups if group.node == name}
        living = {pod.holder_uid for pod in pods if pod.lives_on(name) and pod.holder_uid and not pod.impostor}
        for uid in sorted((bound.keys() | living) - seen.claims.keys()):
            if await repair.cover(self.cluster, seen, pods, uid, bound.get(uid)):
                return

    def binds_over(self) -> float:
        """How long a collector waits; nothing, where the server compares what a Binding carries and pods are fenced."""
        return 0.0 if self.cluster.compares and not self.cluster.rests_on_time else binds_over(None)

    def something_goes_on(self) -> None:
        """A request takes effect, or a leader makes its next one, a few times over."""
        leaders = [actor for actor, waits in self.others if not waits or waits[-1] <= self.clock.now]
        requests = self.in_flight()
        if not leaders and not requests:
            return
        everybody: list[Actor | tuple[SteppedReplica, SentRequest]] = [*requests, *leaders]
        chosen = self.pick(everybody)
        for _ in range(self.pick((1, 1, 2, 3, 6))):
            if isinstance(chosen, Actor):
                chosen.step()
                over = chosen.over or bool(chosen.waiting)
            else:
                replica, request = chosen
                self._serve(replica, request)
                over = not replica.requests
                chosen = (replica, replica.requests[-1]) if replica.requests else chosen
            self.lost -= {ledger.node for ledger in self.cluster.all(NODE_DEVICES) if ledger.devices}
            self.check()
            if over:
                break
        self._tidy()

    def _serve(self, replica: SteppedReplica, request: SentRequest) -> None:
        if (replica, request) in self.ghosts:
            self.ghosts.remove((replica, request))
            request.take_effect(self.clock.now)
        else:
            replica.serve(request)

    def replica_sleeps_or_wakes(self) -> None:
        """Its machine is suspended, or has too much else to do."""
        replica = self.pick(self.replicas)
        if replica.asleep:
            replica.wake(suspended=self.pick((True, False)))
        else:
            replica.sleep()

    def something_stops_for_ever(self) -> None:
        if self.pick((True, False)) and self.others:
            self.pick(self.others)[0].crash()
            self._tidy()
            return
        number = self.pick(range(len(self.replicas)))
        dead = self.replicas[number]
        self.replicas[number] = self._replica()
        self.ghosts += [(dead, request) for request in dead.die()]

    # The invariants.

    def using(self) -> list[Pod]:
        """The pods whose containers may be using devices, whatever is said of them, but for impostors."""
        pods = self.cluster.all(PODS)
        return [pod for pod in pods if pod.node and pod.metadata.uid not in self.stopped and not pod.impostor]

    def check(self) -> None:
        pods = self.using()
        owners: dict[tuple[str, str, int], str] = {}
        homes: dict[str, str] = {}
        for pod in pods:
            assert homes.setdefault(pod.holder_uid, pod.node) == pod.node, "a group lives on one node"
            received = self.received.setdefault(pod.metadata.uid, set())
            received |= {device.index for device in pod.devices}
            for number in received:
                owner = owners.setdefault((pod.node, GPU, number), pod.holder_uid)
                assert owner == pod.holder_uid, "a device serves one group"
        for ledger in self.cluster.all(NODE_DEVICES):
            reserved = {uid: {d.index for d in ledger.reserved(claim)} for uid, claim in ledger.claims.items()}
            assert sum(map(len, reserved.values())) == len(set().union(*reserved.values())), "a device is in one claim"
            for pod in pods:
                if pod.node == ledger.node and pod.node not in self.lost:
                    assert pod.holder_uid in reserved, "devices of a live pod stay claimed"
                    assert self.received[pod.metadata.uid] <= reserved[pod.holder_uid], "all that it ever received does"
                    self.check_told(pod, ledger.claims[pod.holder_uid])
        for group in self.cluster.all(GROUPS):
            known = not group.node or group.node in self.lost | self.refilled
            assert known or self.claim_held(group), "a bound group holds its claim"

    def check_told(self, pod: Pod, claim: Claim) -> None:
        assert tuple(sorted(claim.devices)) == pod.devices, "a pod is told what its group's claim holds"

    def settle(self) -> None:
        """What must come true at last, once nobody disturbs any more: each bound group has its claim again."""
        for name in self.refilled - self.lost:
            for _ in range(len(GROUP_NAMES) + len(self.pods)):
                Actor("cover", self.covering(name)).finish()
        self.refilled -= self.refilled - self.lost
        self.check()

    # How the world is made.

    def claim_held(self, group: Group) -> bool:
        ledger = self.cluster.read(NODE_DEVICES, group.node)
        return ledger is not None and group.uid in ledger.claims

    def make_group(self, name: str) -> None:
        self.cluster.put(GROUPS, {"metadata": {"name": name}, "spec": {"resources": {GPU: self.wanted}}})

    def make_pod(self, name: str, group: str) -> None:
        named = {contract.GROUP: group}
        spec = {"containers": [{"name": "main", "env": INJECTED}]}
        self.cluster.put(PODS, {"metadata": {"name": name, "labels": named, "annotations": named}, "spec": spec}, "ns")

    def _replica(self) -> SteppedReplica:
        replica = SteppedReplica(self.cluster, self.clock)
        replica.hear()
        return replica

    def _begin(self, name: str, work: Callable[["Wait"], Coroutine[Any, Any, Any]]) -> None:
        if len(self.others) >= 2:
            return
        waits: list[float] = []

        async def wait(until: float) -> None:
            waits.append(until)
            await Pause(BINDS_OVER)

        self.others.append((Actor(name, work(wait), until=self.clock.now + BINDS_OVER_SECONDS), waits))

    def _tidy(self) -> None:
        self.others = [(actor, waits) for actor, waits in self.others if not actor.over]

    def _node(self, name: str) -> Any:
        return self.cluster.read(NODES, name)


Wait = Callable[[float], Coroutine[Any, Any, None]]
Move = Callable[[Any], None]

USUAL: list[Move] = [
    *[HistoryWorld.something_goes_on] * 14,
    *[HistoryWorld.bind_begins] * 4,
    *[HistoryWorld.mirrors_catch_up] * 3,
    *[HistoryWorld.collection_begins] * 3,
    *[HistoryWorld.group_comes_or_goes] * 2,
    *[HistoryWorld.pod_comes_or_goes] * 2,
    HistoryWorld.pod_is_written,
    *[HistoryWorld.pod_ends] * 2,
    *[HistoryWorld.time_passes] * 2,
    HistoryWorld.replica_sleeps_or_wakes,
    HistoryWorld.something_stops_for_ever,
]
CARELESS: list[Move] = [
    HistoryWorld.status_is_wiped,
    HistoryWorld.status_is_repaired,
    HistoryWorld.status_is_repaired,
    HistoryWorld.ledger_is_deleted,
    HistoryWorld.ledger_is_recreated,
    HistoryWorld.ledger_is_recreated,
    HistoryWorld.claim_is_written_again,
]
schedules = given(st.binary(min_size=60, max_size=160))
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
