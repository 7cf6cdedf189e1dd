"""Which devices of a node exist, whose they are, and which groups may have."""

import json

from tests.controlplane.pool import GPU, Pool, pod, refers

A910, A310 = "huawei.com/Ascend910", "huawei.com/Ascend310P"


def capacity(pool: Pool, node: str, **resources: str) -> None:
    """As the kubelet writes it once a device plugin has registered."""

    def written() -> bool:
        body = json.loads(pool.kubectl("get", "--raw", f"/api/v1/nodes/{node}"))
        for field in ("capacity", "allocatable"):
            body["status"][field] |= resources
        # kubectl 1.20 doesn't patch subresources.
        command = ("replace", "--raw", f"/api/v1/nodes/{node}/status", "-f", "-")
        return pool.sandbox.kubectl(*command, stdin=json.dumps(body)).returncode == 0

    pool.eventually(written)  # controllers write nodes, too


def test_a_limit_of_zero_takes_no_node_from_groups(pool: Pool) -> None:
    """Charts write it; anybody may."""
    node = pool.node()
    zero = {"limits": {GPU: "0"}}
    container = {"name": "main", "image": "busybox", "resources": zero}
    pool.apply(pod("zero", scheduler="default-scheduler", nodeSelector={"pool": pool.name}, containers=[container]))
    pool.running("zero")
    assert pool.placed("zero") == node
    pool.apply(pod("member", pool.group(count=4), containers=[container]))
    (seen,) = pool.environments(pool.running("member"))
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "0,1,2,3"


def test_turns_on_a_gpu_are_not_gpus(pool: Pool) -> None:
    """Four GPUs, on each of which four pods may take turns: a group of four gets them, one of six waits."""
    node = pool.node(0, inventory="amd.com/gpu=1")
    labels = ("nvidia.com/gpu.count=4", "nvidia.com/gpu.replicas=4", "nvidia.com/gpu.sharing-strategy=time-slicing")
    pool.kubectl("label", "node", node, *labels)
    capacity(pool, node, **{GPU: "16"})
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers(f"{GPU}=4"))
    pool.apply(pod("six", pool.group("six", 6)))
    pool.eventually(lambda: pool.reason("six"), refers(f"needs 6 {GPU} (4 of 4 free)"))
    pool.apply(pod("four", pool.group("four", 4)))
    (seen,) = pool.environments(pool.running("four"))
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "0,1,2,3"
    pool.kubectl("label", "node", node, "nvidia.com/gpu.replicas-", "nvidia.com/gpu.sharing-strategy-")
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers("contradict 16 allocatable"))
    pool.kubectl("annotate", "node", node, "--overwrite", f"deviceshare.io/devices={GPU}=4")
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--no-headers", node), refers(f"{GPU}=4"))


def test_two_resources_behind_one_variable_never_have_two_owners(pool: Pool) -> None:
    """None is offered until the owner says which devices are which; the reason says how."""
    node = pool.node(0, inventory=f"{GPU}=1")
    capacity(pool, node, **{A910: "2", A310: "2"})
    pool.apply(pod("one", pool.group("one", resources={A910: 1})))
    pool.apply(pod("other", pool.group("other", resources={A310: 1})))
    for name in ("one", "other"):
        pool.eventually(lambda name=name: pool.reason(name), refers("share ASCEND_VISIBLE_DEVICES"))  # type: ignore[misc]
    pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers("share ASCEND_VISIBLE_DEVICES"))
    pool.kubectl("annotate", "node", node, "--overwrite", f"deviceshare.io/devices={A910}=0-1,{A310}=2-3")
    seen = pool.environments(pool.running("one", "other"))
    assert sorted(each["ASCEND_VISIBLE_DEVICES"] for each in seen) == ["0", "2"]


def test_a_device_that_is_kept_out_is_given_to_nobody(pool: Pool) -> None:
    """The one that drives the display, say; people see that it is kept out."""
    node = pool.node()
    pool.kubectl("annotate", "node", node, f"deviceshare.io/devices={GPU}=1-3")
    pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers(f"{GPU} 0: kept out by the node's annotation"))
    pool.apply(pod("four", pool.group("four", 4)))
    pool.eventually(lambda: pool.reason("four"), refers(f"needs 4 {GPU} (3 of 3 free)"))
    pool.apply(pod("three", pool.group("three", 3)))
    (seen,) = pool.environments(pool.running("three"))
    assert seen["NVIDIA_VISIBLE_DEVICES"] == "1,2,3"


def test_the_ledger_keeps_how_much_memory_devices_have_and_whom_they_serve(pool: Pool) -> None:
    """As the CRD stores it; what the node no longer says goes away."""
    node = pool.node()
    fields = ("memoryMib", "forShares", "forGroups")

    def kept() -> list[object]:
        status = pool.get("ndev", node)["status"]
        return [status.get(field) or None for field in fields]

    first = [{"resource": GPU, "index": 0}]
    pool.kubectl("annotate", "node", node, f"deviceshare.io/share-devices={GPU}=0-0")
    pool.eventually(kept, lambda now: now == [{GPU: 16384}, first, None])
    pool.kubectl("annotate", "node", node, f"deviceshare.io/group-devices={GPU}=0-0")
    pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers("name each device in one of them"))
    pool.apply(pod("waits", pool.group("waits", 1)))
    pool.eventually(lambda: pool.reason("waits"), refers("the node offers no nvidia.com/gpu"))
    pool.kubectl("annotate", "node", node, "deviceshare.io/share-devices-")
    pool.running("waits")
    pool.kubectl("label", "node", node, f"{GPU}.memory=16Gi", "--overwrite")
    pool.eventually(kept, lambda now: now == [None, None, first])
