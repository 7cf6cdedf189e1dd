"""CRDs of another release under a running process: nothing is written while the API server would drop fields."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from deviceshare import assets
from deviceshare.domain.admission.pod_guard import PodGuard
from deviceshare.kube.api import Api
from deviceshare.kube.definitions import Crd, Definitions, shipped_definitions
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.loops.ports import NotFound, Unavailable
from deviceshare.loops.replica.guarded_cluster import GuardedCluster
from tests.unit.kube.scripted import event, line, serving, status, until

EARLIER = Path(__file__).parent / "crds-25e2181"
"""The CRDs of an earlier release, without descriptions. Those of each release are added when it is made."""
LEDGERS = "nodedevices.deviceshare.io"


def earlier_definitions() -> list[Crd]:
    return [msgspec.yaml.decode(file.read_bytes(), type=Crd) for file in sorted(EARLIER.glob("*.yaml"))]


@pytest.mark.parametrize("earlier", earlier_definitions(), ids=lambda crd: crd.name)
def test_a_crd_is_only_ever_widened(earlier: Crd) -> None:
    """Else the objects that an earlier release wrote lose fields at this one's first write of them."""
    [now] = [crd for crd in shipped_definitions() if crd.name == earlier.name]
    assert now.lacking(earlier) == []


def at(crd: Crd, path: str) -> Any:
    """The schema at a path; `*` is what a map or a list holds."""
    schema: Any = crd.ours
    for step in path.split("."):
        schema = schema.items or schema.additional_properties if step == "*" else schema.properties[step]
    return schema


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("shareddevicegroups.deviceshare.io", ["spec", "spec.allowedNamespaces", "status"]),
        (LEDGERS, ["spec", *(f"spec.claims.*{part}" for part in ("", ".shares.*", ".devices.*", ".former.*"))]),
        ("devicequotas.deviceshare.io", ["spec", "status.reservations.*"]),
    ],
)
def test_specs_and_claims_keep_what_a_later_release_wrote(name: str, paths: list[str]) -> None:
    """So a rollback to this release drops nothing of what decides who has which device."""
    [crd] = [crd for crd in shipped_definitions() if crd.name == name]
    assert [path for path in paths if not at(crd, path).keeps_unknown] == []


class CrdServer:
    """Serves lists and watches of one CRD each, as it is now."""

    def __init__(self, *, readable: bool = True) -> None:
        self.readable = readable
        self.revision = 1
        self.bodies: dict[str, dict[str, Any]] = {}
        self.changed = asyncio.Event()
        for file in (assets.manifests() / "crds").glob("*.yaml"):
            self.apply(msgspec.yaml.decode(file.read_bytes()))

    def apply(self, body: dict[str, Any]) -> None:
        self.revision += 1
        name = body["metadata"]["name"]
        self.bodies[name] = {**body, "metadata": {"name": name, "resourceVersion": str(self.revision)}}
        self.changed.set()
        self.changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if not self.readable:
            return web.json_response(status(403, "Forbidden"), status=403)
        if "fieldSelector" not in request.query:
            return web.json_response(status(404, "NotFound"), status=404)
        body = self.bodies[request.query["fieldSelector"].removeprefix("metadata.name=")]
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": str(self.revision)}, "items": [body]})
        response, seen = web.StreamResponse(), int(request.query["resourceVersion"])
        await response.prepare(request)
        while True:
            now = self.bodies[body["metadata"]["name"]]
            if int(now["metadata"]["resourceVersion"]) > seen:
                seen = int(now["metadata"]["resourceVersion"])
                await response.write(line(event("MODIFIED", now)))
            await self.changed.wait()


@asynccontextmanager
async def following(server: CrdServer, directory: Path, ended: list[str]) -> AsyncIterator[tuple[Definitions, Api]]:
    async with serving(server.handle, directory) as connection:
        api = Api(connection, timeout=60.0)
        definitions = Definitions(api, on_fault=lambda: ended.append("ended"))
        running = asyncio.create_task(definitions.run())
        try:
            yield definitions, api
        finally:
            assert not running.done(), running.exception()
            running.cancel()
            await asyncio.wait({running})


async def test_older_crds_stop_all_writes_until_newer_ones_are_applied(tmp_path: Path) -> None:
    """Readiness names the CRD, the field and the cure; pods, which no CRD of ours describes, are written as ever."""
    server, ended = CrdServer(), list[str]()
    async with following(server, tmp_path, ended) as (definitions, api):
        await definitions.wait_complete()
        assert (definitions.fault(), ended) == ("", [])
        newest = server.bodies[LEDGERS]
        body = msgspec.json.decode(msgspec.json.encode(newest))
        claim = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["claims"]
        claim["additionalProperties"].pop("x-kubernetes-preserve-unknown-fields", None)
        del claim["additionalProperties"]["properties"]["shares"]
        server.apply(body)
        await until(lambda: bool(definitions.fault()))
        assert definitions.fault() == (
            f"CRD {LEDGERS} lacks spec.claims.shares: apply the CRDs of this release (deviceshare doctor)"
        )
        assert definitions.dropped()[LEDGERS] == 1
        assert ended == ["ended"]
        cluster = GuardedCluster(api, PodGuard(), fault=definitions.fault)
        with pytest.raises(Unavailable, match="lacks"):
            await cluster.patch(GROUPS, "team", {"status": {"fence": 1}}, subresource="status")
        with pytest.raises(Unavailable, match="lacks"):
            await cluster.create(GROUPS, {"metadata": {"name": "team"}})
        with pytest.raises(NotFound):  # it was sent
            await cluster.patch(PODS, "a", {}, namespace="ns")
        waiting = asyncio.create_task(definitions.wait_complete())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        server.apply(newest)
        await waiting
        assert (definitions.fault(), definitions.dropped()[LEDGERS]) == ("", 0)


async def test_crds_that_may_not_be_read_are_taken_to_be_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older role doesn't let us; deviceshare then serves as it did before."""
    monkeypatch.setattr("deviceshare.kube.definitions.REFUSED_SECONDS", 0.0)
    async with following(CrdServer(readable=False), tmp_path, []) as (definitions, _):
        await definitions.wait_complete()
        assert definitions.fault() == ""
