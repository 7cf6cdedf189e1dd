"""Pods that share: one node, the same devices, and nobody else's; with plain kubectl, as in any cluster."""

import json
from typing import Any

import pytest

from tests.controlplane.pool import GPU, VISIBLE, Json, Pool, deployment, job, pod, refers

EVERY_VENDOR = (VISIBLE, "AMD_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")


def visible(environments: list[Json]) -> set[str]:
    """The distinct values that containers see, of which there should be one."""
    return {environment[VISIBLE] for environment in environments}


def test_a_deployment_and_a_job_in_two_namespaces_see_the_same_devices(pool: Pool) -> None:
    """On one node, in every container, init containers too."""
    pool.node()
    pool.node()
    group, elsewhere = pool.group(), pool.another_namespace()
    prepare = {"name": "prepare", "image": "busybox"}
    sidecar = [{"name": "main", "image": "busybox"}, {"name": "sidecar", "image": "busybox"}]
    pool.apply(deployment("server", group, 4, initContainers=[prepare], containers=sidecar))
    pool.apply(job("once", group, initContainers=[prepare]), namespace=elsewhere)
    pool.kubectl("rollout", "status", "deployment/server", "-n", pool.name, "--timeout=30s")
    pool.kubectl("wait", "--for=condition=Complete", "job/once", "-n", elsewhere, "--timeout=30s")

    pods = pool.running() + pool.running(namespace=elsewhere)
    status = pool.status(group)
    assert len(pods) == 5
    assert {each["spec"]["nodeName"] for each in pods} == {status["nodeName"]}
    environments = pool.environments(pods)
    assert len(environments) == 4 * 3 + 2
    wanted = {VISIBLE: status["selectedDevices"][GPU], "AMD_VISIBLE_DEVICES": "", "ASCEND_VISIBLE_DEVICES": ""}
    for environment in environments:
        assert {name: environment[name] for name in EVERY_VENDOR} == wanted
        assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert wanted[VISIBLE] == "0,1"


def test_a_groups_status_says_where_it_is_and_who_uses_it(pool: Pool) -> None:
    """In the columns of kubectl and in the fields; a finished pod leaves."""
    node = pool.node()
    group = pool.group()
    pool.apply(deployment("server", group, 2), job("once", group))
    pool.kubectl("wait", "--for=condition=Complete", "job/once", "-n", pool.name, "--timeout=30s")
    servers = sorted(f"{pool.name}/{each['metadata']['name']}" for each in pool.get("pods", "-l", "app=server"))

    status = pool.eventually(lambda: pool.status(group), lambda seen: seen.get("allocatedPods") == servers)
    assert (status["phase"], status["nodeName"], status["selectedDevices"]) == ("Bound", node, {GPU: "0,1"})
    assert status["observedGeneration"] == pool.get("sdg", group)["metadata"]["generation"]
    header, row = pool.kubectl("get", "sdg", group).splitlines()
    assert header.split() == ["NAME", "PHASE", "NODE", "AGE"]
    assert row.split()[:3] == [group, "Bound", node]
    header, row = pool.kubectl("get", "sdg", group, "-o", "wide").splitlines()
    assert header.split() == ["NAME", "PHASE", "NODE", "DEVICES", "PODS", "AGE"]
    assert '"nvidia.com/gpu":"0,1"' in row
    assert row.split()[-2] == "2"
    assert f"{group}: {GPU}=0,1" in pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers(group))


def test_a_group_in_use_is_not_deleted_and_its_pods_are_named(pool: Pool) -> None:
    """Once they have gone it is, and its devices are free."""
    node = pool.node()
    group = pool.group()
    pool.apply(pod("ada", group), pod("bob", group))
    pool.running("ada", "bob")

    refusal = pool.kubectl("delete", "sdg", group, fails=True)
    assert f"{pool.name}/ada" in refusal
    assert f"{pool.name}/bob" in refusal
    assert "delete them or scale their workloads to 0 first" in refusal
    pool.kubectl("delete", "pods", "ada", "bob", "-n", pool.name)
    # The webhook may hear of it a moment later than kubectl.
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group), lambda done: done.returncode == 0)
    pool.eventually(lambda: pool.get("ndev", node)["spec"].get("claims", {}), lambda claims: not claims)


@pytest.mark.parametrize("scheduler", ["default-scheduler", "deviceshare-scheduler"])
def test_a_pod_without_a_group_passes_untouched(pool: Pool, scheduler: str) -> None:
    """Under either scheduler, with the environment that it wrote itself."""
    mine = {"name": "main", "image": "busybox", "env": [{"name": VISIBLE, "value": "void"}]}
    said = pool.apply(pod("plain", scheduler=scheduler, containers=[mine]))
    assert "Warning" not in said
    (plain,) = pool.running("plain")
    assert plain["spec"]["schedulerName"] == scheduler
    assert plain["spec"]["containers"][0]["env"] == mine["env"]
    assert not any("deviceshare.io/" in key for key in [*plain["metadata"].get("labels", {})])
    assert pool.environments([plain]) == [{VISIBLE: "void"}]


def test_the_annotation_alone_is_enough_to_join(pool: Pool) -> None:
    """The webhook names the scheduler and sets the label."""
    pool.node()
    group = pool.group()
    pool.apply(pod("joins", group, scheduler="default-scheduler"))
    (joined,) = pool.running("joins")
    assert joined["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert joined["metadata"]["labels"]["deviceshare.io/group"] == group
    assert visible(pool.environments([joined])) == {"0,1"}


def test_a_hand_written_variable_gives_way_with_a_warning(pool: Pool) -> None:
    """`all` would take every device of the node."""
    pool.node()
    group = pool.group()
    greedy = {"name": "main", "image": "busybox", "env": [{"name": VISIBLE, "value": "all"}]}
    said = pool.apply(pod("greedy", group, containers=[greedy]))
    assert f"Warning: spec.containers[0] 'main': env {VISIBLE} is replaced" in said
    assert visible(pool.environments(pool.running("greedy"))) == {"0,1"}


def test_a_debug_container_sees_the_devices_of_its_pod(pool: Pool) -> None:
    """`kubectl debug` goes through the webhook as well."""
    pool.node()
    group = pool.group()
    pool.apply(pod("main", group))
    pool.running("main")
    ephemeral = {"name": "debug", "image": "busybox", "env": [{"name": VISIBLE, "value": "all"}]}
    path = f"/api/v1/namespaces/{pool.name}/pods/main/ephemeralcontainers"
    current = json.loads(pool.kubectl("get", "--raw", path))
    body = json.dumps(current | {"ephemeralContainers": [ephemeral]})
    pool.kubectl("replace", "--raw", path, "-f", "-", stdin=body)
    seen = pool.eventually(lambda: pool.environments(pool.running("main")), lambda each: len(each) == 2)
    assert visible(seen) == {"0,1"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("deviceshare.io/nvidia-visible-devices=0,1,2,3", "is written by deviceshare only"),
        ("deviceshare.io/selected-devices={}", "is written by deviceshare only"),
        ("deviceshare.io/group-uid-", "is written by deviceshare only"),
        ("deviceshare.io/group=another", "can't be changed: delete the pod and create it with another group"),
    ],
)
@pytest.mark.parametrize("identity", ["alice", ""])
def test_people_can_not_change_what_deviceshare_wrote(pool: Pool, identity: str, change: str, said: str) -> None:
    """A container's environment is read again when it restarts, so who may write may take any device."""
    pool.node()
    pool.apply(pod("victim", pool.group(), scheduler="default-scheduler"))
    pool.running("victim")
    before = pool.get("pod", "victim")["metadata"]["annotations"]
    refusal = pool.kubectl(
        "annotate", "--overwrite", "pod", "victim", "-n", pool.name, change, identity=identity, fails=True
    )
    assert said in refusal
    assert pool.get("pod", "victim")["metadata"]["annotations"] == before
    pool.kubectl("annotate", "pod", "victim", "-n", pool.name, "example.org/mine=yes", identity=identity)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (pod("bad", "g", nodeName="node-1"), "spec.nodeName"),
        (pod("bad", "g", scheduler="another"), "spec.schedulerName"),
        (pod("bad", "Not_A_Name"), "metadata.annotations[deviceshare.io/group]"),
        (pod("bad", "g" * 64), "64 characters"),
    ],
    ids=["node", "scheduler", "name", "length"],
)
def test_a_pod_that_could_not_share_is_refused_by_field(pool: Pool, document: dict[str, Any], field: str) -> None:
    """At once, and not when somebody wonders why it waits."""
    assert field in pool.apply(document, fails=True)
