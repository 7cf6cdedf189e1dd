"""A plan places what kube-scheduler and deviceshare would place, and says of the rest what they would say."""

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.plan import Plan, Planner
from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.workloads import Workload, admitted, count_of, pods_of
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, gpus


def asks(name: str, group: str) -> Pod:
    """A pod of a manifest that names a group, as the webhook would make it."""
    body = {
        "metadata": {"name": name, "namespace": "ns", "annotations": {contract.GROUP: group}},
        "spec": {"containers": [{"name": "main"}]},
    }
    return admitted(msgspec.convert(body, Pod))


def planned(fleet: Fleet, groups: list[Group], *pods: Pod) -> Plan:
    """The plan for these groups and pods."""
    return Planner(fleet, {group.name: group for group in groups}, {}).plan([group.name for group in groups], pods)


def test_pods_of_a_group_land_together_and_groups_apart() -> None:
    """Each group's first pod takes devices, which the next group doesn't get."""
    groups = [a_group("a"), a_group("b"), a_group("c")]
    pods = [asks("p1", "a"), asks("p2", "b"), asks("p3", "a"), asks("p4", "c")]
    plan = planned(a_fleet(a_node("n1"), a_node("n2"), ledgers=(a_ledger("n1"), a_ledger("n2"))), groups, *pods)
    assert [(placed.group, placed.node, placed.devices, placed.pods) for placed in plan.groups] == [
        ("a", "n1", {GPU: "0,1"}, ["ns/p1", "ns/p3"]),
        ("b", "n1", {GPU: "2,3"}, ["ns/p2"]),
        ("c", "n2", {GPU: "0,1"}, ["ns/p4"]),
    ]
    assert [placed.equals for placed in plan.groups] == [1, 0, 0]
    assert plan.complete
    assert [(count.allocated, count.free) for count in plan.after.total] == [(6, 2)]


def test_the_strategy_decides_where() -> None:
    """binpack fills the node in use, spread opens the other."""
    for strategy, node in (("binpack", "n2"), ("spread", "n1")):
        fleet = a_fleet(a_node("n1"), a_node("n2"), ledgers=(a_ledger("n1"), a_ledger("n2", x=gpus(0))))
        plan = planned(fleet, [a_group("a", schedulingStrategy=strategy)], asks("p", "a"))
        assert plan.groups[0].node == node


def test_what_does_not_fit_waits_with_the_text_of_its_condition() -> None:
    """From the very same function, on the cluster as it would be."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    plan = planned(fleet, [a_group("a", 3), a_group("b", 3)], asks("p1", "a"), asks("p2", "b"))
    (placed, waits) = plan.groups
    assert (placed.node, waits.node) == ("n1", "")
    assert waits.message == str(WaitingReasons(fleet).of(a_group("b", 3).request))
    assert "a holds 0,1,2" in waits.message
    assert [(each.pod, each.reason) for each in plan.waiting] == [("ns/p2", waits.message)]
    assert not plan.complete


def test_a_group_that_lives_somewhere_stays_there() -> None:
    """More pods join it, and nothing is taken anew."""
    fleet = a_fleet(a_node("n1"), a_node("n2"), ledgers=(a_ledger("n1", a=gpus(2, 3)), a_ledger("n2")))
    (placed,) = planned(fleet, [a_group("a", node="n1")], asks("p", "a")).groups
    assert (placed.node, placed.devices, placed.already, placed.pods) == ("n1", {GPU: "2,3"}, True, ["ns/p"])


def test_a_group_without_pods_is_placed_after_those_with() -> None:
    """People plan groups before they have pods; pods that are there come first."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    (early, late) = planned(fleet, [a_group("early", 3), a_group("late", 3)], asks("p", "late")).groups
    assert (early.node, late.node) == ("", "n1")


def test_a_pod_of_a_missing_or_invalid_group_waits() -> None:
    """With the extender's own reasons."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    plan = planned(fleet, [a_group("bad", schedulingStrategy="x")], asks("p1", "typo"), asks("p2", "bad"))
    assert [each.reason[:30] for each in plan.waiting] == [
        "group typo does not exist: cre",
        "group bad is invalid: spec.sch",
    ]


def test_a_pod_that_the_webhook_refuses_takes_nothing() -> None:
    """It would never exist."""
    pod = asks("p", "a")
    greedy = replace(pod.spec.containers[0], resources=replace(pod.spec.containers[0].resources, limits={GPU: "1"}))
    pod = replace(pod, spec=replace(pod.spec, containers=[greedy]))
    plan = planned(a_fleet(a_node(), ledgers=(a_ledger(),)), [], pod)
    assert plan.waiting[0].reason.startswith("deviceshare would refuse it: spec.containers[0].resources.limits")
    assert plan.after.total[0].free == 4


def test_a_node_that_is_not_ready_is_not_planned_on() -> None:
    """kube-scheduler would not use it either."""
    fleet = a_fleet(a_node("n1", ready=False), a_node("n2"), ledgers=(a_ledger("n1"), a_ledger("n2")))
    assert planned(fleet, [a_group("a")], asks("p", "a")).groups[0].node == "n2"


def test_workloads_have_as_many_pods_as_run_at_once() -> None:
    """Replicas; of a Job what runs in parallel, and no more than it completes."""
    spec = {"template": {"metadata": {"annotations": {contract.GROUP: "a"}}}}
    counts = [
        ("Deployment", {"replicas": 3}, 3),
        ("StatefulSet", {}, 1),
        ("ReplicaSet", {"replicas": 0}, 0),
        ("Job", {}, 1),
        ("Job", {"parallelism": 4, "completions": 2}, 2),
    ]
    for kind, numbers, count in counts:
        workload = msgspec.convert({"metadata": {"name": "w", "namespace": "ns"}, "spec": spec | numbers}, Workload)
        pods = pods_of(workload.spec.template, "w", "ns", count_of(kind, workload.spec))
        assert [pod.metadata.key for pod in pods] == [f"ns/w-{number}" for number in range(count)]
        assert all(pod.group == "a" for pod in pods)
