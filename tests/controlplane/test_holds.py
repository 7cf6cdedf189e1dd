"""Holds, by the real kube-scheduler and kube-controller-manager: DRA gives nobody what groups and shares have."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import Json, Pool, pod, refers
from tests.controlplane.test_dra import GROUP, publish
from tests.kubernetes_versions import since

pytestmark = since(34)
HOME = "deviceshare-system"
CLASS = "any-gpu"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    program = str(Path(__file__).with_name("hurried.py"))
    with running(Options(nodes=0, dra_holds=True, program=program)) as started:
        yield started


@pytest.fixture
def pool(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Pool]:
    made = Pool(sandbox, "".join(each for each in request.node.name[5:45] if each.isalnum()))
    made.apply({"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {}})
    yield made
    made.end()


def stranger(pool: Pool, name: str) -> list[Json]:
    """A pod with a claim on any device of the pool's nodes."""
    requests = [{"name": "r", "exactly": {"deviceClassName": CLASS}}]
    claim = {"apiVersion": GROUP, "kind": "ResourceClaim", "metadata": {"name": name}}
    claim["spec"] = {"devices": {"requests": requests}}
    claims = [{"name": "device", "resourceClaimName": name}]
    mine = {"nodeSelector": {"pool": pool.name}, "resourceClaims": claims}
    return [claim, pod(name, scheduler="default-scheduler", **mine)]


def allocated(pool: Pool, node: str) -> dict[str, list[str]]:
    """By the API server alone: who has which device of the node."""
    found: dict[str, list[str]] = {}
    for claim in json.loads(pool.kubectl("get", "resourceclaims", "-A", "-o", "json"))["items"]:
        for each in (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", ()):
            if each["pool"] == node:
                found.setdefault(each["device"], []).append(
                    f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
                )
    return found


def share(pool: Pool, name: str, percent: int) -> Json:
    limits = {"limits": {"deviceshare.io/gpu-percent": percent}}
    containers = [{"name": "main", "image": "busybox", "resources": limits}]
    return pod(name, scheduler="deviceshare-scheduler", nodeSelector={"pool": pool.name}, containers=containers)


def test_strangers_get_what_groups_leave(pool: Pool) -> None:
    """A group and a share hold their devices; three strangers wait for two, and get them when the group is deleted."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    publish(pool, node, 4)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers("nvidia.com/gpu=4"))
    began = time.monotonic()
    pool.apply(pod("a", pool.group("team", 2)))
    pool.running("a")
    print(f"bound after {time.monotonic() - began:.1f} s")
    pool.apply(share(pool, "p", 50))
    pool.running("p")
    pool.eventually(lambda: allocated(pool, node), lambda found: len(found) == 3)
    pool.apply(*stranger(pool, "s1"), *stranger(pool, "s2"), *stranger(pool, "s3"))
    pool.running("s1") if pool.placed("s1") else None
    pool.eventually(lambda: [name for name in ("s1", "s2", "s3") if pool.placed(name)], lambda names: len(names) == 1)
    time.sleep(3)
    assert Counter(by[0].partition("/")[0] for by in allocated(pool, node).values()) == {HOME: 3, pool.name: 1}
    assert not pool.kubectl("get", "pods", "-n", HOME, "-l", "deviceshare.io/hold", "-o", "name")
    pool.kubectl("delete", "pod", "a", "-n", pool.name)
    pool.kubectl("delete", "sdg", f"{pool.name}-team")
    began = time.monotonic()
    pool.eventually(lambda: [name for name in ("s1", "s2", "s3") if pool.placed(name)], lambda names: len(names) == 3)
    print(f"strangers after {time.monotonic() - began:.1f} s")
    pool.kubectl("delete", "pod", "p", "-n", pool.name)
    pool.eventually(lambda: pool.kubectl("get", "resourceclaims", "-n", HOME, "-o", "name"), lambda text: not text)
