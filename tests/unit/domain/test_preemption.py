"""Who goes for a pod of higher priority: the fewest and the least important, and never more than is needed."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.answers.explanation import Case, explain_pod
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import GROUP, POD, Share
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import request_of
from deviceshare.domain.placement.preemption import Holders, MadeRoom, fits_somewhere, make_room, searched
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, a_share_pod
from tests.unit.domain.test_drawing import with_claim

Part = tuple[str, str, int, int, int]
"""A pod with a part: its name and node, the device, how many percent, and its priority."""


def with_priority(pod: Pod, priority: int) -> Pod:
    return replace(pod, spec=replace(pod.spec, priority=priority))


class FullCluster:
    """Nodes n1 and n2 with two GPUs each, and these pods with parts; other claims are of idle groups."""

    def __init__(self, parts: Iterable[Part], *, groups: dict[str, str] | None = None) -> None:
        self.pods: dict[str, Pod] = {}
        idle = groups or {}
        ledgers = {n: a_ledger(n, {GPU: 2}) for n in ("n1", "n2")}
        for name, node in idle.items():
            claim = Claim(group=name, whole=list(ledgers[node].devices))
            ledgers[node] = with_claim(ledgers[node], f"uid-of-{name}", claim)
        for name, node, index, percent, priority in parts:
            pod = with_priority(a_share_pod(name, percent=percent), priority)
            self.pods[pod.metadata.key] = replace(pod, spec=replace(pod.spec, node_name=node))
            claim = Claim(pod=f"ns/{name}", shares=[Share("main", GPU, index, percent=percent)])
            ledgers[node] = with_claim(ledgers[node], f"uid-of-{name}", claim)
        nodes = (a_node(name, {GPU: 2}) for name in ledgers)
        self.fleet: Fleet = a_fleet(*nodes, ledgers=tuple(ledgers.values()))

    def room(self, pod: Pod, count: int = 0, *, spared: Iterable[str] = (), idle: bool = True) -> MadeRoom | None:
        """For a pod with a share, or for one of a group that asks for so many GPUs."""
        request = request_of(pod, a_group(count=count) if count else None)
        assert request is not None
        return searched(make_room(self.fleet, pod, request, Holders(self.pods.get, lambda _: idle, set(spared))))


FULL: list[Part] = [("a", "n1", 0, 100, 5), ("b", "n1", 1, 100, 0), ("c", "n2", 0, 100, 5), ("d", "n2", 1, 100, 5)]


def names(room: MadeRoom | None) -> tuple[str, ...]:
    return tuple(each.name for each in room.victims) if room else ("nobody may",)


@pytest.mark.parametrize(
    ("parts", "percent", "priority", "victims"),
    [
        (FULL, 50, 1000, ("ns/b",)),
        (FULL, 200, 1000, ("ns/b", "ns/a")),
        (FULL, 200, 5, ("nobody may",)),
        (FULL, 100, 0, ("nobody may",)),
        (FULL, 300, 1000, ("nobody may",)),
        (
            [("a", "n1", 0, 60, 1), ("b", "n1", 0, 40, 1), ("c", "n1", 1, 100, 1), ("e", "n2", 0, 100, 2), FULL[3]],
            100,
            9,
            ("ns/c",),
        ),
        ([("a", "n1", 0, 30, 0), ("b", "n1", 0, 70, 3), ("c", "n1", 1, 100, 9), *FULL[2:]], 70, 9, ("ns/b",)),
    ],
    ids=[
        "the lowest",
        "two for two",
        "not of equal priority",
        "nor of none",
        "too large",
        "one for two",
        "whose room does",
    ],
)
def test_the_fewest_and_lowest_go(parts: list[Part], percent: int, priority: int, victims: tuple[str, ...]) -> None:
    """Of all nodes, and on each by the devices that the share may be taken from."""
    assert names(FullCluster(parts).room(with_priority(a_share_pod("new", percent=percent), priority))) == victims


def test_a_group_gets_whole_devices() -> None:
    """Where its claims would cost the least."""
    cluster, pod = FullCluster(FULL), with_priority(a_pod("new"), 1000)
    assert names(cluster.room(pod, 1)) == ("ns/b",)
    assert names(cluster.room(pod, 2)) == ("ns/b", "ns/a")


def test_a_group_that_no_pod_uses_goes_before_pods_of_its_priority() -> None:
    """It counts as one of priority 0."""
    cluster = FullCluster([("a", "n1", 0, 100, 0), ("b", "n1", 1, 100, 0)], groups={"idle": "n2"})
    room = cluster.room(with_priority(a_share_pod("new", percent=10), 1))
    assert room and [(each.kind, each.name) for each in room.victims] == [(GROUP, "idle")]
    used = cluster.room(with_priority(a_share_pod("new", percent=10), 1), idle=False)
    assert used and used.victims[0].kind == POD
    assert cluster.room(a_share_pod("new", percent=10)) is None


def test_whom_a_budget_keeps_stays() -> None:
    """Another one goes, though it is more important."""
    room = FullCluster(FULL).room(with_priority(a_share_pod("new", percent=50), 1000), spared=["uid-of-b"])
    assert names(room) == ("ns/a",)


ENDINGS: dict[str, Callable[[Pod], Pod | None]] = {
    "being deleted": lambda pod: replace(
        pod, metadata=replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    ),
    "gone": lambda pod: None,
    "recreated": lambda pod: replace(pod, metadata=replace(pod.metadata, uid="another")),
    "finished": lambda pod: replace(pod, status=replace(pod.status, phase="Succeeded")),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_others_leave_anyway_is_waited_for(ending: str) -> None:
    """Nobody is evicted for what a pod that ends already has, until its claim is dropped."""
    cluster = FullCluster(FULL)
    found = ENDINGS[ending](cluster.pods.pop("ns/c"))
    cluster.pods |= {"ns/c": found} if found else {}
    assert cluster.room(with_priority(a_share_pod("new", percent=50), 1000)) == MadeRoom("n2", ())


def test_room_that_is_made_for_another_is_not_counted_again() -> None:
    """Two pods need two victims."""
    cluster, first = FullCluster(FULL), with_priority(a_share_pod("first", percent=100), 1000)
    room = cluster.room(first)
    assert room and names(room) == ("ns/b",)
    cluster.fleet.nominate("ns/first", room.node, request_of(first, None))
    assert names(cluster.room(with_priority(a_share_pod("second", percent=100), 1000))) == ("ns/c",)
    lower = request_of(with_priority(a_share_pod("third", percent=1), 10), None)
    assert lower is not None
    assert cluster.fleet.filter(lower, ["n1", "n2"]).fits == []
    cluster.fleet.nominate("ns/first", "", None)
    assert cluster.fleet.nominated("n1") == []


@pytest.mark.parametrize(
    ("percent", "priority", "policy", "told"),
    [
        (50, 1000, "", "pod ns/b (priority 0) would have to go, on node n1"),
        (300, 1000, "", "nobody of lower priority than 1000 has what it needs"),
        (50, 1000, "Never", "nobody goes for it, by its preemptionPolicy Never"),
        (50, 0, "", ""),
    ],
)
def test_explain_says_who_would_have_to_go(percent: int, priority: int, policy: str, told: str) -> None:
    """By the code that decides it."""
    pod = with_priority(a_share_pod("new", percent=percent), priority)
    pod = replace(pod, spec=replace(pod.spec, preemption_policy=policy))
    cluster = FullCluster(FULL)
    said = explain_pod(Case(cluster.fleet, None, None, [pod, *cluster.pods.values()]), pod)
    assert said.facts.get("preemption", "") == told


def test_a_node_that_the_pod_may_not_go_to_gives_nothing() -> None:
    """By its nodeSelector, taints or a cordon."""
    pod = with_priority(a_share_pod("new", percent=50), 1000)
    elsewhere = replace(pod, spec=replace(pod.spec, node_selector={"zone": "west"}))
    assert FullCluster(FULL).room(elsewhere) is None


def test_a_pod_that_fits_on_a_node_that_it_may_not_go_to_does_not_fit() -> None:
    """Others have to go where it may."""
    pod = with_priority(a_share_pod("new", percent=50), 1000)
    bound_to = replace(pod, spec=replace(pod.spec, node_selector={"zone": "west"}))
    cluster, request = FullCluster(FULL[:2]), request_of(pod, None)
    assert request is not None
    assert fits_somewhere(cluster.fleet, pod, request) and not fits_somewhere(cluster.fleet, bound_to, request)


parts = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 1), st.sampled_from([20, 50]), st.integers(0, 3)),
    max_size=8,
)


@given(parts, st.sampled_from([10, 50, 100, 200]), st.integers(0, 4))
def test_victims_make_room_and_none_is_superfluous(
    some: list[tuple[str, int, int, int]], percent: int, priority: int
) -> None:
    """Whatever the cluster is like: without them it fits, and with any of them left it doesn't."""
    taken: dict[tuple[str, int], int] = {}
    every: list[Part] = []
    for number, (node, index, size, importance) in enumerate(some):
        if taken.get((node, index), 0) + size <= 100:
            taken[node, index] = taken.get((node, index), 0) + size
            every.append((f"p{number}", node, index, size, importance))
    pod = with_priority(a_share_pod("new", percent=percent), priority)
    room, request = FullCluster(every).room(pod), request_of(pod, None)
    assert request is not None

    def fits_without(gone: set[str]) -> bool:
        rest = FullCluster(each for each in every if f"ns/{each[0]}" not in gone)
        return bool(room and rest.fleet.filter(request, [room.node]).fits)

    if room is None:
        least = {f"ns/{name}" for name, _, _, _, importance in every if importance < priority}
        assert (
            FullCluster(each for each in every if f"ns/{each[0]}" not in least).fleet.filter(request, ["n1", "n2"]).fits
            == []
        )
        return
    victims = {each.name for each in room.victims}
    assert fits_without(victims) and all(each.priority < priority for each in room.victims)
    assert not any(fits_without(victims - {each}) for each in victims)
