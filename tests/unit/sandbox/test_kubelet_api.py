"""What the simulated kubelet answers to `kubectl logs` and `exec`."""

import json

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare_sandbox.simulated_nodes import kubelet_api
from deviceshare_sandbox.simulated_pods import ENV, KubeletContainer, KubeletEnvVar, KubeletPod, KubeletPodSpec

STARTED = KubeletPod(
    ObjectMeta(namespace="ns", name="p", annotations={ENV: json.dumps({"main": {"NVIDIA_VISIBLE_DEVICES": "0,1"}})}),
    KubeletPodSpec(containers=[KubeletContainer("main"), KubeletContainer("other", env=[KubeletEnvVar("A", "1")])]),
)


def client() -> TestClient[web.Request, web.Application]:
    pods = {"ns/p": STARTED}
    return TestClient(TestServer(kubelet_api(pods.get, lambda: True)))


async def test_the_log_of_a_simulated_container_says_so_and_what_it_would_see() -> None:
    """The environment with which it was started, or, before that, would be."""
    async with client() as api:
        said = await (await api.get("/containerLogs/ns/p/main?follow=true")).text()
        before = await (await api.get("/containerLogs/ns/p/other")).text()
    assert said.splitlines() == [
        "ns/p is simulated: nothing runs in it. Container main would have this environment:",
        "NVIDIA_VISIBLE_DEVICES=0,1",
    ]
    assert before.splitlines()[1:] == ["A=1"]


async def test_a_container_that_is_not_there_has_no_log() -> None:
    """Neither has a pod that is gone."""
    async with client() as api:
        assert [(await api.get(f"/containerLogs/ns/{path}")).status for path in ("p/none", "gone/main")] == [404, 404]


async def test_nothing_can_be_run_in_a_simulated_pod() -> None:
    """kubectl shows the message of a Status, and nothing of a text that can be read as YAML."""
    async with client() as api:
        for path in ("exec/ns/p/main?command=sh", "attach/ns/p/main", "portForward/ns/p"):
            answer = await api.post(f"/{path}")
            assert answer.status == 501
            said = await answer.json()
            assert said["kind"] == "Status" and said["message"].startswith("ns/p is simulated: nothing runs in it")
