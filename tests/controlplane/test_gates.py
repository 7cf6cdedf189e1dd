"""Without a scheduler of ours: the leader places pods behind scheduling gates, the cluster's own one binds them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.pool import GPU, VISIBLE, Pool, deployment, pod
from tests.kubernetes_versions import since

# Scheduling gates are on by default from 1.27 on; the policies that a test uses are v1 from 1.30 on.
pytestmark = since(30)


DEFAULT = "default-scheduler"
GATE = "deviceshare.io/placement"
HOST: dict[str, Any] = {"topologyKey": "kubernetes.io/hostname"}
HOLD = "hold-gates"
"""The policy with which a test keeps the leader from its last step."""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """Without nodes: each test brings its own."""
    with running(Options(nodes=0, placement="gates")) as started:
        yield started


def nodes_of(pool: Pool, *names: str) -> set[str]:
    return {each["spec"]["nodeName"] for each in pool.running(*names)}


def claims(pool: Pool, node: str) -> list[str]:
    """The holders on a node."""
    found = pool.get("ndev", node)["spec"].get("claims", {}).values()
    return sorted(claim.get("group") or claim.get("pod", "") for claim in found)


def events(pool: Pool, reason: str) -> str:
    chosen = ("--field-selector", f"reason={reason}", "-o", "jsonpath={..message}")
    return pool.kubectl("get", "events", "-n", pool.name, *chosen)


def sharing(name: str, gib: int) -> dict[str, Any]:
    limits = {"limits": {"deviceshare.io/gpu-mem": gib}}
    return pod(name, scheduler=DEFAULT, containers=[{"name": "main", "image": "busybox", "resources": limits}])


def test_doctor_sees_the_gates(sandbox: Sandbox) -> None:
    """The sandbox has no Deployment to ask: by what becomes of a pod."""
    env = {**os.environ, "KUBECONFIG": str(sandbox.kubeconfig)}
    command = [sys.executable, "-m", "deviceshare", "doctor"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout
    assert "deviceshare places pods behind the gate deviceshare.io/placement" in " ".join(said.split())


def test_the_clusters_own_scheduler_binds_the_pods_of_a_group(pool: Pool) -> None:
    """One names no scheduler, the other the one that doesn't run in this mode; both see the same devices."""
    pool.node(), pool.node()
    group = pool.group()
    pool.apply(pod("a", group, scheduler=DEFAULT), pod("b", group))
    pods = pool.running("a", "b")
    assert {each["spec"]["schedulerName"] for each in pods} == {DEFAULT}
    assert {each["spec"]["nodeName"] for each in pods} == {pool.status(group)["nodeName"]}
    assert all("schedulingGates" not in each["spec"] for each in pods)
    devices = pool.status(group)["selectedDevices"][GPU]
    seen = pool.eventually(lambda: pool.environments(pool.get("pods")))
    assert {env[VISIBLE] for env in seen} == {devices}
    assert "kube-scheduler binds it there" in pool.eventually(lambda: events(pool, "Placed"))
    assert "Successfully assigned" in pool.eventually(lambda: events(pool, "Scheduled"))


def test_shares_need_no_scheduler_of_ours_either(pool: Pool) -> None:
    """Nodes advertise what the scheduler would look for; the ledger says how much there is: two of three fit."""
    node = pool.node(devices=1)
    pool.eventually(lambda: pool.get("node", node)["status"]["allocatable"].get("deviceshare.io/gpu-mem"))
    pool.apply(sharing("a", 8), sharing("b", 8))
    assert nodes_of(pool, "a", "b") == {node}
    pool.apply(sharing("c", 8))
    assert "0/" in pool.eventually(lambda: events(pool, "NotPlaced"))
    pool.kubectl("delete", "pod", "a", "-n", pool.name, "--wait=false")
    assert nodes_of(pool, "c") == {node}


def test_a_freed_device_leads_to_a_decision_at_once(pool: Pool) -> None:
    """A gated pod isn't kube-scheduler's, so nobody has to wake it."""
    pool.node(devices=2)
    first, second = pool.group("first"), pool.group("second")
    pool.apply(pod("a", first, scheduler=DEFAULT))
    pool.running("a")
    pool.apply(pod("b", second, scheduler=DEFAULT))
    assert "shared nodes fit" in pool.eventually(lambda: events(pool, "NotPlaced"))
    pool.kubectl("delete", "pod", "a", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", first).returncode == 0)
    pool.running("b")


def test_nobody_else_removes_the_gate(pool: Pool) -> None:
    """The pod would run without devices. Its author may not write what deviceshare writes with it, either."""
    group = pool.group(nodeSelector={"pool": "none"})
    pool.apply(pod("a", group, scheduler=DEFAULT))
    gone = '{"spec": {"schedulingGates": null}}'
    said = pool.kubectl("patch", "pod", "a", "-n", pool.name, "--type=merge", "-p", gone, identity="alice", fails=True)
    assert GATE in said and "is removed by deviceshare" in said
    forged = '{"metadata": {"annotations": {"deviceshare.io/placed-on": "n"}}}'
    pool.kubectl("patch", "pod", "a", "-n", pool.name, "--type=merge", "-p", forged, identity="alice", fails=True)


def test_a_group_whose_pods_do_not_fit_goes_to_another_node(pool: Pool) -> None:
    """By anti-affinity to others' pods, which kube-scheduler alone judges. What was taken first is free again."""
    first = pool.node()
    blocker = pod("blocker", scheduler=DEFAULT, nodeSelector={"kubernetes.io/hostname": first})
    blocker["metadata"]["labels"] = {"app": "blocker"}
    pool.apply(blocker)
    pool.running("blocker")
    group = pool.group()
    term = {"labelSelector": {"matchLabels": {"app": "blocker"}}, **HOST}
    away = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pool.apply(deployment("d", group, 1, scheduler=DEFAULT, affinity=away))
    pool.eventually(lambda: pool.status(group).get("nodeName"))
    second = pool.node()
    pool.eventually(lambda: pool.status(group).get("nodeName"), lambda node: node == second, 90)
    [running] = pool.eventually(lambda: [p for p in pool.get("pods") if p["metadata"]["name"] != "blocker"])
    assert nodes_of(pool, running["metadata"]["name"]) == {second}
    pool.eventually(lambda: claims(pool, first), lambda held: held == [])
    assert claims(pool, second) == [group]
    assert "anti-affinity" in events(pool, "FailedPlacement")


def test_replicas_that_avoid_each_other_are_spread_at_once(pool: Pool) -> None:
    """By inter-pod anti-affinity among them; without a group each pod has its own node."""
    nodes = {pool.node() for _ in range(4)}
    term = {"labelSelector": {"matchLabels": {"app": "d"}}, **HOST}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    spec = sharing("x", 4)["spec"]
    chosen = {"nodeSelector": {"pool": pool.name}, "affinity": apart, "containers": spec["containers"]}
    pool.apply(deployment("d", "", 4, scheduler=DEFAULT, **chosen))

    def spread() -> set[str]:
        return {p["spec"].get("nodeName", "") for p in pool.get("pods") if p["status"]["phase"] == "Running"}

    assert pool.eventually(spread, lambda found: found == nodes, 15) == nodes
    assert events(pool, "FailedPlacement") == ""


def test_a_leader_that_is_killed_between_claim_and_patch_leaves_nothing_behind(pool: Pool) -> None:
    """A policy holds the patch back until the group has its claim; then deviceshare is killed."""
    rule = "!has(oldObject.spec.schedulingGates) || has(object.spec.schedulingGates)"
    api = "admissionregistration.k8s.io/v1"
    match = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": pool.name}},
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"]}],
    }
    spec = {"failurePolicy": "Fail", "matchConstraints": match, "validations": [{"expression": rule}]}
    pool.apply(
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": HOLD}, "spec": spec},
        {
            "apiVersion": api,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": HOLD},
            "spec": {"policyName": HOLD, "validationActions": ["Deny"]},
        },
    )
    try:
        _await_policy(pool)
        node, group = pool.node(), pool.group()
        pool.apply(pod("a", group, scheduler=DEFAULT), pod("b", group, scheduler=DEFAULT))
        pool.eventually(lambda: claims(pool, node), lambda held: held == [group])
        pool.eventually(lambda: events(pool, "NotPlaced"))
        os.kill(pool.sandbox.pid("deviceshare"), signal.SIGKILL)
        assert all(each["spec"].get("schedulingGates") for each in pool.get("pods", "a", "b"))
    finally:
        pool.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", HOLD)
    pool.eventually(lambda: pool.placed("a") and pool.placed("b"), seconds=90)
    assert nodes_of(pool, "a", "b") == {node}
    assert claims(pool, node) == [group]


def _await_policy(pool: Pool) -> None:
    """Policies take effect a moment after they are created."""
    pool.apply(pod("probe", scheduler=DEFAULT, schedulingGates=[{"name": "example.com/probe"}]))
    gone = '{"spec": {"schedulingGates": null}}'
    patch = ("patch", "pod", "probe", "-n", pool.name, "--type=merge", "--dry-run=server", "-p", gone)
    pool.eventually(lambda: pool.sandbox.kubectl(*patch).returncode, bool)
    pool.kubectl("delete", "pod", "probe", "-n", pool.name)
