"""Deleting everything at once works, by the default deletionPolicy AfterLastPod; with plain kubectl."""

import json

from tests.controlplane.pool import Json, Pool, deployment, pod, refers
from tests.controlplane.test_controller import claims
from tests.controlplane.test_idle_release import says

FINALIZER = "deviceshare.io/pods"


def finalizers(pool: Pool, group: str) -> list[str]:
    found: list[str] = pool.get("sdg", group)["metadata"].get("finalizers", [])
    return found


def kept(pool: Pool, group: str) -> None:
    """Waits for the finalizer, which a group has from when it is bound."""
    pool.eventually(lambda: finalizers(pool, group), lambda found: found == [FINALIZER])


def is_gone(pool: Pool, group: str) -> bool:
    return pool.kubectl("get", "sdg", group, "--ignore-not-found") == ""


def slow(name: str, group: str) -> Json:
    """A pod that is kept for a while when it is deleted, as by its grace period."""
    body = pod(name, group)
    body["metadata"]["finalizers"] = ["example.com/slow"]
    return body


def test_a_group_that_is_deleted_under_its_pods_ends_with_the_last_of_them(pool: Pool) -> None:
    """Until then it is Terminating, no pod joins, and waiting pods have an Event that says so."""
    node, group = pool.node(), pool.group()
    pool.apply(pod("one", group), pod("two", group))
    pool.running("one", "two")
    kept(pool, group)
    pool.kubectl("delete", "sdg", group, "--wait=false")
    pool.kubectl("delete", "sdg", group, "--wait=false")  # again: it changes nothing
    pool.eventually(lambda: pool.status(group), lambda seen: seen["phase"] == "Terminating")
    pool.apply(pod("late", group))
    pool.eventually(lambda: pool.reason("late"), refers(f"group {group} is being deleted and takes no pods"))
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    assert claims(pool, node) == {group: "0,1"}
    pool.kubectl("delete", "pod", "two", "-n", pool.name)
    pool.eventually(lambda: is_gone(pool, group), seconds=60)
    pool.eventually(lambda: claims(pool, node), lambda held: held == {})
    assert pool.placed("late") == ""


def test_everything_is_deleted_at_once(pool: Pool) -> None:
    """One file with a group, a Deployment and a pod that takes its time, as by kubectl delete -f or Argo CD's prune."""
    node, group = pool.node(), pool.group()
    workload = [deployment("server", group, 2), slow("slow", group)]
    pool.apply(*workload)
    pool.running()
    kept(pool, group)
    form = {"apiVersion": "deviceshare.io/v1alpha1", "kind": "SharedDeviceGroup", "metadata": {"name": group}}
    everything = json.dumps({"apiVersion": "v1", "kind": "List", "items": [form, *workload]})
    pool.kubectl("delete", "--wait=false", "-n", pool.name, "-f", "-", stdin=everything)
    pool.eventually(lambda: len(pool.get("pods")), lambda left: left == 1)
    assert not is_gone(pool, group)
    assert claims(pool, node) == {group: "0,1"}
    pool.kubectl("patch", "pod", "slow", "-n", pool.name, "--type=merge", "-p", '{"metadata": {"finalizers": null}}')
    pool.eventually(lambda: is_gone(pool, group))
    pool.eventually(lambda: claims(pool, node), lambda held: held == {})


def test_the_policy_changes_under_running_pods(pool: Pool) -> None:
    """From the default to Refuse and back: the finalizer follows, and so does what a deletion gets."""
    pool.node()
    group = pool.group()
    pool.apply(pod("one", group))
    pool.running("one")
    pool.eventually(lambda: pool.status(group).get("podCount"))  # by which policies go
    kept(pool, group)
    says(pool, group, deletionPolicy="Refuse")
    pool.eventually(lambda: finalizers(pool, group), lambda found: found == [])
    assert "set spec.deletionPolicy to AfterLastPod" in pool.kubectl("delete", "sdg", group, fails=True)
    says(pool, group, deletionPolicy="AfterLastPod")
    kept(pool, group)
    pool.kubectl("delete", "sdg", group, "--wait=false")
    pool.kubectl("delete", "pod", "one", "-n", pool.name)
    pool.eventually(lambda: is_gone(pool, group))
