"""The page at `/ui`: what deviceshare sees, to look at. It changes nothing and asks nobody for a password.

Nobody is let near who isn't meant to be, by three rules. The page listens on loopback unless told otherwise, where
`kubectl port-forward` brings those who may reach the pod. It answers GET alone, and a browser may use what it sends
only in the page itself (the headers below). And it answers to no foreign name and no other page (origins.py).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec
from aiohttp import web
from msgspec import Struct

from deviceshare.domain.answers.picture import Picture
from deviceshare.domain.vendors import label_of
from deviceshare.web.origins import OwnNames, check_origin
from deviceshare.web.server import BOUND
from deviceshare.web.snapshots import Snapshots

MAX_BODY: Final = 1024
"""Nothing is posted."""
TIMEOUT: Final = 5.0
"""Also how long a browser that doesn't take its answer may hold up a process that stops."""
STREAM_SECONDS: Final = 600.0
"""A stream ends after this; the browser opens the next by itself."""
KEEPALIVE_SECONDS: Final = 10.0
"""Less than any proxy waits. It is also how soon a browser that is gone is noticed."""
MAX_STREAMS: Final = 64
"""Who comes later asks every few seconds instead."""

_PAGE: Final = Path(__file__).parent / "page"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Replica(Struct, frozen=True, rename="camel"):
    """Who answers, and why what it knows may be out of date."""

    instance: str
    version: str
    leading: bool
    faults: dict[str, str]
    """Mirror → what is wrong with it; empty while all are synced."""


class PageState(Struct, frozen=True, rename="camel"):
    """What `/ui/state` tells."""

    replica: Replica
    cluster: Picture
    labels: dict[str, str]
    """Resource → what people call one of its devices."""


def encode(replica: Replica, cluster: Picture) -> bytes:
    """The JSON of `/ui/state`."""
    resources = {count.resource for count in cluster.total}.union(*(group.wants for group in cluster.groups))
    labels = {resource: label_of(resource) for resource in sorted(resources)}
    return msgspec.json.encode(PageState(replica, cluster, labels))


_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Ui:
    """Serves the page, what it shows (`/ui/state`, JSON), and when that changed (`/ui/events`, server-sent events).

    `host` is what the server is bound to.
    """

    def __init__(self, snapshots: Snapshots, host: str) -> None:
        self._snapshots = snapshots
        self._own_names = OwnNames(host)
        self._streams = 0
        self._files = {file.name: file.read_bytes() for file in _PAGE.iterdir() if file.suffix in _TYPES}

    def routes(self) -> list[web.RouteDef]:
        """`/ui` and what is under it; `/` leads there."""
        routes: dict[str, _Handler] = {"/": self._to_page, "/ui": self._file("index.html")}
        routes |= {f"/ui/{name}": self._file(name) for name in self._files if name != "index.html"}
        routes |= {"/ui/state": self._state, "/ui/events": self._events}
        return [web.get(path, self._guarded(handler)) for path, handler in routes.items()]

    def _guarded(self, handler: _Handler) -> _Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                check_origin(request, self._own_names)
            except web.HTTPException as refusal:
                refusal.headers.update(_HEADERS)
                raise
            return await handler(request)

        return guarded

    async def _to_page(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={**_HEADERS, "Location": "ui"})

    def _file(self, name: str) -> _Handler:
        headers = {**_HEADERS, "Content-Type": f"{_TYPES[Path(name).suffix]}; charset=utf-8"}

        async def answer(_: web.Request) -> web.StreamResponse:
            return web.Response(body=self._files[name], headers=headers)

        return answer

    async def _state(self, request: web.Request) -> web.StreamResponse:
        newest = await self._snapshots.current()
        if not newest.number:
            return web.Response(status=503, text="deviceshare is stopping\n", headers=_HEADERS)
        headers = {**_HEADERS, "Content-Type": "application/json", "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=newest.packed, headers={**headers, "Content-Encoding": "gzip"})
        return web.Response(body=newest.body, headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= MAX_STREAMS or self._snapshots.closed:
            return web.Response(
                status=503, text="no more streams now; ask /ui/state every few seconds\n", headers=_HEADERS
            )
        stream = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await stream.prepare(request)
        request[BOUND].reschedule(None)  # a stream is meant to last; it bounds itself
        self._streams += 1
        try:
            with self._snapshots.looking(), suppress(TimeoutError, ConnectionResetError):
                async with asyncio.timeout(STREAM_SECONDS):
                    await tell_changes(self._snapshots, stream)
        finally:
            self._streams -= 1
        return stream


class _Writer(Protocol):
    async def write(self, data: bytes) -> None: ...


async def tell_changes(snapshots: Snapshots, stream: _Writer) -> None:
    """Sends the number of each new snapshot, and a comment where there is none for long, until they are closed."""
    told = 0
    while not snapshots.closed:
        newest = await snapshots.after(told, KEEPALIVE_SECONDS)
        # A write waits until the browser has taken what was sent before: who is slow is told the newest one next.
        await stream.write(f"data: {newest}\n\n".encode() if newest != told else b":\n\n")
        told = newest
