"""Every state that the store has had, one for each revision, from watches of three kinds of object.

All of them are in one store with one counter of revisions, so that events of the watches can be put in order, and a
list can be had of a revision that another list was of:
https://kubernetes.io/docs/reference/using-api/api-concepts/#the-resourceversion-parameter
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import aiohttp

from tests.faults.checker import State
from tests.faults.raw_api import ALL_PODS, GROUPS, LEDGERS, Answered, Json, RawApi

_KINDS = (GROUPS, ALL_PODS, LEDGERS)
_COMPLETE_SECONDS = 60.0


class Event(NamedTuple):
    """One change of one object; `found` is None once it is gone."""

    revision: int
    kind: str
    key: str
    found: Json | None


def _key(found: Json) -> str:
    meta = found["metadata"]
    return "/".join(filter(None, (meta.get("namespace"), meta["name"])))


class StoreHistory:
    """Records until cancelled. `gaps` counts how often the server couldn't say what had changed since."""

    def __init__(self, api: RawApi) -> None:
        self._api = api
        self._events: list[Event] = []
        self._held: dict[str, dict[str, Json]] = {kind: {} for kind in _KINDS}
        """As of the last judgement."""
        self._known: dict[str, dict[str, str]] = {kind: {} for kind in _KINDS}
        """By kind and key the version that the watch told last."""
        self.gaps = 0
        self.judged = 0

    async def record(self) -> None:
        """Watches all kinds."""
        async with asyncio.TaskGroup() as tasks:
            for kind in _KINDS:
                tasks.create_task(self._record(kind), name=f"history {kind}")

    async def _record(self, kind: str) -> None:
        revision = 0
        while True:
            try:
                if not revision:
                    revision = await self._relist(kind)
                async for event in self._watch(kind, revision):
                    revision = int(event["object"]["metadata"]["resourceVersion"])
                    if event["type"] != "BOOKMARK":
                        self._note(kind, event["type"] == "DELETED", event["object"])
            except (Answered, aiohttp.ClientError, OSError) as error:
                if getattr(error, "status", 0) == 410:
                    revision = 0
                    self.gaps += 1
            await asyncio.sleep(0.1)

    async def _relist(self, kind: str) -> int:
        listed = await self._api.call("GET", kind)
        revision = int(listed["metadata"]["resourceVersion"])
        there = {_key(item): item for item in listed["items"]}
        for key in self._known[kind].keys() - there.keys():
            self._events.append(Event(revision, kind, key, None))
            del self._known[kind][key]
        for key, item in there.items():
            if self._known[kind].get(key) != item["metadata"]["resourceVersion"]:
                self._note(kind, False, item)
        return revision

    async def _watch(self, kind: str, revision: int) -> AsyncIterator[Json]:
        url = f"{self._api.server}{kind}?watch=1&allowWatchBookmarks=true&resourceVersion={revision}"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=90)
        async with self._api.session.get(url, timeout=timeout) as answer:
            if answer.status != 200:
                raise Answered(answer.status, await answer.text())
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Answered(event["object"].get("code", 500), line.decode())
                yield event

    def _note(self, kind: str, gone: bool, found: Json) -> None:
        version, key = found["metadata"]["resourceVersion"], _key(found)
        self._events.append(Event(int(version), kind, key, None if gone else found))
        if gone:
            self._known[kind].pop(key, None)
        else:
            self._known[kind][key] = version

    async def now(self) -> State:
        """The store as it is: three lists of one revision."""
        return (await self._now())[1]

    async def _now(self) -> tuple[int, State]:
        pods = await self._api.call("GET", ALL_PODS)
        revision = pods["metadata"]["resourceVersion"]
        exact = f"?resourceVersion={revision}&resourceVersionMatch=Exact"
        groups, ledgers = await asyncio.gather(*(self._api.call("GET", kind + exact) for kind in (GROUPS, LEDGERS)))
        return int(revision), State(*({_key(item): item for item in each["items"]} for each in (groups, pods, ledgers)))

    async def states(self) -> AsyncIterator[tuple[int, State]]:
        """Those since the last call, with their revisions; waits until the watches have told all of them."""
        revision, last = await self._in_the_end()
        async with asyncio.timeout(_COMPLETE_SECONDS):
            while not self._complete(revision, last):  # noqa: ASYNC110 three watches write it
                await asyncio.sleep(0.05)
        for at, state in self._replay(revision):
            self.judged += 1
            yield at, state
        yield revision, last

    async def _in_the_end(self) -> tuple[int, State]:
        """The store as it is, though the API server may have just been started again."""
        async with asyncio.timeout(_COMPLETE_SECONDS):
            while True:
                with suppress(Answered):
                    return await self._now()
                await asyncio.sleep(0.2)

    def _complete(self, revision: int, last: State) -> bool:
        latest = {kind: dict(self._held[kind]) for kind in _KINDS}
        for event in sorted(self._events, key=lambda each: each.revision):
            if event.revision <= revision:
                _apply(latest, event)
        wanted = dict(zip(_KINDS, last, strict=True))
        return all(_versions(latest[kind]) == _versions(wanted[kind]) for kind in _KINDS)

    def _replay(self, revision: int) -> Iterator[tuple[int, State]]:
        due = sorted((each for each in self._events if each.revision <= revision), key=lambda each: each.revision)
        self._events = [each for each in self._events if each.revision > revision]
        for event in due:
            _apply(self._held, event)
            yield event.revision, State(*(self._held[kind] for kind in _KINDS))


def _apply(objects: dict[str, dict[str, Json]], event: Event) -> None:
    if event.found is None:
        objects[event.kind].pop(event.key, None)
    else:
        objects[event.kind][event.key] = event.found


def _versions(objects: dict[str, Json]) -> dict[str, str]:
    return {key: found["metadata"]["resourceVersion"] for key, found in objects.items()}


@asynccontextmanager
async def recorded(api: RawApi) -> AsyncIterator[StoreHistory]:
    """For the length of the block."""
    history = StoreHistory(api)
    recording = asyncio.create_task(history.record(), name="history")
    try:
        yield history
    finally:
        recording.cancel()
        with suppress(asyncio.CancelledError):
            await recording
