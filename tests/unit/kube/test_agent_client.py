"""One agent asked: what answers at its address can neither stop the process nor lead it elsewhere."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web

from deviceshare.domain import contract
from deviceshare.domain.device_health.containers import NodePod, NodePodSpec, NodePodStatus, PodAddress
from deviceshare.domain.objects.usage import DeviceHour, NodeUse
from deviceshare.kube import use_rounds

USE = NodeUse("n1", "now", [DeviceHour("nvidia.com/gpu", 0, "GPU-0", utilization=7, hour=[7])])


@asynccontextmanager
async def answering(answer: web.Response, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """A server that answers everything so, at the agents' port; gives the paths that it was asked."""
    asked: list[str] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return answer

    server = web.Server(handle)
    runner = web.ServerRunner(server)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    assert site._server is not None
    monkeypatch.setattr(contract, "AGENT_PORT", runner.addresses[0][1])
    try:
        yield asked
    finally:
        await runner.cleanup()


async def ask(ip: str = "127.0.0.1") -> NodeUse | None:
    pod = NodePod(spec=NodePodSpec("n1"), status=NodePodStatus("Running", pod_ips=[PodAddress(ip)]))
    async with asyncio.timeout(20):
        return await use_rounds.ask_agent(pod)


async def test_an_agent_is_asked_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its use alone."""
    async with answering(web.json_response(body=msgspec.json.encode(USE)), monkeypatch) as asked:
        assert await ask() == USE
    assert asked == ["/use"]


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=404),
        web.Response(status=302, headers={"Location": "/elsewhere"}),
        web.Response(body=b"{"),
        web.Response(body=b'{"node": 1}'),
        web.Response(body=b'{"node": "\xff"}'),
        web.Response(body=b'{"node": "n1", "devices": ' + b"[" * 100_000),
        web.Response(body=b'{"node": "n1", "time": "' + b"x" * use_rounds.MAX_ANSWER + b'"}'),
        web.Response(body=gzip.compress(b'{"node": "n1"}'), headers={"Content-Encoding": "gzip"}),
    ],
    ids=["missing", "redirect", "cut", "wrong", "bytes", "deep", "huge", "compressed"],
)
async def test_an_answer_that_makes_no_sense_is_none(monkeypatch: pytest.MonkeyPatch, answer: web.Response) -> None:
    """Nor is a redirect followed."""
    async with answering(answer, monkeypatch) as asked:
        assert await ask() is None
    assert asked == ["/use"]


@pytest.mark.parametrize("ip", ["127.0.0.1", "localhost", "127.0.0.1:80/x?", "", "::1"])
async def test_nothing_but_an_address_is_asked(monkeypatch: pytest.MonkeyPatch, ip: str) -> None:
    """Nobody answers at these."""
    monkeypatch.setattr(contract, "AGENT_PORT", 1)
    assert await ask(ip) is None
