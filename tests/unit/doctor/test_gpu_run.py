"""A canary that opens its GPU is followed to its end and taken away again, whatever the API server says."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from deviceshare.doctor import canary
from deviceshare.doctor.findings import OK, PROBLEM, UNTESTED, Check, check
from deviceshare.doctor.kinds import Installation, Rollout
from deviceshare.domain import contract
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from tests.unit.cli.servers import served
from tests.unit.domain.objects import AMD, GPU, a_ledger, a_node

OPENED = '{"variable": "0", "devices": ["GPU-a"]}'
IMAGE = "example.com/deviceshare:1"


class BindingCluster:
    """Binds what is created at once, and has the container end, or wait, as it was told."""

    def __init__(self, state: dict[str, Any], devices: dict[str, int] | None = None) -> None:
        self.state = state
        self.kept: dict[str, Any] = {}
        self.images: list[str] = []
        self.lists = {
            "nodes": [msgspec.to_builtins(a_node())],
            "nodedevices": [msgspec.to_builtins(a_ledger("n1", devices))],
        }

    async def answer(self, request: web.Request) -> web.Response:
        kind, name = request.path.rpartition("/")[2], request.path.rpartition("/")[2]
        if request.method == "POST":
            body = await request.json()
            if kind == "pods":
                self.images += [each["image"] for each in body["spec"]["containers"]]
                body["metadata"]["annotations"][contract.SELECTED_DEVICES] = json.dumps({GPU: "0"})
                body["spec"]["nodeName"] = "n1"
                body["status"] = {"containerStatuses": [{"state": self.state}]}
            else:
                body["status"] = {"phase": "Bound", "nodeName": "n1"}
            self.kept[f"{request.path}/{body['metadata']['name']}"] = body
            return web.json_response(body)
        if "canary-" in name:
            found = self.kept.get(request.path)
            if request.method == "DELETE":
                self.kept.pop(request.path, None)
            status = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "gone"}
            return web.json_response(found or status, status=200 if found else 404)
        return web.json_response({"metadata": {}, "items": self.lists.get(kind, [])})


def examined(cluster: BindingCluster, directory: Path, *flags: str, image: str = IMAGE) -> Check:
    """What the doctor says, who leaves nothing behind."""
    containers = [{"name": "deviceshare", "image": image, "args": list(flags)}]
    deployment = msgspec.convert({"spec": {"template": {"spec": {"containers": containers}}}}, Rollout)

    async def ask(file: str) -> Check:
        async with connect(file) as connection:
            ours = Installation(contract.NAMESPACE, deployment)
            return check("gpu", *await canary.examine_gpu(Api(connection), "default", ours, ""))

    with served(cluster.answer, directory) as kubeconfig:
        seen = asyncio.run(ask(kubeconfig))
    assert cluster.kept == {}
    return seen


@pytest.mark.parametrize(
    ("message", "mark", "text"),
    [(OPENED, OK, ""), ('{"variable": "0", "library": false}', PROBLEM, "the runtime isn't NVIDIA's")],
)
def test_a_canary_that_ended_is_judged_and_gone(tmp_path: Path, message: str, mark: str, text: str) -> None:
    """It ran the image of deviceshare's own Deployment."""
    cluster = BindingCluster({"terminated": {"exitCode": 0, "message": message}})
    seen = examined(cluster, tmp_path)
    assert (seen.mark, cluster.images) == (mark, [IMAGE])
    assert all(text in finding.what for finding in seen.findings)


def test_a_container_that_cant_start_isnt_waited_for_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kubelet tries it again, and has had its chance."""
    monkeypatch.setattr(canary, "STUCK_SECONDS", 0.0)
    waiting = {"reason": "CreateContainerError", "message": "unresolvable CDI devices m/gpu=0"}
    [found] = examined(BindingCluster({"waiting": waiting}), tmp_path).findings
    assert (found.mark, "m/gpu=0" in found.what) == (PROBLEM, True)


def test_no_canary_is_sent_where_it_would_be_refused_or_could_open_nothing(tmp_path: Path) -> None:
    """A class that isn't there, no image, another vendor's devices, or none that is free."""
    for cluster, flags, image, mark, text in (
        (BindingCluster({}), ("--runtime-class=nvidia",), IMAGE, PROBLEM, "'nvidia', which doesn't exist"),
        (BindingCluster({}), (), "", UNTESTED, "no Deployment deviceshare was found, whose image"),
        (BindingCluster({}, {AMD: 1}), (), IMAGE, UNTESTED, "can open NVIDIA GPUs only"),
        (BindingCluster({}, {}), (), IMAGE, UNTESTED, "no device is free"),
    ):
        [found] = examined(cluster, tmp_path, *flags, image=image).findings
        assert (found.mark, text in found.what, cluster.images) == (mark, True, []), found


def test_the_pod_outlives_the_doctors_patience_by_little() -> None:
    """So that what a killed doctor leaves ends soon."""
    assert canary.LAND_SECONDS < canary.LIFE_SECONDS
