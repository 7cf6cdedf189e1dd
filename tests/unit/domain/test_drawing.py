"""The picture of the cluster: every device once, with who has it; every waiting pod with its reason."""

from typing import Any

import msgspec
from msgspec.structs import replace

from deviceshare.domain.answers.picture import Count, DeviceView, Picture, draw
from deviceshare.domain.answers.pod_view import TurnPlayer, TurnView, standings, turn_views
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import (
    Allocation,
    Hardware,
    Overuse,
    Part,
    ReportedProgram,
    ReportedQueue,
    ReportedTurns,
    Trespass,
)
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.object_decoder import decoder_of
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.join_obstacles import NO_LEDGER, NOT_SHARED
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus


def with_hardware(ledger: NodeDevices, hardware: Hardware) -> NodeDevices:
    """The ledger of a node whose agent reports this."""
    return replace(ledger, status=replace(ledger.status, hardware=hardware))


def with_claim(ledger: NodeDevices, uid: str, claim: Claim) -> NodeDevices:
    """The ledger with one claim more."""
    return replace(ledger, spec=replace(ledger.spec, claims={**ledger.claims, uid: claim}))


def devices(fleet: Fleet) -> dict[int, DeviceView]:
    """The devices of the one node, by index."""
    (node,) = draw(fleet, [], []).nodes
    assert len({view.index for view in node.devices}) == len(node.devices)
    return {view.index: view for view in node.devices}


def test_every_device_says_who_has_it() -> None:
    """A group, a group being released, pods from before a rebind, a device plugin's pod, or nobody."""
    ledger = a_ledger(devices={GPU: 6}, a=gpus(0), old=gpus(1), releasing=("old",))
    ledger = with_claim(ledger, "uid-of-b", Claim("b", list(gpus(2)), former=list(gpus(3))))
    parts = [Part(GPU, index) for index in range(6)]
    ledger = with_hardware(ledger, Hardware(devices=parts, allocations=[Allocation("ns/x", "u", GPU, [4])]))
    fleet = a_fleet(a_node(), ledgers=(ledger,))
    seen = [(view.use, view.group, view.pod) for view in devices(fleet).values()]
    assert seen == [
        ("held", "a", ""),
        ("releasing", "old", ""),
        ("held", "b", ""),
        ("former", "b", ""),
        ("plugin", "", "ns/x"),
        ("free", "", ""),
    ]
    assert draw(fleet, [], []).total == [Count(GPU, total=6, allocated=5, free=1, unhealthy=0)]


def test_a_device_that_is_left_to_the_device_plugin_is_nobodys_and_not_free() -> None:
    """Unless a group has it all the same."""
    keeper = Allocation("ns/keeper", "k", GPU, [0], placeholder=True)
    hardware = Hardware(devices=[Part(GPU, n) for n in range(3)], allocations=[keeper], placeholders=True)
    ledger = with_hardware(a_ledger(devices={GPU: 3}, a=gpus(1)), hardware)
    fleet = a_fleet(a_node(), ledgers=(ledger,))
    assert [view.use for view in devices(fleet).values()] == ["free", "held", "left"]
    assert draw(fleet, [], []).total == [Count(GPU, total=3, allocated=1, free=1, unhealthy=0)]


def test_a_device_split_by_mig_is_nobodys_and_not_free() -> None:
    """Its parts are the device plugin's; without an agent nobody knows of them."""
    hardware = Hardware(devices=[Part(GPU, 0, mig=True), Part(GPU, 1)])
    fleet = a_fleet(a_node(), ledgers=(with_hardware(a_ledger(devices={GPU: 2}), hardware),))
    assert [(view.use, view.watched) for view in devices(fleet).values()] == [("split", True), ("free", True)]
    assert draw(fleet, [], []).total == [Count(GPU, total=2, allocated=0, free=1, unhealthy=0)]
    assert not devices(a_fleet(a_node(), ledgers=(a_ledger(devices={GPU: 1}),)))[0].watched


def test_a_broken_device_is_shown_but_not_free() -> None:
    """With what the agent says of it; it stays in its group's hands."""
    broken = Part(GPU, 1, "GPU-b", "H100", 81559, unhealthy="Xid 79", since="2026-11-21T03:00:00Z")
    hardware = Hardware(driver="550", devices=[Part(GPU, 0, "GPU-a", "H100", 81559), broken])
    fleet = a_fleet(a_node(), ledgers=(with_hardware(a_ledger(devices={GPU: 2}, a=(broken.device,)), hardware),))
    view = devices(fleet)[1]
    assert (view.use, view.group, view.unhealthy, view.since) == ("held", "a", "Xid 79", "2026-11-21T03:00:00Z")
    assert (view.uuid, view.model, view.memory_mib, view.health) == ("GPU-b", "H100", 81559, "unhealthy")
    memory = {"memory_mib": 2 * 81559, "allocated_mib": 81559}
    assert draw(fleet, [], []).total == [Count(GPU, total=2, allocated=1, free=1, unhealthy=1, **memory)]


def test_a_claim_is_followed_by_uuid_when_numbers_change() -> None:
    """After a reboot the group's device may bear another number."""
    ledger = with_claim(a_ledger(devices={GPU: 2}), "uid-of-a", Claim("a", [Device(GPU, 0, "GPU-a")]))
    ledger = with_hardware(ledger, Hardware(devices=[Part(GPU, 0, "GPU-b"), Part(GPU, 1, "GPU-a")]))
    fleet = a_fleet(a_node(), ledgers=(ledger,))
    assert [(view.uuid, view.group) for view in devices(fleet).values()] == [("GPU-b", ""), ("GPU-a", "a")]


def test_a_lost_device_is_shown_once_with_its_holder() -> None:
    """Whether the agent remembers it or only the claim does; it counts as none that is there."""
    claims = Claim("a", [Device(GPU, 1, "GPU-gone"), Device(GPU, 2, "GPU-forgotten")])
    ledger = with_claim(a_ledger(devices={GPU: 1}), "uid-of-a", claims)
    ledger = with_hardware(ledger, Hardware(devices=[Part(GPU, 0, "GPU-a"), Part(GPU, 1, "GPU-gone", lost=True)]))
    fleet = a_fleet(a_node(), ledgers=(ledger,))
    seen = devices(fleet)
    assert {index: (view.group, view.lost) for index, view in seen.items()} == {
        0: ("", False),
        1: ("a", True),
        2: ("a", True),
    }
    assert draw(fleet, [], []).total == [Count(GPU, total=1, allocated=0, free=1, unhealthy=2)]


def test_a_lost_device_that_is_claimed_by_number_is_shown_once_too() -> None:
    """The claim is older than the agent, which told the UUID."""
    ledger = with_claim(a_ledger(devices={GPU: 2}), "uid-of-a", Claim("a", [Device(GPU, 0), Device(GPU, 1)]))
    ledger = with_hardware(ledger, Hardware(devices=[Part(GPU, 0, "GPU-a"), Part(GPU, 1, "GPU-b", lost=True)]))
    [node] = draw(a_fleet(a_node(), ledgers=(ledger,)), [], []).nodes
    assert [(view.index, view.uuid, view.group, view.lost) for view in node.devices] == [
        (0, "GPU-a", "a", False),
        (1, "GPU-b", "a", True),
    ]


def test_a_trespass_is_shown_on_its_device() -> None:
    """Where a person looks for who uses it."""
    trespass = Trespass(GPU, 0, "python3", "ns/rogue")
    hardware = Hardware(devices=[Part(GPU, 0), Part(GPU, 1)], trespasses=[trespass])
    fleet = a_fleet(a_node(), ledgers=(with_hardware(a_ledger(devices={GPU: 2}), hardware),))
    assert [view.trespasses for view in devices(fleet).values()] == [[trespass], []]


def test_a_node_that_gives_out_nothing_says_why() -> None:
    """And has nothing free, whatever its ledger says."""
    cordoned = replace(a_node("n3"), spec=replace(a_node().spec, unschedulable=True))
    nodes = (a_node("n1", shared=False), a_node("n2", ready=False), cordoned, a_node("n4"))
    picture = draw(a_fleet(*nodes, ledgers=tuple(a_ledger(f"n{n}") for n in (1, 2, 3))), [], [])
    reasons = [
        NOT_SHARED,
        Reason(ReasonKind.NODE_NOT_READY, "the node is not Ready", "repair it (kubectl describe node n2)"),
        Reason(ReasonKind.NODE_CORDONED, "the node is cordoned", "kubectl uncordon n3"),
        NO_LEDGER,
    ]
    assert [node.reasons for node in picture.nodes] == [[reason] for reason in reasons]
    assert [node.obstacle for node in picture.nodes] == [str(reason) for reason in reasons]
    assert picture.total == [Count(GPU, total=12, allocated=0, free=0, unhealthy=0)]


def test_devices_that_a_plugin_may_have_given_away_are_not_called_free() -> None:
    """Without an agent nobody knows which."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(),))
    fleet.set_plugin_pods("n1", {"u": frozenset({GPU})})
    (node,) = draw(fleet, [], []).nodes
    assert (node.opaque, [reason.kind for reason in node.reasons]) == ([GPU], [ReasonKind.DEVICES_OPAQUE])
    assert node.counts == [Count(GPU, total=4, allocated=0, free=0, unhealthy=0)]


def a_scene() -> Picture:
    """Two groups on two nodes, one of them with a pod that waits; a third waits; a pod names none that exists."""
    nodes, ledgers = (a_node("n1"), a_node("n2")), (a_ledger("n1", a=gpus(0, 1)), a_ledger("n2", b=gpus(0, 1, 2, 3)))
    held = a_pod("p1", "a", node="n1", devices=gpus(0, 1))
    pods = (held, since(a_pod("p2", "a"), 3), since(a_pod("p3", "c"), 2), since(a_pod("p4", "typo"), 1))
    groups = [a_group("a", node="n1"), a_group("b", 4, node="n2"), a_group("c", 4)]
    return draw(a_fleet(*nodes, ledgers=ledgers, pods=pods), groups, pods)


def since(pod: Pod, second: int) -> Pod:
    """The pod, created at this second."""
    return replace(pod, metadata=replace(pod.metadata, creation_timestamp=f"2026-11-21T00:00:0{second}Z"))


def test_groups_show_where_they_are_and_who_uses_them() -> None:
    """And how many more pods wait to join."""
    found = {group.name: group for group in a_scene().groups}
    assert (found["a"].node, found["a"].devices, found["a"].pods, found["a"].waiting) == (
        "n1",
        {GPU: "0,1"},
        ["ns/p1"],
        1,
    )
    assert found["a"].message == f"holds {GPU} 0,1 on node n1"
    assert (found["c"].node, found["c"].wants, found["c"].waiting) == ("", {GPU: 4}, 1)
    assert found["c"].message.startswith(f"waiting for 4 {GPU}")


def test_waiting_pods_come_with_their_reasons_the_longest_waiting_first() -> None:
    """A group that is missing, its group's own words, or that only the scheduler is awaited."""
    assert [(waiting.pod, waiting.reason[:40]) for waiting in a_scene().waiting] == [
        ("ns/p4", "group typo does not exist: create it"),
        ("ns/p3", "waiting for 4 nvidia.com/gpu, which no s"),
        ("ns/p2", "kube-scheduler has not tried it yet; its"),
    ]


def test_one_node_of_the_picture_is_a_picture() -> None:
    """With its groups and the pods that wait to join them; an unknown node is none."""
    one = a_scene().of("n1")
    assert one is not None
    assert ([node.name for node in one.nodes], [group.name for group in one.groups]) == (["n1"], ["a"])
    assert [waiting.pod for waiting in one.waiting] == ["ns/p2"]
    assert one.total == [Count(GPU, total=4, allocated=2, free=2, unhealthy=0)]
    assert a_scene().of("n9") is None


def test_scripts_find_what_a_device_is_and_what_is_done_with_it() -> None:
    """Names of the machine-readable picture that may not change; what is empty is left out."""
    (first, *_) = msgspec.to_builtins(a_scene())["nodes"]
    assert first["devices"][0] == {"resource": GPU, "index": 0, "use": "held", "group": "a", "allocatedPercent": 100.0}
    assert first["devices"][3] == {"resource": GPU, "index": 3, "use": "free"}
    numbers = {"total": 4, "allocated": 2, "free": 2, "unhealthy": 0}
    numbers |= dict.fromkeys(("shared", "forShares", "memoryMib", "allocatedMib"), 0)
    assert first["counts"] == [{"resource": GPU, **numbers}]
    assert set(msgspec.to_builtins(a_scene())) == {"nodes", "groups", "waiting", "total", "unreadable", "unseen"}


def a_report() -> ReportedTurns:
    """Of the groups `a` and one that was deleted, and of a device; one pod is gone, more wait than are listed."""
    team = ReportedQueue(
        group="a",
        uid="uid-of-a",
        holder=ReportedProgram("ns/p1", "2026-11-21T01:00:00Z", asked=True),
        waiting=[ReportedProgram("ns/gone", "2026-11-21T01:30:00Z", 5)],
        waiting_count=4,
    )
    device = ReportedQueue(resource=GPU, index=3, waiting=[ReportedProgram("ns/p2")])
    return ReportedTurns("2026-11-21T01:59:00Z", [team, replace(team, uid="uid-before"), device], 5)


def test_turns_stand_with_their_group_and_all_of_them_with_their_node() -> None:
    """With the report's time, and which pods are gone; a recreated group has not the turns of the one before."""
    fleet = a_fleet(a_node(), ledgers=(with_hardware(a_ledger(a=gpus(0)), Hardware(turns=a_report())),))
    pods = [a_pod("p1", "a", node="n1"), a_pod("p2", "a", node="n1")]
    picture = draw(fleet, [a_group("a", 1, node="n1"), a_group("b", 1)], pods)

    assert [group.turn for group in picture.groups] == [picture.nodes[0].turns[0], None]
    team, before, device = picture.nodes[0].turns
    assert (
        team
        == before
        == TurnView(
            "a",
            reported="2026-11-21T01:59:00Z",
            holder=TurnPlayer("ns/p1", "2026-11-21T01:00:00Z", asked=True),
            waiting=[TurnPlayer("ns/gone", "2026-11-21T01:30:00Z", 5, gone=True)],
            waiting_count=4,
        )
    )
    assert (device.of, device.holder, device.waiting_count) == (f"{GPU} 3", None, 1)
    assert picture.nodes[0].more_turns == 2


def test_a_pod_is_told_which_turns_it_has_and_which_it_waits_for() -> None:
    """By `explain pod`: with who has it, and how many wait in front."""
    report = a_report()
    behind = replace(report.queues[0], waiting=[ReportedProgram("ns/x"), ReportedProgram("ns/p2")])
    report = replace(report, queues=[behind, *report.queues[2:]])
    assert standings(report, "ns/p1") == ["has that of a since 2026-11-21T01:00:00Z"]
    assert standings(report, "ns/p2") == [
        "waits for that of a; pod ns/p1 has it, and 1 wait in front",
        f"waits for that of {GPU} 3; nobody has it",
    ]
    assert standings(None, "ns/p1") == standings(report, "ns/other") == []


def test_an_exceeded_share_stands_with_its_device() -> None:
    """By the number that the agent reports, for as long as the pod has its share."""
    row = Overuse(GPU, 1, "ns/greedy", "main", 12000, 8192, "2026-11-21T01:00:00Z")
    hardware = Hardware(devices=[Part(GPU, 0), Part(GPU, 1)], overuses=[row, replace(row, pod="ns/gone")])
    share = Claim(pod="ns/greedy", shares=[Share("main", GPU, 1, memory_mib=8192)])
    ledger = with_claim(with_hardware(a_ledger(devices={GPU: 2}), hardware), "uid-of-greedy", share)
    assert [view.overuses for view in devices(a_fleet(a_node(), ledgers=(ledger,))).values()] == [[], [row]]


def test_a_report_with_nulls_is_read_and_a_broken_one_hides_no_device() -> None:
    """Whoever wrote it: nothing is decided by turns."""
    body: dict[str, Any] = {
        "metadata": {"name": "n1"},
        "status": {
            "hardware": {
                "devices": [{"resource": GPU, "index": 0}],
                "overuses": None,
                "turns": {
                    "time": None,
                    "queues": [
                        {"group": "a", "holder": None, "waiting": [{"pod": "ns/p", "since": None}], "index": None},
                        {"group": "b", "holder": {"pod": "\x1b[2Jns/q", "priority": None}, "waiting": None},
                    ],
                },
            }
        },
    }
    ledger = decoder_of(NodeDevices).salvage(msgspec.json.encode(body))
    assert ledger.metadata.unreadable is None
    team, other = turn_views(ledger.hardware.turns, {"ns/p"})
    assert (team.holder, team.waiting, team.waiting_count) == (None, [TurnPlayer("ns/p")], 1)
    assert other.holder == TurnPlayer("\x1b[2Jns/q", gone=True)
    body["status"]["hardware"]["turns"] = {"queues": "none", "time": 7}
    broken = decoder_of(NodeDevices).salvage(msgspec.json.encode(body))
    assert (turn_views(broken.hardware.turns, ()), len(broken.hardware.devices)) == ([], 1)
