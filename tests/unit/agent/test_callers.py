"""Who asks: by the address of a real connection, over mirrors that the test fills."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from deviceshare.agent import pods_api
from deviceshare.agent.pods_api import Callers, Endpoint, plain
from deviceshare.web.messages import HttpRequest, Response
from deviceshare.web.server import Server
from tests.unit.agent.asking import A, B, C, ask, serving
from tests.unit.agent.node import TEAM, Node


class Home(Node):
    """A node where `member` of the group `team` is at A."""

    def __init__(self) -> None:
        super().__init__()
        self.set_ledger()
        self.hold(0)
        self.add_pod("member", group_uid=TEAM, ips=[A])
        self.ended: set[str] = set()
        """The UIDs of pods without a process."""
        known = Callers(self.own, self.may_run)

        async def whoami(request: HttpRequest) -> Response:
            found = await known.caller(request)
            return plain(f"{found.meta.key} {found.meta.uid} {found.holder}")

        self.endpoint = Endpoint("/whoami", "Who asks.", whoami)

    async def may_run(self, uid: str) -> bool:
        return uid not in self.ended


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
async def server(home: Home) -> AsyncIterator[Server]:
    async with serving([home.endpoint]) as started:
        yield started


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who isn't known is refused soon."""
    monkeypatch.setattr(pods_api, "PATIENCE_SECONDS", 0.05)


async def test_a_pod_is_who_its_address_says(server: Server) -> None:
    """With the holder that the ledger names."""
    assert await ask(server, "/whoami") == (200, "ns/member uid-of-member group team")


async def test_what_a_request_says_of_itself_counts_for_nothing(server: Server, hurried: None) -> None:
    """Not where it was forwarded from, nor for whom."""
    forged = {"X-Forwarded-For": A, "Forwarded": f"for={A}", "X-Real-IP": A, "Host": A}

    status, text = await ask(server, "/whoami", source=B, headers=forged)

    assert status == 403
    assert f"comes from {B}, the address of no running pod on node n1" in text


async def test_a_pod_that_has_just_got_its_address_is_waited_for(home: Home, server: Server) -> None:
    """Its kubelet reports the address a second later."""
    asking = asyncio.create_task(ask(server, "/whoami", source=B))
    await asyncio.sleep(0.1)
    assert not asking.done()
    home.add_pod("late", group_uid=TEAM, ips=[B])

    assert await asking == (200, "ns/late uid-of-late group team")


async def test_a_pod_that_has_ended_does_not_ask(home: Home, server: Server) -> None:
    """Though it isn't known yet that another has its address: neither its name nor its group is told."""
    home.ended.add("uid-of-member")
    asking = asyncio.create_task(ask(server, "/whoami"))
    await asyncio.sleep(0.1)
    assert not asking.done()
    home.add_pod("member", group_uid=TEAM, ips=[A], phase="Succeeded")
    home.add_pod("next", group_uid=TEAM, ips=[A])

    assert await asking == (200, "ns/next uid-of-next group team")


async def test_an_address_between_two_pods_is_nobodys(home: Home, server: Server, hurried: None) -> None:
    """As long as the next isn't known."""
    home.ended.add("uid-of-member")

    status, text = await ask(server, "/whoami")

    assert (status, "a pod that has no process any more" in text) == (403, True)
    assert "member" not in text


async def test_a_claim_that_the_mirror_lacks_is_waited_for(home: Home, server: Server) -> None:
    """The ledger's watch may be behind the pods'."""
    home.set_ledger()
    asking = asyncio.create_task(ask(server, "/whoami"))
    await asyncio.sleep(0.1)
    home.hold(0)

    assert (await asking)[0] == 200


async def test_pods_without_devices_are_told_how_to_get_some(home: Home, server: Server) -> None:
    """At once: nothing that they lack is still to come."""
    home.add_pod("plain", ips=[B])

    status, text = await ask(server, "/whoami", source=B)

    assert status == 403
    assert "pod ns/plain has no devices of deviceshare" in text
    assert "deviceshare.io/group" in text


async def test_a_group_that_lost_its_claim_has_nothing(home: Home, server: Server, hurried: None) -> None:
    """A pod's own annotations don't stand in for the ledger."""
    home.set_ledger()

    status, text = await ask(server, "/whoami")

    assert status == 403
    assert "its group holds none on node n1" in text


async def test_a_mirror_pod_has_nothing_whatever_it_says(home: Home, server: Server) -> None:
    """A static pod was never bound; who writes its manifest may write any annotation."""
    home.add_pod(
        "static",
        ips=[B],
        annotations={"kubernetes.io/config.mirror": "x", "deviceshare.io/group-uid": TEAM},
        labels={"deviceshare.io/group": "team"},
    )

    assert (await ask(server, "/whoami", source=B))[0] == 403


async def test_a_mirror_out_of_touch_is_no_refusal(home: Home, server: Server, hurried: None) -> None:
    """Who asks then is told to ask again."""
    home.pods.synced = False

    status, text = await ask(server, "/whoami", source=C)

    assert status == 503
    assert "ask again" in text


async def test_few_requests_of_one_address_wait_at_once(
    home: Home, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are refused at once, so that a stranger ties up little."""
    monkeypatch.setattr(pods_api, "PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr(pods_api, "MAX_WAITING_OF_ADDRESS", 2)
    asking = [asyncio.create_task(ask(server, "/whoami", source=B)) for _ in range(6)]

    done, waiting = await asyncio.wait(asking, timeout=2)
    assert ([each.result()[0] for each in done], len(waiting)) == ([403] * 4, 2)
    home.add_pod("late", group_uid=TEAM, ips=[B])

    assert {(await each)[0] for each in waiting} == {200}
