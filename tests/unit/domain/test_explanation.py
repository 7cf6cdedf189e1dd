"""What `explain` tells: first what the condition says, then what speaks for and against each node and device."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.answers.explanation import (
    LOWEST,
    Case,
    DeviceVerdict,
    explain_group,
    explain_pod,
    explain_workload,
    verdicts,
)
from deviceshare.domain.answers.group_status import desired_status
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import NVLINK, Allocation, Hardware, Link, Part
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.nodes import Taint
from deviceshare.domain.objects.object_decoder import OwnerReference
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import OTHER_LABELS, invalid, not_injected
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, a_share_pod, gpus
from tests.unit.domain.test_drawing import with_claim, with_hardware


def a_full_fleet() -> Fleet:
    """n1 has one free device, n2 none."""
    ledgers = (a_ledger("n1", a=gpus(0, 1, 2)), a_ledger("n2", b=gpus(0, 1, 2, 3)))
    pods = (a_pod("p1", "a", node="n1", devices=gpus(0, 1, 2)),)
    return a_fleet(a_node("n1"), a_node("n2"), ledgers=ledgers, pods=pods)


def test_the_first_text_is_the_condition() -> None:
    """Word for word: what people see in `kubectl get`, in events and here is one text."""
    fleet, group, pods = a_full_fleet(), a_group(), [a_pod()]
    (bound, healthy, _) = desired_status(group, fleet, home=None, pods=pods, now="").conditions
    told = explain_group(Case(fleet, group, None, pods))
    assert told.message == bound.message
    assert told.message.startswith(f"waiting for 2 {GPU}, which no shared node has free")
    held = a_group("a", 3, node="n1")
    (bound, healthy, _) = desired_status(held, fleet, home=a_node("n1"), pods=[], now="").conditions
    told = explain_group(Case(fleet, held, a_node("n1"), []))
    assert (told.message, told.facts["health"]) == (bound.message, healthy.message)


def test_each_device_says_what_would_free_it() -> None:
    """The node that lacks the fewest first."""
    (first, second) = verdicts(a_full_fleet(), a_group().request)
    assert (first.node, first.lacks, second.node, second.lacks) == ("n1", 1, "n2", 2)
    assert "(1 of 4 free)" in first.reason
    taken = ("held by group a", "pod ns/p1 ends, then kubectl delete sdg a")
    assert first.devices == [*(DeviceVerdict(GPU, index, *taken) for index in range(3)), DeviceVerdict(GPU, 3)]
    assert {(device.reason, device.cure) for device in second.devices} == {
        ("held by group b", "no pod uses it, so kubectl delete sdg b")
    }


def test_devices_that_no_group_has_say_it_too() -> None:
    """Broken, lost, a device plugin's, from before a rebind, of a group that is gone."""
    ledger = a_ledger(devices={GPU: 6}, old=gpus(0), releasing=("old",))
    ledger = with_claim(ledger, "uid-of-b", Claim("b", list(gpus(1)), former=list(gpus(2))))
    parts = [Part(GPU, 0), Part(GPU, 1), Part(GPU, 2), Part(GPU, 3, unhealthy="Xid 79"), Part(GPU, 4, lost=True)]
    hardware = Hardware(devices=[*parts, Part(GPU, 5)], allocations=[Allocation("ns/x", "u", GPU, [5])])
    (verdict,) = verdicts(a_fleet(a_node(), ledgers=(with_hardware(ledger, hardware),)), a_group().request)
    assert [(device.index, device.reason, device.cure) for device in verdict.devices] == [
        (0, "still used by the deleted group old", "it is released soon"),
        (1, "held by group b", "no pod uses it, so kubectl delete sdg b"),
        (2, "may still be used by pods of group b", "it is released soon"),
        (3, "unhealthy: Xid 79", "repair it, then deviceshare recover n1 3"),
        (4, "lost: no longer on the node", "repair the node"),
        (5, "allocated to pod ns/x by the device plugin", "pod ns/x ends"),
    ]


def test_devices_left_to_the_plugin_say_how_groups_get_them() -> None:
    """More of them have to be kept from it."""
    hardware = Hardware(devices=[Part(GPU, 0)], allocations=[], placeholders=True)
    ledger = with_hardware(a_ledger(devices={GPU: 1}), hardware)
    ((device,),) = [verdict.devices for verdict in verdicts(a_fleet(a_node(), ledgers=(ledger,)), a_group().request)]
    assert (device.reason, "placeholder pods" in device.cure) == ("left to the device plugin", True)


def test_devices_that_claims_contradict_each_other_about_say_how_that_ends() -> None:
    """Claimed by two groups, or named by number where the numbers may be others' now."""
    ledger = a_ledger(a=gpus(0, 1), b=gpus(1, 2))
    (node,) = verdicts(a_fleet(a_node(), ledgers=(ledger,)), a_group().request)
    assert node.devices[1].reason == "held by group b; claimed by each of group a and group b"
    assert "delete one of them with its pods, and recreate it" in node.devices[1].cure
    parts = [Part(GPU, index, f"GPU-{index}") for index in range(4)]
    doubted = with_claim(a_ledger(), "uid-of-a", Claim("a", [Device(GPU, 1, "GPU-1")], former=list(gpus(1))))
    (node,) = verdicts(a_fleet(a_node(), ledgers=(with_hardware(doubted, Hardware(devices=parts)),)), a_group().request)
    assert node.devices[0].reason.startswith("in doubt: claims of this node (a) name devices by number")
    assert node.devices[0].cure == "if this stays after the node's agent has reported, recreate those"


def test_where_it_fits_it_says_where_it_would_go_and_with_what() -> None:
    """The best node by the group's strategy, and the devices that a bind would choose."""
    links = [Link(GPU, 2, 3, NVLINK, 4)]
    ledger = with_hardware(a_ledger("n2", a=gpus(0)), Hardware(devices=[Part(GPU, n) for n in range(4)], links=links))
    fleet = a_fleet(a_node("n1"), a_node("n2"), ledgers=(a_ledger("n1"), ledger))
    told = explain_group(Case(fleet, a_group(), None, []))
    assert told.facts["would go to"] == "n2: scores 10 of 10 for binpack"
    assert told.facts["would get"] == f"{GPU} 2,3, all joined by NVLink"
    assert [(node.node, node.fits, node.score) for node in told.nodes] == [("n2", True, 10), ("n1", True, 0)]


def test_nodes_that_only_the_scheduler_would_leave_out_do_not_fit() -> None:
    """It would be no help to be sent to a node that is cordoned."""
    cordoned = replace(a_node("n1"), spec=replace(a_node().spec, unschedulable=True))
    (verdict,) = verdicts(a_fleet(cordoned, ledgers=(a_ledger("n1"),)), a_group().request)
    assert (verdict.fits, verdict.reason) == (False, "the node is cordoned: kubectl uncordon n1")


@pytest.mark.parametrize("what", ["share", "group"])
def test_a_pod_is_not_said_to_go_where_it_can_t_be_scheduled(what: str) -> None:
    """By a taint that it doesn't tolerate, or by its own selector; the next best node is named instead."""
    tainted = replace(a_node("n1"), spec=replace(a_node().spec, taints=[Taint("team", "a", "NoSchedule")]))
    pod, group = (a_share_pod(percent=30), None) if what == "share" else (a_pod(), a_group())
    fleet = a_fleet(tainted, a_node("n2"), ledgers=(a_ledger("n1"), a_ledger("n2")))
    told = explain_pod(Case(fleet, group, None, [pod]), pod)
    assert told.facts["would go to"].startswith("n2: ")
    picky = replace(pod, spec=replace(pod.spec, node_selector={"zone": "west"}))
    told = explain_pod(Case(fleet, group, None, [picky]), picky)
    assert "would go to" not in told.facts
    assert {node.node: node.reason for node in told.nodes} == {
        "n1": "the pod doesn't tolerate the node's taint {team: a}",
        "n2": "the pod's node selector or affinity rules the node out",
    }


def test_an_invalid_group_fits_nowhere() -> None:
    """The extender says the same."""
    group = a_group(schedulingStrategy="random")
    (verdict,) = verdicts(a_fleet(a_node(), ledgers=(a_ledger(),)), group.request, invalid(group))
    assert verdict.reason.startswith("group team is invalid: spec.schedulingStrategy")


def test_who_asks_for_more_than_any_node_has_is_told() -> None:
    """Waiting would be in vain, whatever is freed."""
    told = explain_group(Case(a_full_fleet(), a_group(count=5), None, []))
    assert told.facts["never fits"] == f"no shared node has more than 4 {GPU}: ask for fewer, or add a larger node"
    assert "never fits" not in explain_group(Case(a_full_fleet(), a_group(count=4), None, [])).facts
    waits = explain_group(Case(a_full_fleet(), a_group(count=5), None, [a_pod()]))
    assert "never fits" not in waits.facts
    assert waits.message.startswith(
        f"waiting for 5 {GPU}, but no shared node has more than 4 {GPU}: ask for fewer, or add a larger node; n1: "
    )


def test_a_selector_keeps_a_node_out() -> None:
    """Last in the list: devices would not help."""
    fleet = a_fleet(a_node("n1", zone="west"), a_node("n2"), ledgers=(a_ledger("n1", a=gpus(0, 1, 2)), a_ledger("n2")))
    (first, second) = verdicts(fleet, a_group(nodeSelector={"zone": "west"}).request)
    assert (first.node, second.node, second.why) == ("n1", "n2", OTHER_LABELS)


def test_a_bound_group_says_why_these_devices_and_who_uses_them() -> None:
    """With how they are joined where an agent tells, and who else waits."""
    hardware = Hardware(devices=[Part(GPU, n) for n in range(4)], links=[Link(GPU, 0, 1, NVLINK, 4)])
    pods = [a_pod("p1", node="n1", devices=gpus(0, 1)), said(a_pod("p2"), "0/1 nodes are available")]
    fleet = a_fleet(a_node(), ledgers=(with_hardware(a_ledger(team=gpus(0, 1)), hardware),), pods=(pods[0],))
    told = explain_group(Case(fleet, a_group(node="n1"), a_node(), pods))
    assert told.facts == {
        "devices": f"{GPU} 0,1",
        "why these": "all joined by NVLink",
        "used by": "ns/p1",
        "waiting pods": "ns/p2",
        "kube-scheduler": "0/1 nodes are available",
        "health": "node n1 is Ready and has all its devices",
    }
    fleet.set_ledger("n1", a_ledger(team=gpus(0, 1)))
    assert explain_group(Case(fleet, a_group(node="n1"), a_node(), [])).facts["why these"] == LOWEST


def said(pod: Pod, message: str) -> Pod:
    """The pod after kube-scheduler has tried it in vain."""
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    status = {"conditions": [said]}
    return replace(pod, status=msgspec.convert(status, type(pod.status)))


def with_annotations(pod: Pod, **changes: Any) -> Pod:
    """The pod with other annotations; None takes one away."""
    kept = {key: value for key, value in {**pod.metadata.annotations, **changes}.items() if value is not None}
    return replace(pod, metadata=replace(pod.metadata, annotations=kept))


def told_of(pod: Pod, group: Group | None) -> str:
    """The first text about a pod, in a cluster with one node where the group a holds three devices."""
    return explain_pod(Case(a_full_fleet(), group, a_node("n1"), [pod]), pod).message


@pytest.mark.parametrize(
    ("pod", "group", "text"),
    [
        (with_annotations(a_pod(), **{contract.GROUP: None}), None, "it names no group and asks for no share"),
        (a_pod("p", "typo"), None, "group typo does not exist: create it"),
        (a_pod("p", injected=False), a_group(), str(not_injected(["the env NVIDIA_VISIBLE_DEVICES"]))),
        (a_pod("p"), a_group(schedulingStrategy="x"), "group team is invalid: spec.schedulingStrategy"),
        (a_pod("p"), a_group(), f"waiting for 2 {GPU}, which no shared node has free"),
        (
            a_pod("p", "a"),
            a_group("a", 3, node="n1"),
            "kube-scheduler has not tried it yet; its group lives on node n1",
        ),
        (said(a_pod("p", "a"), "1 Insufficient cpu"), a_group("a", 3, node="n1"), "1 Insufficient cpu"),
        (said(a_pod("p", "c"), "1 Insufficient cpu"), a_group("c", 1), "1 Insufficient cpu"),
        (a_pod("p1", "a", node="n1", devices=gpus(0, 1)), a_group("a"), f"it is on node n1 with {GPU} 0,1 of group a"),
        (
            a_pod("p1", "a", node="n1", devices=gpus(0)),
            None,
            f"it is on node n1 with {GPU} 0 of group a, which is gone",
        ),
        (a_pod("p1", "a", node="n1"), a_group("a"), "it is on node n1 without devices"),
    ],
)
def test_a_pod_says_what_it_has_or_what_it_lacks(pod: Pod, group: Group | None, text: str) -> None:
    """One sentence for each of its situations."""
    assert told_of(pod, group).startswith(text)


def test_a_pod_keeps_the_devices_of_a_group_that_was_recreated() -> None:
    """Identity is the UID: the new group's devices are others."""
    pod = a_pod("p1", "a", node="n1", devices=gpus(0))
    again = replace(a_group("a"), metadata=replace(a_group("a").metadata, uid="another"))
    assert "before it was deleted and recreated" in told_of(pod, again)


def test_an_impostor_and_a_finished_pod_are_told_as_such() -> None:
    """Neither uses a device by right."""
    bound = a_pod("p1", "a", node="n1", devices=gpus(0))
    assert "meant for an earlier pod" in told_of(with_annotations(bound, **{contract.POD_UID: "earlier"}), a_group("a"))
    ended = replace(bound, status=replace(bound.status, phase="Succeeded"))
    assert told_of(ended, a_group("a")) == "it has ended (Succeeded) and uses no device any more"


def test_a_waiting_pod_comes_with_its_groups_outlook() -> None:
    """The nodes of an unbound group, and what the scheduler said of the pod."""
    pod = said(a_pod("p"), "0/2 nodes are available")
    told = explain_pod(Case(a_full_fleet(), a_group(), None, [pod]), pod)
    assert [node.node for node in told.nodes] == ["n1", "n2"]
    assert told.facts == {"group": "team", "kube-scheduler": "0/2 nodes are available"}


def test_a_bound_pod_shows_its_variables() -> None:
    """What its containers see."""
    pod = with_annotations(a_pod("p1", "a", node="n1", devices=gpus(0, 1, 2)), **{vendors.NVIDIA.annotation: "0,1,2"})
    told = explain_pod(Case(a_full_fleet(), a_group("a", 3, node="n1"), a_node("n1"), [pod]), pod)
    assert told.facts["NVIDIA_VISIBLE_DEVICES"] == "0,1,2"
    assert told.facts["used by"] == "ns/p1"


def of_set(pod: Pod, name: str) -> Pod:
    """The pod, as this ReplicaSet made it."""
    owner = OwnerReference("ReplicaSet", name, f"uid-of-{name}", controller=True)
    return replace(pod, metadata=replace(pod.metadata, owner_references=[owner]))


def running(pod: Pod, node: str = "n1") -> Pod:
    return replace(pod, spec=replace(pod.spec, node_name=node))


def a_fleet_with_a_share(percent: int) -> Fleet:
    """One GPU, of which the pod `ns/old` has so much."""
    claim = Claim(pod="ns/old", shares=[Share("main", GPU, 0, percent=percent)])
    return a_fleet(a_node(devices={GPU: 1}), ledgers=(with_claim(a_ledger(devices={GPU: 1}), "uid-of-old", claim),))


@pytest.mark.parametrize(
    ("mine", "theirs", "wanted", "told"),
    [
        ("infer-7d9", "infer-5c8", 60, True),
        ("infer-7d9", "infer-7d9", 60, False),
        ("infer-7d9", "train-5c8", 60, False),
        ("infer-7d9", "infer-5c8", 150, False),
    ],
    ids=["update", "same version", "another Deployment", "too large in any case"],
)
def test_a_rolling_update_that_waits_for_its_old_pod_is_told(
    mine: str, theirs: str, wanted: int, *, told: bool
) -> None:
    """Both wait for each other, and every other tool says only that the device is full."""
    old, new = of_set(running(a_share_pod("old", percent=60)), theirs), of_set(a_share_pod("new", percent=wanted), mine)
    fleet = a_fleet_with_a_share(60)
    said = explain_pod(Case(fleet, None, None, [old, new]), new).facts.get("rolling update", "")
    assert said == explain_workload(fleet, "x", [new], {}, [old, new]).facts.get("rolling update", "")
    assert said.startswith("pod ns/old of the same Deployment has what it waits for") is told


def test_a_workload_says_what_its_pods_have_and_wait_for() -> None:
    """Those that wait for the same in one line."""
    pods = [running(a_share_pod("old", percent=60)), a_share_pod("new-1", percent=60), a_share_pod("new-2", percent=60)]
    answer = explain_workload(a_fleet_with_a_share(60), "Deployment ns/d", pods, {}, pods)
    assert answer.message == "1 pod with a node, 2 waiting"
    assert answer.facts == {"on node n1": "ns/old"}
    [waiting] = answer.waiting
    assert waiting.pods == ["ns/new-1", "ns/new-2"]
    assert waiting.reason.startswith("waiting for 60% of a GPU, which no shared node has free")
