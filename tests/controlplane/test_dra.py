"""A node whose GPUs a DRA driver publishes, and of which ResourceClaims hold some, on API servers that serve DRA."""

import json
import re
import textwrap
from pathlib import Path

from tests.controlplane.pool import GPU, Json, Pool, pod, refers
from tests.kubernetes_versions import since
from tests.unit.domain.dra_objects import card, claim_json, gpu_json, slice_json

pytestmark = since(34)
"""Which serves resource.k8s.io/v1."""

ROOT = Path(__file__).parent.parent.parent
GROUP = "resource.k8s.io/v1"


def publish(pool: Pool, node: str, number: int, *, generation: int = 1, count: int = 1) -> None:
    """As NVIDIA's driver does for its node."""
    body = slice_json(node, *map(gpu_json, range(number)), name=node, generation=generation, resourceSliceCount=count)
    del body["metadata"]["resourceVersion"]
    pool.apply({"apiVersion": GROUP, "kind": "ResourceSlice", **body})


def allocate(pool: Pool, node: str, name: str, *devices: str) -> None:
    """A claim as kube-scheduler leaves it; without devices a deallocated one."""
    written = claim_json(f"{pool.name}/{name}", *(devices or ("gpu-0",)), pool=node)
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    meta = {"name": name, "namespace": pool.name}
    if not pool.kubectl("get", "resourceclaims", "-n", pool.name, name, "--ignore-not-found"):
        pool.apply(
            {
                "apiVersion": GROUP,
                "kind": "ResourceClaim",
                "metadata": meta,
                "spec": {"devices": {"requests": requests}},
            }
        )
    allocation: Json | None = written["status"]["allocation"] if devices else None
    body = json.dumps({"status": {"allocation": allocation}})
    pool.kubectl("patch", "resourceclaim", "-n", pool.name, name, "--subresource=status", "--type=merge", "-p", body)


def test_groups_get_what_dra_publishes_and_no_claim_holds(pool: Pool) -> None:
    """By UUID and without an agent; a claim's devices are waited for, and had when it is deallocated."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    publish(pool, node, 4)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers(f"{GPU}=4"))
    allocate(pool, node, "train", "gpu-0", "gpu-2")
    pool.eventually(lambda: pool.get("ndev", node)["spec"]["summary"]["free"], refers(f"{GPU}=2"))
    pool.apply(pod("three", pool.group("three", 3)))
    pool.eventually(lambda: pool.reason("three"), refers(f"needs 3 {GPU} (2 of 4 free)"))
    pool.apply(pod("one", pool.group("one", 1)))
    (seen,) = pool.environments(pool.running("one"))
    assert seen["NVIDIA_VISIBLE_DEVICES"] == card(1)
    allocate(pool, node, "train")
    found = pool.environments(pool.running("three"))
    assert sorted(found[0]["NVIDIA_VISIBLE_DEVICES"].split(",")) == [card(0), card(2), card(3)]
    assert pool.get("ndev", node)["status"]["published"]["devices"][0]["memoryMib"] == 81920

    allocate(pool, node, "train", "gpu-1")
    said = pool.eventually(lambda: pool.condition(f"{pool.name}-one", "Healthy"), lambda c: c.get("status") == "False")
    assert f"{GPU} 1 to ResourceClaim {pool.name}/train" in said["message"]
    warned = ("get", "events", "--field-selector", f"reason=DevicesGivenAway,involvedObject.name={node}", "-A")
    pool.eventually(lambda: pool.kubectl(*warned), refers(f"{pool.name}/train"))
    pool.kubectl("delete", "resourceclaims", "-n", pool.name, "--all")
    pool.kubectl("delete", "resourceslices", node)


def test_the_device_class_of_the_documentation_is_accepted(pool: Pool) -> None:
    """The API server compiles its expression."""
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/dra.md").read_text(), re.DOTALL)
    [block] = [each for each in blocks if "kind: DeviceClass" in each]
    said = pool.kubectl("apply", "--dry-run=server", "-f", "-", stdin=textwrap.dedent("    " + block.lstrip()))
    assert "gpu.nvidia.com" in said


def test_an_incomplete_pool_offers_nothing(pool: Pool) -> None:
    """Until its other slice is there, too."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    publish(pool, node, 2, count=2)
    pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers("is incomplete: 1 of 2 ResourceSlices"))
    pool.apply(pod("one", pool.group("one", 1)))
    pool.eventually(lambda: pool.reason("one"), refers("incomplete"))
    publish(pool, node, 2, generation=2)
    (seen,) = pool.environments(pool.running("one"))
    assert seen["NVIDIA_VISIBLE_DEVICES"] == card(0)
    pool.kubectl("delete", "resourceslices", node)
