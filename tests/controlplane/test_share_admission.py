"""Pods that ask for shares at a real API server and a real kube-scheduler, before any device is allocated to them."""

import json
from typing import Any

import msgspec
import pytest

from deviceshare.domain.admission.settings import POLICIES
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import DIALECTS
from tests.controlplane.pool import Json, Pool, pod


def asking(name: str, *resources: str, size: Any = 1, **spec: Any) -> Json:
    """A pod as another system's manifest has it: nothing of deviceshare's is in it."""
    containers = [
        {"name": f"c{number}", "image": "busybox", "resources": {"limits": {resource: size}}}
        for number, resource in enumerate(resources)
    ]
    return pod(name, scheduler="default-scheduler", containers=containers, nodeSelector={"pool": "none"}, **spec)


def test_a_pod_that_asks_by_any_dialect_is_stored_injected(pool: Pool) -> None:
    """What a container asks for stays as it was written, since a ResourceQuota counts it."""
    pool.apply(asking("all", *DIALECTS))
    stored = pool.get("pod", "all")

    assert stored["metadata"]["labels"] == {"deviceshare.io/group": ""}
    assert stored["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert msgspec.convert(stored, Pod, strict=False).injected
    for container, resource in zip(stored["spec"]["containers"], DIALECTS, strict=True):
        assert container["resources"] == {"limits": {resource: "1"}, "requests": {resource: "1"}}

    copied = {**stored, "metadata": {"name": "copied", "labels": stored["metadata"]["labels"]}}
    assert "warning" not in pool.apply(copied).lower()
    assert pool.get("pod", "copied")["spec"]["containers"] == stored["spec"]["containers"]


def test_kube_scheduler_asks_the_extender_about_resources_that_no_node_has(pool: Pool) -> None:
    """It counts whatever else isn't there."""
    pool.node()
    selector = {"pool": pool.name}
    share = asking("share", *DIALECTS)
    share["spec"]["nodeSelector"] = selector
    container = {"name": "main", "image": "busybox", "resources": {"limits": {"example.com/thing": "1"}}}
    pool.apply(share, pod("thing", containers=[container], nodeSelector=selector))

    assert "Insufficient example.com/thing" in pool.eventually(lambda: pool.reason("thing"))
    verdict = pool.eventually(lambda: pool.placed("share") or pool.reason("share"))
    assert "Insufficient" not in verdict


@pytest.mark.parametrize("resource", sorted(DIALECTS))
def test_a_resource_quota_counts_shares_like_any_extended_resource(pool: Pool, resource: str) -> None:
    """By `requests.` and the resource's name, for all pods of a namespace together."""
    hard = {f"requests.{resource}": "5"}
    pool.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "shares"}, "spec": {"hard": hard}})
    pool.eventually(lambda: pool.get("quota", "shares").get("status", {}).get("used"))

    pool.apply(asking("first", resource, size=3))
    assert "exceeded quota" in pool.apply(asking("second", resource, size=3), fails=True)
    pool.apply(asking("third", resource, size=2))
    used = {f"requests.{resource}": "5"}
    pool.eventually(lambda: pool.get("quota", "shares")["status"]["used"], lambda counted: counted == used)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"deviceshare.io/gpu-mem": -1}, "is negative"),
        ({"deviceshare.io/gpu-mem": "1500m"}, "give 2"),
        ({"aliyun.com/gpu-mem": 16276000}, "not MiB"),
        ({"deviceshare.io/gpu-percent": 100_000}, "at most 64"),
        ({"aliyun.com/gpu-mem": 3, "cnvrg.io/metagpu": 30}, "keep one of them"),
        ({"deviceshare.io/gpu-mem": 3, "nvidia.com/gpu": 1}, "leave one of the two limits out"),
    ],
)
def test_bad_input_is_answered_by_us_before_the_api_server_complains(pool: Pool, limits: Json, said: str) -> None:
    """With the field and the way out."""
    asks = asking("bad", "cpu")
    asks["spec"]["containers"][0]["resources"]["limits"] = limits

    refusal = pool.apply(asks, fails=True)

    assert "spec.containers[0].resources.limits" in refusal
    by_policies = (
        pool.sandbox.plan.admission == POLICIES
    )  # which the API server asks after it has validated the pod itself
    assert said in refusal or (by_policies and "Invalid value" in refusal)


def test_nobody_but_deviceshare_says_which_part_of_a_device_a_container_has(pool: Pool) -> None:
    """Neither at the creation nor later, in the annotations that its variables refer to."""
    pool.apply(asking("mine", "deviceshare.io/gpu-mem"))
    for key in ("deviceshare.io/nvidia-devices.c0", "deviceshare.io/shares", "deviceshare.io/strategy"):
        said = pool.kubectl("annotate", "pod", "mine", "-n", pool.name, f"{key}=0", fails=True)
        assert f"metadata.annotations[{key}]" in said
    said = pool.kubectl("label", "pod", "mine", "-n", pool.name, "deviceshare.io/group-", fails=True)
    assert "metadata.labels[deviceshare.io/group]" in said
    assert json.loads(pool.kubectl("get", "pod", "mine", "-n", pool.name, "-o", "json"))["metadata"]["labels"]
