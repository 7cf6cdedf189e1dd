"""What a pod costs us and the API server, from its admission to the last write about it, held by costs.toml.

Times depend on the machine; calls of our own functions and requests don't. The file is kueue's rangespec in small
(https://github.com/kubernetes-sigs/kueue/tree/main/test/performance/scheduler).
"""

import asyncio
import json
import sys
import tomllib
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, cast

import pytest

import deviceshare
from deviceshare.domain import contract
from deviceshare.domain.objects.shares import GPU_PERCENT
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.web.admission import Admission
from deviceshare.web.extender import Extender
from deviceshare.web.messages import Client, HttpRequest, Route
from tests.unit.domain.jsonpatch import applied
from tests.unit.domain.objects import a_sharing_container
from tests.unit.loops.live import World, soon
from tests.unit.loops.virtual_time import in_virtual_time, now

RANGES: Final = tomllib.loads((Path(__file__).parent / "costs.toml").read_text())
SLACK: Final = 1.05
PODS_MEASURED: Final = 10
NODES: Final = 20
OURS: Final = str(Path(deviceshare.__file__).parent)


class Pipeline:
    """A pod's way through admission, filter and bind, as the API server and kube-scheduler lead it."""

    def __init__(self, world: World) -> None:
        self.world = world
        mirrors = world.cluster.mirrors
        self.binder = world.binder()
        admission = Admission(mirrors[GROUPS.plural], mirrors[PODS.plural], namespaces=world.fleet.namespaces)
        extender = Extender(world.fleet, mirrors[GROUPS.plural], self.binder, lambda: "", own_name=None)
        routes: list[Route] = [*admission.routes(), *extender.routes()]
        self.handlers = {route.path: route.handler for route in routes}

    async def lead(self, name: str, body: dict[str, Any]) -> None:
        mutated = applied(body, json.loads(b64decode((await self._review("/mutate-pods", body))["patch"])))
        await self._review("/validate-pods", mutated)
        self.world.cluster.put(PODS, mutated, "ns")
        await asyncio.sleep(1)
        pod = self.world.cluster.objects[PODS.plural][f"ns/{name}"]
        fits = (await self.ask("/filter", {"Pod": pod, "NodeNames": self.world.fleet.names()}))["NodeNames"]
        asked = {"PodName": name, "PodNamespace": "ns", "PodUID": pod["metadata"]["uid"], "Node": fits[0]}
        assert (await self.ask("/bind", asked)) == {"Error": ""}
        await asyncio.sleep(5)
        self.world.cluster.edit(PODS, name, {"status": {"phase": "Running"}}, "ns")  # as its kubelet says it
        await asyncio.sleep(25)

    async def _review(self, path: str, pod: dict[str, Any]) -> Any:
        request = {"uid": "1", "kind": {"kind": "Pod"}, "operation": "CREATE", "namespace": "ns", "object": pod}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        answer = (await self.ask(path, review))["response"]
        assert answer["allowed"], answer
        return answer

    async def ask(self, path: str, body: dict[str, Any]) -> Any:
        request = HttpRequest(cast("Client", None))
        request.headers = {"host": "localhost", "content-type": "application/json"}
        request.body = json.dumps(body).encode()
        response = await self.handlers[path](request)
        assert response is not None
        assert response.status == 200
        return json.loads(response.body)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the calls of our functions in the block."""
    calls = [0]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[0] += 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def a_body(name: str, group: str = "") -> dict[str, Any]:
    container = {"name": "main", "image": "cuda"} if group else a_sharing_container("main", {GPU_PERCENT: 10})
    annotations = {contract.GROUP: group} if group else {}
    meta = {"name": name, "namespace": "ns", "annotations": annotations, "labels": {"app": "x"}}
    return {"metadata": meta, "spec": {"containers": [container]}}


BODIES: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "a pod that joins": lambda number: a_body(f"p{number}", "team"),
    "a first pod": lambda number: a_body(f"p{number}", f"team{number}"),
    "a share": lambda number: a_body(f"p{number}"),
}


@pytest.mark.parametrize("what", BODIES)
@in_virtual_time
async def test_a_pod_costs_no_more_than_it_did(what: str) -> None:
    """The sixth to the fifteenth: the first ones fill what is remembered."""
    world = World()
    for number in range(NODES):
        world.node(f"n{number:02}", 8)
    world.group("team", 1)
    for number in range(PODS_MEASURED + 5):
        world.group(f"team{number}", 1, mutated=True)
    async with world.leading():
        await soon(lambda: world.open("n00") and world.open(f"n{NODES - 1}"))
        await asyncio.sleep(30)
        pipeline = Pipeline(world)
        for number in range(5):
            await pipeline.lead(f"p{number}", BODIES[what](number))
        world.cluster.requests.clear()
        began = now()
        with counted() as calls:
            for number in range(5, 5 + PODS_MEASURED):
                await pipeline.lead(f"p{number}", BODIES[what](number))
        requests = len(world.cluster.requests) / PODS_MEASURED
        with counted() as at_rest:
            await asyncio.sleep(now() - began)
        await pipeline.binder.close()

    allowed, found = RANGES[what], (calls[0] - at_rest[0]) / PODS_MEASURED
    assert requests <= allowed["requests"], f"{what} costs {requests} requests: {world.cluster.requests}"
    assert found <= allowed["calls"] * SLACK, f"{what} costs {found:.0f} calls of our functions"
