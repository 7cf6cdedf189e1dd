"""The objects that a mirror holds: what was listed, what changed since, and our own writes ahead of the watch.

The API server sends our own write to a watch a little later than it answers the write. Without `put` a decision in
between would be made on the state before our own last step; with it, older events still under way must not win. So an
object that was put holds until the watch has come as far. Versions are compared as integers, as KEP-5504 allows for
the objects of one resource (https://www.kubernetes.dev/resources/keps/5504/); where they are not decimal, `put` does
nothing.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import structlog

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.loops.ports import ObjectChange, Watcher

log = structlog.get_logger(__name__)


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

    def rewound_to(self, version: str) -> bool:
        """Whether the API server's history went back behind what was seen, by a restored backup."""
        return is_older(version, self.version)

    def replace(self, objects: Iterable[T], version: str) -> None:
        """Applies a list; what is not in it is removed."""
        now = _revision(version)
        if now is None or self.rewound_to(version):
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

    def forget_versions(self) -> None:
        """Takes the next list as it is, whatever was seen or written before."""
        self.version = ""
        self._ahead.clear()

    def apply(self, obj: T) -> None:
        """Applies an addition or a change from the watch."""
        self._apply(obj.metadata.key, obj.metadata.resource_version, obj)

    def remove(self, key: str, version: str) -> None:
        """Applies a deletion from the watch."""
        self._apply(key, version, None)

    def advance(self, version: str) -> None:
        """Applies a bookmark: everything up to `version` has been sent."""
        self.version = version

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


def is_older(version: str, other: str) -> bool:
    """Whether a resourceVersion is older than another of the same resource; False where either can't be compared."""
    one, two = _revision(version), _revision(other)
    return one is not None and two is not None and one < two


def _notify(watcher: Watcher, change: ObjectChange[Any]) -> None:
    try:
        watcher(change)
    except Exception:
        # One watcher's mistake must not keep the others, or the mirror itself, from seeing the change.
        log.exception("Watcher of mirror failed", watcher=getattr(watcher, "__qualname__", repr(watcher)))


def _revision(version: str) -> int | None:
    return int(version) if version.isdecimal() else None
