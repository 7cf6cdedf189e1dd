"""Long answers: bounded in number, not in time."""

import asyncio

import pytest

from deviceshare.agent import pods_api
from deviceshare.agent.pods_api import Callers, Endpoint, Streams
from deviceshare.web.messages import HttpRequest
from tests.unit.agent.asking import A, B, C, ask, runs, serving
from tests.unit.agent.node import TEAM, Node


class Streaming(Node):
    """Pods at A and B, and an endpoint that answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.set_ledger()
        self.hold(0)
        self.add_pod("a", group_uid=TEAM, ips=[A])
        self.add_pod("b", group_uid=TEAM, ips=[B])
        self.add_pod("c", group_uid=TEAM, ips=[C], namespace="other")
        self.end = asyncio.Event()
        callers, streams = Callers(self.own, runs), Streams()

        async def stay(request: HttpRequest) -> None:
            caller = await callers.caller(request)
            with streams.opened(request, caller):
                await request.client.begin_stream({})
                await self.end.wait()
                await request.client.write(b"done\n")

        self.endpoint = Endpoint("/stay", "Stays.", stay)


async def test_a_stream_outlives_the_time_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends when its handler does."""
    monkeypatch.setattr(pods_api, "TIMEOUT", 0.2)
    node = Streaming()
    async with serving([node.endpoint]) as server:
        asking = asyncio.create_task(ask(server, "/stay"))
        await asyncio.sleep(1.5)
        assert not asking.done()
        node.end.set()

        assert await asking == (200, "done\n")


async def test_streams_are_limited_for_each_pod_and_each_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that has ended one may open another; a namespace takes no more than it leaves to the others."""
    monkeypatch.setattr(pods_api, "MAX_STREAMS_OF_POD", 2)
    monkeypatch.setattr(pods_api, "MAX_STREAMS", 6)
    node = Streaming()
    async with serving([node.endpoint]) as server:
        open_ = [asyncio.create_task(ask(server, "/stay", source=source)) for source in (A, A, B)]
        await asyncio.sleep(0.5)

        assert (await ask(server, "/stay", source=A))[0] == 429
        assert (await ask(server, "/stay", source=B))[0] == 429
        other = asyncio.create_task(ask(server, "/stay", source=C))
        await asyncio.sleep(0.2)
        assert not other.done()
        node.end.set()
        assert (await other)[0] == 200
        assert {(await each)[0] for each in open_} == {200}
        assert (await ask(server, "/stay", source=A))[0] == 200
