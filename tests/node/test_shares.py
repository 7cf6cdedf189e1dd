"""Shares on a real kubelet, with the rights that the chart grants: limits by resources that the node doesn't have."""

import json

import pytest

from tests.node.cluster import TELL, Cluster, Json, pod

pytestmark = pytest.mark.usefixtures("clear")

ALIYUN = "aliyun.com/gpu-mem"
STAY = f"{TELL}; echo memory=$DEVICESHARE_MEMORY_LIMIT_MIB; sleep 3600 & wait"


def sharing(name: str, resource: str, amount: int) -> Json:
    """A pod as people write it, without a scheduler."""
    return pod(name, STAY, container={"resources": {"limits": {resource: amount}}})


@pytest.mark.parametrize(
    ("resource", "amount", "memory"),
    [("deviceshare.io/gpu-mem", 3, 3072), (ALIYUN, 3, 3072), ("cnvrg.io/metagpu", 50, 8192)],
)
def test_a_container_sees_its_part_and_gives_it_back(cluster: Cluster, resource: str, amount: int, memory: int) -> None:
    """The kubelet drops what its node doesn't advertise; a container that didn't ask sees nothing."""
    assert resource not in cluster.get("node", "node-1")["status"]["allocatable"]
    beside = {"name": "beside", "image": pod("", "")["spec"]["containers"][0]["image"], "command": ["sh", "-c", STAY]}
    document = sharing("part", resource, amount)
    document["spec"]["containers"].append(beside)
    cluster.eventually(lambda: cluster.joins(document))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/part", "--timeout=120s")
    said = cluster.eventually(lambda: cluster.kubectl("logs", "part", "-c", "main"), lambda text: "memory=" in text)
    assert said.split() == ["[0]", f"memory={memory}"]
    said = cluster.eventually(lambda: cluster.kubectl("logs", "part", "-c", "beside"), lambda text: "memory=" in text)
    assert said.split() == ["[]", "memory="]
    cluster.kubectl("delete", "pod", "part")
    ledger = ("nodedevices", "node-1")
    cluster.eventually(lambda: cluster.get(*ledger)["spec"].get("claims", {}), lambda claims: not claims)


def test_a_resource_that_a_device_plugin_left_behind_is_named_and_can_be_removed(cluster: Cluster) -> None:
    """The kubelet would fail the pod for it (OutOf…), again and again."""
    advertise(cluster, "0")
    cluster.eventually(lambda: cluster.joins(sharing("waits", ALIYUN, 3)))
    chosen = "reason=FailedScheduling,involvedObject.name=waits"
    cluster.eventually(
        lambda: cluster.kubectl("get", "events", "--field-selector", chosen, "-o", "jsonpath={..message}"),
        lambda text: f"kubelet counts {ALIYUN} itself" in text,
    )
    advertise(cluster, None)
    cluster.kubectl("wait", "--for=condition=Ready", "pod/waits", "--timeout=120s")


def advertise(cluster: Cluster, amount: str | None) -> None:
    """Writes the resource into the node's status, or takes it out, as a person would."""

    def write() -> bool:
        node = cluster.get("node", "node-1")
        for field in ("capacity", "allocatable"):
            node["status"][field].pop(ALIYUN, None)
            if amount is not None:
                node["status"][field][ALIYUN] = amount
        command = ("replace", "--raw", "/api/v1/nodes/node-1/status", "-f", "-")
        return cluster.sandbox.kubectl(*command, stdin=json.dumps(node)).returncode == 0

    cluster.eventually(write)  # the kubelet writes its status, too
