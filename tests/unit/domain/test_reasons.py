"""Reasons are values: a program knows each by its kind, and a person reads in it what to do next."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import vendors
from deviceshare.domain.answers import group_status
from deviceshare.domain.answers.explanation import verdicts
from deviceshare.domain.answers.group_status import moved
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.answers.plan import Planner
from deviceshare.domain.answers.waiting import WaitingReasons, unusable
from deviceshare.domain.objects.device_quota import DeviceQuota, DeviceQuotaSpec
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part, Publication, Withheld
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import OUT_OF_SERVICE, Node, Taint
from deviceshare.domain.objects.object_decoder import ObjectMeta, decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.reasons import ReasonKind as Kind
from deviceshare.domain.objects.shares import Request
from deviceshare.domain.placement import ledger_budget
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.holds import not_held
from deviceshare.domain.placement.join_obstacles import NOMINATED, counted_only, request_of
from deviceshare.domain.placement.node_choice import AVOIDED, misfit
from deviceshare.domain.placement.shared_resources import leftover_reason
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, a_share_pod, gpus
from tests.unit.domain.test_gates import gated

NODE, POD, HELD, LIVES = a_node(), a_pod(), a_ledger(team=gpus(0, 1)), a_group(node="n1")
FREE = a_fleet(NODE, ledgers=(a_ledger(),))
FULL = a_fleet(NODE, ledgers=(a_ledger(other=gpus(0, 1, 2)),))
PARTS = [Part(GPU, index) for index in range(4)]


def seen(ledger: NodeDevices, **hardware: Any) -> NodeDevices:
    """The ledger with an agent's report."""
    return replace(ledger, status=replace(ledger.status, hardware=Hardware(**{"devices": PARTS, **hardware})))


MUTED = replace(
    HELD,
    status=replace(
        HELD.status, handover={"nvidia": "none"}, withheld=[Withheld(GPU, "no CDI", "write one", list(gpus(0, 1)))]
    ),
)
KEPT = Withheld(GPU, "two strategies", "choose one")
TWICE = a_ledger(team=gpus(0, 1), other=gpus(1))
SICK = seen(HELD, devices=[Part(GPU, 0, unhealthy="Xid 79"), *PARTS[1:]])
REBOOTED = replace(NODE, status=msgspec.convert({"nodeInfo": {"bootID": "second"}}, type(NODE.status)))
TAINTED = replace(NODE, spec=replace(NODE.spec, taints=[Taint("gpu", "mine", "NoSchedule")]))
CORDONED = replace(NODE, spec=replace(NODE.spec, unschedulable=True))
ODD = decoder_of(Group).salvage(b'{"metadata": {"name": "team", "uid": "g"}, "spec": {"resources": {"x": "2"}}}')


def on_n1(fleet: Fleet, wanted: Group | Request | None = None) -> Reason:
    """Why the group's next pod, or a pod with this share, can't go to n1."""
    wanted = wanted or a_group()
    return fleet.filter(wanted.request if isinstance(wanted, Group) else wanted, ["n1"]).reasons["n1"]


def a_share(gib: int = 0, percent: int = 0) -> Request:
    """What a pod asks for that wants parts of devices."""
    request = request_of(a_share_pod(gib=gib, percent=percent), None)
    assert request is not None
    return request


def on(node: Node, ledger: NodeDevices | None, group: Group | None = None) -> Reason:
    """The same, of a fleet of one node."""
    return on_n1(a_fleet(node, ledgers=(ledger,) if ledger else ()), group)


def withholding(withheld: Withheld) -> NodeDevices:
    return replace(a_ledger(devices={}), status=replace(a_ledger(devices={}).status, withheld=[withheld]))


def with_plugin_pods() -> Fleet:
    fleet = a_fleet(NODE, ledgers=(a_ledger(),))
    fleet.set_plugin_pods("n1", {"u": frozenset({GPU})})
    return fleet


def with_a_quota() -> Fleet:
    fleet = a_fleet(NODE, ledgers=(a_ledger(),))
    fleet.quotas.put("none", DeviceQuota(ObjectMeta(name="none"), DeviceQuotaSpec(hard={GPU: 0})))
    return fleet


def waits(pod: Pod, group: Group | None, fleet: Fleet = FREE) -> Reason:
    """What a pod waits for."""
    bound = group_status.bound(group, fleet, [pod]) if group else None
    return WaitingReasons(fleet).of_pod(pod, group, bound)


def scheduled_in_vain() -> Pod:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 Insufficient cpu"}
    return replace(POD, status=msgspec.convert({"conditions": [said]}, type(POD.status)))


def refused_by_the_webhook() -> Reason:
    """A group's pod that would go to another scheduler."""
    alien = replace(POD, spec=replace(POD.spec, scheduler_name="default-scheduler"))
    [first, *_] = Planner(a_fleet(NODE, ledgers=(a_ledger(),)), {"team": a_group()}, {}).plan(["team"], [alien]).waiting
    return first.why


def healthy(ledger: NodeDevices | None, node: Node | None = NODE, *pods: Pod, group: Group = LIVES) -> Reason:
    """The condition Healthy, whose reason is a kind and whose message is the rest."""
    fleet = a_fleet(*filter(None, [node]), ledgers=(ledger,) if ledger else ())
    condition = group_status.desired_status(group, fleet, home=node, pods=pods, now="").conditions[1]
    return Reason(Kind(condition.reason), condition.message)


def bound(group: Group, fleet: Fleet = FREE, *pods: Pod) -> Reason:
    return group_status.bound(group, fleet, pods)


RECREATE = "delete and recreate the group (kubectl delete sdg team)"
TAKEN = seen(HELD, allocations=[Allocation("ns/x", "u", GPU, [0])])
UNHELD = replace(
    a_ledger(team=gpus(0)),
    status=replace(a_ledger().status, published=Publication(devices=[Part(GPU, 0, "GPU-0")], held=[])),
)
TORN = a_fleet(pods=(a_pod(node="n1"), a_pod("q", node="n2")))
CLOSED = a_group(allowedNamespaces={"from": "Selector", "names": ["other"]})
LABELLED = a_group(allowedNamespaces={"from": "Selector", "selector": {"matchLabels": {"team": "a"}}})
DELETING = replace(a_group(), metadata=replace(a_group().metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
PICKY = replace(POD, spec=replace(POD.spec, node_selector={"zone": "x"}))
DOWN = replace(NODE, spec=replace(NODE.spec, taints=[Taint(OUT_OF_SERVICE, "", "NoExecute")]))
SEALED = a_pod(node="n1", devices=gpus(2, 3))
SEALED.metadata.annotations[vendors.NVIDIA.cdi_annotation] = "nvidia.com/gpu=2,nvidia.com/gpu=3"
OCCURRING: list[tuple[Kind, Reason | None, str]] = [
    (Kind.NODE_NOT_SHARED, on(a_node(shared=False), HELD), "kubectl label node"),
    (Kind.NODE_NOT_SHARED, healthy(HELD, a_node(shared=False)), "kubectl label node n1 deviceshare.io/mode=shared"),
    (Kind.NODE_GONE, on_n1(a_fleet(), LIVES), RECREATE),
    (Kind.NODE_GONE, healthy(HELD, None), RECREATE),
    (Kind.NODE_OUT_OF_SERVICE, on(DOWN, HELD), "kubectl taint node NODE"),
    (Kind.NODE_OUT_OF_SERVICE, healthy(HELD, DOWN), f"kubectl taint node n1 {OUT_OF_SERVICE}-"),
    (Kind.NODE_OUT_OF_SERVICE, healthy(HELD, DOWN), "kubectl patch sdg team"),
    (Kind.NODE_NOT_READY, unusable(a_fleet(a_node(ready=False), ledgers=(HELD,)), "n1"), "kubectl describe node n1"),
    (Kind.NODE_NOT_READY, healthy(HELD, a_node(ready=False)), "repair the node"),
    (Kind.NODE_CORDONED, unusable(a_fleet(CORDONED, ledgers=(HELD,)), "n1"), "kubectl uncordon n1"),
    (Kind.NODE_REBOOTED, on(REBOOTED, seen(HELD, boot_id="first")), "kubectl get pods -A"),
    (Kind.UNREADABLE, waits(POD, ODD), "kubectl edit sdg team"),
    (Kind.DEVICES_UNKNOWN, on(NODE, None), "deviceshare doctor"),
    (Kind.NODE_SELECTOR, on_n1(FREE, a_group(nodeSelector={"zone": "b"})), "change spec.nodeSelector"),
    (Kind.DEVICES_OPAQUE, on_n1(with_plugin_pods()), "agent.enabled=true"),
    (Kind.DEVICES_WITHHELD, on(NODE, withholding(KEPT)), "choose one"),
    (Kind.TOO_FULL, on_n1(FULL), ""),
    (Kind.QUOTA, on_n1(with_a_quota()), "kubectl edit dq none"),
    (Kind.TOO_FULL, on_n1(FREE, a_share(percent=401)), ""),
    (Kind.MEMORY_UNKNOWN, on_n1(FREE, a_share(gib=1)), "agent.enabled=true"),
    (Kind.GROUP_ELSEWHERE, on_n1(FREE, a_group(node="n2")), ""),
    (Kind.CLAIM_RELEASING, on(NODE, a_ledger(team=gpus(0), releasing=("team",)), LIVES), ""),
    (Kind.NAMESPACE_LEFT_OUT, waits(replace(POD, left_out="team"), None), "create it in another one"),
    (Kind.NAMESPACE_NOT_ALLOWED, waits(POD, CLOSED), "ask whoever may change"),
    (Kind.NAMESPACE_UNKNOWN, waits(POD, LABELLED), "deviceshare doctor"),
    (Kind.NOT_INJECTED, waits(a_pod(injected=False), a_group()), "delete and recreate the pod"),
    (Kind.GROUP_MISSING, waits(POD, None), "create it"),
    (Kind.GROUP_DELETING, waits(POD, DELETING), "recreate it"),
    (Kind.GATED, waits(gated(POD), a_group()), ""),
    (Kind.NODES_RULED_OUT, waits(PICKY, a_group()), "recreate it"),
    (Kind.UNSCHEDULABLE, waits(scheduled_in_vain(), a_group()), ""),
    (Kind.NOT_TRIED, waits(POD, LIVES, a_fleet(NODE, ledgers=(HELD,))), ""),
    (Kind.REFUSED, refused_by_the_webhook(), ""),
    (Kind.CLAIMED, bound(LIVES, a_fleet(NODE, ledgers=(HELD,))), ""),
    (Kind.RELEASED, moved("n1", None), ""),
    (Kind.NO_PODS, bound(a_group()), "name it in a pod's annotation"),
    (Kind.WAITING, bound(a_group(), FULL, POD), ""),
    (Kind.WAITING, bound(a_group(), a_fleet(), POD), "kubectl label node"),
    (Kind.WAITING, bound(a_group(), FREE, POD), "kubectl describe pod"),
    (Kind.WAITING, bound(a_group(nodeSelector={"zone": "b"}), FREE, POD), "label a node"),
    (Kind.NO_NODE_LARGE_ENOUGH, bound(a_group(count=5), FULL, POD), "ask for fewer"),
    (Kind.INVALID_SPEC, bound(a_group(count=0)), "kubectl edit sdg team"),
    (Kind.REPAIRING, bound(a_group(), TORN), "delete those on all but one"),
    (Kind.AS_CLAIMED, healthy(HELD), ""),
    (Kind.NOT_BOUND, healthy(HELD, group=a_group()), ""),
    (Kind.CLAIM_MISSING, healthy(a_ledger()), RECREATE),
    (Kind.DEVICES_LOST, healthy(HELD, a_node(devices={GPU: 1})), RECREATE),
    (Kind.DEVICES_LOST, on(NODE, a_ledger("n1", {GPU: 1}, team=gpus(0, 1)), LIVES), RECREATE),
    (Kind.CLAIMED_TWICE, healthy(TWICE), "delete one of them with its pods"),
    (Kind.CLAIMED_TWICE, on(NODE, TWICE, LIVES), "delete one of them with its pods"),
    (Kind.DEVICES_UNHEALTHY, healthy(SICK), "deviceshare rebind team"),
    (Kind.DEVICES_UNHEALTHY, on(NODE, SICK, LIVES), "deviceshare rebind team"),
    (Kind.DEVICES_GIVEN_AWAY, healthy(TAKEN), "deviceshare rebind team"),
    (Kind.DEVICES_NOT_RESERVED, healthy(seen(HELD, allocations=[], placeholders=True)), "deviceshare rebind team"),
    (Kind.PODS_USE_PREVIOUS_DEVICES, healthy(HELD, NODE, SEALED), ""),
    (Kind.NODE_TAINTED, misfit(POD, {}, TAINTED, {}), ""),
    (Kind.INSUFFICIENT, misfit(POD, {"cpu": 1}, NODE, {}), ""),
    (Kind.NODE_AVOIDED, AVOIDED, ""),
    (Kind.NODE_NOMINATED, NOMINATED, ""),
    (Kind.OTHER_PLUGIN, leftover_reason(["aliyun.com/gpu-mem"]), "kubectl patch node NODE"),
    (Kind.NOT_HANDED_OVER, healthy(MUTED), "write one"),
    (Kind.NOT_HANDED_OVER, on(NODE, MUTED, LIVES), "write one"),
    (Kind.COUNTED_ONLY, counted_only(a_share(1)._replace(isolated=True), "no agent: run one"), "run one"),
    (Kind.NOT_HELD, not_held(UNHELD, "uid-of-team"), "kubectl get resourceclaims"),
    (Kind.LEDGER_FULL, ledger_budget.FULL, "share another node"),
]


@pytest.mark.parametrize(
    ("kind", "reason", "cure"), OCCURRING, ids=lambda each: str(each) if isinstance(each, Kind) else ""
)
def test_a_reason_has_its_kind_and_names_the_next_step(kind: Kind, reason: Reason | None, cure: str) -> None:
    """Where there is none to take the situation ends by itself, or the details say who stands in the way."""
    assert reason is not None
    assert reason.kind is kind
    assert cure in str(reason)
    assert cure or not reason.cure


def test_every_kind_occurs() -> None:
    """A new one gets its line above."""
    assert {kind for kind, _, _ in OCCURRING} == set(Kind)


def test_a_reason_is_one_line_for_people() -> None:
    """What is so, what to do, and the particulars, in this order."""
    assert str(Reason(Kind.WAITING, "it waits", "end another", ("n1: full", "n2: full"))) == (
        "it waits: end another; n1: full; n2: full"
    )
    assert str(Reason(Kind.NO_PODS, "none")) == "none"


def test_scripts_and_the_page_are_given_the_parts() -> None:
    """Beside the line that people read, in the picture and in verdicts; nobody has to take it apart."""
    picture = draw(a_fleet(CORDONED, ledgers=(a_ledger(other=gpus(0, 1, 2)),)), [a_group()], [POD])
    [node], [group], [waiting] = msgspec.to_builtins([picture.nodes, picture.groups, picture.waiting])
    cordoned = {"kind": "NodeCordoned", "text": "the node is cordoned", "cure": "kubectl uncordon n1"}
    assert (node["reasons"], node["obstacle"]) == ([cordoned], "the node is cordoned: kubectl uncordon n1")
    full = {
        "kind": "Waiting",
        "text": f"waiting for 2 {GPU}, which no shared node has free",
        "details": ("n1: 1 of 4 free (other holds 0,1,2)",),
    }
    assert group["why"] == waiting["why"] == full
    assert group["message"] == waiting["reason"] == f"{full['text']}; {full['details'][0]}"
    [verdict] = msgspec.to_builtins(verdicts(FULL, a_group().request))
    assert verdict["why"] == {"kind": "TooFewDevices", "text": verdict["reason"]}
