"""Single races of a bind with a collector, each as short as it can be."""

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from deviceshare.domain import contract
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.ports import ApiError, Forbidden, Invalid, TooLarge, Unavailable
from deviceshare.loops.protocol.bind import BINDING_SECONDS, QUEUE_SECONDS, binds_over, compares
from deviceshare.loops.protocol.holders import BindStop
from deviceshare.loops.protocol.release import Outcome, release
from deviceshare.loops.replica import binder
from deviceshare.loops.replica.binder import Binder
from tests.unit.loops.histories import HistoryWorld
from tests.unit.loops.model import Actor
from tests.unit.loops.replicas import SteppedReplica


class Races(HistoryWorld):
    """Pod p1 of group a has both devices of n1; p2 of a waits, and so does p3 of group b, which wants both, too."""

    def __init__(self, *, compares: bool = True) -> None:
        super().__init__(bytes([0 if compares else 1, 0, 0, 0]), [])
        self.replica = self.replicas[0]
        self.replica.hear()

    def uid(self, pod: str) -> str:
        found = self.cluster.read(PODS, pod, "ns")
        assert found is not None
        return found.metadata.uid

    def remember(self, pod: str, replica: SteppedReplica | None = None) -> None:
        found = self.cluster.read(PODS, pod, "ns")
        assert found is not None
        (replica or self.replica).binder.remember(found)

    def begin(self, pod: str, replica: SteppedReplica | None = None) -> asyncio.Task[str]:
        return (replica or self.replica).begin(pod, self.uid(pod), "n1")

    def collector(self) -> Actor:
        """Collects the claim on n1 without ever waiting for binds."""
        ledger = self.cluster.read(NODE_DEVICES, "n1")
        assert ledger is not None

        async def at_once(mark: str) -> None:
            """Nothing rests on clocks."""

        return Actor("collector", release(self.cluster, "n1", next(iter(ledger.claims)), BindStop(at_once)))

    def holders(self) -> list[str]:
        ledger = self.cluster.read(NODE_DEVICES, "n1")
        assert ledger is not None
        return [claim.group for claim in ledger.claims.values()]

    def node_of(self, pod: str) -> str:
        found = self.cluster.read(PODS, pod, "ns")
        return found.node if found else ""

    def group_goes(self) -> None:
        """The group and its first pod are deleted, and the other is bound to both devices once they are free."""
        self.cluster.remove(PODS, "p1", "ns")
        self.cluster.remove(GROUPS, "a")


Make = Callable[..., Races]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes races, and closes what is left of them."""
    begun = []

    def begin(*, compares: bool = True) -> Races:
        begun.append(Races(compares=compares))
        return begun[-1]

    yield begin
    for races in begun:
        races.close()


def asked(replica: SteppedReplica) -> list[tuple[str, str]]:
    """The verbs and resources of what the replica asked for."""
    return [(verb, resource) for verb, resource, _ in replica.cluster.requests]


def test_a_joiner_reads_the_ledger_itself_and_not_its_mirror(make: Make) -> None:
    """The mirror has yet to hear that the claim is being released."""
    races = make()
    races.group_goes()
    collector = races.collector()
    for _ in range(3):
        collector.step()  # the mark is written
    races.remember("p2")
    assert "being released" in races.replica.finish(races.begin("p2"))


def test_a_replica_that_slept_binds_nothing_where_versions_are_compared(make: Make) -> None:
    """It read the ledger before the mark, and its Binding comes after the claim went to another group."""
    races = make()
    races.remember("p2")
    late = races.begin("p2")
    races.replica.serve(races.replica.requests[0])  # it has read the ledger; its Binding is on its way
    races.group_goes()
    assert races.collector().finish() is Outcome.FREED
    other = races.replicas[1]
    other.hear()
    races.remember("p3", other)
    assert other.finish(races.begin("p3", other)) == ""
    assert races.replica.finish(late) != ""
    assert (races.node_of("p2"), races.holders()) == ("", ["b"])
    races.check()


def test_a_replica_that_slept_sends_no_binding(make: Make) -> None:
    """Where the server doesn't compare versions, only its own clock can stop it."""
    races = make(compares=False)
    races.remember("p2")
    races.replica.cluster.requests.clear()
    late = races.begin("p2")
    races.replica.sleep()
    races.replica.serve(races.replica.requests[0])
    races.clock.now += 3600
    races.replica.wake(suspended=True)
    assert [request.what for request in races.replica.requests] == []
    assert "longer than" in races.replica.finish(late)
    assert asked(races.replica) == [("get", "nodedevices")]


def test_the_clock_of_binds_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still while a machine is suspended, and a bind would not notice."""
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: 7.0}[clock])
    assert binder.boottime() == 7.0
    assert (Binder.__init__.__kwdefaults__ or {})["clock"] is binder.boottime


def test_a_pod_written_since_filter_is_read_again_and_then_the_ledger(make: Make) -> None:
    """kube-scheduler writes why a pod waits, and we touch it; neither may cost the pod its turn."""
    races = make()
    races.remember("p2")
    races.cluster.edit(PODS, "p2", {"metadata": {"annotations": {contract.WOKEN_AT: "now"}}}, "ns")
    races.replica.cluster.requests.clear()
    assert races.replica.finish(races.begin("p2")) == ""
    reads = [("get", "nodedevices"), ("bind", "pods"), ("get", "pods"), ("get", "nodedevices"), ("bind", "pods")]
    assert asked(races.replica) == reads
    assert races.node_of("p2") == "n1"


def test_a_pod_that_never_stops_changing_is_left_to_the_scheduler(make: Make) -> None:
    """Retries are bounded, and each reads the pod anew."""
    races = make()
    races.remember("p2")
    task = races.begin("p2")
    while not task.done():
        races.cluster.edit(PODS, "p2", {}, "ns")
        races.replica.serve(races.replica.requests[0])
    assert task.result() == "pod ns/p2 was written meanwhile"
    assert asked(races.replica).count(("bind", "pods")) == 1 + binder.ATTEMPTS


def test_a_pod_that_names_another_group_meanwhile_is_not_bound_by_the_old_one(make: Make) -> None:
    """The webhook forbids it; where it is away, the scheduler's choice of node was for the old group."""
    races = make()
    races.remember("p2")
    races.cluster.edit(PODS, "p2", {"metadata": {"annotations": {contract.GROUP: "b"}}}, "ns")
    assert "has changed" in races.replica.finish(races.begin("p2"))
    assert races.node_of("p2") == ""


def test_a_pod_on_its_way_out_is_refused(make: Make) -> None:
    """The API server doesn't bind it."""
    races = make()
    races.remember("p2")
    races.cluster.edit(PODS, "p2", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "ns")
    assert races.replica.finish(races.begin("p2")) == "pod ns/p2 is being deleted"


def test_a_binding_carries_the_pods_uid_its_version_and_a_time(make: Make) -> None:
    """Each protects where the others can't: names are used again, processes sleep, clients give up."""
    races = make()
    races.remember("p2")
    found = races.cluster.read(PODS, "p2", "ns")
    assert found is not None
    assert races.replica.finish(races.begin("p2")) == ""
    sent = races.replica.cluster.bindings[-1]
    assert (sent["uid"], sent["timeout"]) == (found.metadata.uid, BINDING_SECONDS)
    assert sent["resource_version"] == found.metadata.resource_version
    assert sent["annotations"][contract.POD_UID] == found.metadata.uid


def test_a_collector_lists_the_pods_again_after_its_wait(make: Make) -> None:
    """A Binding that was under way took effect meanwhile."""
    races = make(compares=False)
    races.remember("p2")
    late = races.begin("p2")
    races.replica.serve(races.replica.requests[0])
    races.group_goes()
    collector = races.collector()
    while not races.cluster.read(PODS, "p2", "ns").metadata.annotations.get(contract.BIND_FENCE):  # type: ignore[union-attr]
        collector.step()
    assert races.replica.finish(late) == ""
    assert collector.finish() is Outcome.IN_USE
    races.check()


def test_a_collector_waits_out_binds_while_pods_are_pending(make: Make) -> None:
    """Once, for its own mark, before it drops the claim."""
    races = make()
    races.group_goes()
    waits: list[tuple[str, list[str]]] = []

    async def wait(mark: str) -> None:
        waits.append((mark, races.holders()))

    (uid,) = races.cluster.all(NODE_DEVICES)[0].claims
    work = release(races.cluster, "n1", uid, BindStop(wait))
    assert Actor("collector", work).finish() is Outcome.FREED
    assert [left for _, left in waits] == [["a"]]


def test_a_collector_touches_each_pending_pod_once(make: Make) -> None:
    """However often it must begin again: each touch has the scheduler try the pod."""
    races = make()
    races.group_goes()

    def touched() -> list[str]:
        [claim] = races.cluster.all(NODE_DEVICES)[0].claims.values()
        pods, mark = races.cluster.all(PODS), claim.releasing or "none"
        return [pod.metadata.name for pod in pods if pod.metadata.annotations.get(contract.BIND_FENCE) == mark]

    collector = races.collector()
    while not touched():
        collector.step()
    assert touched() == ["p2"], "and no pod of another group"
    collector.crash()
    version = races.cluster.read(PODS, "p2", "ns").metadata.resource_version  # type: ignore[union-attr]
    assert races.collector().finish() is Outcome.FREED
    assert races.cluster.read(PODS, "p2", "ns").metadata.resource_version == version  # type: ignore[union-attr]


@pytest.mark.parametrize("refusal", [Forbidden, Invalid, Unavailable])
def test_a_pod_whose_annotations_refuse_the_touch_is_fenced_by_its_status(make: Make, refusal: type[ApiError]) -> None:
    """A replica slept through the whole collection, for longer than anything waits; its Binding fails all the same.

    A webhook for the pod may be against it, or out of reach.
    """
    races = make()
    races.cluster.refusal = refusal
    races.cluster.refusing["p2"] = False
    races.remember("p2")
    late = races.begin("p2")
    races.replica.serve(races.replica.requests[0])  # it has read the ledger, and sends its Binding
    races.group_goes()
    assert races.collector().finish() is Outcome.FREED
    races.replica.finish(late)
    assert races.node_of("p2") == ""
    races.check()


def test_a_collector_goes_on_without_a_pod_that_refuses_every_write(make: Make) -> None:
    """It waits binds out as it does for others, and says which pod it was."""
    races, unwritable, waits = make(), list[tuple[str, str]](), list[str]()
    races.cluster.refusing["p2"] = True
    races.group_goes()

    async def wait(mark: str) -> None:
        waits.append(mark)

    (uid,) = races.cluster.all(NODE_DEVICES)[0].claims
    stop_binds = BindStop(wait, lambda pod, why: unwritable.append((pod.metadata.name, why.said)))
    work = release(races.cluster, "n1", uid, stop_binds)
    assert Actor("collector", work).finish() is Outcome.FREED
    assert (len(waits), unwritable) == (1, [("p2", "annotations are full")])


@pytest.mark.parametrize("error", [Forbidden, TooLarge, Unavailable])
def test_a_pod_that_takes_no_annotation_for_whatever_reason_is_fenced_by_its_status(
    make: Make, error: type[ApiError]
) -> None:
    """A webhook may be against it, or broken, and the pod may be as large as etcd stores."""
    races = make()
    races.cluster.refusing["p2"], races.cluster.refusal = False, error
    races.remember("p2")
    late = races.begin("p2")
    races.replica.serve(races.replica.requests[0])
    races.group_goes()
    assert races.collector().finish() is Outcome.FREED
    races.replica.finish(late)
    assert races.node_of("p2") == ""


def test_a_pod_that_others_write_or_delete_needs_no_touch(make: Make) -> None:
    """Their write makes old Bindings fail as well as ours."""
    for deleted in (False, True):
        races = make()
        races.group_goes()
        collector = races.collector()
        for _ in range(5):
            collector.step()  # it has listed the pods
        if deleted:
            races.cluster.remove(PODS, "p2", "ns")
        else:
            races.cluster.edit(PODS, "p2", {}, "ns")
        assert collector.finish() is Outcome.FREED


def test_a_collector_that_finds_the_group_bound_takes_its_mark_away(make: Make) -> None:
    """Suspicion came from a stale mirror."""
    races = make()
    assert races.collector().finish() is Outcome.STAYS
    assert races.cluster.all(NODE_DEVICES)[0].claims.copy().popitem()[1].releasing == ""


def test_a_collector_takes_a_recreated_group_for_another(make: Make) -> None:
    """Identity is the UID: that a group of this name lives on the node keeps nothing for the one that is gone."""
    races = make()
    races.group_goes()
    races.cluster.put(GROUPS, {"metadata": {"name": "a"}, "status": {"nodeName": "n1"}})
    assert races.collector().finish() is Outcome.FREED


def test_a_collector_fails_a_bind_that_read_the_unbound_group_before(make: Make) -> None:
    """The claim is written, the group is not yet: the fence comes in between."""
    races = make()
    races.cluster.remove(PODS, "p1", "ns")
    races.cluster.edit(GROUPS, "a", {"status": None})
    races.replica.hear()
    races.remember("p2")
    task = races.begin("p2")
    races.replica.serve(races.replica.requests[0])  # has read its claim; the write of the group is on its way
    assert races.collector().finish() is Outcome.FREED
    assert races.replica.finish(task) != ""
    group = races.cluster.read(GROUPS, "a")
    assert group is not None and group.node == ""
    races.check()


def test_a_bind_writes_the_group_as_it_read_it_before_the_ledger(make: Make) -> None:
    """Its mirror hears of the fence in between; with that version the group would be bound without a claim."""
    races = make()
    races.cluster.remove(PODS, "p1", "ns")
    races.cluster.edit(GROUPS, "a", {"status": None})
    races.replica.hear()
    races.remember("p2")
    task = races.begin("p2")
    races.replica.sleep()
    races.replica.serve(races.replica.requests[0])  # has read its claim, and doesn't know it yet
    assert races.collector().finish() is Outcome.FREED
    races.replica.hear()
    races.replica.wake(suspended=False)
    races.replica.serve(races.replica.requests[0])
    races.check()
    assert races.replica.finish(task) == "", "another try claims again"
    races.check()


def test_a_collector_drops_nothing_that_somebody_unmarked_meanwhile(make: Make) -> None:
    """Its last write carries the version of its first."""
    races = make()
    races.cluster.remove(PODS, "p1", "ns")
    races.cluster.remove(PODS, "p2", "ns")
    races.cluster.remove(GROUPS, "a")
    collector = races.collector()
    for _ in range(5):
        collector.step()  # it has listed the pods
    (uid,) = races.cluster.all(NODE_DEVICES)[0].claims
    races.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: {"releasing": None}}}})
    assert type(collector.finish()).__name__ == "Conflict"
    assert races.holders() == ["a"]


def test_a_group_that_is_being_deleted_takes_nobody_in(make: Make) -> None:
    """A finalizer holds it up; what it has, it keeps until its pods have ended."""
    races = make()
    going = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
    for name in ("a", "b"):
        races.cluster.edit(GROUPS, name, going)
    races.replica.hear()
    for pod in ("p2", "p3"):
        races.remember(pod)
        assert "is being deleted" in races.replica.finish(races.begin(pod))
        assert races.node_of(pod) == ""


@pytest.mark.parametrize(
    ("server", "compared"), [(None, False), ((1, 23), False), ((1, 24), True), ((1, 36), True), ((2, 0), True)]
)
def test_versions_count_where_the_oldest_of_the_api_servers_compares_them(
    server: tuple[int, int] | None, compared: bool
) -> None:
    """Beside one of 1.23 there may be one of 1.22, to which a Binding goes."""
    assert compares(server) is compared


@pytest.mark.parametrize(
    ("server", "seconds"), [((1, 20), 28.0), ((1, 21), 13.0), ((1, 36), 13.0), ((2, 0), 13.0), (None, 28.0)]
)
def test_a_leader_waits_out_the_queue_of_old_servers(server: tuple[int, int] | None, seconds: float) -> None:
    """Before 1.21 a Binding's time begins only behind it; a server that doesn't say is taken for an old one."""
    assert binds_over(server) == seconds
    assert binds_over(None) - QUEUE_SECONDS == binds_over((1, 21))
