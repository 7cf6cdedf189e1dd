"""Pods that share: one node, the same devices, and nobody else's; with plain kubectl, as in any cluster."""

from deviceshare.domain.admission.settings import WEBHOOKS
from tests.controlplane.pool import GPU, VISIBLE, Pool, deployment, job, pod, refers

EVERY_VENDOR = (VISIBLE, "AMD_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")


def test_a_deployment_and_a_job_in_two_namespaces_see_the_same_devices(pool: Pool) -> None:
    """On one node, in every container, init containers too."""
    pool.node()
    pool.node()
    group, elsewhere = pool.group(), pool.another_namespace()
    prepare = {"name": "prepare", "image": "busybox"}
    sidecar = [{"name": "main", "image": "busybox"}, {"name": "sidecar", "image": "busybox"}]
    pool.apply(deployment("server", group, 4, initContainers=[prepare], containers=sidecar))
    pool.apply(job("once", group, initContainers=[prepare]), namespace=elsewhere)
    pool.kubectl("rollout", "status", "deployment/server", "-n", pool.name, "--timeout=45s")
    pool.kubectl("wait", "--for=condition=Complete", "job/once", "-n", elsewhere, "--timeout=45s")

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
    pool.kubectl("wait", "--for=condition=Complete", "job/once", "-n", pool.name, "--timeout=45s")
    servers = sorted(f"{pool.name}/{each['metadata']['name']}" for each in pool.get("pods", "-l", "app=server"))

    status = pool.eventually(lambda: pool.status(group), lambda seen: seen.get("allocatedPods") == servers)
    assert (status["phase"], status["nodeName"], status["selectedDevices"]) == ("Bound", node, {GPU: "0,1"})
    assert status["observedGeneration"] == pool.get("sdg", group)["metadata"]["generation"]
    header, row = pool.kubectl("get", "sdg", group).splitlines()
    assert header.split() == ["NAME", "PHASE", "NODE", "AGE"]
    assert row.split()[:3] == [group, "Bound", node]
    header, row = pool.kubectl("get", "sdg", group, "-o", "wide").splitlines()
    assert header.split() == ["NAME", "PHASE", "NODE", "WANTS", "DEVICES", "PODS", "IDLE", "WHY", "AGE"]
    assert row.split()[3:7] == [f"{GPU}:", "2", "0,1", "2"]
    assert pool.kubectl("wait", "--for=condition=Ready", f"sdg/{group}", "--timeout=45s")
    assert f"{group}: {GPU}=0,1" in pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers(group))


def test_a_group_in_use_is_not_deleted_and_its_pods_are_named(pool: Pool) -> None:
    """Once they have gone it is, and its devices are free."""
    node = pool.node()
    group = pool.group(deletionPolicy="Refuse")
    pool.apply(pod("ada", group), pod("bob", group))
    pool.running("ada", "bob")
    # A policy names those of the status, which is written once a second while a group is in use.
    pool.eventually(lambda: pool.status(group).get("podCount") == 2)

    refusal = pool.kubectl("delete", "sdg", group, fails=True)
    assert f"{pool.name}/ada" in refusal
    assert f"{pool.name}/bob" in refusal
    assert "delete them or scale their workloads to 0 first" in refusal
    pool.kubectl("delete", "pods", "ada", "bob", "-n", pool.name)
    # The webhook may hear of it a moment later than kubectl.
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group), lambda done: done.returncode == 0)
    pool.eventually(lambda: pool.get("ndev", node)["spec"].get("claims", {}), lambda claims: not claims)


def test_a_pod_without_a_group_passes_untouched(pool: Pool) -> None:
    """Under either scheduler, with the environment that it wrote itself."""
    mine = {"name": "main", "image": "busybox", "env": [{"name": VISIBLE, "value": "void"}]}
    schedulers = ("default-scheduler", "deviceshare-scheduler")
    said = pool.apply(*(pod(name, scheduler=name, containers=[mine]) for name in schedulers))
    assert "Warning" not in said
    for plain in pool.running(*schedulers):
        assert plain["spec"]["schedulerName"] == plain["metadata"]["name"]
        assert plain["spec"]["containers"][0]["env"] == mine["env"]
        assert "labels" not in plain["metadata"]
        assert pool.environments([plain]) == [{VISIBLE: "void"}]


def test_the_annotation_alone_is_enough_and_a_hand_written_variable_gives_way(pool: Pool) -> None:
    """Admission names the scheduler and sets the label; `all` would have taken every device of the node.

    Webhooks warn of it; policies can't.
    """
    pool.node()
    group = pool.group()
    greedy = {"name": "main", "image": "busybox", "env": [{"name": VISIBLE, "value": "all"}]}
    said = pool.apply(pod("joins", group, scheduler="default-scheduler", containers=[greedy]))
    warned = f"Warning: spec.containers[0] 'main': env {VISIBLE} is replaced" in said
    assert warned == (pool.sandbox.plan.admission == WEBHOOKS)
    (joined,) = pool.running("joins")
    assert joined["spec"]["schedulerName"] == "deviceshare-scheduler"
    assert joined["metadata"]["labels"]["deviceshare.io/group"] == group
    (environment,) = pool.environments([joined])
    assert environment[VISIBLE] == "0,1"


def test_a_user_can_not_change_what_deviceshare_wrote(pool: Pool) -> None:
    """A container's environment is read again when it restarts, so who may write may take any device."""
    pool.node()
    pool.apply(pod("victim", pool.group()), identity="alice")
    (victim,) = pool.running("victim")
    annotate = ("annotate", "--overwrite", "pod", "victim", "-n", pool.name)
    refusal = pool.kubectl(*annotate, "deviceshare.io/nvidia-visible-devices=0,1,2,3", identity="alice", fails=True)
    assert "is written by deviceshare only" in refusal
    refusal = pool.kubectl(*annotate, "deviceshare.io/group=another", identity="alice", fails=True)
    assert "delete the pod and create it with another group" in refusal
    assert pool.get("pod", "victim")["metadata"]["annotations"] == victim["metadata"]["annotations"]
