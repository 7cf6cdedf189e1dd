"""Whatever happens to objects and to connections, a mirror ends up holding what the server holds."""

import asyncio
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from deviceshare.domain.objects.nodes import Node
from deviceshare.kube import api
from deviceshare.kube.mirror import ApiMirror, MirrorPace
from deviceshare.loops.kinds import NODES
from deviceshare.loops.ports import ObjectChange
from tests.unit.idle_time import IdleTime
from tests.unit.kube.scripted import event, line, node, serving, status, until

Op = tuple[str, str]
Breaker = Callable[[web.Request, web.StreamResponse], Any]


class MirroredServer:
    """A model of the API server: a history that is compacted, lists in pages of a snapshot, watches that break."""

    def __init__(self) -> None:
        self.revision = 1
        self.compacted = 0
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
        self.changed = asyncio.Event()
        self.trouble: list[str] = []
        self.uids = itertools.count()

    def do(self, op: str, name: str) -> dict[str, Any] | None:
        """A change by whoever; returns the object as a writer would get it."""
        old = self.objects.get(name)
        if op == "delete" and old is None:
            return None
        self.revision += 1
        uid = old["metadata"]["uid"] if old else f"{name}-{next(self.uids)}"
        new = node(name, self.revision, uid=uid)
        if op == "delete":
            del self.objects[name]
            type_ = "DELETED"
        else:
            self.objects[name] = new
            type_ = "MODIFIED" if old else "ADDED"
        self.history.append((self.revision, event(type_, new), dict(self.objects)))
        self.wake()
        return None if op == "delete" else new

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        return await (self.watch(request) if "watch" in request.query else self.list(request))

    async def list(self, request: web.Request) -> web.StreamResponse:
        revision, start = self.revision, 0
        if token := request.query.get("continue"):
            revision, start = (int(part) for part in token.split("/"))
            if revision < self.compacted:
                return web.json_response(status(410, "Expired"), status=410)
        empty: dict[str, dict[str, Any]] = {}
        snapshot = next((objects for at, _, objects in reversed(self.history) if at <= revision), empty)
        items = [snapshot[name] for name in sorted(snapshot)]
        end = start + int(request.query.get("limit", "1000"))
        more = f"{revision}/{end}" if end < len(items) else ""
        await asyncio.sleep(0)
        meta = {"resourceVersion": str(revision), "continue": more}
        return web.json_response({"metadata": meta, "items": items[start:end]})

    async def watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.compacted and at % 2:
            return web.json_response(status(410, "Expired"), status=410)
        response = web.StreamResponse()
        await response.prepare(request)
        if at < self.compacted:
            await response.write(line(event("ERROR", status(410, "Expired"))))
            return response
        while True:
            for revision, change, _ in self.history:
                if revision > at:
                    await response.write(line(change))
                    at = revision
            if self.trouble:
                return await self.break_off(self.trouble.pop(), request, response)
            await self.changed.wait()

    async def break_off(self, how: str, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        if how == "half":
            await response.write(b'{"type":"ADDED","obj')
        if how == "garbage":
            await response.write(b"?\n")
        if how == "bookmark":
            await response.write(line(event("BOOKMARK", node("", self.revision))))
        if how == "hang":
            await asyncio.Event().wait()
        if how == "cut" and request.transport:
            request.transport.abort()
        return response


ops = st.lists(  # `own`: a write of ours, whose answer comes at once or later
    st.one_of(
        st.tuples(st.sampled_from(["write", "delete", "own", "own late"]), st.sampled_from("ab")),
        st.tuples(st.just("trouble"), st.sampled_from(["end", "cut", "half", "garbage", "hang", "bookmark"])),
        st.tuples(st.sampled_from(["compact", "pause", "answer"]), st.just("")),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(before=ops, during=ops, history=ops)
def test_a_mirror_ends_up_with_what_the_server_holds(before: list[Op], during: list[Op], history: list[Op]) -> None:
    """And so does who only follows it. Our own writes are taken in as their answers come, soon or late."""
    with tempfile.TemporaryDirectory() as directory, _SmallPages(), asyncio.Runner(loop_factory=IdleTime) as runner:
        runner.run(_live(before, during, history, Path(directory)))


async def _live(before: list[Op], during: list[Op], history: list[Op], directory: Path) -> None:
    world = MirroredServer()
    followed: dict[str, Node] = {}
    wrong: list[tuple[Node, str]] = []

    def follow(change: ObjectChange[Node]) -> None:
        _, old, new = change
        if old is not None and followed.pop(old.metadata.name, None) != old:
            wrong.append((old, "is not what was told before"))
        if old is not None and new is not None and _version(new) <= _version(old):
            wrong.append((new, "goes back"))
        if new is not None and followed.setdefault(new.metadata.name, new) is not new:
            wrong.append((new, "was there already"))

    async with serving(world.handle, directory) as connection:
        pace = MirrorPace(quiet=0.05, first_pause=0.001, longest_pause=0.01)
        mirror = ApiMirror(api.Api(connection, timeout=1.0), NODES, pace=pace)
        mirror.subscribe(follow)
        await _play(world, mirror, before)
        running = asyncio.create_task(mirror.run())
        await _play(world, mirror, during)
        await mirror.wait_listed()
        await _play(world, mirror, history)
        world.trouble.clear()
        world.do("write", "last")
        await until(lambda: _contents(mirror.values()) == _contents(_nodes(world)))
        assert not running.done()
        running.cancel()
        await asyncio.wait({running})
    assert _contents(followed.values()) == _contents(_nodes(world))
    assert wrong == []


async def _play(world: MirroredServer, mirror: ApiMirror[Node], history: list[Op]) -> None:
    answers: list[dict[str, Any] | None] = []
    for op, argument in history:
        if op == "trouble":
            world.trouble.append(argument)
            world.wake()
        elif op == "compact":
            world.compacted = world.revision
        elif op == "pause":
            await asyncio.sleep(0.003)
        elif op in ("own", "own late", "answer"):
            if argument:
                answers.append(world.do("write", argument))
            if op != "own late":
                for written in answers:
                    mirror.put(msgspec.convert(written, Node))
                answers.clear()
        else:
            world.do(op, argument)


def _nodes(world: MirroredServer) -> list[Node]:
    return [msgspec.convert(raw, Node) for raw in world.objects.values()]


def _contents(nodes: Any) -> dict[str, tuple[str, str]]:
    return {n.metadata.name: (n.metadata.uid, n.metadata.resource_version) for n in nodes}


def _version(n: Node) -> int:
    return int(n.metadata.resource_version)


class _SmallPages:
    def __enter__(self) -> None:
        self.size, api.PAGE = api.PAGE, 2

    def __exit__(self, *_: object) -> None:
        api.PAGE = self.size
