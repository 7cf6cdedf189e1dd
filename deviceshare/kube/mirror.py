"""A local copy of a set of API objects that survives whatever happens to its watch.

List once, then watch from that version on; the server ends a watch every few minutes, and it is opened again where it
ended, without a list. Bookmarks keep that version young while nothing changes. Only where the server no longer knows
the version (410, as a status or as an ERROR event) is everything listed again, and the difference reported to the
subscribers.
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes

A TCP connection can die without a word. A watch that stays silent for longer than bookmarks are apart is reopened.

Where etcd was restored from a backup, the collection's version is lower than what was seen, and a watch from there is
silent until the new history has come as far. So before a watch is opened again the version is read, and where it went
back, everything is listed again.
https://etcd.io/docs/latest/op-guide/recovery/
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog
from msgspec import Raw, Struct

from deviceshare.domain.objects.object_decoder import ObjectMeta, decoder_of
from deviceshare.kube.api import Api, Collection, WatchEvent, delays
from deviceshare.loops.ports import ApiError, Expired, Kind, ObjectChange, Watcher

log = structlog.get_logger(__name__)

# The objects that a mirror holds: what was listed, what changed since, and our own writes ahead of the watch.
# The API server sends our own write to a watch a little later than it answers the write. Without `put` a decision in
# between would be made on the state before our own last step; with it, older events still under way must not win. So an
# object that was put holds until the watch has come as far. Versions are compared as integers, as KEP-5504 allows for
# the objects of one resource (https://www.kubernetes.dev/resources/keps/5504/); where they are not decimal, `put` does
# nothing.


class Object(Protocol):
    """Whatever has metadata."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=Object)


class Cache(Generic[T]):
    """A set of objects by key. `keep` says which are worth holding; the others are treated as if they weren't there."""

    def __init__(self, keep: Callable[[T], bool] | None = None, see: Callable[[T], T] | None = None) -> None:
        """`see` returns what is believed of an object (pod_guard.py)."""
        self.version = ""
        """The resourceVersion up to which list and watch have sent everything."""
        self._keep = keep
        self._see = see
        self._objects: dict[str, T] = {}
        self._ahead: dict[str, int] = {}
        self._watchers: list[Watcher] = []

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def values(self) -> Iterable[T]:
        """The objects as they are now; later changes don't disturb who iterates."""
        return tuple(self._objects.values())

    def subscribe(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)
        for key, obj in tuple(self._objects.items()):
            _notify(watcher, ObjectChange(key, None, obj))

    def unsubscribe(self, watcher: Watcher) -> None:
        # A new list: a watcher may leave while watchers are being notified.
        self._watchers = [each for each in self._watchers if each != watcher]

    def replace(self, objects: Iterable[T], version: str) -> None:
        """Applies a list; what is not in it is removed."""
        now = _revision(version)
        if now is None or _is_older(version, self.version):
            self._ahead.clear()  # nothing of ours is ahead of it
        else:
            self._ahead = {key: revision for key, revision in self._ahead.items() if revision > now}
        self.version = version
        listed = {obj.metadata.key: obj for obj in objects}
        for key in [key for key in self._objects if key not in listed]:
            if key not in self._ahead:
                self._set(key, None)
        for key, obj in listed.items():
            if key not in self._ahead:
                self._set(key, obj)

    def apply(self, obj: T) -> None:
        """Applies an addition or a change from the watch."""
        self._apply(obj.metadata.key, obj.metadata.resource_version, obj)

    def remove(self, key: str, version: str) -> None:
        """Applies a deletion from the watch."""
        self._apply(key, version, None)

    def put(self, obj: T) -> None:
        """Applies what the API server answered to a write of ours, unless the watch has come as far already.

        Only for objects that the mirror's selectors match.
        """
        key, revision, sent = obj.metadata.key, _revision(obj.metadata.resource_version), _revision(self.version)
        if revision is None or sent is None or revision <= max(sent, self._ahead.get(key, 0)):
            return
        self._ahead[key] = revision
        self._set(key, obj)

    def _apply(self, key: str, version: str, obj: T | None) -> None:
        self.version = version
        if key in self._ahead:
            if (_revision(version) or 0) < self._ahead[key]:
                return
            del self._ahead[key]
        self._set(key, obj)

    def _set(self, key: str, new: T | None) -> None:
        if new is not None and self._see is not None:
            new = self._see(new)
        if new is not None and self._keep is not None and not self._keep(new):
            new = None
        old = self._objects.get(key)
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            self._set(key, None)  # another object under the same name: identity is the UID
            old = None
        if new is not None:
            self._objects[key] = new
        elif old is not None:
            del self._objects[key]
        # Not by version: a history that begins again at a backup gives the same ones to other objects.
        if old != new:
            change = ObjectChange(key, old, new)
            for watcher in self._watchers:
                _notify(watcher, change)


def _notify(watcher: Watcher, change: ObjectChange[Any]) -> None:
    try:
        watcher(change)
    except Exception:
        # One watcher's mistake must not keep the others, or the mirror itself, from seeing the change.
        log.exception("Watcher of mirror failed", watcher=getattr(watcher, "__qualname__", repr(watcher)))


def _is_older(version: str, other: str) -> bool:
    """Whether a resourceVersion is older than another of the same resource; False where either can't be compared."""
    one, two = _revision(version), _revision(other)
    return one is not None and two is not None and one < two


def _revision(version: str) -> int | None:
    return int(version) if version.isdecimal() else None


# The list and the watch that keep them.


class MirrorPace(Struct, frozen=True):
    """The mirror's times, in seconds."""

    quiet: float = 75.0
    """A watch silent for this long is reopened; the API server sends a bookmark about each minute."""
    shortest: float = 300.0
    longest: float = 600.0
    """A watch is asked to last for a time drawn from between these, so that not all end together."""
    lost: float = 30.0
    """Without a watch for longer than this, the mirror no longer calls itself synced."""
    steady: float = 5.0
    """A watch that lasted this long may be opened again at once."""
    first_pause: float = 0.2
    longest_pause: float = 5.0
    """All replicas wait for this after an outage, and the webhooks with them."""


class ApiMirror(Cache[T]):
    """Implements `deviceshare.loops.ports.Mirror`. The owner runs a task with `run()`."""

    def __init__(
        self,
        api: Api,
        kind: Kind[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        keep: Callable[[T], bool] | None = None,
        see: Callable[[T], T] | None = None,
        pace: MirrorPace = MirrorPace(),  # noqa: B008 it is frozen
    ) -> None:
        """`keep` drops at once what isn't worth holding and can't be left out by a selector; `see` as in Cache."""
        super().__init__(keep, see)
        self.events = 0
        """Watch events so far, bookmarks included."""
        self.lists = 0
        """Lists so far; each after the first was forced by a version that the server no longer knew."""
        self._api = api
        self._source = Collection(kind, namespace, label_selector, field_selector)
        self._pace = pace
        self._decoder = decoder_of(kind.type)
        self._listed = asyncio.Event()
        self._relist = True
        self._watching: asyncio.Timeout | None = None
        self.on_rewind: Callable[[], object] = self.start_over
        """Called when the API server's history went back."""
        self._lost_at: float | None = None

    @property
    def kind(self) -> str:
        return self._source.kind.kind

    @property
    def _plural(self) -> str:
        return self._source.kind.plural

    @property
    def synced(self) -> bool:
        if not self._listed.is_set():
            return False
        return self._lost_at is None or time.monotonic() - self._lost_at < self._pace.lost

    def fault(self) -> str:
        """Why it isn't synced, or ""."""
        return "" if self.synced else "not read yet, or its watch is lost"

    async def wait_listed(self) -> None:
        """Returns once the first list has been applied; the caller bounds the wait."""
        await self._listed.wait()

    def start_over(self) -> None:
        """Lists everything again, and isn't synced until then."""
        self.version = ""  # The next list is taken as it is, whatever was seen or written before.
        self._ahead.clear()
        self._relist = True
        self._listed.clear()
        if self._watching is not None:
            self._watching.reschedule(0)  # the watch ends at once

    async def run(self) -> None:
        """Keeps the copy until cancelled."""
        pauses = self._pauses()
        while True:
            events, lists, opened, pause = self.events, self.lists, math.inf, 0.0
            try:
                if not self._relist:
                    self._expect(await self._api.version_of(self._source))
                if self._relist:
                    # A start waits for its lists of all custom resources, which the API server decodes one by one if it
                    # reads etcd; and a mirror may be behind.
                    await self.list(cached=self._source.kind.is_ours and not self._source.query and not self.lists)
                opened = time.monotonic()
                await self._watch()
            except ApiError as error:
                if self._ends(error):
                    return
                expired = isinstance(error, Expired)
                self._relist = self._relist or expired
                if expired and self.lists == lists:
                    pauses = self._pauses()  # The server is there and has said what it takes, so nothing is waited for.
                pause = error.retry_after or 0.0
                # A kind that never changed since the API server started gets no bookmarks, and is silent by rights.
                say = log.info if time.monotonic() - opened > self._pace.steady else log.warning
                say("Mirror lost its watch", kind=self._plural, relist=self._relist, error=str(error))
            now = time.monotonic()
            self._lost_at = self._lost_at or now
            if self.events > events or now - opened > self._pace.steady:
                pauses = self._pauses()
            else:
                pause = max(pause, next(pauses))
            await asyncio.sleep(pause)

    def _ends(self, error: ApiError) -> bool:  # noqa: ARG002 others do
        """Whether the kind can't be mirrored for now; an optional kind may come later (OptionalMirror)."""
        return False

    async def list(self, *, cached: bool = False) -> None:
        """Lists everything as it is now, or as the API server has it `cached`; a watch goes on from there.

        Raises ApiError.
        """
        objects, version = await self._api.snapshot(self._source, self._decode, cached=cached)
        if cached and _is_older(await self._api.version_of(self._source), version):
            # The cache is of a history that a restored backup took back.
            objects, version = await self._api.snapshot(self._source, self._decode)
        with suppress(Expired):
            self._expect(version)
        self.replace(objects, version)
        self.lists += 1
        self._relist = False
        self._listed.set()
        log.info("Mirror listed objects", kind=self._plural, count=len(self), resourceVersion=version)

    async def _watch(self) -> None:
        last = random.uniform(self._pace.shortest, self._pace.longest)
        watch = self._api.watch(self._source, version=self.version, last=last, quiet=self._pace.quiet)
        try:
            async with asyncio.timeout(None) as self._watching, watch as events:
                self._lost_at = None
                async for event in events:
                    self._take(event)
                    self.events += 1
        except TimeoutError as error:
            raise Expired("the mirror starts over") from error
        finally:
            self._watching = None

    def _expect(self, version: str) -> None:
        """Raises Expired where the history went back behind what was seen."""
        if _is_older(version, self.version):
            seen = self.version
            log.error("API server's history went back", kind=self._plural, seen=seen, now=version)
            self.on_rewind()
            raise Expired(f"the history went back from {seen} to {version}, as by a restored backup")

    def _take(self, event: WatchEvent) -> None:
        obj = self._decode(event.object)
        if event.type != "DELETED":
            self._expect(obj.metadata.resource_version)
        if event.type in ("ADDED", "MODIFIED"):
            self.apply(obj)
        elif event.type == "DELETED":
            self.remove(obj.metadata.key, obj.metadata.resource_version)
        else:
            self.version = obj.metadata.resource_version  # A bookmark: everything up to it has been sent.

    def _decode(self, raw: Raw) -> T:
        """The object with what of it can be read: it is there, so it must neither stay as it was nor be missing.

        Raises Expired where it is unknown which object it is; every one that the API server sends has a version.
        """
        try:
            obj = self._decoder.salvage(raw)
        except msgspec.DecodeError as error:
            raise Expired(f"an object of the list or the watch is none: {error}") from error
        meta = obj.metadata
        if not meta.resource_version:
            raise Expired("an object of the list or the watch has no version")
        held = self.get(meta.key) if meta.unreadable else None
        if meta.unreadable and (held is None or held.metadata.resource_version != meta.resource_version):
            version, fault = meta.resource_version, meta.fault
            log.warning("Found an unreadable object", kind=self._plural, object=meta.key, version=version, fault=fault)
        return obj

    def _pauses(self) -> Iterator[float]:
        return delays(self._pace.first_pause, self._pace.longest_pause)


def count_unreadable(mirrors: Iterable[ApiMirror[Any]]) -> dict[str, int]:
    """How many objects that can't be read they hold, by kind."""
    counts: dict[str, int] = {}
    for mirror in mirrors:
        counts[mirror.kind] = counts.get(mirror.kind, 0) + sum(bool(o.metadata.unreadable) for o in mirror.values())
    return counts
