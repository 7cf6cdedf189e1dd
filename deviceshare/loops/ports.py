"""The ports of the loops: an API server, mirrors of its objects, and a recorder of Events.

The loops know these Protocols only; `deviceshare.kube` implements them, and property tests drive the same loops over a
model of an API server that crashes and delays them at will.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from deviceshare.domain import contract

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ApiError(Exception):
    """The API server refused a request or could not be reached."""

    def __init__(self, message: str, *, retry_after: float | None = None, said: str = "") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds the server asked us to wait, where it did."""
        self.said = said
        """The server's own words, without the request."""


class NotFound(ApiError):
    """404: there is no such object"""


class Conflict(ApiError):
    """409: the resourceVersion or UID moved on; read again and decide again"""


class AlreadyExists(Conflict):
    """409 on a create"""


class Expired(ApiError):
    """410: the version to continue from is gone; list again"""


class Forbidden(ApiError):
    """401 or 403: not our right; retrying at once can't help"""


class Invalid(ApiError):
    """400 or 422: the request itself is wrong"""


class TooLarge(ApiError):
    """413, or etcd's word for it: the object, or the write, has more bytes than are stored"""


class Undecodable(ApiError):
    """The answer came, but what it holds isn't what its kind says: a person has to correct it"""


class Unavailable(ApiError):
    """429, 5xx, a time-out or a broken connection: retry later; the write may have happened"""


@dataclass(frozen=True, eq=False, repr=False)
class Kind(Generic[T_co]):
    """One kind of API object: where it lives and the Struct it is decoded to."""

    api_version: str
    kind: str
    plural: str
    type: type[T_co]
    namespaced: bool = field(kw_only=True)

    @property
    def is_ours(self) -> bool:
        """Whether it is a custom resource of deviceshare's."""
        return self.api_version.startswith(f"{contract.API_GROUP}/")

    def path(self, name: str = "", namespace: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of one object, or of its subresource."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return "/".join([f"{root}{scope}/{self.plural}", *filter(None, (name, subresource))])

    def __repr__(self) -> str:
        return f"Kind({self.kind})"


class Cluster(Protocol):
    """The API server. Every call is bounded in time and raises an `ApiError`.

    Reads are quorum reads ("fresh" in claims.md), never answered from a cache. A patch is a JSON merge patch
    (RFC 7386); one that carries `metadata.resourceVersion` is a compare-and-swap. One with a `timeout` takes effect
    within so many seconds or never.

    What of an object can't be read is named in its `metadata.unreadable`, in lists, answers to writes and mirrors.
    `get` raises Undecodable for such an object, since who asks for one object decides by it.
    """

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T: ...

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]: ...

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "") -> T: ...

    async def patch(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        timeout: float | None = None,
    ) -> T: ...

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> None: ...

    async def evict(self, namespace: str, pod: str, *, uid: str, dry_run: bool = False) -> None:
        """Asks for the pod's end, as a drain does, or only whether that is allowed now.

        Raises Unavailable while a PodDisruptionBudget forbids it, Conflict when another pod has its name.
        """
        ...

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
        """POST the pod's Binding; raises Conflict when the pod is already bound, NotFound when it is gone.

        Conflict, too, when the pod has another UID or, unless "", another resourceVersion, where the server compares
        them.
        """
        ...


class ObjectChange(NamedTuple, Generic[T]):
    """One change of one object, as a mirror reports it."""

    key: str
    """Its `ObjectMeta.key`: the name, for objects without a namespace."""
    old: T | None
    """None for an addition."""
    new: T | None
    """None for a removal."""

    @property
    def sides(self) -> tuple[T, ...]:
        """The object as it was and as it is, as far as it existed and exists."""
        # Read some thirty times for each change of a pod, so without a generator.
        if self.old is None:
            return () if self.new is None else (self.new,)
        return (self.old,) if self.new is None else (self.old, self.new)


Watcher = Callable[[ObjectChange[Any]], object]
"""Called on the event loop at each change."""


class Mirror(Protocol[T_co]):
    """A local copy of a set of API objects, kept by list and watch; it may be stale.

    It holds objects that can't be read, too, with what can be and the rest in `metadata.unreadable`: they are in use.
    """

    @property
    def synced(self) -> bool:
        """Whether the first list has been applied and the watch has not been lost for long."""
        ...

    def get(self, key: str) -> T_co | None:
        """The object with this `ObjectMeta.key`."""
        ...

    def values(self) -> Iterable[T_co]: ...

    def put(self, obj: Any) -> None:
        """Applies an object as our own write returned it, unless a newer one is held already."""
        ...

    def subscribe(self, watcher: Watcher) -> None:
        """Has `watcher` called at each change; existing objects are reported as additions."""
        ...

    def unsubscribe(self, watcher: Watcher) -> None:
        """Ends what `subscribe` began; does nothing where it never began."""
        ...


class Subject(NamedTuple):
    """The object that an Event is about."""

    kind: Kind[Any]
    name: str
    namespace: str = ""
    uid: str = ""


class Recorder(Protocol):
    """Posts Kubernetes Events for people to read; never raises and never waits for the API server.

    `reason` is one CamelCase word. Equal Events are counted, not repeated.
    """

    def note(self, subject: Subject, reason: str, message: str) -> None:
        """Records an Event of type Normal."""
        ...

    def warn(self, subject: Subject, reason: str, message: str) -> None:
        """Records an Event of type Warning."""
        ...
