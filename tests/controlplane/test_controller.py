"""The leader's work as people see it: what is said, what is given back, what is noticed; with plain kubectl."""

import json
import time
from datetime import UTC, datetime

import pytest

from tests.controlplane.pool import AMD, GPU, Pool, pod, refers

GROUPS_PATH = "/apis/deviceshare.io/v1alpha1/shareddevicegroups"
AT_ONCE_SECONDS = 20.0
"""For a claim that nobody needs on a busy machine; to wait out binds takes 28 s before Kubernetes 1.21."""


def claims(pool: Pool, node: str) -> dict[str, str]:
    """Group name → its devices on the node, a `*` behind those being released."""
    found = pool.get("ndev", node)["spec"].get("claims", {}).values()
    return {
        each["group"]: ",".join(str(device["index"]) for device in each["devices"]) + "*" * ("releasing" in each)
        for each in found
    }


def events(pool: Pool, name: str, *, namespace: str = "default") -> list[str]:
    """The reasons of the events about an object, as `kubectl describe` would show them."""
    chosen = f"involvedObject.name={name}"
    said = pool.kubectl("get", "events", "-n", namespace, "--field-selector", chosen, "-o", "jsonpath={..reason}")
    return said.split()


def turns(pool: Pool, group: str) -> list[str]:
    """The same of a group, sorted, but for the wait of its first pod: a busy kube-scheduler has it wait for seconds."""
    return sorted(reason for reason in events(pool, group) if reason != "Waiting")


def pod_events(pool: Pool, name: str) -> list[str]:
    return events(pool, name, namespace=pool.name)


def test_a_deleted_group_gives_its_devices_back_at_once(pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody uses them, and nobody is about to."""
    node = pool.node()
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    assert claims(pool, node) == {group: "0,1"}
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group), lambda done: done.returncode == 0)
    deleted = time.monotonic()
    pool.eventually(lambda: claims(pool, node), lambda left: not left, AT_ONCE_SECONDS)
    with capsys.disabled():
        print(f"\nThe devices of a deleted group were free after {time.monotonic() - deleted:.2f} s")
    pool.eventually(lambda: pool.kubectl("get", "ndev", node), refers(f"{GPU}=4   {GPU}=4"))
    pool.eventually(lambda: events(pool, node), lambda said: "Released" in said)


def test_what_happens_to_a_group_is_told_in_its_events(pool: Pool) -> None:
    """Once for each turn, where `kubectl describe sdg` looks; what it holds is in its conditions there."""
    pool.node()
    first, second = pool.group("first", 3), pool.group("second")
    pool.apply(pod("one", first))
    pool.running("one")
    pool.apply(pod("two", second))
    pool.eventually(lambda: events(pool, second), lambda said: said == ["Waiting"])
    described = pool.kubectl("describe", "sdg", first)
    assert f"holds {GPU} 0,1,2 on node" in described
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", first).returncode == 0)
    pool.eventually(lambda: pool.status(second)["phase"], lambda phase: phase == "Bound")
    assert (events(pool, second), turns(pool, first)) == (["Waiting"], ["Deleted"])


def test_who_set_which_field_is_recorded_only_where_somebody_applies_server_side(pool: Pool) -> None:
    """There the record decides what the next apply removes; elsewhere it doubles the API server's work for a write."""
    pool.node()
    plain, applied = pool.group("plain", 1), pool.group("applied", 1)
    found = pool.get("sdg", applied)
    document = {key: found[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": applied}}
    document["spec"]["releaseAfter"] = "12h"
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    pool.kubectl(*apply, stdin=json.dumps(document))
    pool.apply(pod("a", plain), pod("b", applied))
    pool.running("a", "b")
    pool.eventually(lambda: pool.status(plain).get("podCount") == pool.status(applied).get("podCount") == 1)
    assert "managedFields" not in json.loads(pool.kubectl("get", "--raw", f"{GROUPS_PATH}/{plain}"))["metadata"]
    del document["spec"]["releaseAfter"]
    pool.kubectl(*apply, stdin=json.dumps(document))
    assert "releaseAfter" not in pool.get("sdg", applied)["spec"]
    assert pool.status(applied)["podCount"] == 1


def test_a_group_that_nobody_asked_for_says_how_to(pool: Pool) -> None:
    """The first condition that anybody sees."""
    group = pool.group()
    seen = pool.eventually(lambda: pool.condition(group), lambda each: each.get("reason") == "NoPods")
    assert f"deviceshare.io/group: {group}" in seen["message"]
    assert pool.status(group)["podCount"] == 0
    assert pool.kubectl("get", "sdg", group).splitlines()[1].split()[:2] == [group, "Pending"]


def test_devices_that_a_node_loses_degrade_their_group(pool: Pool) -> None:
    """It is bound on, and well again when they are back."""
    node = pool.node(0, inventory=f"{GPU}=4")
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    pool.kubectl("annotate", "--overwrite", "node", node, f"deviceshare.io/devices={GPU}=1")
    sick = pool.eventually(lambda: pool.condition(group, "Healthy"), lambda each: each.get("reason") == "DevicesLost")
    assert sick["message"].startswith(f"node {node} lost {GPU} 1")
    status = pool.status(group)
    assert (status["phase"], status["nodeName"], status["selectedDevices"]) == ("Degraded", node, {GPU: "0,1"})
    pool.kubectl("annotate", "--overwrite", "node", node, f"deviceshare.io/devices={GPU}=4")
    pool.eventually(lambda: pool.status(group)["phase"], lambda phase: phase == "Bound")
    pool.eventually(lambda: turns(pool, group), lambda said: said == ["Degraded", "Recovered"])


def test_a_node_that_is_not_shared_any_more_keeps_what_is_held(pool: Pool) -> None:
    """Its pods go on; nobody joins; its ledger goes when the last claim has gone."""
    node = pool.node()
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    pool.kubectl("label", "node", node, "deviceshare.io/mode-")
    pool.eventually(lambda: pool.condition(group, "Healthy"), lambda each: each.get("reason") == "NodeNotShared")
    pool.apply(pod("two", group))
    pool.eventually(lambda: pool.reason("two"), bool)
    assert pool.placed("two") == ""
    assert claims(pool, node) == {group: "0,1"}
    pool.kubectl("delete", "pods", "one", "two", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group).returncode == 0)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--ignore-not-found", node), lambda left: not left)


def test_a_node_that_is_gone_degrades_its_groups(pool: Pool) -> None:
    """Its ledger stays as long as anything is claimed in it; the group says what to do."""
    node = pool.node()
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    pool.kubectl("delete", "node", node)
    gone = pool.eventually(lambda: pool.condition(group, "Healthy"), lambda each: each.get("reason") == "NodeGone")
    assert f"kubectl delete sdg {group}" in gone["message"]
    assert claims(pool, node) == {group: "0,1"}
    pool.kubectl("delete", "pod", "one", "-n", pool.name, "--force", "--grace-period=0")  # No kubelet ends it.
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", group).returncode == 0)
    pool.eventually(lambda: pool.kubectl("get", "ndev", "--ignore-not-found", node), lambda left: not left)


def test_a_shared_node_without_devices_is_told_of(pool: Pool) -> None:
    """Where `kubectl describe node` shows it; it gets a ledger as soon as it has devices."""
    node = pool.node(0, inventory=f"{AMD}=1")
    pool.kubectl("annotate", "--overwrite", "node", node, "deviceshare.io/devices=example.org/gpu=4")
    pool.eventually(lambda: pool.kubectl("describe", "node", node), refers("unknown resource 'example.org/gpu'"))


def test_a_binding_that_reached_another_pod_of_the_name_is_undone(pool: Pool) -> None:
    """Old API servers don't compare UIDs; the pod holds nothing rightly."""
    node = pool.node()
    pool.apply(pod("twin", f"{pool.name}-of-nobody"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": "twin",
            "annotations": {
                "deviceshare.io/pod-uid": "of-the-earlier-pod",
                "deviceshare.io/group-uid": "of-some-group",
                "deviceshare.io/selected-devices": json.dumps({GPU: "0"}),
            },
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    path = f"/api/v1/namespaces/{pool.name}/pods/twin/binding"
    pool.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    listing = ("get", "pods", "-n", pool.name, "-o", "name")
    pool.eventually(lambda: pool.kubectl(*listing), lambda left: not left)
    pool.eventually(lambda: pod_events(pool, "twin"), lambda said: "WrongDevices" in said)
    assert claims(pool, node) == {}


def test_a_transition_has_its_time(pool: Pool) -> None:
    """And other words for the same do not change it."""
    pool.node()
    group = pool.group()
    pool.eventually(lambda: pool.condition(group), lambda each: each.get("status") == "False")
    pool.apply(pod("one", group))
    pool.running("one")
    bound = pool.eventually(lambda: pool.condition(group), lambda each: each.get("status") == "True")
    since = datetime.fromisoformat(bound["lastTransitionTime"])
    assert abs((datetime.now(UTC) - since).total_seconds()) < 60
    pool.apply(pod("two", group))
    pool.eventually(lambda: pool.status(group)["podCount"], lambda count: count == 2)
    assert pool.condition(group) == bound
