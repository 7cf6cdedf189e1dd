"""A mirror that a test fills by hand."""

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.loops.ports import Watcher


class HasMeta(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMeta)


class FixedMirror(Generic[T]):
    """Holds what it is given; `synced` as the test says."""

    def __init__(self, *objects: T, synced: bool = True) -> None:
        self._objects = {each.metadata.key: each for each in objects}
        self.synced = synced

    def get(self, key: str) -> T | None:
        return self._objects.get(key)

    def values(self) -> Iterable[T]:
        return self._objects.values()

    def hear(self, obj: T) -> None:
        """What the mirror's watch brings."""
        self._objects[obj.metadata.key] = obj

    def put(self, obj: Any) -> None:
        raise AssertionError("the webhooks only look things up")

    def subscribe(self, watcher: Watcher) -> None:
        raise AssertionError("the webhooks only look things up")

    def unsubscribe(self, watcher: Watcher) -> None:
        raise AssertionError("the webhooks only look things up")
