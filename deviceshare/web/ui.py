"""The page of the web UI over HTTP, and the snapshots of the cluster that it shows."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from deviceshare.domain.answers.picture import Picture
from deviceshare.domain.answers.pod_view import UseView
from deviceshare.domain.vendors import label_of
from deviceshare.web.messages import JSON, Client, Handler, HttpRequest, Refusal, Response, Route, check_origin, plain

# The newest state of something that changes in bursts, encoded once for all its readers.
# A page open on many screens costs no more than on one, and nothing while none is open: a snapshot is made only while
# a reader waits for one, only after a change, and with a pause after each. Slow readers miss those in between.

log = structlog.get_logger(__name__)

PAUSE: Final = 0.5
"""Seconds between two snapshots, at least."""
SHARE: Final = 0.05
"""Of the event loop's time, at most, so that snapshots of a huge cluster don't delay kube-scheduler."""
LONGEST_PAUSE: Final = 3.0
"""Seconds between two snapshots, at most, even where `SHARE` would require more."""
TURN: Final = 0.005
"""Seconds after which the steps of a snapshot let others have the event loop."""
TICK: Final = 5.0
"""Seconds until the next snapshot when no change was reported: a watch may be lost without an error."""


Steps = Generator[None, None, bytes]


class EncodedState(NamedTuple):
    """One state, plain and compressed with gzip; each that differs from the one before gets the next number, from 1."""

    number: int
    body: bytes
    packed: bytes


class Snapshots:
    """The owner runs `run()` as a task and calls `touch` at each change."""

    def __init__(self, make: Callable[[], Steps], *, pause: float = PAUSE, tick: float = TICK) -> None:
        """`make` returns the steps that end in a state, and may raise: the previous state stays the newest.

        They run on the event loop, on which others have their turns between them.
        """
        self._make = make
        self._pause = pause
        self._tick = tick
        self._newest = EncodedState(0, b"", b"")
        self._begun = self._made = 0
        """The numbers of attempts. An attempt includes every change until it began."""
        self._looking = 0
        self._took = 0.0
        """Seconds that the latest attempt had the event loop."""
        self._wanted = asyncio.Event()
        self._stale = asyncio.Event()
        self._round = asyncio.Event()
        self.closed = False

    def touch(self, *_: object) -> None:
        """Notes a change. Takes a mirror's notification, and ignores its arguments."""
        self._stale.set()

    def close(self) -> None:
        """Ends every wait, present and future."""
        self.closed = True
        self._round.set()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Snapshots are made while a reader is inside this context."""
        if not self._looking:
            self._stale.set()  # no tick has run since the last reader left
        self._looking += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._looking -= 1
            if not self._looking:
                self._wanted.clear()

    async def current(self) -> EncodedState:
        """The current state; number 0 when closed before the first. Waits while `make` fails: bound it."""
        with self.looking():
            wanted = self._begun + self._stale.is_set()
            while self._made < wanted and not self.closed:
                await self._round.wait()
        return self._newest

    async def after(self, number: int, patience: float) -> int:
        """The newest number as soon as it is greater; the same one after `patience` seconds, or when closed.

        Call it inside `looking`.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._newest.number <= number and not self.closed:
                    await self._round.wait()
        return self._newest.number

    async def run(self) -> None:
        """Makes snapshots until cancelled."""
        while True:
            await self._wanted.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._tick):
                    await self._stale.wait()
            self._stale.clear()
            self._begun += 1
            self._took = 0.0
            try:
                await self._take(await self._made_of(self._make()))
            except Exception:
                # A failure here must not stop the process, which binds pods.
                log.exception("Failed to make a snapshot for the page")
                self._stale.set()
            await asyncio.sleep(max(self._pause, min(self._took / SHARE, LONGEST_PAUSE)))

    async def _made_of(self, steps: Steps) -> bytes:
        while True:
            began = perf_counter()
            try:
                next(steps)
                while perf_counter() < began + TURN:
                    next(steps)
            except StopIteration as done:
                body: bytes = done.value
                return body
            finally:
                self._took += perf_counter() - began
            await asyncio.sleep(0)

    async def _take(self, body: bytes) -> None:
        if body != self._newest.body:
            packed = await asyncio.to_thread(gzip.compress, body, 1)
            self._newest = EncodedState(self._newest.number + 1, body, packed)
        self._made = self._begun
        ended, self._round = self._round, asyncio.Event()
        ended.set()
        if self.closed:
            self._round.set()


# The page at `/ui`, which shows the cluster's devices, groups and waiting pods. It is read-only, without a login.

MAX_BODY: Final = 1024
"""Requests have no body."""
TIMEOUT: Final = 5.0
"""Also how long a browser that doesn't read its answer can delay the end of the process."""
STREAM_SECONDS: Final = 600.0
"""A stream ends after this; the browser opens the next."""
KEEPALIVE_SECONDS: Final = 10.0
"""Less than any proxy's idle timeout, and how soon a closed browser is noticed."""
MAX_STREAMS: Final = 64
"""Browsers beyond these poll every few seconds."""

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


_COMPRESSED: Final = 4096
"""Bytes of an answer above which it is."""


class Replica(Struct, frozen=True, rename="camel"):
    """The replica that answers, and why its state may be out of date."""

    instance: str
    version: str
    leading: bool
    faults: dict[str, str]
    """Mirror → why it is not synced; empty while all are."""


def encode(replica: Replica, cluster: Picture) -> bytes:
    """The JSON of `/ui/state`; its labels are what people call one device of each resource."""
    resources = {count.resource for count in cluster.total}.union(*(group.wants for group in cluster.groups))
    labels = {resource: label_of(resource) for resource in sorted(resources)}
    return msgspec.json.encode({"replica": replica, "cluster": cluster, "labels": labels})


class Ui:
    """Serves the page, its state (`/ui/state`, JSON), and notifications of changes (`/ui/events`, server-sent events).

    What agents say of their devices' use changes all the time, so the page asks for it by itself (`/ui/use`, JSON).
    `host` is what the server is bound to.
    """

    def __init__(self, snapshots: Snapshots, host: str, use: Callable[[], Awaitable[UseView]]) -> None:
        self._snapshots = snapshots
        self._use = use
        self._host = host
        self._streams = 0
        self._files = {file.name: file.read_bytes() for file in _PAGE.iterdir() if file.suffix in _TYPES}

    def routes(self) -> list[Route]:
        """`/ui` and the paths below it; `/` redirects there."""
        routes: dict[str, Handler] = {"/": self._to_page, "/ui": self._file("index.html")}
        routes |= {f"/ui/{name}": self._file(name) for name in self._files if name != "index.html"}
        routes |= {"/ui/state": self._state, "/ui/events": self._events, "/ui/use": self._answer_use}
        return [Route("GET", path, self._guarded(handler)) for path, handler in routes.items()]

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: HttpRequest) -> Response | None:
            try:
                check_origin(request, self._host)
                response = await handler(request)
            except Refusal as refusal:
                response = refusal.response
            if response is not None:
                response.headers = {**_HEADERS, **response.headers}
            return response

        return guarded

    async def _to_page(self, _: HttpRequest) -> Response | None:
        return Response(status=302, headers={"Location": "ui"})

    def _file(self, name: str) -> Handler:
        headers = {"Content-Type": f"{_TYPES[Path(name).suffix]}; charset=utf-8"}

        async def answer(_: HttpRequest) -> Response | None:
            return Response(body=self._files[name], headers=headers)

        return answer

    async def _state(self, request: HttpRequest) -> Response | None:
        newest = await self._snapshots.current()
        if not newest.number:
            return plain("deviceshare is stopping\n", 503)
        headers = {**JSON, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(body=newest.packed, headers={**headers, "Content-Encoding": "gzip"})
        return Response(body=newest.body, headers=headers)

    async def _answer_use(self, request: HttpRequest) -> Response:
        body = msgspec.json.encode(await self._use())
        headers = {**JSON, "Vary": "Accept-Encoding"}
        if len(body) > _COMPRESSED and "gzip" in request.headers.get("accept-encoding", ""):
            body, headers["Content-Encoding"] = await asyncio.to_thread(gzip.compress, body, 1), "gzip"
        return Response(body=body, headers=headers)

    async def _events(self, request: HttpRequest) -> Response | None:
        if self._streams >= MAX_STREAMS or self._snapshots.closed:
            return plain("too many streams: poll /ui/state every few seconds\n", 503)
        request.client.remove_timeout()  # a stream lasts; STREAM_SECONDS bounds it
        await request.client.begin_stream({**_HEADERS, "Content-Type": "text/event-stream"})
        self._streams += 1
        try:
            with self._snapshots.looking(), suppress(TimeoutError, ConnectionResetError):
                async with asyncio.timeout(STREAM_SECONDS):
                    await send_changes(self._snapshots, request.client)
        finally:
            self._streams -= 1
        return None


async def send_changes(snapshots: Snapshots, client: Client) -> None:
    """Sends the number of each new snapshot, and a comment where there is none for long, until they are closed."""
    sent = 0
    while not snapshots.closed:
        newest = await snapshots.after(sent, KEEPALIVE_SECONDS)
        # A write waits until the browser has read what was sent before: a slow one then gets only the newest number.
        await client.write(f"data: {newest}\n\n".encode() if newest != sent else b":\n\n")
        sent = newest
