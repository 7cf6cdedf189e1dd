"""Pods with priority: others' pods are evicted where that helps them, and nowhere else.

For CPU by kube-scheduler, which asks us; for devices by the leader.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from deviceshare_sandbox.components import asks_before_evicting
from tests.controlplane.pool import Json, Pool, pod, refers


@pytest.fixture
def classes(pool: Pool) -> Iterator[dict[int, str]]:
    """PriorityClasses of the test's own, by value."""
    names = {value: f"{pool.name}-{value}" for value in (10, 1000)}
    for value, name in names.items():
        document = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        pool.apply(document | {"value": value})
    yield names
    pool.kubectl("delete", "priorityclass", *names.values())


def busy(**spec: object) -> Json:
    """Of a pod: most of a node's processors, which no two such pods find on one node."""
    requests = {"requests": {"cpu": "40"}}
    return {"containers": [{"name": "main", "image": "busybox", "resources": requests}], **spec}


def plain(pool: Pool, name: str, node: str, **spec: object) -> None:
    """A pod without a group that keeps the node busy."""
    place = {"kubernetes.io/hostname": node}
    pool.apply(pod(name, scheduler="default-scheduler", **busy(nodeSelector=place, **spec)))
    pool.running(name)


def holds_all(pool: Pool, node: str) -> str:
    """Has a group hold all devices of the node."""
    group = pool.group("holder", 4, nodeSelector={"kubernetes.io/hostname": node})
    pool.apply(pod("holder", group))
    pool.running("holder")
    return group


def lives(pool: Pool, name: str) -> bool:
    """Whether the pod runs and nobody has told it to end."""
    (found,) = [each for each in pool.get("pods") if each["metadata"]["name"] == name] or [None]
    return found is not None and "deletionTimestamp" not in found["metadata"]


def make_room(pool: Pool, name: str, urgent: str) -> None:
    """kube-scheduler evicts the pod; where it wouldn't ask us first, it evicts none, and a person deletes it."""
    if not asks_before_evicting(pool.sandbox.plan.binaries.version):
        pool.eventually(lambda: pool.reason(urgent), refers("Insufficient cpu"))
        assert lives(pool, name)
        pool.kubectl("delete", "pod", name, "-n", pool.name)


def test_nobody_is_evicted_from_a_node_whose_devices_are_all_held(pool: Pool, classes: dict[int, str]) -> None:
    """kube-scheduler's dry run finds that its processors would suffice. Once devices come free, it may."""
    node = pool.node(4)
    plain(pool, "plain", node)
    holder = holds_all(pool, node)
    pool.apply(pod("urgent", pool.group("urgent"), **busy(priorityClassName=classes[1000])))
    # The event comes after the pods are evicted, in the same attempt.
    pool.eventually(lambda: pool.reason("urgent"), bool)
    assert lives(pool, "plain")

    pool.kubectl("delete", "pod", "holder", "-n", pool.name)
    pool.eventually(lambda: pool.sandbox.kubectl("delete", "sdg", holder).returncode == 0)
    make_room(pool, "plain", "urgent")
    pool.running("urgent")
    assert not lives(pool, "plain")


def test_pods_are_evicted_where_the_group_fits_though_others_would_be_cheaper(
    pool: Pool, classes: dict[int, str]
) -> None:
    """Of two busy nodes one has free devices, and there the pod of more priority."""
    full, free = pool.node(4), pool.node(4)
    plain(pool, "cheap", full)
    plain(pool, "dear", free, priorityClassName=classes[10])
    holds_all(pool, full)
    pool.apply(pod("urgent", pool.group("urgent"), **busy(priorityClassName=classes[1000])))
    make_room(pool, "dear", "urgent")
    pool.running("urgent")
    assert pool.placed("urgent") == free
    assert lives(pool, "cheap") and not lives(pool, "dear")


def test_for_a_bound_group_pods_are_evicted_on_its_own_node(pool: Pool, classes: dict[int, str]) -> None:
    """A second pod has to go there, wherever else evicting would be cheaper."""
    home, other = pool.node(4), pool.node(4)
    group = pool.group("urgent", 4, nodeSelector={"kubernetes.io/hostname": home})
    pool.apply(pod("first", group))
    pool.running("first")
    plain(pool, "cheap", other)
    plain(pool, "dear", home, priorityClassName=classes[10])
    pool.apply(pod("second", group, **busy(priorityClassName=classes[1000])))
    make_room(pool, "dear", "second")
    pool.running("second")
    assert pool.placed("second") == home
    assert lives(pool, "cheap") and not lives(pool, "dear")


def sharing(pool: Pool, name: str, percent: int, **spec: Any) -> Json:
    """A pod with a share of the pool's devices."""
    limits = {"limits": {"deviceshare.io/gpu-percent": percent}}
    containers = [{"name": "main", "image": "busybox", "resources": limits}]
    return pod(name, scheduler="default-scheduler", nodeSelector={"pool": pool.name}, containers=containers, **spec)


def test_pods_with_shares_make_room_for_more_important_ones(pool: Pool, classes: dict[int, str]) -> None:
    """A share gets one device and a group two: three pods of the lowest priority go, each with an Event."""
    pool.node(2), pool.node(2)
    names = [f"p{number}" for number in range(4)]
    dear = {"priorityClassName": classes[10]}
    pool.apply(*(sharing(pool, name, 100, **(dear if name == "p0" else {})) for name in names))
    pool.running(*names)
    pool.apply(sharing(pool, "urgent", 50, priorityClassName=classes[1000]))
    pool.running("urgent")
    left = [name for name in names if lives(pool, name)]
    assert len(left) == 3 and "p0" in left
    told = pool.kubectl(
        "get", "events", "-n", pool.name, "-o", "jsonpath={..message}", "--field-selector=reason=Preempted"
    )
    assert f"for pod {pool.name}/urgent of priority 1000" in told
    pool.apply(pod("team", pool.group("team", 2), priorityClassName=classes[1000]))
    pool.running("team")
    assert len([name for name in names if lives(pool, name)]) in (1, 2)


def test_a_disruption_budget_keeps_pods_from_going(pool: Pool, classes: dict[int, str]) -> None:
    """The waiting pod is told, and gets its device when the budget allows it.

    The API server also refuses while no controller has looked at the budget yet, as none does here.
    """
    pool.node(1)
    kept = sharing(pool, "kept", 100)
    kept["metadata"]["labels"] = {"app": "kept"}
    pool.apply(kept)
    pool.running("kept")
    budget = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": "kept"}}
    if "/v1.20" not in f"/{pool.sandbox.plan.binaries.version}":
        budget["apiVersion"] = "policy/v1"
    pool.apply({**budget, "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "kept"}}}})
    pool.apply(sharing(pool, "urgent", 50, priorityClassName=classes[1000]))
    reason = ("--field-selector=reason=PreemptionBlocked", "-o", "jsonpath={..message}")
    pool.eventually(lambda: pool.kubectl("get", "events", "-n", pool.name, *reason), refers("may not be evicted"))
    assert lives(pool, "kept")
    pool.kubectl("delete", "pdb", "kept", "-n", pool.name)
    pool.running("urgent")
    assert not lives(pool, "kept")


def test_a_group_that_no_pod_uses_makes_room(pool: Pool, classes: dict[int, str]) -> None:
    """Only for a pod of priority above 0; it is bound again by its next pod."""
    node = pool.node(4)
    idle = holds_all(pool, node)
    pool.kubectl("delete", "pod", "holder", "-n", pool.name)
    pool.apply(sharing(pool, "plain", 10))
    pool.eventually(lambda: pool.reason("plain"), bool)
    assert pool.status(idle)["nodeName"] == node
    pool.apply(sharing(pool, "urgent", 10, priorityClassName=classes[10]))
    pool.running("urgent")
    assert not pool.status(idle)["nodeName"]
