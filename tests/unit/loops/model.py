"""A model of the API server for the property tests: versions, compare-and-swap, and a pause before every request.

It is a stand-in for a cluster only where the order of events must be the test's own choice. Each request takes effect
at one instant, with a pause before it. A caller stopped in a pause has done all its earlier writes and none of the
later ones, and whether it learned the outcome of the last makes no difference to anybody else.
"""

import copy
import itertools
from collections.abc import Coroutine, Generator, Mapping
from typing import Any, TypeVar

import msgspec

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import AlreadyExists, ApiError, Conflict, Invalid, Kind, NotFound, Unavailable, Undecodable

T = TypeVar("T")
Raw = dict[str, Any]


class Pause:
    """Gives control back to whoever steps the coroutine; `until` names what it waits for, or "" for nothing."""

    def __init__(self, until: str = "") -> None:
        self.until = until

    def __await__(self) -> Generator["Pause", None, None]:
        yield self


class Actor:
    """One coroutine that a test steps by hand, from pause to pause."""

    def __init__(self, name: str, work: Coroutine[Any, Any, Any], *, until: float = 0.0) -> None:
        self.name = name
        self.until = until
        """When whatever it does is over in any case, for those of which the protocol says so."""
        self.work = work
        self.over = False
        self.outcome: Any = None
        self.waiting = ""

    def step(self) -> None:
        """Runs to the next pause. Refusals and API errors end an actor as they would end a request."""
        try:
            self.waiting = self.work.send(None).until
        except StopIteration as end:
            self.over, self.outcome = True, end.value
        except ApiError as error:
            self.over, self.outcome = True, error
        except Exception as error:
            if type(error).__name__ != "Refused":
                raise
            self.over, self.outcome = True, error

    def crash(self) -> None:
        """Stops for ever, wherever it is."""
        self.over = True
        self.work.close()

    def finish(self) -> Any:
        """Runs to its end, for tests that need no interleaving."""
        while not self.over:
            self.step()
        return self.outcome


class ModelCluster:
    """Implements the Cluster port over dictionaries."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Raw]] = {}
        self.versions = itertools.count(1)
        self.uids = itertools.count(1)
        self._read: dict[str, Any] = {}
        self.refusing: dict[str, bool] = {}
        """The names of pods that refuse our writes, and whether their status does, too."""
        self.refusal: type[ApiError] = Invalid
        """How."""
        self.protected: set[str] = set()
        """The names of pods that no disruption budget lets go."""
        self.rests_on_time = False
        """Whether a pod refused all writes, so that a collector has to wait whatever the server compares."""

    refusal: type[ApiError] = Invalid
    """What `refusing` pods answer."""
    compares = True
    """Whether a Binding's UID and resourceVersion count, as from Kubernetes 1.23 on."""

    async def pause(self) -> None:
        """What a request waits for before it takes effect."""
        await Pause()

    # What a test does at once, as the world does.

    def put(self, kind: Kind[Any], body: Mapping[str, Any], namespace: str = "") -> Raw:
        raw: Raw = copy.deepcopy(dict(body))
        meta = raw.setdefault("metadata", {})
        if namespace:
            meta["namespace"] = namespace
        meta.setdefault("uid", f"{kind.plural}-uid-{next(self.uids)}")
        meta.setdefault("generation", 1)
        meta["resourceVersion"] = str(next(self.versions))
        self._table(kind)[self._key(meta["name"], namespace)] = raw
        return raw

    def remove(self, kind: Kind[Any], name: str, namespace: str = "") -> None:
        self._table(kind).pop(self._key(name, namespace), None)

    def read(self, kind: Kind[T], name: str, namespace: str = "") -> T | None:
        raw = self._table(kind).get(self._key(name, namespace))
        return None if raw is None else self._object(kind, raw)

    def all(self, kind: Kind[T]) -> list[T]:
        return [self._object(kind, raw) for raw in self._table(kind).values()]

    def _object(self, kind: Kind[T], raw: Raw) -> T:
        """The same one for the same version, which names one state of one object."""
        version = raw["metadata"]["resourceVersion"]
        if version not in self._read:
            self._read[version] = decoded(raw, kind)
        found: T = self._read[version]
        return found

    def edit(self, kind: Kind[Any], name: str, patch: Mapping[str, Any], namespace: str = "") -> None:
        raw = self._table(kind)[self._key(name, namespace)]
        before = copy.deepcopy(raw.get("spec"))
        _merge(raw, patch)
        raw["metadata"]["generation"] += raw.get("spec") != before
        raw["metadata"]["resourceVersion"] = str(next(self.versions))
        if raw["metadata"].get("deletionTimestamp") and raw["metadata"].get("finalizers") == []:
            self.remove(kind, name, namespace)

    # The port.

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        await self.pause()
        found = self.read(kind, name, namespace)
        if found is None:
            raise NotFound(f"{kind.plural} {name}")
        meta: Any = getattr(found, "metadata", None)
        if meta.unreadable:
            raise Undecodable(f"{kind.plural} {name}: {meta.fault}")
        return found

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        assert (field_selector, namespace) == ("", "")
        await self.pause()
        key, equals, value = label_selector.partition("=")
        return [
            self._object(kind, raw)
            for raw in self._table(kind).values()
            if not key or (raw["metadata"].get("labels", {}).get(key, None) in ((value,) if equals else _Anything()))
        ]

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T:
        await self.pause()
        if self._key(body["metadata"]["name"], namespace) in self._table(kind):
            raise AlreadyExists(f"{kind.plural} {body['metadata']['name']}")
        return self._object(kind, self.put(kind, body, namespace))

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        timeout: float | None = None,
    ) -> T:
        await self.pause()
        raw = self._table(kind).get(self._key(name, namespace))
        if raw is None:
            raise NotFound(f"{kind.plural} {name}")
        wanted = body.get("metadata", {}).get("resourceVersion")
        assert wanted is not None, "every write of the protocol is conditional"
        if wanted != raw["metadata"]["resourceVersion"]:
            raise Conflict(f"{kind.plural} {name}")
        if kind is PODS and name in self.refusing and (not subresource or self.refusing[name]):
            self.rests_on_time |= bool(subresource)
            raise self.refusal(f"pod {name} takes no such write", said="annotations are full")
        self.edit(kind, name, body, namespace)
        return self._object(kind, raw)

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> None:
        await self.pause()
        raw = self._table(kind).get(self._key(name, namespace))
        if raw is None:
            raise NotFound(f"{kind.plural} {name}")
        meta = raw["metadata"]
        if (uid or meta["uid"], resource_version or meta["resourceVersion"]) != (meta["uid"], meta["resourceVersion"]):
            raise Conflict(f"{kind.plural} {name}")
        if meta.get("finalizers"):
            self.edit(kind, name, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, namespace)
        else:
            self.remove(kind, name, namespace)

    async def evict(self, namespace: str, pod: str, *, uid: str, dry_run: bool = False) -> None:
        await self.pause()
        raw = self._table(PODS).get(self._key(pod, namespace))
        if raw is None or raw["metadata"]["uid"] != uid:
            raise NotFound(pod) if raw is None else Conflict(pod)
        if pod in self.protected:
            raise Unavailable(f"pods {pod}: its disruption budget allows none")
        if not dry_run:
            self.edit(PODS, pod, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, namespace)

    async def bind(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str,
        resource_version: str,
        node: str,
        annotations: Mapping[str, str],
        timeout: float,
    ) -> None:
        await self.pause()
        raw = self._table(PODS).get(self._key(pod, namespace))
        if raw is None:
            raise NotFound(f"pod {pod}")
        meta = raw["metadata"]
        wanted = (uid or meta["uid"], resource_version or meta["resourceVersion"])
        if self.compares and wanted != (meta["uid"], meta["resourceVersion"]):
            raise Conflict(f"pod {pod} is not the one that was read")
        if raw.get("spec", {}).get("nodeName") or meta.get("deletionTimestamp"):
            raise Conflict(f"pod {pod}")
        self.edit(PODS, pod, {"spec": {"nodeName": node}, "metadata": {"annotations": dict(annotations)}}, namespace)

    def _table(self, kind: Kind[Any]) -> dict[str, Raw]:
        return self.objects.setdefault(kind.plural, {})

    @staticmethod
    def _key(name: str, namespace: str) -> str:
        return f"{namespace}/{name}" if namespace else name


class _Anything:
    def __contains__(self, value: object) -> bool:
        return value is not None


def decoded(raw: Raw, kind: Kind[T]) -> T:
    """As the API client does it: of an object that can't be read, what can be."""
    try:
        return msgspec.convert(raw, kind.type)
    except msgspec.ValidationError:
        return decoder_of(kind.type).salvage(msgspec.json.encode(raw))


def _merge(target: Raw, patch: Mapping[str, Any]) -> None:
    """RFC 7386."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            child = target.get(key)
            if not isinstance(child, dict):
                child = target[key] = {}
            _merge(child, value)
        else:
            target[key] = value
