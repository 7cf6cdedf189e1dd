"""What people are shown of shares: by `explain`, `plan` and `inspect`, on the page, and by `kubectl get ndev`."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers.explanation import Case, explain_group, explain_pod
from deviceshare.domain.answers.ledger_status import summary
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.answers.plan import Planner
from deviceshare.domain.objects.devices import Device, Devices
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import Overuse
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import INIT, Share
from deviceshare.domain.objects.workloads import Workload, admitted, count_of, pods_of
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, gpus

GIB = 1024


def sharing(name: str = "p", limits: dict[str, Any] | None = None, *, group: str = "", strategy: str = "") -> Pod:
    """A pod as the webhook admits it; it asks for 8 GiB unless told otherwise."""
    asked = {"aliyun.com/gpu-mem": 8} if limits is None else limits
    named = {contract.GROUP: group, contract.STRATEGY: strategy}
    annotations = {key: value for key, value in named.items() if value}
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"uid-of-{name}", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": asked}}]},
    }
    return admitted(msgspec.convert(body, Pod))


def bound(pod: Pod, node: str, *shares: Share, holder: str = "") -> Pod:
    """The pod with what a Binding writes."""
    uid = holder or pod.metadata.uid
    given = {
        contract.GROUP_UID: uid,
        contract.POD_UID: pod.metadata.uid,
        contract.SHARES: msgspec.json.encode(shares).decode(),
    }
    meta = replace(pod.metadata, annotations={**pod.metadata.annotations, **given})
    return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=node))


def part(index: int, gib: int = 0, percent: int = 0, container: str = "main", **more: Any) -> Share:
    """A part of a GPU."""
    return Share(container, GPU, index, memory_mib=gib * GIB, percent=percent, **more)


def a_shared_ledger(
    node: str = "n1",
    *,
    size: int = 16 * GIB,
    devices: int = 2,
    groups: Mapping[str, Devices] | None = None,
    **pods: list[Share],
) -> NodeDevices:
    """A ledger with devices of 16 GiB, and claims of groups and pods by name."""
    ledger = a_ledger(node, {GPU: devices})
    claims = {f"uid-of-{name}": Claim(name, list(held)) for name, held in (groups or {}).items()}
    status = replace(ledger.status, memory_mib={GPU: size} if size else {})
    return with_pods(replace(ledger, spec=replace(ledger.spec, claims=claims), status=status), pods)


def with_pods(ledger: NodeDevices, pods: Mapping[str, list[Share]]) -> NodeDevices:
    """The ledger with claims of pods by name."""
    claims = {f"uid-of-{name}": Claim(pod=f"ns/{name}", shares=shares) for name, shares in pods.items()}
    return replace(ledger, spec=replace(ledger.spec, claims={**ledger.claims, **claims}))


def a_shared_fleet(*ledgers: NodeDevices) -> Fleet:
    """A fleet with a shared node for each of the ledgers."""
    return a_fleet(*(a_node(each.node, {GPU: 2}) for each in ledgers), ledgers=ledgers)


# explain.


def test_a_pod_whose_share_fits_is_told_where_it_would_go_and_what_it_would_get() -> None:
    """The device that it fills best."""
    fleet = a_shared_fleet(a_shared_ledger("n1"), a_shared_ledger("n2", a=[part(1, 5)]))
    told = explain_pod(Case(fleet, None, None, []), sharing())
    assert told.message.startswith("2 shared nodes have 8 GiB of a GPU free")
    assert told.facts["would go to"] == "n2: scores 10 of 10 for binpack"
    assert told.facts["would get"] == f"8 GiB of {GPU} 1, where the least room is left that suffices"
    best = told.nodes[0]
    assert [(each.index, each.free, [str(one) for one in each.parts]) for each in best.devices] == [
        (0, "16 of 16 GiB", []),
        (1, "11 of 16 GiB", ["ns/a 5 GiB"]),
    ]
    spread = explain_pod(Case(fleet, None, None, []), sharing(strategy="spread"))
    assert spread.facts["would get"].endswith(f"{GPU} 0, where the most room is left")


def test_each_device_says_what_of_it_is_free_who_has_the_rest_and_whose_end_suffices() -> None:
    """One pod where one is enough, that with the least; else as many as it takes."""
    ledger = a_shared_ledger(a=[part(0, 9)], b=[part(0, 5)], c=[part(1, 4)], d=[part(1, 4)], e=[part(1, 4)])
    told = explain_pod(Case(a_shared_fleet(ledger), None, None, []), sharing())
    assert told.message == (
        "waiting for 8 GiB of a GPU, which no shared node has free;"
        " n1: at most 4 of 16 GiB of one free (pods ns/a, ns/b and 3 more share 0,1)"
    )
    [node] = told.nodes
    assert [(each.reason, each.cure) for each in node.devices] == [
        ("only 2 of 16 GiB free", "pod ns/a ends"),
        ("only 4 of 16 GiB free", "pod ns/c ends"),
    ]
    two = explain_pod(Case(a_shared_fleet(ledger), None, None, []), sharing(limits={"aliyun.com/gpu-mem": 12}))
    assert [each.cure for each in two.nodes[0].devices] == ["pods ns/a and ns/b end", "pods ns/c and ns/d end"]


def test_a_device_of_a_group_or_for_groups_says_so_to_who_wants_a_part() -> None:
    """And one for shares, or with shares, to a group."""
    ledger = a_shared_ledger(devices=4, groups={"team": gpus(0)}, a=[part(3, 3)])
    status = replace(ledger.status, for_groups=[Device(GPU, 1)], for_shares=[Device(GPU, 2)])
    fleet = a_fleet(a_node(), ledgers=(replace(ledger, status=status),))
    [node] = explain_pod(Case(fleet, None, None, []), sharing(limits={"aliyun.com/gpu-mem": 15})).nodes
    assert [(each.reason, each.cure) for each in node.devices[:2]] == [
        ("held by group team", "no pod uses it, so kubectl delete sdg team"),
        ("for groups only", "change the annotation deviceshare.io/group-devices of node n1"),
    ]
    waiting = explain_group(Case(fleet, a_group("other", 3), None, [sharing(group="other", limits={})]))
    assert waiting.message.endswith("n1: 1 of 4 free (team holds 0; pod ns/a shares 3; 2 is for shares only)")
    assert [(each.reason, each.cure) for each in waiting.nodes[0].devices[2:]] == [
        ("for shares only", "change the annotation deviceshare.io/share-devices of node n1"),
        ("pod ns/a has a part", "pod ns/a ends"),
    ]


@pytest.mark.parametrize(
    ("size", "asked", "text"), [(0, 8, "its memory is not known"), (8 * GIB, 9, "smaller than 9 GiB")]
)
def test_a_device_that_can_never_serve_a_share_says_why(size: int, asked: int, text: str) -> None:
    """Its memory is unknown, or less than what is asked for."""
    told = explain_pod(
        Case(a_shared_fleet(a_shared_ledger(size=size)), None, None, []), sharing(limits={"aliyun.com/gpu-mem": asked})
    )
    assert {each.reason for each in told.nodes[0].devices} == {text}
    assert ("no device of a shared node has more than 8 GiB" in told.message) == bool(size)


def test_a_pod_that_runs_says_what_each_container_has() -> None:
    """From its own annotation."""
    pod = bound(sharing(), "n1", part(0, 3), part(1, percent=50, container="side"))
    told = explain_pod(Case(a_shared_fleet(a_shared_ledger()), None, None, []), pod)
    assert told.message == f"it is on node n1 with 3 GiB of {GPU} 0 and 50% of {GPU} 1"
    assert told.facts["container main"] == f"3 GiB of {GPU} 0"
    unbound = replace(sharing(), spec=replace(sharing().spec, node_name="n1"))
    assert "deviceshare did not bind it" in explain_pod(Case(a_shared_fleet(), None, None, []), unbound).message


def test_a_pod_that_uses_more_than_its_share_is_told() -> None:
    """As its node's agent reports it; its neighbour isn't."""
    rows = [Overuse(GPU, 0, "ns/p", "main", 12000, 8192, "2026-11-21T01:00:00Z"), Overuse(GPU, 0, "ns/other")]
    ledger = a_shared_ledger(p=[part(0, 8)])
    status = replace(ledger.status, hardware=replace(ledger.hardware, overuses=rows))
    fleet = a_fleet(a_node(), ledgers=(replace(ledger, status=status),))
    for name, told in (("p", True), ("q", False)):
        facts = explain_pod(Case(fleet, None, None, []), bound(sharing(name), "n1", part(0, 8))).facts
        assert ("over its share" in facts) is told
    text = explain_pod(Case(fleet, None, None, []), bound(sharing(), "n1", part(0, 8))).facts["over its share"]
    assert text == (
        f"container main uses 12000 MiB of {GPU} 0, its share is 8192 MiB (since 2026-11-21T01:00:00Z):"
        " limit what the program allocates, or ask for a larger share"
    )


def test_a_share_inside_a_group_waits_for_the_groups_devices_alone() -> None:
    """Another device that is free doesn't help it."""
    ledger = a_shared_ledger(groups={"team": gpus(0)})
    nested = Claim(pod="ns/a", shares=[part(0, 12)], within="uid-of-team")
    ledger = replace(ledger, spec=replace(ledger.spec, claims={**ledger.claims, "uid-of-a": nested}))
    fleet, group, pod = a_shared_fleet(ledger), a_group("team", 1, node="n1"), sharing(group="team")
    told = explain_pod(Case(fleet, group, a_node(), [pod]), pod)
    assert told.message == (
        "waiting for 8 GiB of a GPU of the devices of group team on node n1, which has not so much free;"
        " n1: at most 4 of 16 GiB of one free (pod ns/a has parts)"
    )
    [home] = told.nodes
    assert [(each.index, each.reason, each.cure) for each in home.devices] == [
        (0, "only 4 of 16 GiB free", "pod ns/a ends")
    ]
    small = sharing(group="team", limits={"deviceshare.io/gpu-percent": 25})
    assert explain_pod(Case(fleet, group, a_node(), [small]), small).facts["would get"].startswith(f"25% of {GPU} 0")


# plan.


def planned(fleet: Fleet, *pods: Pod, groups: tuple[Group, ...] = ()) -> Any:
    """The plan for these pods."""
    return Planner(fleet, {group.name: group for group in groups}, {}).plan([group.name for group in groups], pods)


def test_each_planned_share_takes_its_room_and_the_rest_waits() -> None:
    """gpushare's demo: replicas of one StatefulSet fill the devices."""
    body = {
        "metadata": {"name": "binpack-1", "namespace": "default"},
        "spec": {
            "replicas": 5,
            "template": {
                "spec": {"containers": [{"name": "binpack-1", "resources": {"limits": {"aliyun.com/gpu-mem": "7"}}}]}
            },
        },
    }
    workload = msgspec.convert(body, Workload)
    count = count_of("StatefulSet", workload.spec)
    replicas = [admitted(each) for each in pods_of(workload.spec.template, "binpack-1", "default", count)]
    plan = planned(a_shared_fleet(a_shared_ledger()), *replicas)
    assert [(each.pod, each.node, [(share.index, str(share)) for share in each.shares]) for each in plan.pods] == [
        (f"default/binpack-1-{number}", "n1", [(number // 2, "7 GiB")]) for number in range(4)
    ]
    [waiting] = plan.waiting
    assert (waiting.pod, waiting.group) == ("default/binpack-1-4", "")
    assert waiting.reason.startswith("waiting for 7 GiB of a GPU, which no shared node has free; n1: at most 2 of 16")
    assert not plan.complete
    [view] = plan.after.nodes
    assert [(each.use, each.allocated_mib, len(each.parts)) for each in view.devices] == [("shared", 14 * GIB, 2)] * 2


def test_a_plan_of_a_group_and_a_share_puts_the_share_inside_the_group() -> None:
    """The group settles where the share fits, too."""
    small = a_shared_ledger("n1", size=8 * GIB)
    plan = planned(
        a_shared_fleet(small, a_shared_ledger("n2")),
        sharing(group="team", limits={"aliyun.com/gpu-mem": 12}),
        groups=(a_group("team", 1),),
    )
    [placed] = plan.pods
    assert (placed.node, placed.group, str(placed.shares[0])) == ("n2", "team", "12 GiB")
    assert (plan.groups[0].node, plan.groups[0].pods) == ("n2", ["ns/p"])
    assert plan.complete


@pytest.mark.parametrize(("limits", "text"), [({"aliyun.com/gpu-mem": 2, "cnvrg.io/metagpu": 30}, "are both there")])
def test_a_plan_says_what_the_webhook_would_refuse(limits: dict[str, Any], text: str) -> None:
    """In its words."""
    [refused] = planned(a_shared_fleet(a_shared_ledger()), sharing(limits=limits)).waiting
    assert text in refused.reason and refused.why.kind == "Refused"


def test_a_pod_that_the_cluster_has_already_is_not_planned_again() -> None:
    """As with `plan -f` of a StatefulSet that runs."""
    there = bound(sharing("binpack-1-0"), "n1", part(0, 8))
    fleet = a_shared_fleet(with_pods(a_shared_ledger(), {"binpack-1-0": [part(0, 8)]}))
    plan = Planner(fleet, {}, {"ns/binpack-1-0": there}).plan([], [sharing("binpack-1-0"), sharing("binpack-1-1")])
    assert [(each.pod, each.already, each.shares[0].index) for each in plan.pods] == [
        ("ns/binpack-1-0", True, 0),
        ("ns/binpack-1-1", False, 0),
    ]


# The picture.


def test_a_shared_device_says_how_much_of_it_is_allocated_and_to_whom() -> None:
    """With containers, percent, and the larger of init containers, not the sum."""
    shares = [part(0, 2), part(0, 6, container="load", role=INIT)]
    fleet = a_shared_fleet(a_shared_ledger(a=shares, b=[part(0, percent=25)], groups={"team": gpus(1)}))
    [node] = draw(fleet, [], []).nodes
    shared, held = node.devices
    assert (shared.use, shared.group, shared.allocated_mib, shared.allocated_percent) == ("shared", "", 10 * GIB, 62.5)
    assert msgspec.to_builtins(shared.parts) == [
        {
            "pod": "ns/a",
            "memoryMib": 6 * GIB,
            "percent": 37.5,
            "asked": "6 GiB",
            "containers": {"load": "6 GiB", "main": "2 GiB"},
            "limits": "counted",
        },
        {
            "pod": "ns/b",
            "memoryMib": 4 * GIB,
            "percent": 25.0,
            "asked": "25%",
            "containers": {"main": "25%"},
            "limits": "counted",
        },
    ]
    assert (held.use, held.allocated_mib, held.allocated_percent, held.parts) == ("held", 16 * GIB, 100.0, [])
    [count] = node.counts
    assert (count.allocated, count.shared, count.free) == (2, 1, 0)
    assert (count.memory_mib, count.allocated_mib) == (32 * GIB, 26 * GIB)


def test_where_the_memory_is_unknown_percent_still_counts() -> None:
    """Percent needs no size."""
    fleet = a_shared_fleet(a_shared_ledger(size=0, a=[part(0, percent=30)], b=[part(0, percent=15)]))
    device = draw(fleet, [], []).nodes[0].devices[0]
    assert (device.allocated_mib, device.allocated_percent, device.memory_mib) == (0, 45.0, 0)


def test_waiting_pods_with_shares_are_listed_with_what_they_ask_for() -> None:
    """Those that ask alike say the same, so that they are shown together."""
    fleet = a_shared_fleet(a_shared_ledger(a=[part(0, 12)], b=[part(1, 12)]))
    pods = [sharing("x"), sharing("y"), sharing("z", {"cnvrg.io/metagpu": "20"}), sharing("v", group="none")]
    waiting = {each.pod: each for each in draw(fleet, [], pods).waiting}
    assert waiting["ns/x"].reason == waiting["ns/y"].reason
    assert (waiting["ns/x"].group, waiting["ns/x"].share) == ("", "8 GiB of a GPU")
    assert waiting["ns/z"].reason.startswith("1 shared node has 20% of a GPU free")
    assert waiting["ns/v"].reason == "group none does not exist: create it"


# kubectl get ndev.


def test_sixty_pods_with_parts_are_a_few_words() -> None:
    """Whoever lists nodes doesn't want their names."""
    pods = {f"p{number}": [part(2 + number % 2, percent=1)] for number in range(60)}
    lines = summary(with_pods(a_shared_ledger(devices=4, groups={"team-a": gpus(0)}), pods))
    assert lines.held == f"team-a: {GPU}=0; 60 pods share {GPU}=2,3"
    assert lines.free == f"{GPU}=1 (+22.4 GiB for shares)"
    unknown = summary(a_shared_ledger(size=0, devices=1, a=[part(0, percent=30)]))
    assert (unknown.held, unknown.free) == (f"1 pod shares {GPU}=0", f"{GPU}=0 (+70% for shares)")


def test_a_share_with_a_claim_of_its_own_decides_nothing_about_equal_ones() -> None:
    """Its bind died half-way: it alone goes to the node of its claim, which the selector of both rules out."""
    west = {"zone": "west"}
    pods = [sharing("claimed"), sharing("other")]
    pods = [replace(pod, spec=replace(pod.spec, node_selector=west)) for pod in pods]
    claims = {"uid-of-claimed": Claim(pod="ns/claimed", shares=[part(0, 8)])}
    here = a_ledger("n1")
    here = replace(here, spec=replace(here.spec, claims=claims))
    fleet = a_fleet(a_node("n1", zone="east"), a_node("n2", zone="west"), ledgers=(here, a_ledger("n2")))
    waiting = {each.pod: each.reason for each in draw(fleet, [], pods).waiting}
    assert "rules out node n1, where its share lives" in waiting["ns/claimed"]
    assert "n1" not in waiting["ns/other"].partition(";")[0]
