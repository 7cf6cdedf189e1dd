"""The API server's REST interface in raw JSON."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
import structlog
from msgspec import Raw, Struct, field

from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.kube.connection import ApiStatus, Connection, Unserved, refusal_of_status
from deviceshare.kube.http_client import TooLong
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import ApiError, Expired, Invalid, Kind, Unavailable, Undecodable

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Exponential backoff with jitter.


def delays(first: float, most: float) -> Iterator[float]:
    """Seconds to wait before each next try: doubling up to `most`, each drawn from its upper half.

    Drawn, so that clients that failed together don't come back together.
    """
    ceiling = first
    while True:
        yield random.uniform(ceiling / 2, ceiling)
        ceiling = min(ceiling * 2, most)


# Paths and queries of requests to the API server, in which no name reaches another object.
# https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris


def path_of(kind: Kind[Any], name: str, namespace: str, subresource: str = "") -> str:
    """The path of an object, a collection or a subresource; raises Invalid where a name can't be one.

    Names come from people's annotations, and the API server splits the path after unquoting it, so quoting alone would
    let `a/status` or `../../nodes/a` reach other objects. No object's name may hold these characters.
    """
    for each in (name, namespace):
        if each in (".", "..") or "/" in each or "%" in each:
            raise Invalid(f"{each!r} is no name of an object")
    return kind.path(quote(name, safe=""), quote(namespace, safe=""), subresource)


class Collection(Struct, Generic[T], frozen=True):
    """Objects to list and watch: those of a kind, of one namespace unless "", that match the selectors."""

    kind: Kind[T]
    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        return path_of(self.kind, "", self.namespace)

    @property
    def query(self) -> Mapping[str, str]:
        selectors = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {key: value for key, value in selectors.items() if value}


# Discovery: what an API server says of its version, its API groups and its resources.
# https://kubernetes.io/docs/concepts/overview/kubernetes-api/#unaggregated-discovery


class Version(Struct, frozen=True, rename="camel"):
    major: str
    minor: str


class Resource(Struct, frozen=True):
    """What discovery says about a resource whose objects are of another API group's kind."""

    name: str
    group: str = ""
    version: str = ""


class Resources(Struct, frozen=True):
    resources: list[Resource]


class ApiGroup(Struct, frozen=True):
    name: str
    versions: list[dict[str, str]]


class ApiGroups(Struct, frozen=True):
    """What discovery says of all API groups but the core."""

    groups: list[ApiGroup]


# The stream of a watch: lines, decoded to events.
# https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes

LONGEST_LINE = 32 * 2**20
"""Bytes. etcd takes objects of 1.5 MiB, as JSON they are larger; a stream without line ends must not fill memory."""


class WatchEvent(Struct, frozen=True):
    """One change. The object is decoded by who knows its kind, so one bad object costs one event and not the stream."""

    type: str
    object: Raw


async def events(content: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent]:
    """The events of a watch, until it ends.

    Raises the `ApiError` of an ERROR event, and Expired for a line that is no event: what it should have said can
    only be learnt from a new list.
    """
    decoder = decoder_of(WatchEvent)
    async for line in lines(content):
        try:
            event = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise Expired(f"the watch sent a line that is no event: {error}") from error
        if event.type == "ERROR":
            try:
                status = decoder_of(ApiStatus).decode(event.object)
            except msgspec.DecodeError as error:
                raise Expired("the watch ended with an error that can't be read") from error
            raise refusal_of_status("watch", status, status.code or 500)
        yield event


async def lines(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The whole lines of a stream, empty ones left out. A last line that was cut off is left out.

    Nothing is scanned twice, however long the line.
    """
    pending: list[bytes] = []
    size = 0
    async for chunk in content:
        head, *rest = chunk.split(b"\n")
        pending.append(head)
        size += len(head)
        if size > LONGEST_LINE:
            raise Expired(f"the watch sent a line of more than {LONGEST_LINE} bytes")
        if not rest:
            continue
        for line in (b"".join(pending), *rest[:-1]):
            if line:
                yield line
        pending, size = [rest[-1]], len(rest[-1])


# The API server, one method a verb, JSON straight into Structs and no dictionary in between.

PAGE = 500
"""Objects in one answer to a list, as client-go's pager asks for them."""
PAGE_BYTES = 24 << 20
"""Where as many take more, they are read in smaller pages: 500 pods of etcd's 1.5 MiB are 750 MiB."""
SMALLER = 8
WHOLE_LIST_TIMEOUT = 60.0
"""Seconds for a list in one answer, which only follows on a list in pages that outlived its snapshot."""
MANAGER = {"fieldManager": "deviceshare"}


class ListMeta(Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = field(default="", name="continue")


class Page(Struct, frozen=True):
    """A part of a list; the objects are not decoded yet."""

    metadata: ListMeta
    items: list[Raw] | None = None


class Api:
    """Implements the ports `Cluster` and, for agents, `Writer`, and the raw list and watch that mirrors are made of."""

    def __init__(self, connection: Connection, *, timeout: float = 10.0) -> None:
        """`timeout`: seconds for one call, or for one page of a list."""
        self._connection = connection
        self._timeout = timeout

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        return _decode(await self._read(path_of(kind, name, namespace), {}), kind.type, f"{kind.kind} {name}")

    async def create(self, kind: Kind[T], body: Mapping[str, Any], namespace: str = "", *, dry_run: bool = False) -> T:
        """Makes the object; as a dry run it is admitted and answered, webhooks and all, but not kept.

        https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
        """
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        query = {**MANAGER, "dryRun": "All"} if dry_run else MANAGER
        return _decode(await self._write("POST", path_of(kind, "", namespace), whole, query), kind.type, whole=False)

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
        path, merge = path_of(kind, name, namespace, subresource), "application/merge-patch+json"
        answer = await self._write("PATCH", path, body, content_type=merge, timeout=timeout)
        return _decode(answer, kind.type, whole=False)

    async def apply(
        self,
        kind: Kind[T],
        name: str,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Makes the fields of `body`, and no others, the manager's own: what it applied before and left out now goes.

        Raises NotFound where a subresource is named and the object is missing; else that is created.
        https://kubernetes.io/docs/reference/using-api/server-side-apply/
        """
        metadata = {**body.get("metadata", {}), "name": name}
        whole = {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        query = {"fieldManager": manager, "force": "true"}
        path = path_of(kind, name, namespace, subresource)
        # JSON is YAML, and older servers know the type by this name only.
        answer = await self._write("PATCH", path, whole, query, content_type="application/apply-patch+yaml")
        return _decode(answer, kind.type, whole=False)

    async def delete(
        self, kind: Kind[Any], name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> None:
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        await self._write("DELETE", path_of(kind, name, namespace), body, {})

    async def bind(
        self,
        namespace: str,
        pod: str,
        *,
        uid: str,
        resource_version: str = "",
        node: str,
        annotations: Mapping[str, str],
        timeout: float,
    ) -> None:
        """POST the pod's Binding, whose annotations the API server merges into the pod.

        Raises Conflict when the pod is bound or being deleted, NotFound when it is gone. Kubernetes compares the pod's
        UID and resourceVersion from 1.23 on (kubernetes#105913; 1.25 forgot the UID until 1.25.9). `timeout` seconds
        bound both our waiting and the API server's work on it, counted from when the request arrives, or before 1.21
        from when it leaves the priority queue.
        https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/binding-v1/
        """
        version = {"resourceVersion": resource_version} if resource_version else {}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, "namespace": namespace, "uid": uid, **version, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._write("POST", path_of(PODS, pod, namespace, "binding"), body, timeout=timeout)

    async def evict(self, namespace: str, pod: str, *, uid: str, dry_run: bool = False) -> None:
        """Asks for the pod's end, as a drain does; with `dry_run` only whether that is allowed now.

        Raises Unavailable while a PodDisruptionBudget forbids it, NotFound when it is gone, Conflict when another pod
        has its name. The version is the one that the server names beside the subresource: policy/v1 since 1.22,
        v1beta1 until 1.24.
        https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
        """
        served = _decode(await self._read("/api/v1", {}), Resources).resources
        version = next((f"{each.group}/{each.version}" for each in served if each.name == "pods/eviction"), "")
        if not version:
            raise Unserved("the API server serves no pods/eviction")
        options = {"preconditions": {"uid": uid}} | ({"dryRun": ["All"]} if dry_run else {})
        meta = {"name": pod, "namespace": namespace}
        body = {"apiVersion": version, "kind": "Eviction", "metadata": meta, "deleteOptions": options}
        await self._write("POST", path_of(PODS, pod, namespace, "eviction"), body)

    async def ask_pod(self, namespace: str, pod: str, port: int, path: str, answer: type[T], *, timeout: float) -> T:
        """What a pod's own server answers to a GET, which the API server passes on; asked once, for `timeout` seconds.

        Raises Unavailable where the pod can't be reached.
        https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/#manually-constructing-apiserver-proxy-urls
        """
        proxy = f"{path_of(PODS, pod, namespace)}:{port}/proxy/{path}"
        return _decode(await self._connection.call("GET", proxy, timeout=timeout), answer)

    async def server_version(self) -> tuple[int, int]:
        """Kubernetes' (major, minor), as (1, 20)."""
        version = _decode(await self._read("/version", {}), Version)
        return int(version.major.rstrip("+")), int(version.minor.rstrip("+"))

    async def versions_of(self, group: str) -> list[str]:
        """The versions of an API group that are served; none where the group isn't.

        https://kubernetes.io/docs/concepts/overview/kubernetes-api/#unaggregated-discovery
        """
        groups = _decode(await self._read("/apis", {}), ApiGroups).groups
        return [version["version"] for each in groups if each.name == group for version in each.versions]

    async def snapshot(
        self, objects: Collection[T], decode: Callable[[Raw], T], *, cached: bool = False
    ) -> tuple[list[T], str]:
        """What `decode` makes of each object, and the resourceVersion that a watch continues from.

        Read in pages. No resourceVersion is sent, so the first page is a quorum read; the others are of its snapshot.
        https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks

        If `cached`, as the API server's watch cache has them, which may be behind and costs it a third; in pages only
        where they are too large for one answer.
        """
        path, selectors = objects.path, objects.query
        if cached:
            with suppress(TooLong):
                answer = await self._read(path, {**selectors, "resourceVersion": "0"}, most=PAGE_BYTES)
                page = _decode(answer, Page)
                return list(map(decode, page.items or ())), page.metadata.resource_version
        try:
            return await self._pages(path, {**selectors, "limit": str(PAGE)}, decode, self._timeout)
        except Expired:  # the snapshot was compacted away between two pages; one answer needs none
            return await self._pages(path, selectors, decode, WHOLE_LIST_TIMEOUT)

    async def version_of(self, objects: Collection[Any]) -> str:
        """The resourceVersion of the collection now, by a quorum read of no more than one object.

        Of the selectors only a name is sent, for who may read no other: any other has the server look for a match.
        """
        named = {key: value for key, value in objects.query.items() if value.startswith("metadata.name=")}
        return _decode(await self._read(objects.path, {**named, "limit": "1"}), Page).metadata.resource_version

    async def _pages(
        self, path: str, query: Mapping[str, str], decode: Callable[[Raw], T], timeout: float
    ) -> tuple[list[T], str]:
        objects: list[T] = []
        while True:
            limit = int(query.get("limit", "0"))
            try:
                page = _decode(await self._read(path, query, timeout, most=PAGE_BYTES if limit > 1 else 0), Page)
            except TooLong:
                query = {**query, "limit": str(max(limit // SMALLER, 1))}
                continue
            objects += map(decode, page.items or ())
            if not page.metadata.continue_:
                return objects, page.metadata.resource_version
            query = {**query, "continue": page.metadata.continue_}

    @asynccontextmanager
    async def watch(
        self, objects: Collection[Any], *, version: str, last: float, quiet: float
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Opens the changes since `version`, bookmarks included, for `last` seconds; entered when the server agreed.

        Raises Unavailable after `quiet` seconds without a byte, Expired when `version` is too old, however the server
        says so.
        """
        query = {
            **objects.query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(int(last)),
        }
        try:
            async with (
                asyncio.timeout(self._timeout) as opening,
                self._connection.stream(objects.path, query=query, quiet=quiet) as content,
            ):
                opening.reschedule(None)
                yield events(content)
        except TimeoutError as error:
            raise Unavailable(f"watch {objects.path}: no answer within {self._timeout:g} s") from error

    async def _read(self, path: str, query: Mapping[str, str], timeout: float | None = None, *, most: int = 0) -> bytes:
        """The answer; raises TooLong where it has more than `most` bytes, if that is given."""
        deadline = time.monotonic() + (timeout or self._timeout)
        pauses = delays(0.1, 2.0)
        while True:
            try:
                left = deadline - time.monotonic()
                return await self._connection.call("GET", path, query=query, timeout=left, most=most)
            except Unserved:
                raise  # the CRDs have to be applied first
            except Unavailable as error:
                pause = max(next(pauses), error.retry_after or 0.0)
                if time.monotonic() + pause >= deadline:
                    raise
                await asyncio.sleep(pause)

    async def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Mapping[str, str] = MANAGER,
        *,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> bytes:
        """The answer; a `timeout` bounds the API server's work, too."""
        if timeout is not None:
            query = {**query, "timeout": f"{timeout:.3f}s"}
        data, within = msgspec.json.encode(body), timeout or self._timeout
        return await self._connection.call(
            method, path, query=query, timeout=within, body=data, content_type=content_type
        )

    async def list(
        self, kind: Kind[T], *, namespace: str = "", label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """All objects, as of one moment after the call began; of one that can't be read, what can be."""
        objects = Collection(kind, namespace, label_selector, field_selector)
        return (await self.snapshot(objects, lambda raw: _decode(raw, kind.type, whole=False)))[0]


def _decode(data: bytes | Raw, type_: type[T], what: str = "", *, whole: bool = True) -> T:
    """Unless `whole`, what of the object can be read."""
    decoder = decoder_of(type_)
    try:
        return decoder.decode(data) if whole else decoder.salvage(data)
    except msgspec.ValidationError as error:
        raise Undecodable(f"the API server's {what or type_.__name__} can't be read: {error}") from error
    except msgspec.DecodeError as error:  # a proxy's page
        raise Unavailable(f"the API server's {what or type_.__name__} is no JSON: {error}") from error


# The pulse of the API server: asked every few seconds, since nothing else shows in time that it doesn't answer.
# A watch on which nothing happens is silent for a minute by rights, and one whose server hangs is silent too.

PERIOD_SECONDS = 5.0
"""Between two questions, and the bound on one."""
LOST_SECONDS = 20.0
"""Silence of this length is no hiccup: an API server that restarts is back sooner."""


class Pulse:
    """Asks while `run` runs."""

    def __init__(self, api: Api, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._answered = clock()
        self.version: tuple[int, int] | None = None
        """Kubernetes' (major, minor) as the API server says it; None where it hasn't yet."""

    async def run(self) -> None:
        """Asks until cancelled."""
        while True:
            try:
                async with asyncio.timeout(PERIOD_SECONDS):
                    self.version = await self._api.server_version()
                answers = True
            except (ApiError, ValueError, TimeoutError) as error:
                answers = not isinstance(error, Unavailable | TimeoutError)  # Others answer, if only to refuse.
            if answers:
                if self.fault():
                    log.info("API server answers again")
                self._answered = self._clock()
            await asyncio.sleep(PERIOD_SECONDS)

    def fault(self) -> str:
        """Why nothing that is asked of us can be trusted to be done, or ""."""
        silent = self._clock() - self._answered
        return f"the API server has not answered for {silent:.0f} s" if silent > LOST_SECONDS else ""
