"""Every order of two binders and a leader that counts: a quota that allows one group never has two that are bound.

All orders of their requests are tried. Whoever stops for ever is covered, since the quota is looked at after each step.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import Group
from deviceshare.loops.kinds import DEVICE_QUOTAS, GROUPS
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.protocol.reserve import recount, reserve
from tests.unit.domain.objects import GPU
from tests.unit.loops.model import Actor, ModelCluster

Work = Callable[["Race"], Coroutine[Any, Any, Any]]


class Race:
    """The groups a and b want two devices each; the quota allows two; an earlier bind of a reserved them and died."""

    def __init__(self, written_since: bool, works: tuple[Work, ...], *, mirrored: bool = False) -> None:
        self.cluster = ModelCluster()
        for name in ("a", "b"):
            self.cluster.put(GROUPS, {"metadata": {"name": name, "uid": name}, "spec": {"resources": {GPU: 2}}})
        self.cluster.put(DEVICE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {GPU: 2}}})
        Actor("first count", recount(self.cluster, "q", suspects=[], bound=[])).finish()
        Actor("died", reserve(self.cluster, self.group("a"), ["q"])).finish()
        quota = self.cluster.read(DEVICE_QUOTAS, "q")
        assert quota is not None
        self.known = {"q": quota} if mirrored else {}
        if written_since:
            self.cluster.edit(GROUPS, "a", {})
        self.actors = [Actor(work.__name__, work(self)) for work in works]

    def group(self, name: str) -> Group:
        found = self.cluster.read(GROUPS, name)
        assert found is not None
        return found

    def step(self, number: int) -> None:
        if self.actors[number].name == bind_b_at_once.__name__:
            self.actors[number].finish()
        else:
            self.actors[number].step()
        bound = [name for name in ("a", "b") if self.group(name).node]
        assert len(bound) <= 1, f"{bound} are bound"
        for name in bound:
            quota = self.cluster.read(DEVICE_QUOTAS, "q")
            assert quota is not None
            assert name in quota.status.reservations, f"{name} is bound and not counted"

    def close(self) -> None:
        for actor in self.actors:
            actor.crash()


async def bind(race: Race, name: str) -> None:
    """As the Binder does it, but for the ledger, which is another one for each of these groups."""
    group = await race.cluster.get(GROUPS, name)
    await reserve(race.cluster, group, ["q"], race.known)
    await holders.settle(race.cluster, group, f"node-of-{name}", (Device(GPU, 0), Device(GPU, 1)), token="t")


async def bind_a(race: Race) -> None:
    await bind(race, "a")


async def bind_b(race: Race) -> None:
    await bind(race, "b")


async def bind_b_at_once(race: Race) -> None:
    """All of its requests in one step, so that the orders stay few."""
    await bind(race, "b")


async def count(race: Race) -> DeviceQuota | None:
    return await recount(race.cluster, "q", suspects=["a"], bound=[])


def orders(start: Callable[[], Race]) -> Iterator[list[int]]:
    """Takes every order in which the actors may go on to their ends; an order is replayed from its beginning."""
    pending: list[list[int]] = [[]]
    while pending:
        order = pending.pop()
        race = start()
        for number in order:
            race.step(number)
        while running := [number for number, actor in enumerate(race.actors) if not actor.over]:
            first, *others = running
            pending += [[*order, other] for other in others]
            order = [*order, first]
            race.step(first)
        race.close()
        yield order


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("written_since", [False, True])
@pytest.mark.parametrize(
    ("works", "least"), [((bind_a, bind_b_at_once, count), 500), ((bind_a, bind_b), 30), ((bind_a, count), 30)]
)
def test_no_order_of_requests_exceeds_the_quota(
    works: tuple[Work, ...], least: int, written_since: bool, mirrored: bool
) -> None:
    """A reservation of an earlier bind is dropped by the leader just while the group is bound by it after all.

    Where binds have a mirror, it shows the quota as it was at first.
    """
    many = sum(1 for _ in orders(lambda: Race(written_since, works, mirrored=mirrored)))
    assert many > least


def test_a_late_mirror_never_counts_less_than_a_group_holds() -> None:
    """The watch of groups is silent: the leader sees a as it was bound before, with fewer devices than it reserved."""
    race = Race(written_since=False, works=())
    race.cluster.edit(GROUPS, "a", {"spec": {"resources": {GPU: 1}}, "status": {"nodeName": "old"}})
    stale = race.group("a")
    race.cluster.edit(GROUPS, "a", {"spec": {"resources": {GPU: 2}}, "status": {"nodeName": ""}})
    Actor("bind", bind(race, "a")).finish()
    Actor("count", recount(race.cluster, "q", suspects=[], bound=[stale])).finish()
    quota = race.cluster.read(DEVICE_QUOTAS, "q")
    assert quota is not None
    assert quota.used(GPU) == 2
    assert isinstance(Actor("bind", bind(race, "b")).finish(), Refused)


def test_a_new_quota_counts_groups_that_no_mirror_shows_yet() -> None:
    """What is bound is listed; a quota of this name that is mirrored, and was counted, may be another one."""
    race = Race(written_since=False, works=())
    race.cluster.edit(GROUPS, "a", {"status": {"nodeName": "n1"}})
    race.cluster.put(DEVICE_QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": {GPU: 2}}})
    assert isinstance(Actor("bind", bind(race, "b")).finish(), Refused)
    Actor("count", recount(race.cluster, "q", suspects=[], bound=[])).finish()
    quota = race.cluster.read(DEVICE_QUOTAS, "q")
    assert quota is not None
    assert (quota.observed, quota.used(GPU)) == (True, 2)
    assert "held by group a" in str(Actor("bind", bind(race, "b")).finish())


@pytest.mark.parametrize(
    ("then", "requests"), [("nothing", 1), ("written", 3), ("reserved", 1), ("reserved by this group as it is", 1)]
)
def test_a_quota_is_read_only_where_the_mirrors_copy_does_not_do(then: str, requests: int) -> None:
    """What is there already isn't written, and so has to be read; a reservation of an older bind is written anew."""
    race = Race(written_since=then == "reserved", works=(), mirrored=True)
    group = race.group("a")
    if then in ("nothing", "written"):
        race.cluster.edit(DEVICE_QUOTAS, "q", {"status": {"reservations": {"a": None}}})
        quota = race.cluster.read(DEVICE_QUOTAS, "q")
        assert quota is not None
        race.known = {"q": quota}
    if then == "written":
        race.cluster.edit(DEVICE_QUOTAS, "q", {})
    actor = Actor("reserve", reserve(race.cluster, group, ["q"], race.known))
    steps = 0
    while not actor.over:
        actor.step()
        steps += 1
    assert [each.holds(group) for each in actor.outcome] == [True]
    assert steps - 1 == requests
