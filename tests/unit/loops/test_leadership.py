"""The leader election, in virtual time over an API server that delays, fails and hangs."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceshare.domain import contract
from deviceshare.loops.kinds import LEASES, Lease
from deviceshare.loops.leadership import LEASE_NAME, Elector, StillWorking
from deviceshare.loops.ports import AlreadyExists, Cluster, Conflict, Kind, NotFound, Unavailable
from tests.unit.loops.model import ModelCluster
from tests.unit.loops.virtual_time import in_virtual_time, now

T = TypeVar("T")
Fault = Callable[[], Awaitable[None]]
Lead = Callable[[], Coroutine[Any, Any, None]]
WHERE = contract.NAMESPACE


async def fine() -> None:
    await asyncio.sleep(0.01)


async def hang() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise Unavailable("no")


class LeaseServer(ModelCluster):
    """`before` and `after` are what happens on the way to the object and on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Fault = fine
        self.after: Fault = fine
        self.writes: list[dict[str, Any]] = []

    @property
    def holder(self) -> str | None:
        lease = self.read(LEASES, LEASE_NAME, WHERE)
        return lease.spec.holder_identity if lease else None

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        await self.before()
        found = self.read(kind, name, namespace)
        await self.after()
        if found is None:
            raise NotFound(name)
        return found

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        await self.before()
        if self.read(kind, body["metadata"]["name"], namespace):
            raise AlreadyExists(body["metadata"]["name"])
        self.writes.append(dict(body["spec"]))
        self.put(kind, body, namespace)
        await self.after()
        return cast("T", self.read(kind, body["metadata"]["name"], namespace))

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
        await self.before()
        held = cast("Lease | None", self.read(kind, name, namespace))
        if held is None:
            raise NotFound(name)
        if body["metadata"]["resourceVersion"] != held.metadata.resource_version:
            raise Conflict(name)
        self.writes.append(dict(body["spec"]))
        self.edit(kind, name, {"spec": body["spec"]}, namespace)
        written = cast("T", self.read(kind, name, namespace))
        await self.after()
        return written


def elector(server: LeaseServer, name: str) -> Elector:
    return Elector(cast("Cluster", server), name, clock=asyncio.get_running_loop().time)


class LeadersWork:
    """What a leader does: nothing, for ever, while noting when."""

    def __init__(self, slow_stop: float = 0.0) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self._slow_stop = slow_stop

    async def __call__(self) -> None:
        self.began.append(now())
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self._slow_stop)
            self.ended.append(now())


@asynccontextmanager
async def running(candidate: Elector, work: Lead) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(candidate.run(work))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


@in_virtual_time
async def test_the_first_takes_the_lease_and_keeps_it() -> None:
    """And what it writes is what the API server and people expect of a Lease."""
    server, first, second, work, other = LeaseServer(), None, None, LeadersWork(), LeadersWork()
    first, second = elector(server, "a"), elector(server, "b")
    async with running(first, work):
        await asyncio.sleep(1)
        async with running(second, other):
            await asyncio.sleep(300)
            assert (first.leading, second.leading) == (True, False)
            assert server.holder == "a"
            assert (len(work.began), other.began) == (1, [])
    took, *_, renewed, released = server.writes
    micro = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
    assert micro.fullmatch(took.pop("acquireTime"))
    assert micro.fullmatch(took.pop("renewTime"))
    assert took == {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0}
    assert set(renewed) == {"holderIdentity", "leaseDurationSeconds", "renewTime"}
    assert (released["holderIdentity"], released["leaseDurationSeconds"]) == ("", 1)


@in_virtual_time
async def test_a_stopping_leader_ends_its_work_before_it_releases() -> None:
    """However slowly it stops, the next one begins after it, and soon."""
    server, work, other = LeaseServer(), LeadersWork(slow_stop=4.0), LeadersWork()
    async with running(elector(server, "a"), work) as leading, running(elector(server, "b"), other):
        await asyncio.sleep(5)
        leading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leading
        assert server.holder == ""
        await asyncio.sleep(3)
        assert work.ended[0] < other.began[0] < work.ended[0] + 3
    lease = server.read(LEASES, LEASE_NAME, WHERE)
    assert lease is not None
    assert lease.spec.lease_transitions == 1


@in_virtual_time
async def test_a_crashed_leader_is_followed_after_its_lease_ran_out() -> None:
    """By what the follower has seen, and not by anybody's idea of the time: the Lease's own times are nonsense here."""
    server, other = LeaseServer(), LeadersWork()
    spec = {"holderIdentity": "crashed", "leaseDurationSeconds": 15, "renewTime": "1970-01-01T00:00:00.000000Z"}
    server.put(LEASES, {"metadata": {"name": LEASE_NAME}, "spec": spec}, WHERE)
    async with running(elector(server, "b"), other):
        await asyncio.sleep(30)
        assert 15 <= other.began[0] <= 18


@pytest.mark.parametrize(("before", "after"), [(hang, fine), (fail, fine), (fine, fail)])
@in_virtual_time
async def test_a_leader_that_cannot_renew_stops_before_anyone_else_may_begin(before: Fault, after: Fault) -> None:
    """A server that hangs, one that is away, and one whose answers are lost but writes arrive."""
    server, work = LeaseServer(), LeadersWork(slow_stop=3.0)
    candidate = elector(server, "a")
    async with running(candidate, work):
        await asyncio.sleep(5)
        server.before, server.after = before, after
        broken = now()
        await asyncio.sleep(15)
        assert broken + 7 < work.ended[0] < broken + 15
        assert not candidate.leading


@in_virtual_time
async def test_a_leader_whose_server_was_away_leads_again_when_it_is_back() -> None:
    """In the same process: nothing is gained by a restart. The work starts again."""
    server, work = LeaseServer(), LeadersWork()
    async with running(elector(server, "a"), work) as task:
        await asyncio.sleep(5)
        server.before = hang
        await asyncio.sleep(60)
        assert (len(work.began), len(work.ended)) == (1, 1)
        server.before, back = fine, now()
        await asyncio.sleep(10)
        assert len(work.began) == 2
        assert work.began[1] < back + 5
        assert not task.done()


@in_virtual_time
async def test_work_that_does_not_stop_ends_the_process() -> None:
    """It may still write when another leads; and its lease is not released for it, but expires."""
    server, work = LeaseServer(), LeadersWork(slow_stop=60.0)
    async with running(elector(server, "a"), work) as leading:
        await asyncio.sleep(5)
        leading.cancel()
        with pytest.raises(StillWorking):
            await leading
        assert server.holder == "a"


@in_virtual_time
async def test_a_leader_survives_an_outage_shorter_than_its_deadline() -> None:
    """Its own lost answers included: the version it holds is old then, yet the lease is still its own."""
    server, work = LeaseServer(), LeadersWork()
    async with running(elector(server, "a"), work) as leading:
        for before, after in [(hang, fine), (fail, fine), (fine, fail), (fine, hang)]:
            await asyncio.sleep(10)
            server.before, server.after = before, after
            await asyncio.sleep(4)
            server.before, server.after = fine, fine
        await asyncio.sleep(10)
        assert not leading.done()
        assert len(work.began) == 1


@in_virtual_time
async def test_a_leader_whose_lease_was_deleted_makes_it_again() -> None:
    """Somebody tidied up the namespace; nobody else leads, so it goes on."""
    server, work = LeaseServer(), LeadersWork()
    async with running(elector(server, "a"), work):
        await asyncio.sleep(5)
        server.remove(LEASES, LEASE_NAME, WHERE)
        await asyncio.sleep(6)
        assert server.holder == "a"
        assert work.ended == []


@in_virtual_time
async def test_of_two_one_leads_after_the_lease_was_deleted() -> None:
    """As an upgrade does to leases that an older chart contained: whoever makes it first leads, the other waits."""
    for moment in (3.0, 3.7, 4.4, 5.1):
        server, works = LeaseServer(), (LeadersWork(), LeadersWork())
        first, second = elector(server, "a"), elector(server, "b")
        async with running(first, works[0]):
            await asyncio.sleep(1)
            async with running(second, works[1]):
                await asyncio.sleep(moment)
                server.remove(LEASES, LEASE_NAME, WHERE)
                await asyncio.sleep(5)
                leading = [each.leading for each in (first, second)]
                assert sorted(leading) == [False, True]
                assert server.holder == ("a" if leading[0] else "b")
                assert len(works[0].ended) == leading[1]


@in_virtual_time
async def test_a_leader_whose_lease_was_taken_stops_at_once() -> None:
    """Whoever took it, by force or because we slept too long."""
    server, work = LeaseServer(), LeadersWork()
    candidate = elector(server, "a")
    async with running(candidate, work):
        await asyncio.sleep(5)
        server.edit(LEASES, LEASE_NAME, {"spec": {"holderIdentity": "b"}}, WHERE)
        await asyncio.sleep(5)
        assert work.ended[0] < 10
        assert (candidate.leading, server.holder) == (False, "b")


@in_virtual_time
async def test_a_leader_whose_work_fails_releases_and_says_why() -> None:
    """A crashed reconciler must not keep the lease, as it does with the Python client's own election."""
    server = LeaseServer()

    async def broken() -> None:
        raise ZeroDivisionError

    candidate = elector(server, "a")
    with pytest.raises(ZeroDivisionError):
        await candidate.run(broken)
    assert server.holder == ""
    assert not candidate.leading


@in_virtual_time
async def test_a_candidate_that_stops_while_it_takes_the_lease_gives_it_back() -> None:
    """The write arrived, the answer did not: without a look nobody would lead for 15 seconds."""
    server = LeaseServer()

    async def after() -> None:
        await (hang() if server.holder == "a" else fine())

    server.after = after
    async with running(elector(server, "a"), LeadersWork()) as task:
        await asyncio.sleep(1)
        assert server.holder == "a"
        server.after = fine
        task.cancel()
        await asyncio.wait({task})
    assert server.holder == ""


@in_virtual_time
async def test_a_stop_does_not_wait_for_a_dead_server() -> None:
    """Releasing is a courtesy; the lease runs out by itself."""
    server = LeaseServer()
    async with running(elector(server, "a"), LeadersWork()) as task:
        await asyncio.sleep(5)
        server.before = hang
        task.cancel()
        stopped = now()
        await asyncio.wait({task})
        assert now() <= stopped + 10


delay = st.floats(0.0, 12.0)
faults = st.lists(st.tuples(st.sampled_from(["fine", "slow", "fail", "hang"]), delay, delay), max_size=60)


@given(trouble=faults)
@in_virtual_time
async def test_never_two_lead_at_once_and_at_last_one_does(trouble: list[tuple[str, float, float]]) -> None:
    """Whatever happens to each request on its way there and back, with three replicas."""
    server, leaders = LeaseServer(), set()
    script = iter(trouble)
    answer: list[tuple[str, float]] = []

    async def before() -> None:
        what, there, back = next(script, ("fine", 0.01, 0.01))
        answer[:] = [(what, back)]
        await asyncio.sleep(min(there, 0.5) if what != "slow" else there)
        if what == "fail" and there < 6:
            raise Unavailable("on the way there")

    async def after() -> None:
        what, back = answer.pop() if answer else ("fine", 0.01)
        if what == "hang":
            await hang()
        await asyncio.sleep(min(back, 0.5) if what != "slow" else back)
        if what == "fail":
            raise Unavailable("on the way back")

    server.before, server.after = before, after

    async def replica(name: str) -> None:
        async def lead() -> None:
            leaders.add(name)
            assert len(leaders) == 1, leaders
            try:
                await asyncio.Event().wait()
            finally:
                leaders.discard(name)

        await elector(server, name).run(lead)

    async with asyncio.timeout(600):
        replicas = [asyncio.create_task(replica(name)) for name in "abc"]
        await asyncio.wait(replicas, timeout=300)
        assert [task.exception() for task in replicas if task.done()] == []
        assert len(leaders) == 1
        for task in replicas:
            task.cancel()
            await asyncio.wait({task})
        assert leaders == set()
