"""Groups by claim on one real kubelet: a DRA driver prepares their devices, and CDI brings them into containers.

The driver is the test's own, with made-up devices (dra_driver.py). containerd 1.7 and later know CDI.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare_sandbox import Options, running
from tests.kubernetes_versions import since
from tests.node.cluster import GPU, Cluster, Json, group, pod
from tests.node.dra_driver import specification
from tests.node.test_plugin import of_kubelet, process
from tests.unit.domain.dra_objects import card, gpu_json, slice_json

pytestmark = since(34)
COUNT = 3
API = "resource.k8s.io/v1"
CLASS = "any-gpu"
TELL = f'echo "[{" ".join(f"$DEVICE_{number}" for number in range(COUNT))}]"; sleep 3600 & wait'


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A real node, whose devices a driver publishes; deviceshare is a process of this machine."""
    described = Path("/run/cdi/deviceshare-test.json")
    described.parent.mkdir(exist_ok=True)
    described.write_text(json.dumps(specification(COUNT)))
    try:
        with running(Options(real_node=True, dra_holds=True, admission=WEBHOOKS)) as sandbox:
            started = Cluster(sandbox)
            driver = ("tests.node.dra_driver", of_kubelet(started), sandbox.kubeconfig)
            with process(started, "driver", *driver):
                log = sandbox.layout.logs / "driver.log"
                started.eventually(lambda: log.exists() and "registered" in log.read_text())
                publish(started)
                yield started
    finally:
        described.unlink()


def publish(cluster: Cluster) -> None:
    """The driver's devices, in place of what the sandbox says that the node has."""
    body = slice_json("node-1", *map(gpu_json, range(COUNT)), name="node-1")
    del body["metadata"]["resourceVersion"]
    device_class = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {}}
    cluster.eventually(lambda: cluster.inventory() >= {"serviceaccount/default", "node/node-1"})
    cluster.kubectl("annotate", "node", "node-1", "--overwrite", "deviceshare.io/devices=amd.com/gpu=1")
    cluster.apply({"apiVersion": API, "kind": "ResourceSlice", **body}, device_class)
    cluster.eventually(lambda: f"{GPU}={COUNT}" in cluster.kubectl("get", "ndev", "node-1", "--no-headers"))


def by_claim(name: str, count: int) -> Json:
    found = group(name, count)
    found["spec"] |= {"handover": "claim", "allowedNamespaces": {"from": "Selector", "names": ["default"]}}
    return found


def member(name: str, of: str) -> Json:
    found = pod(name, TELL, of)
    del found["spec"]["schedulerName"]
    return found


def stranger(name: str) -> list[Json]:
    requests = [{"name": "r", "exactly": {"deviceClassName": CLASS}}]
    claim = {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name}}
    claims = [{"name": "device", "resourceClaimName": name}]
    container = {"resources": {"claims": [{"name": "device"}]}}
    return [
        {**claim, "spec": {"devices": {"requests": requests}}},
        pod(name, TELL, container=container, resourceClaims=claims),
    ]


def devices(told: str) -> set[str]:
    """What the container was given."""
    return set(told.strip("[]").split())


def test_all_pods_of_a_group_get_its_devices_and_nobody_else_does(cluster: Cluster) -> None:
    """Three pods see the same two; a stranger's claim gets the third, and another one what the group leaves."""
    cluster.apply(by_claim("team", 2), *(member(name, "team") for name in ("a", "b", "c")))
    told = {name: devices(cluster.tells(name)) for name in ("a", "b", "c")}
    assert told["a"] == told["b"] == told["c"] == {card(0), card(1)}
    cluster.apply(*stranger("s"), *stranger("t"))
    cluster.eventually(lambda: any(placed(cluster, name) for name in ("s", "t")))
    first, second = ("s", "t") if placed(cluster, "s") else ("t", "s")
    assert devices(cluster.tells(first)) == {card(2)} and not placed(cluster, second)
    cluster.kubectl("delete", "pods", "a", "b", "c")
    cluster.kubectl("delete", "sdg", "team")
    assert devices(cluster.tells(second)) < {card(0), card(1)}


def placed(cluster: Cluster, name: str) -> bool:
    return bool(cluster.get("pod", name)["spec"].get("nodeName"))
