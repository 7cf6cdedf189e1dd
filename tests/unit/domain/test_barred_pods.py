"""Pods whose own node affinity rules out every node where their group can be had, and the cure that is named."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.explanation import Case, explain_group, explain_pod
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.objects.nodes import Affinity, Node, admits
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement import node_choice as judging
from deviceshare.domain.placement.node_choice import ruled_out
from tests.unit.domain.objects import a_fleet, a_group, a_ledger, a_node, a_pod, gpus

RECREATE = "delete and recreate the pod"


def frozen(name: str = "p", *, node: str = "", zone: str = "") -> Pod:
    """A pod as an earlier deviceshare admitted it, with its group's node and selector."""
    labels = [{"key": contract.MODE_LABEL, "operator": "In", "values": [contract.MODE_SHARED]}]
    labels += [{"key": "zone", "operator": "In", "values": [zone]}] if zone else []
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}] if node else []
    terms = [{"matchExpressions": labels, "matchFields": fields}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return _with(a_pod(name), affinity=msgspec.convert({"nodeAffinity": required}, Affinity))


def _with(pod: Pod, **spec: Any) -> Pod:
    return replace(pod, spec=replace(pod.spec, **spec))


def cordoned(name: str) -> Node:
    node = a_node(name)
    return replace(node, spec=replace(node.spec, unschedulable=True))


TWO = (a_node("n1", zone="a"), a_node("n2", zone="b"))
FREE = (a_ledger("n1"), a_ledger("n2"))


def test_a_pod_that_was_frozen_to_a_node_where_its_group_is_no_longer_is_named() -> None:
    """The group was deleted and created again, and lives elsewhere now."""
    fleet = a_fleet(*TWO, ledgers=(a_ledger("n1"), a_ledger("n2", team=gpus(0, 1))))
    pods = [frozen(node="n1"), frozen("q", node="n2"), frozen("r"), a_pod("s")]
    [(pod, reason)] = ruled_out(fleet, a_group(node="n2").request, pods).items()
    assert pod == "ns/p"
    assert reason.kind is ReasonKind.NODES_RULED_OUT and RECREATE in reason.cure
    assert "an earlier deviceshare" in reason.text and "node n2, where group team lives" in reason.text


def test_a_pod_that_was_frozen_to_a_node_that_cannot_be_used_now_is_named_where_others_fit() -> None:
    """Recreated, it goes there; nobody has to wait for the node. With no other node, it waits as any pod does."""
    pod = frozen(node="n1")
    assert ruled_out(a_fleet(cordoned("n1"), a_node("n2"), ledgers=FREE), a_group().request, [pod])
    assert not ruled_out(a_fleet(cordoned("n1"), ledgers=FREE[:1]), a_group().request, [pod])
    assert not ruled_out(a_fleet(*TWO, ledgers=FREE), a_group().request, [pod])


def test_a_pod_that_was_frozen_to_a_selector_that_changed_is_named() -> None:
    """No node has the group and the labels of before."""
    fleet, group = a_fleet(*TWO, ledgers=FREE), a_group(nodeSelector={"zone": "b"})
    assert RECREATE in ruled_out(fleet, group.request, [frozen(zone="a")])["ns/p"].cure
    assert not ruled_out(fleet, group.request, [frozen(zone="b")])


def test_a_users_own_selector_that_rules_out_the_groups_node_is_named_with_another_cure() -> None:
    """To recreate the pod as it is would change nothing."""
    pods = [_with(a_pod(), node_selector={"zone": "a"})]
    bound = a_fleet(*TWO, ledgers=(a_ledger("n1"), a_ledger("n2", team=gpus(0, 1))))
    [reason] = ruled_out(bound, a_group(node="n2").request, pods).values()
    assert "the pod's own nodeSelector" in reason.text
    assert "change these in what creates the pod" in reason.cure
    assert ruled_out(a_fleet(*TWO, ledgers=FREE), a_group(nodeSelector={"zone": "b"}).request, pods)


def test_a_users_own_selector_of_a_node_that_is_merely_full_is_no_trap() -> None:
    """Devices may come free there."""
    fleet = a_fleet(*TWO, ledgers=(a_ledger("n1", other=gpus(0, 1, 2, 3)), a_ledger("n2")))
    assert not ruled_out(fleet, a_group().request, [_with(a_pod(), node_selector={"zone": "a"})])


def test_nothing_is_said_where_nothing_is_known_or_nothing_waits() -> None:
    """A node that is gone or no longer shared has a condition of its own; a pod that runs got where it is."""
    pod = frozen(node="n1")
    assert not ruled_out(a_fleet(ledgers=FREE), a_group(node="n2").request, [pod])
    assert not ruled_out(a_fleet(a_node("n2", shared=False)), a_group(node="n2").request, [pod])
    assert not ruled_out(a_fleet(*TWO, ledgers=FREE), a_group(node="n2").request, [_with(pod, node_name="n1")])


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The node of each comparison with what a pod asks for."""
    compared: list[str] = []

    def counted(*of: Any) -> bool:
        compared.append(of[-1].metadata.name)
        return bool(admits(*of))

    monkeypatch.setattr(judging, "admits", counted)
    return compared


def test_pods_that_ask_for_the_same_are_compared_with_each_node_once(compared: list[str]) -> None:
    """A Deployment of a thousand beside three thousand nodes blocked the event loop for 22 s."""
    pods = [_with(a_pod(f"p{number}"), node_selector={"zone": "c"}) for number in range(50)]
    assert len(ruled_out(a_fleet(*TWO, ledgers=FREE), a_group().request, pods)) == 50
    assert sorted(compared) == ["n1", "n2"]


def test_pods_that_all_ask_for_something_else_are_compared_for_a_bounded_time(
    compared: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond are not named; one that asks at great length isn't either, and none is named that a node admits."""
    monkeypatch.setattr(judging, "MOST_COMPARED", 1000)
    pods = [_with(a_pod(f"p{number}"), node_selector={"zone": f"c{number}"}) for number in range(500)]
    named = ruled_out(a_fleet(*TWO, ledgers=FREE), a_group().request, pods)
    assert 0 < len(named) < 500 and len(compared) < 100
    assert not ruled_out(
        a_fleet(*TWO, ledgers=FREE), a_group().request, [_with(a_pod(), node_selector={"zone": "c" * 1000})]
    )


def test_condition_explain_and_picture_say_the_same_of_such_a_pod() -> None:
    """One text, wherever somebody looks. The group itself is well."""
    fleet = a_fleet(*TWO, ledgers=(a_ledger("n1"), a_ledger("n2", team=gpus(0, 1))))
    group, pods = a_group(node="n2"), [frozen("p", node="n1"), frozen("q", node="n1")]
    [reason, _] = ruled_out(fleet, group.request, pods).values()
    bound = group_status.bound(group, fleet, pods)
    assert bound.kind is ReasonKind.CLAIMED
    assert bound.details == (f"pod ns/p and 1 more can't join it: {reason}",)
    wanted = group_status.desired_status(group, fleet, home=fleet.node("n2"), pods=pods, now="")
    assert (wanted.conditions[0].status, wanted.conditions[0].message) == ("True", str(bound))
    assert wanted.phase == "Bound"
    assert explain_pod(Case(fleet, group, fleet.node("n2"), pods), pods[0]).message == str(reason)
    assert {each.why for each in draw(fleet, [group], pods).waiting} == {reason}


def test_explain_names_such_a_pod_of_a_group_that_waits() -> None:
    """Beside the nodes, where only the beginning of the condition is shown."""
    fleet = a_fleet(*TWO, ledgers=FREE)
    group, pods = a_group(), [_with(a_pod("p"), node_selector={"zone": "nowhere"})]
    [reason] = ruled_out(fleet, group.request, pods).values()
    explained = explain_group(Case(fleet, group, None, pods))
    assert explained.nodes
    assert explained.facts["barred pods"] == f"ns/p can't join it: {reason}"


def test_a_pod_whose_groups_node_is_cordoned_is_told_so() -> None:
    """And how to have it back; kube-scheduler says only that some node is unschedulable."""
    fleet = a_fleet(cordoned("n1"), ledgers=(a_ledger("n1", team=gpus(0, 1)),))
    group = a_group(node="n1")
    assert "kubectl uncordon n1" in explain_pod(Case(fleet, group, fleet.node("n1"), [a_pod()]), a_pod()).message
