"""What is kept of shapes and ledgers is never told of others: filter, prioritize and states as if nothing were kept."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.shares import INIT, MAIN, POD, SIDECAR, Holder, Need, Request, Share, ShareRequest
from deviceshare.domain.placement import allocation, shapes
from deviceshare.domain.placement.allocation import MAX_SCORE, Assumption
from deviceshare.domain.placement.device_states import KEPT, device_states
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.rooms import Room, capacity
from deviceshare.domain.placement.shapes import Shape
from tests.unit.domain.objects import GPU, a_ledger, a_node

NAMES = ["n0", "n1", "n2"]
PERCENTS = [5 * number for number in range(1, 21)]
RESOURCES = ("deviceshare.io/gpu-percent",)


def asking(*needs: Need, strategy: str = "binpack", resources: tuple[str, ...] = RESOURCES) -> Request:
    return Request(Holder("uid-of-new", POD, "default/new"), {}, strategy, {}, "", ShareRequest(needs, resources))


def taken(node: str, *percents: int, version: str = "") -> NodeDevices:
    """A ledger of four devices, of the first of which pods have so many percent."""
    claims = {
        f"uid-{index}": Claim(pod=f"default/{index}", shares=[Share("main", GPU, index, percent=percent)])
        for index, percent in enumerate(percents)
        if percent
    }
    empty = a_ledger(node)
    metadata = replace(empty.metadata, resource_version=version)
    return replace(empty, metadata=metadata, spec=LedgerSpec(claims))


def answers(fleet: Fleet, request: Request) -> tuple[object, ...]:
    filtered = fleet.filter(request, NAMES)
    scores = fleet.prioritize(request, filtered.fits)
    if scores:
        assert fleet.best(request, filtered.fits) == [name for name, score in scores.items() if score == MAX_SCORE]
    return filtered, fleet.prioritize(request, NAMES), scores


def afresh(nodes: dict[str, Node], ledgers: dict[str, NodeDevices], assumed: dict[str, Assumption]) -> Fleet:
    fleet = Fleet()
    for name, node in nodes.items():
        fleet.set_node(name, node)
    for name, ledger in ledgers.items():
        fleet.set_ledger(name, ledger)
    for uid, assumption in assumed.items():
        fleet.assume(uid, assumption)
    return fleet


@given(st.integers(0, 2**32))
def test_a_fleet_answers_as_one_that_has_kept_nothing(seed: int) -> None:
    """After any changes, whatever pods and their containers are called."""
    chance = random.Random(seed)
    fleet, nodes, ledgers, assumed = Fleet(), dict[str, Node](), dict[str, NodeDevices](), dict[str, Assumption]()
    for step in range(15):
        name = chance.choice(NAMES)
        match chance.randrange(5):
            case 0 if name in nodes and chance.random() < 0.3:
                del nodes[name]
                fleet.set_node(name, None)
            case 0 | 1:
                nodes[name] = a_node(name)
                fleet.set_node(name, nodes[name])
            case 2 | 3:
                ledgers[name] = taken(name, *(chance.choice((0, 50, 95, 100)) for _ in range(4)))
                fleet.set_ledger(name, ledgers[name])
            case 4 if assumed:
                uid, _ = assumed.popitem()
                fleet.forget(uid)
            case _:
                share = Share("main", GPU, chance.randrange(4), percent=5)
                assumed[f"uid-{step}"] = Assumption(name, shares=(share,))
                fleet.assume(f"uid-{step}", assumed[f"uid-{step}"])
        percent, strategy = chance.choice((5, 50)), chance.choice(("binpack", "spread"))
        more = [Need(f"more-{step}", percent=50)] * chance.randrange(2)
        request = asking(Need(f"main-{step}", percent=percent), *more, strategy=strategy)
        assert answers(fleet, request) == answers(afresh(nodes, ledgers, assumed), request)


def test_shapes_that_no_node_has_are_forgotten() -> None:
    """A cluster of pods with shares makes new ones for as long as it runs, and each share asks about all of them."""
    known = shapes.Situations()
    for percent in range(1, 100):
        known.put("n1", None, Shape(None, (), (), frozenset(), rooms=(Room(GPU, 0, percent),)))
        request = asking(Need("main", percent=percent % 50 + 1))
        assert bool(known.filter(request, ["n1"])[0]) == (percent % 50 < percent)
        assert known.preferences(request, ["n1"])["n1"] in ((0, 0), (percent, 0))
    assert len(known._kept) == shapes.KEPT
    assert all(len(found.obstacles) <= 1 and len(found.preferences) <= 1 for found in known._kept.values())
    known.put("n1", None, None)
    for table in (known._whole, known._outlines):
        assert not (table.of or table._same or table._nodes)


ROOMS = st.lists(st.tuples(st.sampled_from([0, 8192, 16384]), st.integers(0, 100)), max_size=5).map(
    lambda each: sorted(Room(GPU, size, capacity(size) * percent // 100) for size, percent in each)
)
NEED = st.one_of(
    st.builds(Need, st.just("main"), memory_mib=st.sampled_from([1024, 5120, 16384]), role=st.just(MAIN)),
    st.builds(Need, st.just("main"), percent=st.sampled_from(PERCENTS), role=st.sampled_from([MAIN, INIT, SIDECAR])),
)


@given(NEED, ROOMS)
def test_one_part_needs_no_search_to_fit(need: Need, rooms: list[Room]) -> None:
    """What is said without one is what the search finds."""
    share = ShareRequest((need,), RESOURCES)
    found = allocation.place(share, "", rooms)
    assert (allocation.share_shortage(share, rooms) is None) == (found is not None)
    assert allocation.tightness(share, rooms) == (rooms[found[0].place].free if found else 0)


def test_who_asks_for_dozens_of_parts_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call looks at no more situations than its effort, and those that follow get on until every node is decided."""
    looked = []
    step = allocation._Search._step

    def counted(self: allocation._Search) -> bool:
        looked.append(self)
        return step(self)

    monkeypatch.setattr(allocation._Search, "_step", counted)
    names = [f"n{number}" for number in range(60)]
    known, chance = shapes.Situations(), random.Random(1)
    for name in names:
        rooms = sorted(Room(GPU, 81920, 100 * (81920 - 1024 * chance.randrange(30))) for _ in range(8))
        known.put(name, None, Shape(None, (), (), frozenset(), rooms=tuple(rooms)))
    hostile = asking(*(Need(f"c{number}", percent=chance.choice((37, 41, 43, 29, 23))) for number in range(24)))
    undecided = []
    for _ in range(10):
        looked.clear()
        fits, refused = known.filter(hostile, names)
        assert len(looked) <= shapes.EFFORT + len(names)
        undecided.append(len(refused.get(allocation.NOT_COMPARED, [])))
        looked.clear()
        known.preferences(hostile, names)
        assert len(looked) <= shapes.EFFORT + len(names)
        assert len(fits) + sum(map(len, refused.values())) == len(names)
    assert undecided[0] > 0
    assert undecided == sorted(undecided, reverse=True)
    assert undecided[-1] == 0


def test_a_node_that_a_call_did_not_get_to_has_its_preference_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it had none is no answer to keep."""
    monkeypatch.setattr(shapes, "EFFORT", 2)
    known, two = shapes.Situations(), asking(Need("a", percent=30), Need("b", percent=20))
    for name, free in (("n1", 100), ("n2", 90)):
        known.put(name, None, Shape(None, (), (), frozenset(), rooms=(Room(GPU, 0, free),)))
    assert known.preferences(two, ["n1", "n2"]) == {"n1": (100, 0), "n2": (0, 0)}
    assert known.preferences(two, ["n2"]) == {"n2": (90, 0)}


def test_states_are_those_of_the_ledger_that_is_given() -> None:
    """Also where another one of its node had the same version: a proposed change has, and a restored backup may."""
    for percent in (10, 20, 10):
        [first, *_] = device_states(taken("n1", percent, version="7"))
        assert first.device == Device(GPU, 0)
        assert first.room.free == 100 - percent
    for number in range(KEPT):
        device_states(taken("n1", 10, version=f"of-others-{number}"))
    [first, *_] = device_states(taken("n1", 30, version="7"))
    assert first.room.free == 70


def test_shares_that_open_a_device_leave_whole_nodes_to_groups() -> None:
    """Of nodes where a share fits equally well, the one with the fewest devices that are nobody's is the best."""
    fleet, names = Fleet(), [f"n{number}" for number in range(10)]
    for name in names:
        fleet.set_node(name, a_node(name))
        fleet.set_ledger(name, taken(name))
    for number in range(20):
        request = asking(Need("main", percent=60))
        fits = fleet.filter(request, names).fits
        scores = fleet.prioritize(request, fits)
        best = [name for name, score in scores.items() if score == max(scores.values())]
        # As kube-scheduler's own least-allocated scoring would, of equally good ones the emptiest is taken.
        node = max(best, key=lambda name: len(fleet.free(name)))
        ledger = fleet.ledger(node)
        assert ledger is not None
        shares = allocation.choose_shares(request.share, request.strategy, fleet.rooms(node))
        assert shares is not None
        claims = {**ledger.claims, f"uid-{number}": Claim(pod=f"default/{number}", shares=list(shares))}
        fleet.set_ledger(node, replace(ledger, spec=LedgerSpec(claims)))
    assert sum(len(fleet.free(name)) == 4 for name in names) == 5
