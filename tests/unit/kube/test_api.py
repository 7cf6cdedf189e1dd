"""Api, against a server that answers as no server should."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException

from deviceshare import __version__
from deviceshare.kube import api as api_module
from deviceshare.kube.api import Api
from deviceshare.kube.connection import NotConfigured, connect
from deviceshare.loops.kinds import GROUPS, NODES, PODS
from deviceshare.loops.ports import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    TooLarge,
    Unavailable,
    Undecodable,
)
from tests.unit.kube.scripted import (
    Scripted,
    Step,
    answer,
    hang,
    kubeconfig,
    node,
    page,
    refuse,
    serving,
    status,
    until,
)

Start = Callable[..., AbstractAsyncContextManager[tuple[Api, Scripted]]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a scripted server and an Api on it."""

    @asynccontextmanager
    async def go(*steps: Step, timeout: float = 60.0) -> AsyncIterator[tuple[Api, Scripted]]:
        server = Scripted(*steps)
        async with serving(server.handle, tmp_path) as connection:
            yield Api(connection, timeout=timeout), server

    return go


async def test_a_request_says_who_sends_it(start: Start) -> None:
    """The audit log of a cluster must tell deviceshare's requests from others."""
    async with start(answer(node("a", 1))) as (api, server):
        assert (await api.get(NODES, "a")).metadata.name == "a"
    [seen] = server.seen
    assert (seen.method, seen.path) == ("GET", "/api/v1/nodes/a")
    assert seen.headers["User-Agent"] == f"deviceshare/{__version__}"
    assert seen.headers["Authorization"] == "Bearer a-token"


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (302, "", Unavailable),
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Expired),
        (413, "RequestEntityTooLarge", TooLarge),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
async def test_a_refusal_is_told_by_its_status(start: Start, code: int, reason: str, expected: type[ApiError]) -> None:
    """What a caller may do next depends on which it was."""
    async with start(refuse(code, reason, Location="http://127.0.0.1:1/")) as (api, _):
        with pytest.raises(ApiError) as caught:
            await api.create(NODES, {"metadata": {"name": "a"}})
    assert type(caught.value) is expected
    assert str(code) in str(caught.value)


@pytest.mark.parametrize("body", ["404 page not found\n", status(404, "")])
async def test_a_404_without_the_servers_word_is_no_proof_that_an_object_is_gone(start: Start, body: object) -> None:
    """A server that doesn't serve our CRD (yet) must not make the collector give devices away."""
    async with start(answer(body, 404)) as (api, _):
        with pytest.raises(Unavailable, match="manifests/crds"):
            await api.get(GROUPS, "g")


async def test_a_read_is_tried_again(start: Start) -> None:
    """A restarted API server, a full queue and a broken answer pass without the caller's notice."""
    async with start(refuse(503), refuse(429, Retry_After="0"), answer(node("a", 7))) as (api, server):
        assert (await api.get(NODES, "a")).metadata.resource_version == "7"
    assert len(server.seen) == 3


async def test_a_read_that_is_told_to_wait_too_long_fails_at_once(start: Start) -> None:
    """Waiting past the deadline would only fail later; the caller learns how long the server wants."""
    async with start(refuse(429, Retry_After="600")) as (api, server):
        with pytest.raises(Unavailable) as caught:
            await api.get(NODES, "a")
    assert caught.value.retry_after == 600.0
    assert len(server.seen) == 1


async def test_a_write_is_never_repeated(start: Start) -> None:
    """It may have happened: only the caller knows how to find out."""
    async with start(refuse(503, details={"retryAfterSeconds": 2}), answer(node("a", 7))) as (api, server):
        with pytest.raises(Unavailable) as caught:
            await api.patch(NODES, "a", {})
    assert caught.value.retry_after == 2.0
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("step", "error", "timeout"),
    [
        (hang(), Unavailable, 0.2),
        (answer("<html>", 200), Unavailable, 60.0),
        (answer({"metadata": {"name": 1}}, 200), Undecodable, 60.0),
    ],
)
async def test_an_answer_that_is_none_is_an_api_error(
    start: Start, step: Step, error: type[ApiError], timeout: float
) -> None:
    """A hung server, a proxy's page, an object of another shape: nobody has to know aiohttp's or msgspec's errors."""
    async with start(step, timeout=timeout) as (api, _):
        with pytest.raises(error):
            await api.get(NODES, "a")


async def test_a_server_that_is_away_is_an_api_error(tmp_path: Path) -> None:
    """Nothing listens on port 1."""
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1")) as connection:
        with pytest.raises(Unavailable):
            await Api(connection, timeout=0.2).get(NODES, "a")


async def test_a_token_that_cannot_be_refreshed_is_an_api_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that met it must live to try again."""

    async def refuse(_: object, identifier: str) -> None:
        raise ConfigException(f"no {identifier} for now")

    # Of a user that is the Kubernetes client's to read: no other token is refreshed.
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1", username="a", password="b")) as connection:
        monkeypatch.setattr(Configuration, "get_api_key_with_prefix", refuse)
        with pytest.raises(Unavailable, match="no BearerToken for now"):
            await Api(connection, timeout=0.2).get(NODES, "a")


@pytest.mark.parametrize(
    "said", ["etcdserver: request is too large", "rpc error: trying to send message larger than max (3 vs. 2)"]
)
async def test_what_etcd_does_not_store_is_too_large(start: Start, said: str) -> None:
    """The API server answers 500, as where etcd is away; but to retry it would be in vain."""
    async with start(answer({"kind": "Status", "message": said, "code": 500}, status=500)) as (api, _):
        with pytest.raises(TooLarge):
            await api.patch(NODES, "a", {})


async def test_a_list_follows_its_pages_and_reads_fresh(start: Start) -> None:
    """No resourceVersion means a quorum read; the rest belongs to the first page's snapshot."""
    async with start(page(5, node("a", 1), token="t"), page(5, node("b", 2))) as (api, server):
        found = await api.list(NODES, label_selector="x=y", field_selector="spec.nodeName=n+1")
    assert [n.metadata.name for n in found] == ["a", "b"]
    selectors = {"labelSelector": "x=y", "fieldSelector": "spec.nodeName=n+1", "limit": "500"}
    assert [seen.query for seen in server.seen] == [selectors, {**selectors, "continue": "t"}]


async def test_a_list_of_large_objects_is_read_in_smaller_pages(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 500 pods of etcd's 1.5 MiB would take 750 MiB. Nothing is left out; a page of one is read anyway."""
    monkeypatch.setattr(api_module, "PAGE_BYTES", 1000)
    large, small = node("a", 1, text="x" * 2000), node("b", 2)
    steps = page(5, large, small, token="t"), page(5, large, token="u"), page(5, large), page(5, large, token="v")
    async with start(*steps, page(5, small)) as (api, server):
        server.says_versions = False
        found = await api.list(NODES)
    limits = [(seen.query["limit"], seen.query.get("continue")) for seen in server.seen]
    assert [n.metadata.name for n in found] == ["a", "b"]
    assert limits == [("500", None), ("62", None), ("7", None), ("1", None), ("1", "v")]


async def test_a_list_whose_snapshot_expired_is_read_in_one(start: Start) -> None:
    """Half of an old list and half of a new one would be no list at all."""
    steps = page(5, node("a", 1), token="t"), refuse(410, "Expired"), page(9, node("b", 2))
    async with start(*steps) as (api, server):
        assert [n.metadata.name for n in await api.list(NODES)] == ["b"]
    assert server.seen[-1].query == {}


async def test_a_list_with_an_object_that_cannot_be_read_shows_what_can(start: Start) -> None:
    """The collector lists pods to prove that none lives: one left out would prove it wrongly, and so would none."""
    odd = {**node("b", 2, zone="z"), "spec": {"unschedulable": "no"}}
    async with start(page(5, node("a", 1), odd)) as (api, _):
        first, second = await api.list(NODES)
    assert first.metadata.unreadable is None
    assert (second.metadata.name, second.metadata.labels) == ("b", {"zone": "z"})
    assert second.metadata.fault == "spec.unschedulable: Expected `bool`, got `str`"


async def test_one_object_that_cannot_be_read_is_refused_and_named(start: Start) -> None:
    """Who asks for one object decides by it; a write that happened is told with what can be read."""
    odd = {**node("b", 2), "spec": 3}
    async with start(answer(odd), answer(odd)) as (api, _):
        with pytest.raises(Undecodable, match=r"Node b can't be read: Expected `object`, got `int` - at `\$.spec`"):
            await api.get(NODES, "b")
        written = await api.patch(NODES, "b", {})
    assert written.metadata.hides("spec")


async def test_a_patch_is_a_merge_patch(start: Start) -> None:
    """A strategic merge would be refused for custom resources, and mean something else for pods."""
    async with start(answer(node("a", 2))) as (api, server):
        await api.patch(NODES, "a", {"metadata": {"resourceVersion": "1"}}, subresource="status")
    [seen] = server.seen
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/nodes/a/status")
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {"metadata": {"resourceVersion": "1"}}


async def test_a_create_carries_its_kind(start: Start) -> None:
    """The server refuses bodies that don't say what they are."""
    async with start(answer({"metadata": {"name": "p", "namespace": "ns"}}, 201)) as (api, server):
        assert (await api.create(PODS, {"metadata": {"name": "p"}}, "ns")).metadata.key == "ns/p"
    [seen] = server.seen
    assert seen.path == "/api/v1/namespaces/ns/pods"
    assert seen.body == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    assert "dryRun" not in seen.query


async def test_a_dry_run_says_that_it_is_one(start: Start) -> None:
    """Without the word the object would be kept."""
    async with start(answer({"metadata": {"name": "p", "namespace": "ns"}}, 201)) as (api, server):
        await api.create(PODS, {"metadata": {"name": "p"}}, "ns", dry_run=True)
    assert server.seen[0].query["dryRun"] == "All"


async def test_a_delete_names_its_preconditions(start: Start) -> None:
    """A pod recreated under the same name must survive."""
    async with start(answer({})) as (api, server):
        await api.delete(PODS, "p", "ns", uid="u1")
    assert server.seen[0].body["preconditions"] == {"uid": "u1"}


async def test_a_binding_is_bounded_on_both_sides(start: Start) -> None:
    """The server stops at the `timeout` of the query, we stop waiting by our own clock."""
    async with start(answer({}, 201), hang()) as (api, server):
        await api.bind("ns", "p", uid="u1", resource_version="7", node="n", annotations={"a": "0,1"}, timeout=2.5)
        with pytest.raises(Unavailable):
            await api.bind("ns", "p", uid="u1", node="n", annotations={}, timeout=0.1)
    seen = server.seen[0]
    assert (seen.path, seen.query["timeout"]) == ("/api/v1/namespaces/ns/pods/p/binding", "2.500s")
    assert seen.body["metadata"] == {
        "name": "p",
        "namespace": "ns",
        "uid": "u1",
        "resourceVersion": "7",
        "annotations": {"a": "0,1"},
    }
    assert seen.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n"}


async def test_a_binding_without_a_version_names_none(start: Start) -> None:
    """An empty one would be compared, and never be equal."""
    async with start(answer({}, 201)) as (api, server):
        await api.bind("ns", "p", uid="u1", node="n", annotations={}, timeout=2.5)
    assert "resourceVersion" not in server.seen[0].body["metadata"]


async def test_what_is_applied_is_the_managers_own(start: Start) -> None:
    """Server-side apply: whole fields under one manager, whoever else writes the object."""
    async with start(answer(node("a", 2)), refuse(404, "NotFound")) as (api, server):
        applied = await api.apply(NODES, "a", {"status": {"x": 1}}, manager="agent", subresource="status")
        with pytest.raises(NotFound):
            await api.apply(NODES, "a", {}, manager="agent", subresource="status")
    seen = server.seen[0]
    assert applied.metadata.resource_version == "2"
    assert (seen.method, seen.path) == ("PATCH", "/api/v1/nodes/a/status")
    assert (seen.query["fieldManager"], seen.query["force"]) == ("agent", "true")
    assert seen.headers["Content-Type"] == "application/apply-patch+yaml"
    assert seen.body == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "status": {"x": 1}}


@pytest.mark.parametrize("version", ["v1beta1", "v1"])
async def test_an_eviction_speaks_the_servers_version(start: Start, version: str) -> None:
    """The subresource is one and the same; discovery names the kind that it takes."""
    resources = [{"name": "pods", "kind": "Pod"}, {"name": "pods/eviction", "group": "policy", "version": version}]
    answers = [answer({"resources": resources}), answer({}, 201)]
    async with start(*answers, *answers) as (api, server):
        await api.evict("ns", "p", uid="u1")
        await api.evict("ns", "p", uid="u1", dry_run=True)
    assert server.seen[1].path == "/api/v1/namespaces/ns/pods/p/eviction"
    assert server.seen[1].body["apiVersion"] == f"policy/{version}"
    assert server.seen[1].body["deleteOptions"] == {"preconditions": {"uid": "u1"}}
    assert server.seen[3].body["deleteOptions"] == {"preconditions": {"uid": "u1"}, "dryRun": ["All"]}


async def test_where_evictions_are_not_served_nothing_is_sent(start: Start) -> None:
    """A POST to nowhere would look like a pod that is gone."""
    async with start(answer({"resources": [{"name": "pods"}]})) as (api, server):
        with pytest.raises(Unavailable, match="pods/eviction"):
            await api.evict("ns", "p", uid="u1")
    assert len(server.seen) == 1


@pytest.mark.parametrize("name", ["..", ".", "a/status", "../../v1/nodes/a", "a%2Fstatus"])
async def test_a_name_cannot_reach_another_object(start: Start, name: str) -> None:
    """Group names come from pod annotations, and the API server unquotes before it splits a path."""
    async with start() as (api, server):
        with pytest.raises(Invalid):
            await api.get(GROUPS, name)
    assert server.seen == []


async def test_a_name_with_odd_characters_stays_one_segment(start: Start) -> None:
    """It is the server's to say that there is no such object."""
    async with start(refuse(404, "NotFound")) as (api, server):
        with pytest.raises(NotFound):
            await api.get(GROUPS, "a b?watch=1#é")
    assert server.seen[0].path.endswith("/shareddevicegroups/a%20b%3Fwatch=1%23%C3%A9".replace("=", "%3D"))


async def test_the_version_of_a_vendors_server_is_read(start: Start) -> None:
    """Clouds append a plus to the minor version."""
    async with start(answer({"major": "1", "minor": "29+", "gitVersion": "v1.29.3-gke.1"})) as (api, _):
        assert await api.server_version() == (1, 29)


async def test_cancelling_a_call_is_not_an_api_error(start: Start) -> None:
    """A process that stops must not take its own stop for an outage and try again."""
    async with start() as (api, server):
        call = asyncio.create_task(api.get(NODES, "a"))
        await until(lambda: bool(server.seen))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize("text", [None, "{", "clusters: 3"])
async def test_a_kubeconfig_that_is_unusable_names_itself_and_the_way_out(tmp_path: Path, text: str | None) -> None:
    """Missing, no YAML, no configuration."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(NotConfigured, match=r"kubeconfig .*config: .*--kubeconfig"):
        async with connect(str(path)):
            pass
