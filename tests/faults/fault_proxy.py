"""A proxy between deviceshare and the API server that loses, delays, refuses and cuts what passes through it."""

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

_HOP = {"connection", "content-length", "transfer-encoding", "host", "keep-alive"}
_LATE_SECONDS = 2.0
"""For writes that arrive after a while; less than a Binding may take, so docs/claims.md says that it is harmless."""
_SLOW_SECONDS = 1.5
GONE = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410, "message": "old"}
CONFLICT = {**GONE, "reason": "Conflict", "code": 409, "message": "the object has been modified"}
BUSY = {**GONE, "reason": "TooManyRequests", "code": 429, "message": "too many requests"}
BROKEN = {**GONE, "reason": "InternalError", "code": 500, "message": "etcdserver: request timed out"}

CUT, HALF_OPEN, SLOW = "cut", "half-open", "slow"
TOO_MANY, CONFLICTS, ERRORS = "429 with Retry-After", "409 storm", "5xx"
CUT_WATCHES, EXPIRED, EXPIRED_EVENT = "watches cut in mid-line", "410 as a status", "410 as an event"
LOST_ANSWERS, LATE_WRITES = "answers to writes lost", "writes late and their senders gone"
FAULTS = (
    *(CUT, HALF_OPEN, SLOW, TOO_MANY, CONFLICTS, ERRORS, CUT_WATCHES),
    *(EXPIRED, EXPIRED_EVENT, LOST_ANSWERS, LATE_WRITES),
)


class FaultProxy:
    """Passes requests on, but for the fault that is set."""

    def __init__(self, session: aiohttp.ClientSession, server: str, seed: int) -> None:
        self.url = ""
        self.hit = 0
        """Requests that the fault has met."""
        self._session, self._server = session, server
        self._fault = ""
        self._changed = asyncio.Event()
        self._random = random.Random(seed)
        self._open: dict[int, web.Request] = {}
        self._late: set[asyncio.Task[object]] = set()

    def set(self, fault: str) -> None:
        """From now on this fault, or "" for none; open connections get their part."""
        self._fault, self.hit = fault, 0
        self._changed.set()
        self._changed = asyncio.Event()
        if fault == CUT:
            for request in list(self._open.values()):
                self._abort(request)

    def _abort(self, request: web.Request) -> None:
        self.hit += 1
        if request.transport is not None:
            request.transport.abort()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request."""
        self._open[id(request)] = request
        try:
            if "watch" in request.query:
                return await self._watch(request)
            return await self._call(request)
        except (aiohttp.ClientError, OSError):  # the API server is away
            self._abort(request)
            return web.Response(status=502)
        finally:
            self._open.pop(id(request), None)

    async def _call(self, request: web.Request) -> web.StreamResponse:
        fault, writes = self._fault, request.method != "GET"
        if fault == CUT:
            self._abort(request)
        elif fault == HALF_OPEN:
            self.hit += 1
            await self._changed.wait()
        elif fault == SLOW:
            self.hit += 1
            await asyncio.sleep(self._random.uniform(0, _SLOW_SECONDS))
        elif fault == TOO_MANY and self._chance(0.8):
            return _refusal(BUSY, {"Retry-After": "1"})
        elif fault == ERRORS and self._chance(0.7):
            return _refusal(BROKEN)
        elif fault == CONFLICTS and writes and self._chance(0.8):
            return _refusal(CONFLICT)
        elif fault == LOST_ANSWERS and writes and self._chance(0.6):
            await self._pass_on(request)
            self._abort(request)
        elif fault == LATE_WRITES and writes and self._chance(0.5):
            await request.read()
            late = asyncio.create_task(self._send_late(request), name="late write")
            self._late.add(late)
            late.add_done_callback(self._late.discard)
            self._abort(request)
            return web.Response(status=502)
        return await self._pass_on(request)

    def _chance(self, share: float) -> bool:
        met = self._random.random() < share
        self.hit += met
        return met

    async def _send_late(self, request: web.Request) -> None:
        await asyncio.sleep(self._random.uniform(0.2, _LATE_SECONDS))
        with suppress(aiohttp.ClientError, OSError):
            await self._pass_on(request)

    async def _pass_on(self, request: web.Request) -> web.Response:
        async with self._send(request, 60) as found:
            headers = {key: value for key, value in found.headers.items() if key.lower() not in _HOP}
            return web.Response(status=found.status, body=await found.read(), headers=headers)

    @asynccontextmanager
    async def _send(self, request: web.Request, seconds: float | None) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        url = URL(self._server + request.raw_path, encoded=True)
        body, timeout = await request.read(), aiohttp.ClientTimeout(total=seconds)
        async with self._session.request(
            request.method, url, data=body or None, headers=headers, timeout=timeout
        ) as found:
            yield found

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self._fault == CUT:
            self._abort(request)
        if self._fault == HALF_OPEN:
            await self._changed.wait()
        if self._fault == EXPIRED:
            self.hit += 1
            return _refusal(GONE)
        if self._fault == ERRORS and self._chance(0.7):
            return _refusal(BROKEN)
        async with self._send(request, None) as found:
            response = web.StreamResponse(status=found.status, headers={"Content-Type": "application/json"})
            await response.prepare(request)
            await self._stream(request, found, response)
            return response

    async def _stream(self, request: web.Request, found: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        """Whole lines, so that a fault may add its own between two."""
        line = asyncio.ensure_future(found.content.readline())
        try:
            while True:
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({line, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if self._fault == HALF_OPEN:
                    await self._changed.wait()
                elif self._fault == CUT_WATCHES:
                    await response.write(b'{"type":"MODIFIED","object":{"kind":"Pod","metadata":{"na')
                    self._abort(request)
                    return
                elif self._fault in (EXPIRED, EXPIRED_EVENT):
                    self.hit += 1
                    await response.write(json.dumps({"type": "ERROR", "object": GONE}).encode() + b"\n")
                    return
                elif line.done():
                    if not line.result():
                        return
                    if self._fault == SLOW:
                        await asyncio.sleep(self._random.uniform(0, _SLOW_SECONDS))
                    await response.write(line.result())
                    line = asyncio.ensure_future(found.content.readline())
        finally:
            line.cancel()
            with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                await line


def _refusal(status: dict[str, object], headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(status, status=int(str(status["code"])), headers=headers)


@asynccontextmanager
async def proxying(server: str, pki: Path, seed: int) -> AsyncIterator[FaultProxy]:
    """Over TLS on both sides, with the sandbox's certificates."""
    trust = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    connector = aiohttp.TCPConnector(ssl=trust, limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False, read_bufsize=2**22) as session:
        proxy = FaultProxy(session, server, seed)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", proxy.answer)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        await runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pki / "loopback.crt", pki / "loopback.key")
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        proxy.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield proxy
        finally:
            proxy.set(CUT)
            await runner.cleanup()
