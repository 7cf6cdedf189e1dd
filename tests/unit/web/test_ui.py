"""The page over HTTP: what it sends, to whom, and when its streams end."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from deviceshare.domain.answers.picture import draw
from deviceshare.domain.answers.pod_view import UseView, view_of_use
from deviceshare.domain.objects.usage import DeviceHour, NodeUse
from deviceshare.metrics import Metrics
from deviceshare.web import ui
from deviceshare.web.messages import Client
from deviceshare.web.server import Server
from deviceshare.web.ui import Snapshots
from tests.unit.domain.objects import a_fleet, a_group, a_ledger, a_node, a_pod, gpus


class Page:
    """The page of a small cluster, served."""

    def __init__(self) -> None:
        self.faults: dict[str, str] = {}
        self.groups = [a_group("team", node="n1")]
        self.metrics = Metrics()
        self.snapshots = Snapshots(self._draw, pause=0.0)
        self.use = UseView(15.0, 1, [])
        routes = ui.Ui(self.snapshots, "page.example", self._now).routes()
        self.server = Server("ui", "127.0.0.1", 0, routes, self.metrics, max_body=ui.MAX_BODY, timeout=5)
        self.session: aiohttp.ClientSession

    def _draw(self) -> ui.Steps:
        pods = (a_pod("p1", "team", node="n1", devices=gpus(0, 1)), a_pod("p2", "other"))
        fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1)),), pods=pods)
        replica = ui.Replica("replica-1", "1.0", leading=True, faults=self.faults)
        yield
        return ui.encode(replica, draw(fleet, self.groups, pods))

    async def _now(self) -> UseView:
        return self.use

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server.port}{path}"

    def change(self) -> None:
        """Something happens in the cluster."""
        self.groups.append(a_group(f"team-{len(self.groups)}"))
        self.snapshots.touch()

    async def get(self, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, str]:
        async with self.session.get(self.url(path), headers=headers, allow_redirects=False) as response:
            return response, await response.text()

    def streams(self) -> float | None:
        return self.metrics.registry.get_sample_value("deviceshare_requests_inflight", {"verb": "ui/events"})


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    page = Page()
    task = asyncio.create_task(page.snapshots.run())
    await page.server.start()
    async with asyncio.timeout(20), aiohttp.ClientSession() as page.session:
        yield page
    page.snapshots.close()
    await page.server.stop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def told(stream: aiohttp.ClientResponse) -> str:
    """The next event's data; comments are passed over."""
    async for line in stream.content:
        if line.startswith(b"data: "):
            return line.decode().removeprefix("data: ").strip()
    return "the end"


async def test_every_file_that_the_page_asks_for_is_served(page: Page) -> None:
    """With its type, which browsers that don't guess need."""
    files = {file.name for file in (Path(ui.__file__).parent / "page").iterdir()} - {"index.html"}
    _, index = await page.get("/ui")
    types = {".css": "text/css", ".js": "text/javascript"}

    assert {"style.css", "app.js"} <= files
    assert all(f'"ui/{name}"' in index for name in ("style.css", "app.js"))
    for name in files:
        response, _ = await page.get(f"/ui/{name}")
        assert (response.status, response.content_type) == (200, types[Path(name).suffix])


async def test_the_root_leads_to_the_page(page: Page) -> None:
    """Who types only the address gets there."""
    response, _ = await page.get("/")
    assert (response.status, response.headers["Location"]) == (302, "ui")


@pytest.mark.parametrize("path", ["/ui", "/ui/app.js", "/ui/style.css", "/ui/state", "/ui/use"])
async def test_browsers_are_told_to_load_nothing_from_elsewhere(page: Page, path: str) -> None:
    """Nor to run what is written in the page itself, to guess types, to be framed, or to keep anything."""
    headers = (await page.get(path))[0].headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))

    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Set-Cookie" not in headers


async def test_the_state_is_the_picture_and_who_answers(page: Page) -> None:
    """The same Structs that `deviceshare inspect -o json` prints."""
    page.faults = {"pods": "its watch is lost"}
    response, text = await page.get("/ui/state")
    state: dict[str, Any] = json.loads(text)

    assert response.content_type == "application/json"
    assert state["replica"] == {"instance": "replica-1", "version": "1.0", "leading": True, "faults": page.faults}
    [node] = state["cluster"]["nodes"]
    assert [device.get("group") for device in node["devices"]] == ["team", "team", None, None]
    assert [waiting["pod"] for waiting in state["cluster"]["waiting"]] == ["ns/p2"]


async def test_the_state_is_packed_for_who_can_unpack_it(page: Page) -> None:
    """2,400 devices are half a megabyte in plain."""
    packed, text = await page.get("/ui/state", **{"Accept-Encoding": "gzip"})
    plain, same = await page.get("/ui/state", **{"Accept-Encoding": "identity"})

    assert packed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert text == same


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8088", "x.localhost:1", "127.0.0.1:8088", "[::1]:1", "10.1.2.3"]
)
async def test_addresses_and_localhost_are_answered(page: Page, host: str) -> None:
    """What a person types after `kubectl port-forward`."""
    assert (await page.get("/ui", Host=host))[0].status == 200
    assert (await page.get("/ui", Host="page.example:8088"))[0].status == 200, "the name that it is bound to"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example:8088",
        "127.0.0.1.evil.example",
        "a b",
        "localhost:99999",
        "localhost/a",
        "a@localhost",
    ],
)
@pytest.mark.parametrize("path", ["/", "/ui", "/ui/state", "/ui/events"])
async def test_a_foreign_name_is_answered_nothing(page: Page, path: str, host: str) -> None:
    """A web site whose name was pointed at this machine would read it all."""
    response, text = await page.get(path, Host=host)
    assert response.status == 421
    assert "localhost" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_but_get_is_answered(page: Page, method: str) -> None:
    """The page changes nothing, so nothing can be asked of it."""
    for path in ("/ui", "/ui/state", "/ui/events"):
        async with page.session.request(method, page.url(path)) as response:
            assert response.status == 405


async def test_a_stream_tells_when_something_changed(page: Page) -> None:
    """Once at its beginning, so that who came late asks for the state, too."""
    async with page.session.get(page.url("/ui/events")) as stream:
        assert stream.content_type == "text/event-stream"
        first = await told(stream)
        page.change()
        assert int(await told(stream)) > int(first)


async def test_a_stream_outlasts_the_time_of_other_requests(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """And says something from time to time, so that nobody between takes it for dead."""
    monkeypatch.setattr(ui, "KEEPALIVE_SECONDS", 0.01)
    routes = ui.Ui(page.snapshots, "127.0.0.1", page._now).routes()
    short = Server("ui", "127.0.0.1", 0, routes, page.metrics, max_body=1, timeout=0.1)
    await short.start()
    try:
        async with page.session.get(f"http://127.0.0.1:{short.port}/ui/events") as stream:
            lines = [await stream.content.readline() for _ in range(60)]
            assert lines[::2] == [b"data: 1\n", *[b":\n"] * 29]
    finally:
        page.snapshots.close()
        await short.stop()


class SlowReader:
    """Stands in for a connection that takes each write only when the test says `next`."""

    def __init__(self) -> None:
        self._offered: asyncio.Queue[bytes] = asyncio.Queue()
        self._taken: asyncio.Queue[None] = asyncio.Queue()

    async def write(self, data: bytes) -> None:
        self._offered.put_nowait(data)
        await self._taken.get()

    async def next(self) -> bytes:
        """What is written next, or has been waiting to be."""
        data = await self._offered.get()
        self._taken.put_nowait(None)
        return data


async def test_a_slow_reader_is_told_only_the_newest(page: Page) -> None:
    """What it missed is of no use to it, and must not pile up."""
    reader = SlowReader()
    with page.snapshots.looking():
        telling = asyncio.create_task(ui.send_changes(page.snapshots, cast("Client", reader)))
        assert await reader.next() == b"data: 1\n\n"
        page.change()
        while (await page.snapshots.current()).number < 6:
            page.change()
        assert [await reader.next(), await reader.next()] == [b"data: 2\n\n", b"data: 6\n\n"]
        telling.cancel()


async def test_streams_are_bounded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes later asks for the state every few seconds instead."""
    monkeypatch.setattr(ui, "MAX_STREAMS", 1)
    async with page.session.get(page.url("/ui/events")) as stream:
        await told(stream)
        assert (await page.get("/ui/events"))[0].status == 503
        assert (await page.get("/ui/state"))[0].status == 200


async def test_a_stream_whose_reader_has_gone_makes_room(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found out by writing to it."""
    monkeypatch.setattr(ui, "KEEPALIVE_SECONDS", 0.01)
    async with page.session.get(page.url("/ui/events")) as stream:
        await told(stream)
        assert page.streams() == 1
        stream.close()
    while page.streams():
        await page.get("/ui")


async def test_streams_end_at_once_when_the_process_stops(page: Page) -> None:
    """And none begins any more: stopping must take no longer for people who look."""
    async with page.session.get(page.url("/ui/events")) as stream:
        await told(stream)
        page.snapshots.close()
        assert await told(stream) == "the end"
    assert (await page.get("/ui/events"))[0].status == 503


async def test_a_process_that_stops_before_its_first_picture_says_so(page: Page) -> None:
    """There is nothing to show."""
    page.snapshots.close()
    assert (await page.get("/ui/state"))[0].status == 503


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_page_of_another_origin_is_refused(page: Page, origin: str) -> None:
    """What a cluster looks like is nobody else's business."""
    response, _ = await page.get("/ui/state", Origin=origin)
    assert response.status == 403
    assert response.headers["Content-Security-Policy"]


async def test_the_page_itself_may_name_its_origin(page: Page) -> None:
    """Browsers do so where they needn't."""
    response, _ = await page.get("/ui/state", Origin=page.url(""))
    assert response.status == 200


async def test_the_use_is_what_agents_say(page: Page) -> None:
    """Compressed where it is large; by itself, since it changes all the time."""
    devices = [DeviceHour("nvidia.com/gpu", at, f"GPU-{at}", 1, 2, 37, [36, 37] * 30) for at in range(40)]
    node = view_of_use(NodeUse("n1", "now", devices), detailed=True)
    page.use = UseView(15.0, 3, [msgspec.Raw(msgspec.json.encode(node))])
    response, text = await page.get("/ui/use")
    use: dict[str, Any] = json.loads(text)

    assert (response.content_type, response.headers["Content-Encoding"]) == ("application/json", "gzip")
    assert (use["seconds"], use["agents"], [each["node"] for each in use["nodes"]]) == (15.0, 3, ["n1"])
    assert use["nodes"][0]["devices"][7]["utilization"] == 37
    assert "Content-Encoding" not in (await page.get("/ui/use", **{"Accept-Encoding": "identity"}))[0].headers


async def test_without_agents_there_is_no_use(page: Page) -> None:
    """An answer all the same, too small to be compressed: a browser would log an error for each other one."""
    page.use = UseView(60.0, 0, [])
    response, text = await page.get("/ui/use")
    assert json.loads(text) == {"seconds": 60.0, "agents": 0, "nodes": []}
    assert "Content-Encoding" not in response.headers
