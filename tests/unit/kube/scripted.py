"""An API server that misbehaves as it is told: each request is answered by the next step of a script."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from deviceshare.kube.connection import Connection, connect

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Seen(NamedTuple):
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: Any


class Scripted:
    """Once the script is over, requests hang, as they do on a server that is stuck."""

    def __init__(self, *steps: Step) -> None:
        self.steps = deque(steps)
        self.revision = 1_000_000
        """What a collection's version is, asked for with limit=1: that is no step."""
        self.seen: list[Seen] = []
        self.says_versions = True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.says_versions and request.query.get("limit") == "1":
            return await page(self.revision)(request)
        text = await request.text()
        body = json.loads(text) if text else None
        self.seen.append(Seen(request.method, request.rel_url.raw_path, dict(request.query), request.headers, body))
        step = self.steps.popleft() if self.steps else hang()
        return await step(request)


@asynccontextmanager
async def serving(handle: Step, directory: Path) -> AsyncIterator[Connection]:
    """A connection, by a kubeconfig file in `directory`, to a server with this handler."""
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with connect(kubeconfig(directory, f"http://127.0.0.1:{port}")) as connection:
            yield connection
    finally:
        await accepted()
        await runner.cleanup()


async def accepted() -> None:
    """Returns when what clients opened last is a connection.

    A server that is closed between the two leaves the socket open (CPython 3.11), and it is found as garbage later.
    """
    await asyncio.sleep(0.01)


def kubeconfig(directory: Path, server: str, authority: Path | None = None, **user: str) -> str:
    path = directory / "kubeconfig"
    trusted = {"certificate-authority": str(authority)} if authority else {}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server, **trusted}}],
                "users": [{"name": "u", "user": user or {"token": "a-token"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return str(path)


def answer(body: Any, status: int = 200, **headers: str) -> Step:
    """JSON, or the text itself."""
    text = body if isinstance(body, str) else json.dumps(body)

    async def step(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return step


def refuse(code: int, reason: str = "", details: Mapping[str, Any] | None = None, **headers: str) -> Step:
    return answer(status(code, reason, details), code, **headers)


def status(code: int, reason: str = "", details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    body = {"kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code}
    return {**body, "details": details} if details else body


def hang() -> Step:
    async def step(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    return step


def after(go: asyncio.Event, step: Step) -> Step:
    """Answers by `step` once the test has seen what it leads away from."""

    async def wait(request: web.Request) -> web.StreamResponse:
        await go.wait()
        return await step(request)

    return wait


def stream(*chunks: Any, then: str | asyncio.Event = "hang") -> Step:
    """A watch: `chunks` (events as dictionaries, or bytes), then it hangs, ends, at once or at the event, or is cut."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk if isinstance(chunk, bytes) else line(chunk))
        if then == "hang":
            await asyncio.Event().wait()
        if isinstance(then, asyncio.Event):
            await then.wait()
        if then == "cut":
            assert request.transport is not None
            request.transport.abort()
        return response

    return step


def line(event: Any) -> bytes:
    return json.dumps(event).encode() + b"\n"


def event(type_: str, obj: Any) -> dict[str, Any]:
    return {"type": type_, "object": obj}


def node(name: str, version: int, *, uid: str = "", **labels: str) -> dict[str, Any]:
    meta = {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version), "labels": labels}
    return {"metadata": meta}


def page(version: int, *items: Any, token: str = "") -> Step:
    return answer({"metadata": {"resourceVersion": str(version), "continue": token}, "items": list(items)})


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what the server's answers should bring about, and for what lasts then: it may look late."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never came about")
