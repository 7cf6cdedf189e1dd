"""Shares of devices: by memory, by percent and inside of a group; with plain kubectl, as in any cluster."""

import json
from typing import Any

import pytest

from tests.controlplane.pool import GPU, VISIBLE, Json, Pool, pod, refers
from tests.kubernetes_versions import before, since

MEM, PERCENT = "deviceshare.io/gpu-mem", "deviceshare.io/gpu-percent"
MIB, COUNT = "deviceshare.io/gpu-mem-mib", "deviceshare.io/gpu-count"
MEMORY_LABEL = {"nvidia.com/gpu.memory": "16384"}
SHARES = "deviceshare.io/shares"


def container(name: str = "main", /, **limits: Any) -> Json:
    """A container; `mem` and `percent` are its limits, others by their names."""
    named = {{"mem": MEM, "percent": PERCENT}.get(key, key): value for key, value in limits.items()}
    return {"name": name, "image": "busybox", "resources": {"limits": named}} if named else {"name": name, "image": "b"}


def sharer(pool: Pool, name: str, *containers: Json, group: str = "", **spec: Any) -> Json:
    """A pod that stays on the pool's nodes, for the default scheduler, as people write it."""
    selector = {"pool": pool.name}
    return pod(name, group, scheduler="default-scheduler", nodeSelector=selector, containers=list(containers), **spec)


def environment(pool: Pool, name: str) -> dict[str, Json]:
    """By container, what it was started with."""
    (running,) = pool.running(name)
    found: dict[str, Json] = json.loads(running["metadata"]["annotations"]["sandbox.deviceshare.io/env"])
    return found


def test_each_container_sees_its_own_part_and_the_others_none(pool: Pool) -> None:
    """By memory and by percent in one pod, the limits that programs read, and a container that didn't ask."""
    node = pool.node(2, **MEMORY_LABEL)
    pool.apply(sharer(pool, "two", container("small", mem=3), container("large", percent=90), container("plain")))
    env = environment(pool, "two")
    assert {env["small"][VISIBLE], env["large"][VISIBLE]} == {"0", "1"}
    assert env["plain"][VISIBLE] == ""
    assert env["small"]["DEVICESHARE_MEMORY_LIMIT_MIB"] == "3072"
    assert env["small"]["DEVICESHARE_PERCENT"] == "18"
    assert env["large"]["DEVICESHARE_MEMORY_LIMIT_MIB"] == str(16384 * 90 // 100)
    assert env["large"]["DEVICESHARE_PERCENT"] == "90"
    assert 0 < float(env["large"]["XLA_PYTHON_CLIENT_MEM_FRACTION"]) < 0.9
    assert "DEVICESHARE_PERCENT" not in env["plain"]

    (claim,) = pool.get("ndev", node)["spec"]["claims"].values()
    assert claim["pod"] == f"{pool.name}/two"
    assert json.loads(pool.get("pod", "two")["metadata"]["annotations"][SHARES]) == claim["shares"]
    pool.kubectl("delete", "pod", "two", "-n", pool.name)
    pool.eventually(lambda: pool.get("ndev", node)["spec"].get("claims", {}), lambda claims: not claims)


def test_the_same_part_of_two_devices(pool: Pool) -> None:
    """Never both of one, which has room for both; where only one device has room, the pod waits."""
    pool.node(2, **MEMORY_LABEL)
    pool.apply(sharer(pool, "both", container(**{MIB: 3000, COUNT: 2})))
    env = environment(pool, "both")["main"]
    assert sorted(env[VISIBLE].split(",")) == ["0", "1"]
    assert env["DEVICESHARE_MEMORY_LIMIT_MIB"] == "6000"
    pool.apply(sharer(pool, "most", container(percent=75)))
    pool.running("most")
    pool.apply(sharer(pool, "waits", container(**{PERCENT: 40, COUNT: 2})))
    pool.eventually(
        lambda: pool.reason("waits"), refers("2 x 40 percent of a GPU; no devices have room for all of that together")
    )


@since(29)
def test_an_init_container_before_a_sidecar_has_the_device_for_itself(pool: Pool) -> None:
    """60 %, then a sidecar of 20 and a container of 30: 60 are taken, so that another has 40."""
    pool.node(1)
    sidecar = {**container("sidecar", percent=20), "restartPolicy": "Always"}
    inits = [container("init", percent=60), sidecar]
    pool.apply(
        sharer(pool, "three", container(percent=30), initContainers=inits), sharer(pool, "other", container(percent=40))
    )
    pool.running("three", "other")


def test_a_share_that_finds_no_room_says_so_and_gets_it_as_soon_as_there_is(pool: Pool) -> None:
    """And nobody waits for kube-scheduler's five minutes."""
    pool.node(1, **MEMORY_LABEL)
    pool.apply(sharer(pool, "first", container(mem=9)))
    pool.running("first")
    pool.apply(sharer(pool, "second", container(mem=8)))
    pool.eventually(lambda: pool.reason("second"), refers("7 of 16 GiB"))
    pool.kubectl("delete", "pod", "first", "-n", pool.name, "--now")
    pool.running("second")


def test_more_than_a_hundred_percent_are_whole_devices_and_a_part(pool: Pool) -> None:
    """250 are two devices for this pod alone and a half of a third, where others find room."""
    pool.node(4)
    pool.apply(sharer(pool, "big", container(percent=250)))
    env = environment(pool, "big")["main"]
    assert len(set(env[VISIBLE].split(","))) == 3
    assert env["DEVICESHARE_PERCENT"] == "250"
    pool.apply(sharer(pool, "half", container(percent=50)))
    assert environment(pool, "half")["main"][VISIBLE] in env[VISIBLE].split(","), "best fit: the half that is left"
    pool.apply(sharer(pool, "whole", container(percent=100)))
    (own,) = set(environment(pool, "whole")["main"][VISIBLE])
    assert own not in env[VISIBLE].split(",")
    pool.apply(sharer(pool, "late", container(percent=1)))
    pool.eventually(lambda: pool.reason("late"), refers("1 percent of a GPU"))


def test_a_device_never_serves_a_group_and_others_shares(pool: Pool) -> None:
    """In either order; a group's devices come free for shares when it is deleted."""
    pool.node(2, **MEMORY_LABEL)
    pool.apply(sharer(pool, "share", container(mem=1)))
    taken = environment(pool, "share")["main"][VISIBLE]
    group = pool.group(count=1)
    pool.apply(pod("member", group))
    (member,) = pool.environments(pool.running("member"))
    assert {taken, member[VISIBLE]} == {"0", "1"}
    pool.apply(sharer(pool, "next", container(mem=16)))
    pool.eventually(lambda: pool.reason("next"), refers("15 of 16 GiB"))
    pool.kubectl("delete", "pod", "member", "-n", pool.name, "--now")
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group), lambda done: done.returncode == 0)
    assert environment(pool, "next")["main"][VISIBLE] == member[VISIBLE]


def test_a_share_inside_of_a_group_spends_its_devices(pool: Pool) -> None:
    """Containers that ask get their part of one, the others all; and it waits when the group's devices are full."""
    pool.node(4, **MEMORY_LABEL)
    group = pool.group(count=2)
    pool.apply(sharer(pool, "first", container("part", mem=12), container("rest"), group=group))
    env = environment(pool, "first")
    assert env["rest"][VISIBLE] == "0,1"
    assert env["part"][VISIBLE] in ("0", "1")
    pool.apply(sharer(pool, "second", container(mem=12), group=group))
    assert {env["part"][VISIBLE], environment(pool, "second")["main"][VISIBLE]} == {"0", "1"}
    pool.apply(sharer(pool, "third", container(mem=5), group=group))
    pool.eventually(lambda: pool.reason("third"), refers("4 of 16 GiB"))
    pool.apply(sharer(pool, "outside", container(mem=5)))
    assert environment(pool, "outside")["main"][VISIBLE] in ("2", "3")
    pool.kubectl("delete", "pod", "second", "-n", pool.name, "--now")
    pool.running("third")


def test_init_containers_use_what_the_others_get_later(pool: Pool) -> None:
    """As Kubernetes counts: the larger, not the sum."""
    node = pool.node(1, **MEMORY_LABEL)
    prepare = {**container("prepare", mem=10)}
    pool.apply(sharer(pool, "staged", container(mem=12), initContainers=[prepare]))
    pool.apply(sharer(pool, "beside", container(mem=4)))
    assert environment(pool, "staged")["prepare"]["DEVICESHARE_MEMORY_LIMIT_MIB"] == "10240"
    pool.running("beside")
    assert len(pool.get("ndev", node)["spec"]["claims"]) == 2


def test_spread_takes_the_emptiest_device(pool: Pool) -> None:
    """By the pod's annotation."""
    pool.node(3, **MEMORY_LABEL)
    for number in range(3):
        body = sharer(pool, f"spread-{number}", container(mem=2))
        body["metadata"]["annotations"] = {"deviceshare.io/strategy": "spread"}
        pool.apply(body)
        pool.running(f"spread-{number}")
    seen = {environment(pool, f"spread-{number}")["main"][VISIBLE] for number in range(3)}
    assert seen == {"0", "1", "2"}
    pool.apply(sharer(pool, "packed", container(mem=2)))
    pool.running("packed")


def test_shares_by_memory_wait_where_the_memory_is_unknown(pool: Pool) -> None:
    """And say what would help; by percent they run."""
    pool.node(1, **{"nvidia.com/gpu.memory": "unknown"})
    pool.apply(sharer(pool, "memory", container(mem=1)), sharer(pool, "percent", container(percent=30)))
    pool.eventually(lambda: pool.reason("memory"), refers("memory of the node's GPUs is not known"))
    assert environment(pool, "percent")["main"]["DEVICESHARE_MEMORY_LIMIT_MIB"] == ""


@pytest.mark.parametrize("resource", [MEM, "aliyun.com/gpu-mem"])
def test_kubernetes_own_quota_bounds_shares(pool: Pool, resource: str) -> None:
    """https://kubernetes.io/docs/concepts/policy/resource-quotas/#quota-for-extended-resources"""
    pool.node(1, **MEMORY_LABEL)
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    pool.apply({**quota, "spec": {"hard": {f"requests.{resource}": "5"}}})
    pool.eventually(lambda: pool.get("resourcequota", "gpus").get("status", {}).get("hard"))
    pool.apply(sharer(pool, "within", container(**{resource: 3})))
    pool.running("within")
    refusal = pool.apply(sharer(pool, "beyond", container(**{resource: 3})), fails=True)
    assert "exceeded quota" in refusal
    assert f"requests.{resource}=3" in refusal


REFUSED: dict[str, tuple[list[Json], str]] = {
    "negative": ([container(mem=-1)], "is negative"),
    "fraction": ([container(mem="0.5")], "not a whole number"),
    "bytes": ([container(mem=8 << 30)], "counts GiB"),
    "both": ([container(mem=1, **{"aliyun.com/gpu-mem": 1})], "are both there"),
    "plugin": ([container("a", mem=1), container("b", **{GPU: 1})], GPU),
}


@before(36)  # policies know neither groups nor nodes: test_policies.py has what they refuse
def test_bad_requests_are_refused_with_what_to_do(pool: Pool) -> None:
    """Each at once, by the field; zero is no request at all."""
    pool.node(1, **MEMORY_LABEL)
    for name, (containers, words) in REFUSED.items():
        refusal = pool.apply(sharer(pool, name, *containers), fails=True)
        assert words in refusal, (name, refusal)
    group = pool.group(resources={"amd.com/gpu": 1})
    refusal = pool.apply(sharer(pool, "mixed", container(**{"aliyun.com/gpu-mem": 1}), group=group), fails=True)
    assert "aliyun.com/gpu-mem" in refusal
    pool.apply(sharer(pool, "zero", container(mem=0)))
    assert "labels" not in pool.get("pod", "zero")["metadata"]
