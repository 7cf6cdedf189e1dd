"""What is told of each group, and of how many."""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from deviceshare.domain.answers.census import MOST_NAMESPACES, of_groups
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.pod_spec import SchedulingGate
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, a_pod, gpus

EARLY, LATE, NOON = "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z", "2026-01-01T12:00:00Z"


def told(fleet: Fleet, groups: Iterable[Group], pods: Iterable[Pod], most: int = 10) -> dict[str, dict[Any, float]]:
    """At noon: the values of each gauge, by what its name ends in."""
    found = of_groups(fleet, groups, pods, most, NOON)
    return {name.removeprefix("deviceshare_").removeprefix("group_"): dict(rows) for name, _, _, rows in found}


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

    assert told(fleet, [group], [running, *waiting, pod_of("a", "p4", "nobody's")]) == {
        "phase": {("team", "Bound"): 1},
        "devices": {("team", "n1", GPU): 2},
        "pods": {("team", "ns"): 1},
        "waiting_pods": {("team", "a"): 1, ("team", "b"): 2},
        "longest_wait_seconds": {"team": 7200},
        "idle_seconds": {},
        "groups_unlisted": {(): 0},
    }, "nor is it idle while a pod has its devices, whatever its status still says"


def test_an_idle_group_is_told_since_when() -> None:
    """As its status says; the pods that wait change nothing about that."""
    fleet = a_fleet(a_node(), ledgers=(a_ledger(team=gpus(0)),))
    found = told(fleet, [a_group("team", node="n1", status={"idleSince": EARLY})], [], most=1)
    assert found["idle_seconds"] == {"team": 7200}
    assert found["devices"] == {("team", "n1", GPU): 1}
    assert (found["pods"], found["longest_wait_seconds"]) == ({}, {})


def test_a_clock_that_is_behind_makes_no_wait_negative() -> None:
    """And a time that is none makes none."""
    late = pod_of("ns", "p", "team", "2026-01-01T12:00:05Z")
    found = told(a_fleet(), [a_group("team", status={"idleSince": "yesterday"})], [late])
    assert (found["longest_wait_seconds"], found["idle_seconds"]) == ({"team": 0}, {})


def test_of_too_many_groups_those_with_trouble_or_devices_are_told() -> None:
    """Whoever creates groups by the thousand can't hide those of others; of equals the oldest stay."""
    strangers = [created(a_group(f"new-{number:03}"), LATE) for number in range(50)]
    ours = [
        created(a_group("degraded", node="n1", status={"phase": "Degraded"}), LATE),
        created(a_group("bound", node="n1", status={"phase": "Bound"}), LATE),
        created(a_group("waits"), LATE),
        created(a_group("old"), EARLY),
    ]
    found = told(a_fleet(a_node()), [*strangers, *ours], [pod_of("ns", "p", "waits")], most=5)
    assert [name for name, _ in found["phase"]] == ["degraded", "bound", "waits", "old", "new-000"]
    assert found["groups_unlisted"] == {(): 49}


def test_labels_are_bounded_whatever_strangers_write() -> None:
    """Pods of one group may come from any number of namespaces, and a status may say anything."""
    pods = [pod_of(f"ns-{number:02}", f"p{number}", "team") for number in range(40)]
    found = told(a_fleet(), [a_group("team", status={"phase": "x" * 999})], pods)
    assert len(found["waiting_pods"]) == MOST_NAMESPACES + 1
    assert sum(found["waiting_pods"].values()) == 40
    assert found["phase"] == {("team", "Pending"): 1}


def test_pods_of_namespaces_that_the_group_does_not_allow_are_not_counted() -> None:
    """Anybody could have an alert raised for a group by pods that it never takes."""
    group, pods = (
        a_group("team", allowedNamespaces={"from": "Selector", "names": ["a"]}),
        [pod_of("a", "p", "team"), pod_of("b", "q", "team", EARLY)],
    )
    found = told(a_fleet(), [group], pods)
    assert (found["waiting_pods"], found["longest_wait_seconds"]) == ({("team", "a"): 1}, {"team": 3600})


def test_gated_pods_do_not_wait_yet() -> None:
    """Nobody may schedule them."""
    gated = pod_of("ns", "p", "team", gated=True)
    found = told(a_fleet(), [a_group("team")], [gated])
    assert (found["waiting_pods"], found["longest_wait_seconds"]) == ({}, {})
