"""Groups by claim, by the real kube-scheduler: it allocates their ResourceClaim and binds their pods without us."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from deviceshare.domain.admission.settings import WEBHOOKS
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import Json, Pool, pod, refers
from tests.controlplane.test_dra import GROUP, publish
from tests.controlplane.test_holds import CLASS, allocated, stranger
from tests.kubernetes_versions import since

pytestmark = since(34)
JOINING = 19


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with running(Options(nodes=0, dra_holds=True, admission=WEBHOOKS)) as started:
        yield started


@pytest.fixture
def pool(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Pool]:
    made = Pool(sandbox, "".join(each for each in request.node.name[5:45] if each.isalnum()))
    made.apply({"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": CLASS}, "spec": {}})
    yield made
    made.end()


def publishing_node(pool: Pool, count: int = 4) -> str:
    node = pool.node(0, inventory="amd.com/gpu=1")
    publish(pool, node, count)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers(f"nvidia.com/gpu={count}"))
    return node


def by_claim(pool: Pool, suffix: str, count: int, **spec: Json | str) -> str:
    allowed = {"from": "Selector", "names": [pool.name]}
    return pool.group(suffix, count, handover="claim", allowedNamespaces=allowed, **spec)


def member(pool: Pool, name: str, group: str) -> Json:
    return pod(name, group, scheduler="default-scheduler", nodeSelector={"pool": pool.name})


def placed(pool: Pool, *names: str) -> bool:
    return all(pool.placed(name) for name in names)


def test_kube_scheduler_alone_binds_all_but_the_first_pod(pool: Pool) -> None:
    """Twenty pods of a group, eighteen of them bound while no deviceshare runs; then strangers get the devices."""
    node = publishing_node(pool)
    began = time.monotonic()
    group = by_claim(pool, "team", 2)
    pool.apply(member(pool, "a", group))
    pool.eventually(lambda: placed(pool, "a"), bool)
    print(f"first pod after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    pool.apply(member(pool, "b", group))
    pool.eventually(lambda: placed(pool, "b"), bool)
    print(f"joined after {time.monotonic() - began:.1f} s")
    found, names = pool.get("pods", "a"), [f"c{number}" for number in range(JOINING - 1)]
    assert found["spec"]["schedulerName"] == "default-scheduler"
    assert [each["name"] for each in found["spec"]["containers"][0]["resources"]["claims"]] == ["deviceshare"]
    assert "NVIDIA_VISIBLE_DEVICES" not in str(found["spec"])
    claim = f"{pool.name}/{found['spec']['resourceClaims'][0]['resourceClaimName']}"
    pool.kubectl("cordon", node)
    pool.apply(*(member(pool, name, group) for name in names))
    running_one = pool.sandbox.pid("deviceshare")
    os.kill(running_one, signal.SIGSTOP)
    try:
        began = time.monotonic()
        pool.kubectl("uncordon", node)
        pool.eventually(lambda: placed(pool, *names), bool)
        print(f"{len(names)} joined without deviceshare after {time.monotonic() - began:.1f} s")
    finally:
        os.kill(running_one, signal.SIGCONT)
    assert allocated(pool, node) == {"gpu-0": [claim], "gpu-1": [claim]}
    pool.eventually(lambda: pool.status(group).get("podCount"), lambda count: count == JOINING + 1)
    assert claim in pool.condition(group)["message"]
    strangers = [f"s{number}" for number in range(4)]
    pool.apply(*(each for name in strangers for each in stranger(pool, name)))
    pool.eventually(lambda: sum(placed(pool, name) for name in strangers), lambda count: count == 2)
    pool.kubectl("delete", "pods", "-n", pool.name, "a", "b", *names, "--force", "--grace-period=0")
    time.sleep(2)
    assert sum(claim in by for by in allocated(pool, node).values()) == 2  # They stay the group's after its last pod.
    pool.kubectl("delete", "sdg", group)
    pool.eventually(lambda: placed(pool, *strangers), bool)
    pool.eventually(lambda: pool.kubectl("get", "resourceclaims", "-A", "-l", "deviceshare.io/hold"), refers("No res"))


def test_a_group_by_claim_and_others_never_share_a_device(pool: Pool) -> None:
    """Whole devices of a group, shares and a group by claim, side by side on one node; then one of each waits."""
    node = publishing_node(pool, 3)
    mine, other = by_claim(pool, "mine", 1), pool.group("other", 1)
    limits = {"limits": {"deviceshare.io/gpu-percent": 60}}
    containers = [{"name": "main", "image": "busybox", "resources": limits}]
    share = pod("p", nodeSelector={"pool": pool.name}, containers=containers)
    pool.apply(member(pool, "a", mine), pod("b", other, nodeSelector={"pool": pool.name}), share)
    pool.eventually(lambda: placed(pool, "a", "b", "p"), bool)
    pool.eventually(lambda: allocated(pool, node), lambda found: len(found) == 3)
    assert sorted(len(by) for by in allocated(pool, node).values()) == [1, 1, 1]
    late = by_claim(pool, "late", 1)
    pool.apply(member(pool, "c", late))
    pool.eventually(lambda: pool.condition(late)["message"], refers("waiting for"))
    pool.kubectl("delete", "pod", "p", "-n", pool.name, "--force", "--grace-period=0")
    pool.eventually(lambda: placed(pool, "c"), bool)
    assert sorted(len(by) for by in allocated(pool, node).values()) == [1, 1, 1]


def test_what_cannot_be_handed_over_by_claim_is_refused(pool: Pool) -> None:
    """Several namespaces, parts of devices, another namespace's pods, a rebind, and a change while it is bound."""
    publishing_node(pool)
    spec = {"resources": {"nvidia.com/gpu": 1}, "handover": "claim"}
    body = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": {"name": pool.name}}
    said = pool.apply({**body, "spec": spec}, fails=True)
    assert "pods of one namespace can share a ResourceClaim" in said
    group = by_claim(pool, "team", 1)
    limits = {"limits": {"deviceshare.io/gpu-percent": 60}}
    sharing = member(pool, "p", group)
    sharing["spec"]["containers"][0]["resources"] = limits
    assert "a share can't be taken" in pool.apply(sharing, fails=True)
    elsewhere = pool.another_namespace()
    assert "namespace" in pool.apply(member(pool, "q", group), namespace=elsewhere, fails=True)
    pool.apply(member(pool, "a", group))
    pool.eventually(lambda: placed(pool, "a"), bool)
    patch = ("patch", "sdg", group, "--type=merge", "-p", '{"spec": {"handover": null}}')
    assert "can't be changed while the group is bound" in pool.kubectl(*patch, fails=True)
