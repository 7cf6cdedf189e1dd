"""The claim protocol over random histories: any interleaving, any crash, stale reads, two collectors, a careless hand.

Hypothesis draws a schedule, a string of bytes. Each choice lets one actor go to its next request, stops one for ever,
begins a bind, a collection or a repair, or lets the world change. After every request the invariants of design.md must
hold. `PROTOCOL_EXAMPLES=50000` explores further; docs/decisions/0003-claim-protocol-tests.md tells which rule of
claims.md each sabotage of the protocol breaks, and that the test notices.
"""

import os
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deviceshare.domain import contract
from deviceshare.domain.devices import devices_of
from deviceshare.domain.fleet import Fleet
from deviceshare.domain.groups import Group
from deviceshare.domain.ledger import Claim, as_json, new_ledger
from deviceshare.domain.pods import Pod
from deviceshare.loops import claiming, collecting, repairing
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from tests.unit.loops.model import Actor, ModelCluster, Pause

T = TypeVar("T")

GPU = "nvidia.com/gpu"
NODE_NAMES = ("n1", "n1", "n1", "n2")
GROUP_NAMES = ("a", "b")
POD_NAMES = ("p1", "p2", "p3")
BINDS_OVER = "every bind that began before is over"
EXAMPLES = int(os.environ.get("PROTOCOL_EXAMPLES", "1000"))


class World:
    """Two nodes of two devices, two groups that want two each, three pods; whatever deviceshare does about them."""

    devices = 2
    wanted = 2

    def __init__(self, schedule: bytes, moves: Sequence["Move"]) -> None:
        self.moves = moves
        self.choices = iter(schedule)
        self.cluster = ModelCluster()
        self.binds: list[Actor] = []
        self.others: list[tuple[Actor, list[Actor]]] = []
        """Collections and repairs, each with the binds it waits out."""
        self.history: dict[str, deque[Group]] = {name: deque(maxlen=4) for name in GROUP_NAMES}
        self.marks = 0
        self.lost: set[str] = set()
        """Nodes whose ledger somebody deleted and nobody has made again and opened yet."""
        self.received: dict[str, set[int]] = {}
        """By the UID of a pod, the numbers of all devices that its annotations ever named."""
        self.have = devices_of({GPU: self.devices})
        for name in ("n1", "n2"):
            self.cluster.put(NODES, {"metadata": {"name": name, "labels": {contract.MODE_LABEL: "shared"}}})
            self.cluster.put(
                NODE_DEVICES, {**new_ledger(self._node(name), {}), "status": {"devices": as_json(self.have)}}
            )
        for name in GROUP_NAMES:
            self.make_group(name)
        for name, group in zip(POD_NAMES, ("a", "a", "b"), strict=True):
            self.make_pod(name, group)
        if self.pick((True, False)):
            self.begin_bind("p1", "n1", 0)
            self.binds[0].finish()
            self._tidy()

    def run(self) -> None:
        """Takes every step of the schedule and looks at the invariants after each."""
        try:
            while True:
                self.pick(self.moves)(self)
        except StopIteration:
            pass
        finally:
            for actor in self.actors():
                actor.crash()
        self.settle()

    def pick(self, options: Sequence[T]) -> T:
        return options[next(self.choices) % len(options)]

    def actors(self) -> list[Actor]:
        return [*self.binds, *(actor for actor, _ in self.others)]

    def bounded(self) -> list[Actor]:
        """What "every bind is over" stands for."""
        return list(self.binds)

    # The world's moves.

    def group_comes_or_goes(self) -> None:
        name = self.pick(GROUP_NAMES)
        if self.cluster.read(GROUPS, name):
            self.cluster.remove(GROUPS, name)
        else:
            self.make_group(name)

    def pod_comes_or_goes(self) -> None:
        name = self.pick(POD_NAMES)
        if self.cluster.read(PODS, name, "ns"):
            self.cluster.remove(PODS, name, "ns")
        else:
            self.make_pod(name, self.pick(GROUP_NAMES))

    def pod_finishes(self) -> None:
        name = self.pick(POD_NAMES)
        pod = self.cluster.read(PODS, name, "ns")
        if pod and pod.lives:
            self.cluster.edit(PODS, name, {"status": {"phase": "Succeeded"}}, "ns")

    def status_is_wiped(self) -> None:
        group = self.cluster.read(GROUPS, self.pick(GROUP_NAMES))
        if group and group.node and self.claim_held(group):
            self.cluster.edit(GROUPS, group.name, {"status": None})

    def ledger_is_deleted(self) -> None:
        name = self.pick(NODE_NAMES)
        self.cluster.remove(NODE_DEVICES, name)
        self.lost.add(name)

    # deviceshare's moves.

    def bind_begins(self) -> None:
        self.begin_bind(self.pick(POD_NAMES), self.pick(NODE_NAMES), self.pick((0, 0, 1, 2, 3)))

    def begin_bind(self, pod: str, node: str, age: int) -> None:
        """A bind reads the group from a mirror that lags `age` versions behind."""
        found = self.cluster.read(PODS, pod, "ns")
        if found is None or not found.pending or len(self.binds) >= 3:
            return
        current = self.cluster.read(GROUPS, found.group)
        versions = self.history[found.group]
        if current and versions[-1] != current:
            versions.append(current)
        group = versions[max(0, len(versions) - 1 - age)]
        work = claiming.bind(self.cluster, found, group, node, home=self._fleet().home(group), timeout=1)
        self.binds.append(Actor(f"bind {pod} to {node}", work))

    def collection_begins(self) -> None:
        ledger = self.cluster.read(NODE_DEVICES, self.pick(NODE_NAMES))
        if ledger is None or not ledger.claims:
            return
        uid = self.pick(sorted(ledger.claims))

        def work(wait: Callable[[], Coroutine[Any, Any, None]]) -> Coroutine[Any, Any, Any]:
            return collecting.collect(
                self.cluster, ledger.node, uid, new_mark=self._new_mark, wait_out_binds=lambda mark: wait()
            )

        self._begin(f"collect {uid}", work)

    def status_is_repaired(self) -> None:
        name = self.pick(GROUP_NAMES)
        self._begin(f"readopt {name}", lambda wait: repairing.readopt(self.cluster, name))

    def ledger_is_made_again(self) -> None:
        """As the controller does it: created without devices, then opened."""
        if not self.lost:
            return
        node = self._node(self.pick(sorted(self.lost)))

        async def work(wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
            ledger = self.cluster.read(NODE_DEVICES, node.metadata.name)
            if ledger is None:
                await repairing.recreate(
                    self.cluster, node, gather=lambda: repairing.fenced_evidence(self.cluster), wait_out_binds=wait
                )
            await repairing.open_ledger(
                self.cluster,
                node.metadata.name,
                self.have,
                gather=lambda: repairing.evidence(self.cluster),
            )

        self._begin("recreate", work)

    def actor_goes_on(self) -> None:
        ready = [*self.binds, *(a for a, waits in self.others if all(bind.over for bind in waits))]
        if not ready:
            return
        actor = self.pick(ready)
        for _ in range(self.pick((1, 1, 2, 3, 6))):
            actor.step()
            self.lost -= {ledger.node for ledger in self.cluster.all(NODE_DEVICES) if ledger.devices}
            self.check()
            if actor.over or actor.waiting:
                break
        self._tidy()

    def actor_stops_for_ever(self) -> None:
        if self.actors():
            self.pick(self.actors()).crash()
            self._tidy()

    def binds_time_out(self) -> None:
        for actor in self.bounded():
            actor.crash()
        self._tidy()

    # The invariants.

    def check(self) -> None:
        pods = [pod for pod in self.cluster.all(PODS) if pod.lives]
        owners: dict[tuple[str, int], str] = {}
        homes: dict[str, str] = {}
        for pod in pods:
            assert homes.setdefault(pod.group_uid, pod.node) == pod.node, "a group lives on one node"
            received = self.received.setdefault(pod.metadata.uid, set())
            received |= {device.index for device in pod.devices}
            for number in received:
                owner = owners.setdefault((pod.node, number), pod.group_uid)
                assert owner == pod.group_uid, "a device serves one group"
        for ledger in self.cluster.all(NODE_DEVICES):
            reserved = {uid: {d.index for d in ledger.reserved(claim)} for uid, claim in ledger.claims.items()}
            assert sum(map(len, reserved.values())) == len(set().union(*reserved.values())), "a device is in one claim"
            for pod in pods:
                if pod.node == ledger.node and pod.node not in self.lost:
                    assert pod.group_uid in reserved, "devices of a live pod stay claimed"
                    assert self.received[pod.metadata.uid] <= reserved[pod.group_uid], "all that it ever received does"
                    self.check_told(pod, ledger.claims[pod.group_uid])
        for group in self.cluster.all(GROUPS):
            assert not group.node or group.node in self.lost or self.claim_held(group), "a bound group holds its claim"

    def check_told(self, pod: Pod, claim: Claim) -> None:
        assert tuple(sorted(claim.devices)) == pod.devices, "a pod is told what its group's claim holds"

    def settle(self) -> None:
        """What must come true at last, once nobody disturbs any more."""

    # How the world is made.

    def claim_held(self, group: Group) -> bool:
        ledger = self.cluster.read(NODE_DEVICES, group.node)
        return ledger is not None and group.uid in ledger.claims

    def make_group(self, name: str) -> None:
        self.cluster.put(GROUPS, {"metadata": {"name": name}, "spec": {"resources": {GPU: self.wanted}}})
        group = self.cluster.read(GROUPS, name)
        assert group is not None
        self.history[name].append(group)

    def make_pod(self, name: str, group: str) -> None:
        named = {contract.GROUP: group}
        self.cluster.put(PODS, {"metadata": {"name": name, "labels": named, "annotations": named}}, "ns")

    def _begin(self, name: str, work: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        if len(self.others) >= 2:
            return
        waits: list[Actor] = []

        async def wait() -> None:
            waits.extend(self.bounded())
            await Pause(BINDS_OVER)

        self.others.append((Actor(name, work(wait)), waits))

    def _tidy(self) -> None:
        self.binds = [actor for actor in self.binds if not actor.over]
        self.others = [(actor, waits) for actor, waits in self.others if not actor.over]

    def _fleet(self) -> Fleet:
        fleet = Fleet()
        for ledger in self.cluster.all(NODE_DEVICES):
            fleet.set_ledger(ledger.node, ledger)
        for pod in self.cluster.all(PODS):
            if pod.lives:
                fleet.set_living(pod.group_uid, pod.metadata.key, pod.node)
        return fleet

    def _node(self, name: str) -> Any:
        return self.cluster.read(NODES, name)

    def _new_mark(self) -> str:
        self.marks += 1
        return f"mark-{self.marks}"


Move = Callable[[World], None]

USUAL: list[Move] = [
    *[World.actor_goes_on] * 12,
    *[World.bind_begins] * 4,
    *[World.collection_begins] * 3,
    World.group_comes_or_goes,
    World.group_comes_or_goes,
    World.pod_comes_or_goes,
    World.pod_comes_or_goes,
    World.pod_finishes,
    World.actor_stops_for_ever,
    World.binds_time_out,
]
CARELESS: list[Move] = [
    World.status_is_wiped,
    World.status_is_repaired,
    World.status_is_repaired,
    World.ledger_is_deleted,
    World.ledger_is_made_again,
    World.ledger_is_made_again,
]
schedules = given(st.binary(min_size=60, max_size=160))
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@many
@schedules
def test_a_device_keeps_one_owner_in_any_order_of_events(schedule: bytes) -> None:
    """Binds, collections, crashes, deletions and stale reads."""
    World(schedule, USUAL).run()


@many
@schedules
def test_a_device_keeps_one_owner_while_people_wipe_and_delete_what_they_should_not(schedule: bytes) -> None:
    """The same, with statuses wiped and ledgers deleted, and the repairs of both, by two leaders at once."""
    World(schedule, [*USUAL, *CARELESS]).run()
