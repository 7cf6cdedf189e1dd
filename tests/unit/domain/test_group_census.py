"""What is told of each group, and of how many."""

from msgspec.structs import replace

from deviceshare.domain.answers.census import MOST_NAMESPACES, GroupCount, count_each_group
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pod_spec import SchedulingGate
from deviceshare.domain.objects.pods import Pod
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

EARLY, LATE = "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"


def pod_of(namespace: str, name: str, group: str, since: str = LATE, *, gated: bool = False) -> Pod:
    """A waiting one."""
    pod = a_pod(name, group)
    spec = replace(pod.spec, scheduling_gates=[SchedulingGate("ours")]) if gated else pod.spec
    return replace(pod, metadata=replace(pod.metadata, namespace=namespace, creation_timestamp=since), spec=spec)


def created(group: Group, since: str) -> Group:
    return replace(group, metadata=replace(group.metadata, creation_timestamp=since))


def test_a_group_is_told_with_its_devices_and_pods() -> None:
    """Waiting ones by namespace, the oldest of them by its creation."""
    running = a_pod("runs", "team", node="n1", devices=gpus(0, 1))
    waiting = [pod_of("a", "p1", "team"), pod_of("b", "p2", "team", EARLY), pod_of("b", "p3", "team")]
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0, 1)),), pods=(running,))
    group = a_group("team", node="n1", status={"phase": "Bound", "idleSince": EARLY})

    counted = count_each_group(fleet, [group], [running, *waiting, pod_of("a", "p4", "nobody's")], most=10)
    assert counted[1] == 0
    assert counted[0] == [
        GroupCount("team", "Bound", "n1", {GPU: 2}, {"ns": 1}, {"a": 1, "b": 2}, waiting_since=EARLY, idle_since="")
    ], "nor is it idle while a pod has its devices, whatever its status still says"


def test_an_idle_group_is_told_since_when() -> None:
    """As its status says; the pods that wait change nothing about that."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0)),))
    [only] = count_each_group(fleet, [a_group("team", node="n1", status={"idleSince": EARLY})], [], most=1)[0]
    assert (only.idle_since, only.devices, only.pods, only.waiting_since) == (EARLY, {GPU: 1}, {}, "")


def test_of_too_many_groups_those_with_trouble_or_devices_are_told() -> None:
    """Whoever creates groups by the thousand can't hide those of others; of equals the oldest stay."""
    strangers = [created(a_group(f"new-{number:03}"), LATE) for number in range(50)]
    ours = [
        created(a_group("degraded", node="n1", status={"phase": "Degraded"}), LATE),
        created(a_group("bound", node="n1", status={"phase": "Bound"}), LATE),
        created(a_group("waits"), LATE),
        created(a_group("old"), EARLY),
    ]
    counted = count_each_group(a_fleet(a_node()), [*strangers, *ours], [pod_of("ns", "p", "waits")], most=5)
    assert [each.name for each in counted[0]] == ["degraded", "bound", "waits", "old", "new-000"]
    assert counted[1] == 49


def test_labels_are_bounded_whatever_strangers_write() -> None:
    """Pods of one group may come from any number of namespaces, and a status may say anything."""
    pods = [pod_of(f"ns-{number:02}", f"p{number}", "team") for number in range(40)]
    [only] = count_each_group(a_fleet(), [a_group("team", status={"phase": "x" * 999})], pods, most=10)[0]
    assert len(only.waiting) == MOST_NAMESPACES + 1
    assert sum(only.waiting.values()) == 40
    assert only.phase == "Pending"


def test_pods_of_namespaces_that_the_group_does_not_allow_are_not_counted() -> None:
    """Anybody could have an alert raised for a group by pods that it never takes."""
    group, pods = (
        a_group("team", allowedNamespaces={"from": "Selector", "names": ["a"]}),
        [pod_of("a", "p", "team"), pod_of("b", "q", "team", EARLY)],
    )
    [only] = count_each_group(a_fleet(), [group], pods, most=10)[0]
    assert (only.waiting, only.waiting_since) == ({"a": 1}, LATE)


def test_gated_pods_do_not_wait_yet() -> None:
    """Nobody may schedule them."""
    gated = pod_of("ns", "p", "team", gated=True)
    [only] = count_each_group(a_fleet(), [a_group("team")], [gated], most=10)[0]
    assert (only.waiting, only.waiting_since) == ({}, "")
