"""A mirror of a kind that the API server may not serve."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from deviceshare.domain.objects.groups import without_annotations
from deviceshare.domain.objects.resource_slices import ResourceClaim, worth_holding
from deviceshare.kube import mirrors
from deviceshare.kube.api import Api
from deviceshare.kube.mirror import MirrorPace
from deviceshare.kube.mirrors import OptionalMirror
from deviceshare.loops.kinds import DEVICE_QUOTAS, DRA_GROUP, NAMESPACES, RESOURCE_CLAIMS
from tests.unit.domain.dra_objects import claim_json
from tests.unit.kube.scripted import Scripted, Step, after, answer, event, page, refuse, serving, stream, until

HASTY = MirrorPace(first_pause=0.001, longest_pause=0.01)
Claims = OptionalMirror[ResourceClaim]
Start = Callable[..., AbstractAsyncContextManager[tuple[Claims, Scripted]]]
UNSERVED = answer("404 page not found", 404)


def discovery(*versions: str) -> Step:
    """The API groups that are served."""
    group = {"name": DRA_GROUP, "versions": [{"groupVersion": f"{DRA_GROUP}/{v}", "version": v} for v in versions]}
    apps = {"name": "apps", "versions": [{"version": "v1"}]}
    return answer({"kind": "APIGroupList", "groups": [apps, *([group] if versions else [])]})


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a scripted server and a running mirror of its ResourceClaims."""

    @asynccontextmanager
    async def go(*steps: Step, rarely: float = 0.02, refused: float = 0.0) -> AsyncIterator[tuple[Claims, Scripted]]:
        server = Scripted(*steps)
        async with serving(server.handle, tmp_path) as connection:
            api = Api(connection, timeout=60.0)
            mirror = OptionalMirror(
                api, RESOURCE_CLAIMS, keep=worth_holding, pace=HASTY, rarely=rarely, refused=refused
            )
            running = asyncio.create_task(mirror.run())
            try:
                yield mirror, server
            finally:
                assert not running.done(), running.exception()
                running.cancel()
                await asyncio.wait({running})

    return go


def claim(name: str, version: int, *devices: str) -> dict[str, Any]:
    """A claim of the namespace ns."""
    body = claim_json(f"ns/{name}", *devices)
    body["metadata"]["resourceVersion"] = str(version)
    return body


async def test_the_newest_version_that_is_served_is_mirrored(start: Start) -> None:
    """Discovery lists them in any order; claims that hold nothing aren't kept."""
    steps = (
        discovery("v1beta1", "v1alpha3", "v1beta2"),
        page(5, claim("a", 1, "gpu-0"), claim("b", 2)),
        stream(event("ADDED", claim("c", 6, "gpu-1"))),
    )
    async with start(*steps) as (mirror, server):
        await until(lambda: sorted(each.metadata.name for each in mirror.values()) == ["a", "c"])
        assert mirror.synced
    paths = [seen.path for seen in server.seen]
    assert paths[:2] == ["/apis", "/apis/resource.k8s.io/v1beta2/resourceclaims"]


async def test_a_kind_that_is_not_served_is_empty_and_asked_for_again_without_noise(start: Start) -> None:
    """A later version of the cluster may serve it."""
    steps = (discovery(), discovery("v1alpha3"), discovery("v1"), page(5, claim("a", 1, "gpu-0")), stream())
    with structlog.testing.capture_logs() as logs:
        async with start(*steps) as (mirror, server):
            await mirror.wait_listed()
            assert (mirror.synced, list(mirror.values())) == (True, [])
            await until(lambda: len(mirror) == 1)
    assert [seen.path for seen in server.seen[:3]] == ["/apis"] * 3
    assert sum(each["event"] == "Found a kind not served, or not readable" for each in logs) == 1
    assert {each["log_level"] for each in logs} == {"info"}


async def test_a_kind_that_may_not_be_read_is_named_and_holds_nobody_up(start: Start) -> None:
    """An older chart's role has no such right."""
    forbidden = refuse(403, "Forbidden")
    with structlog.testing.capture_logs() as logs:
        async with start(discovery("v1"), forbidden, discovery("v1"), page(5, claim("a", 1, "gpu-0"))) as (mirror, _):
            await mirror.wait_listed()
            assert (mirror.synced, mirror.known) == (True, False)
            await until(lambda: len(mirror) == 1)
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == [
        "Mirror is not allowed to read a kind"
    ]


async def test_an_api_server_that_starts_refuses_what_it_will_allow(start: Start) -> None:
    """It hasn't read the roles: the inventory must not be without what DRA holds for ten minutes."""
    forbidden = refuse(403, "Forbidden")
    steps = (discovery("v1"), forbidden, forbidden, page(5, claim("a", 1, "gpu-0")), stream())
    async with start(*steps, rarely=3600.0, refused=3600.0) as (mirror, _):
        await mirror.wait_listed()
        assert len(mirror) == 1


async def test_an_api_server_that_starts_serves_no_custom_resources_yet(start: Start) -> None:
    """Its discovery may name the version before. An empty mirror would be believed, and quotas not be kept."""
    steps = (
        discovery("v1"),
        UNSERVED,
        discovery("v1"),
        UNSERVED,
        discovery("v1"),
        page(5, claim("a", 1, "gpu-0")),
        stream(),
    )
    async with start(*steps, rarely=3600.0, refused=3600.0) as (mirror, _):
        await mirror.wait_listed()
        assert len(mirror) == 1


async def test_what_was_read_once_is_asked_for_until_it_can_be_read_again(start: Start) -> None:
    """After a restart of the API server, whose roles and custom resources come a moment after it."""
    forbidden = refuse(403, "Forbidden")
    steps = (
        discovery("v1"),
        page(5, claim("a", 1, "gpu-0")),
        forbidden,
        UNSERVED,
        discovery("v1"),
        UNSERVED,
        discovery("v1"),
        page(9, claim("b", 7, "gpu-0")),
        stream(),
    )
    async with start(*steps, rarely=3600.0, refused=3600.0) as (mirror, _):
        await until(lambda: [each.metadata.name for each in mirror.values()] == ["b"])


async def test_a_kind_whose_definition_is_deleted_is_empty_and_holds_nobody_up(start: Start) -> None:
    """Its version is served for other kinds: without this, every replica would be unready until the kind is back."""
    deleted = asyncio.Event()
    lasting = [after(deleted, UNSERVED), discovery("v1"), *[UNSERVED, discovery("v1")] * 2]
    steps = (discovery("v1"), page(5, claim("a", 1, "gpu-0")), *lasting)
    async with start(*steps, rarely=3600.0, refused=0.001) as (mirror, _):
        await until(lambda: len(mirror) == 1)
        deleted.set()
        await until(lambda: len(mirror) == 0)
        assert (mirror.synced, mirror.known) == (True, False)


async def test_refusals_with_a_list_between_them_do_not_add_up(start: Start) -> None:
    """While a cluster is upgraded one of its API servers is older: each watch may come to it once, hours apart."""
    go, removed = asyncio.Event(), list[str]()
    listed = page(5, claim("a", 1, "gpu-0"))
    steps = (
        *(discovery("v1"), UNSERVED, discovery("v1"), listed, after(go, UNSERVED)),
        *(discovery("v1"), listed, stream()),
    )
    async with start(*steps, rarely=3600.0, refused=0.1) as (mirror, server):
        await until(lambda: len(mirror) == 1)
        mirror.subscribe(lambda change: removed.append(change.key) if change.new is None else None)
        await asyncio.sleep(0.15)
        go.set()
        await until(lambda: len(server.seen) >= 8)
        assert (removed, mirror.known) == ([], True)


async def test_a_kind_that_was_served_before_is_looked_for_soon(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older API server answered discovery: what is allocated by the others isn't seen until then."""
    monkeypatch.setattr(mirrors, "LOST_SECONDS", 0.02)
    steps = (
        *(discovery("v1"), page(5, claim("a", 1, "gpu-0")), UNSERVED, discovery()),
        *(discovery("v1"), page(9, claim("b", 7, "gpu-1"))),
    )
    async with start(*steps, rarely=3600.0, refused=3600.0) as (mirror, _):
        await until(lambda: [each.metadata.name for each in mirror.values()] == ["b"])


async def test_what_was_mirrored_stays_when_the_kind_disappears(start: Start) -> None:
    """One of several API servers may be older: what claims held there is still held."""
    upgraded = asyncio.Event()
    steps = (
        discovery("v1"),
        page(5, claim("a", 1, "gpu-0")),
        UNSERVED,
        discovery(),
        after(upgraded, discovery("v1beta1")),
        page(9, claim("b", 7, "gpu-0")),
    )
    async with start(*steps, refused=3600.0) as (mirror, server):
        await until(lambda: len(server.seen) == 5)
        assert [each.metadata.name for each in mirror.values()] == ["a"]
        assert mirror.synced
        upgraded.set()
        await until(lambda: [each.metadata.name for each in mirror.values()] == ["b"])
        assert server.seen[5].path == "/apis/resource.k8s.io/v1beta1/resourceclaims"


async def test_a_version_that_an_upgrade_takes_away_is_replaced_at_once(start: Start) -> None:
    """Not minutes later: a claim that is allocated meanwhile would not be seen."""
    steps = (
        discovery("v1beta1"),
        page(5, claim("a", 1, "gpu-0")),
        UNSERVED,
        discovery("v1"),
        page(9, claim("b", 7, "gpu-0")),
        stream(),
    )
    async with start(*steps, rarely=3600.0, refused=3600.0) as (mirror, server):
        await until(lambda: [each.metadata.name for each in mirror.values()] == ["b"])
        assert server.seen[4].path == "/apis/resource.k8s.io/v1/resourceclaims"


async def test_discovery_is_repeated_until_it_is_answered(start: Start) -> None:
    """Nothing is concluded from a server in trouble."""
    async with start(refuse(500), refuse(401, "Unauthorized"), discovery()) as (mirror, server):
        await mirror.wait_listed()
        assert len(server.seen) >= 3


async def test_a_kind_of_one_version_needs_no_discovery(tmp_path: Path) -> None:
    """Namespaces are served everywhere; of each only what is read is held, and a forbidden list is an empty one."""
    vision = {"name": "a", "resourceVersion": "1", "labels": {"team": "vision"}, "annotations": {"big": "x" * 5000}}
    server = Scripted(page(5, {"metadata": vision}), refuse(403, "Forbidden"))
    async with serving(server.handle, tmp_path) as connection:
        mirrors = [OptionalMirror(Api(connection), [NAMESPACES], see=without_annotations) for _ in range(2)]
        for mirror in mirrors:
            await mirror.list_if_served()
    assert [(each.labels, each.metadata.annotations) for each in mirrors[0].values()] == [({"team": "vision"}, {})]
    assert list(mirrors[1].values()) == []
    assert {seen.path for seen in server.seen} == {"/api/v1/namespaces"}


async def test_a_kind_that_its_version_lacks_is_empty_and_asked_for_again(tmp_path: Path) -> None:
    """An upgrade without the CRDs: the version is served for its other kinds, and the CRD may come later."""
    quota = {"metadata": {"name": "q", "resourceVersion": "1"}, "spec": {"groupSelector": {}, "hard": {"x/y": 1}}}
    lasting = [UNSERVED] * 3
    server = Scripted(*lasting, page(5, quota), stream())
    async with serving(server.handle, tmp_path) as connection:
        api = Api(connection, timeout=60.0)
        mirror = OptionalMirror(api, [DEVICE_QUOTAS], pace=HASTY, rarely=0.2, refused=0.001)
        running = asyncio.create_task(mirror.run())
        await mirror.wait_listed()
        assert (mirror.synced, list(mirror.values())) == (True, [])
        await until(lambda: [each.name for each in mirror.values()] == ["q"])
        running.cancel()
        await asyncio.wait({running})


async def test_a_kind_that_is_not_served_stays_synced_when_all_mirrors_start_over(start: Start) -> None:
    """The API server's history went back; nothing of this kind was seen, and discovery is asked again much later."""
    async with start(discovery(), rarely=60.0) as (mirror, server):
        await mirror.wait_listed()
        mirror.start_over()
        assert mirror.synced
        assert len(server.seen) == 1
