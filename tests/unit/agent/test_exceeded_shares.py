"""Who exceeds its share is told, and evicted only where that is asked for, after the grace period."""

from typing import Any

import pytest

from deviceshare.agent.violations import EXCEEDED, OVERUSE, QUIET_SECONDS
from deviceshare.domain.device_health.containers import ControlGroup, ProcessUse
from deviceshare.domain.device_health.examination import DeviceUse
from deviceshare.domain.objects.hardware import Hardware, Overuse
from deviceshare.domain.objects.usage import ShareMemory
from deviceshare.loops.ports import Subject
from tests.unit.agent.node import NOW, part, pod_subject, reading, uuid
from tests.unit.agent.test_monitor import MonitoredNode
from tests.unit.domain.objects import GPU

GREEDY = pod_subject("greedy")
SHARE, OVER, TOLERATED = 8192, 9300, 9000
"""MiB: of each pod's share, beyond the tolerance, and within it."""


class Shop(MonitoredNode):
    """A node whose device 0 `greedy` and `modest` have 8 GiB each of."""

    def __init__(self, *, evicts: bool = True) -> None:
        super().__init__(enforced=[OVERUSE] if evicts else [])
        self.claims: dict[str, Any] = {}
        for name in ("greedy", "modest"):
            self.share(name)
        self.set_ledger(Hardware(devices=[part(0), part(1)]), self.claims)
        for name in ("greedy", "modest"):
            self.add_pod(name, group_uid=f"uid-of-{name}")

    def share(self, name: str, namespace: str = "ns", **share: Any) -> None:
        one = {"container": "main", "resource": GPU, "index": 0, "uuid": uuid(0), "memoryMib": SHARE}
        self.claims[f"uid-of-{name}"] = {"pod": f"{namespace}/{name}", "shares": [one]}

    def look(self, greedy: int, modest: int = SHARE, *, after: float = 5.0, age: float = 0.0) -> list[Subject]:
        """Whom this look wants to be evicted, by a reading so long after the last one."""
        self.time += after
        memory = {"greedy": greedy, "modest": modest}
        running = [
            ProcessUse(number, mib, name, group=ControlGroup(f"uid-of-{name}", f"id-of-{name}"))
            for number, (name, mib) in enumerate(memory.items(), 1)
        ]
        use = DeviceUse(0, uuid(0), greedy + modest, 81559, 37, running)
        before = len(self.evictions.wanted)
        self.monitor.take(reading(0, 1, uses=[use], read_at=self.time - age))
        return self.evictions.wanted[before:]

    @property
    def events(self) -> list[tuple[str, str, str]]:
        """About whom, the reason, and what."""
        return [(name, reason, message) for _, name, reason, message in self.recorder.events]


def test_who_exceeds_its_share_is_evicted_after_the_grace_and_its_neighbour_never() -> None:
    """Not a reading earlier."""
    shop = Shop()
    assert [shop.look(OVER) for _ in range(12)] == [[]] * 12
    assert shop.look(OVER) == shop.look(OVER) == [GREEDY]

    (told, first), (evicted, second) = [(name, message) for name, _, message in shop.events]
    assert (told, evicted) == ("greedy", "greedy")
    assert f"container main uses {OVER} MiB of {GPU} 0 on node n1, its share is {SHARE} MiB" in first
    assert "above 9216 MiB for 60 s the pod is evicted" in first
    assert "its pod is being evicted" in second


def test_one_reading_within_the_tolerance_begins_the_grace_anew() -> None:
    """And spares who was to be evicted, at once."""
    shop = Shop()
    for _ in range(12):
        shop.look(OVER)
    assert shop.look(TOLERATED) == []
    assert [shop.look(OVER) for _ in range(12)] == [[]] * 12
    assert (shop.look(OVER), shop.evictions.spared) == ([GREEDY], [])
    shop.look(TOLERATED)
    assert shop.evictions.spared == [GREEDY]


def test_what_is_not_read_counts_against_nobody() -> None:
    """A driver that hangs, pods that aren't known, and a reading that comes late."""
    shop = Shop()
    for _ in range(12):
        shop.look(OVER)
    assert shop.look(OVER, after=30.0) == []
    for _ in range(11):
        shop.look(OVER)
    shop.pods.synced = False
    assert shop.look(OVER) == shop.look(OVER) == shop.look(OVER) == []
    shop.pods.synced = True
    assert shop.look(OVER) == []
    for _ in range(11):
        shop.look(OVER)
    assert shop.look(OVER, age=11.0, after=16.0) == []
    assert shop.look(OVER, after=0.0) == [GREEDY]


@pytest.mark.parametrize("evicts", [False, True])
def test_it_is_told_again_only_after_a_while(evicts: bool) -> None:
    """One reading is not told at all."""
    shop = Shop(evicts=evicts)
    shop.look(OVER)
    shop.look(SHARE)
    assert shop.events == []
    for _ in range(int(QUIET_SECONDS / 5)):
        shop.look(OVER + shop.version)
        shop.version += 1
    exceeded = [message for *_, message in shop.events if "belongs to others" in message]
    assert len(exceeded) == 1
    for _ in range(3):
        shop.look(OVER)
    assert len([message for *_, message in shop.events if "belongs to others" in message]) == 2
    assert {name for name, *_ in shop.events} == {"greedy"}
    assert ("is evicted" in exceeded[0]) is evicts


def test_without_enforcement_nobody_is_evicted() -> None:
    """However long."""
    shop = Shop(evicts=False)
    for _ in range(50):
        assert shop.look(OVER) == []


def test_pods_that_end_and_the_clusters_own_are_left_alone() -> None:
    """So is a pod that has the name of one with a share."""
    shop = Shop()
    shop.share("greedy", namespace="kube-system")
    shop.set_ledger(Hardware(devices=[part(0), part(1)]), shop.claims)
    for _ in range(20):
        assert shop.look(OVER) == []
    assert shop.events == []

    changes: list[dict[str, Any]] = [{"deletionTimestamp": "2026-11-21T03:00:00Z"}, {"uid": "uid-of-another"}]
    for metadata in changes:
        shop = Shop()
        shop.add_pod("greedy", group_uid="uid-of-greedy", **metadata)
        for _ in range(20):
            assert shop.look(OVER) == []
        assert EXCEEDED not in [reason for _, reason, _ in shop.events]


def test_memory_of_unknown_pods_evicts_nobody() -> None:
    """Of a process whose pod isn't known, and of one outside of any."""
    shop = Shop()
    strangers = [
        ProcessUse(1, 50000, "x"),
        ProcessUse(2, 50000, "y", group=ControlGroup("uid-of-nobody", "id-of-greedy")),
    ]
    for _ in range(30):
        shop.time += 5
        shop.monitor.take(reading(0, 1, uses=[DeviceUse(0, uuid(0), 0, 81559, 0, strangers)], read_at=shop.time))
    assert shop.evictions.wanted == []


def test_usage_tells_each_share_with_what_is_used_of_it() -> None:
    """For top, smi and the metrics; sharers don't trespass on each other's device."""
    shop = Shop()
    for _ in range(2):
        shop.look(OVER)

    [device] = shop.monitor.usage.devices
    assert device.shares == [
        ShareMemory("ns/greedy", "main", OVER, SHARE, exceeded=True),
        ShareMemory("ns/modest", "main", SHARE, SHARE),
    ]
    assert [process.trespass for process in device.processes] == [False, False]


def test_an_exceeded_share_is_reported_until_it_has_ended() -> None:
    """Beside the trespasses, and the next agent goes on with it."""
    shop = Shop()
    rows = []
    for memory in (OVER, OVER, OVER, *[SHARE] * 12):
        shop.look(memory)
        rows.append(shop.reported.overuses if shop.reported else None)
    one = Overuse(GPU, 0, "ns/greedy", "main", OVER, SHARE, NOW)
    assert rows == [[], *[[one]] * 13, []]

    shop = Shop()
    shop.set_ledger(Hardware(devices=[part(0), part(1)], overuses=[one]), shop.claims)
    shop.look(OVER)
    assert shop.reported and shop.reported.overuses == [one]


def test_strangers_on_a_shared_device_are_told_without_the_sharers_names() -> None:
    """Who reads a pod's events may see nothing of other namespaces."""
    shop = Shop()
    shop.add_pod("stranger")
    intruding = [ProcessUse(1, 10, "steal", group=ControlGroup("uid-of-stranger", "id-of-stranger"))]
    for _ in range(2):
        shop.monitor.take(reading(0, 1, uses=[DeviceUse(0, uuid(0), 0, 81559, 0, intruding)]))

    [(name, reason, message)] = shop.events
    assert (name, reason) == ("stranger", "Trespass")
    assert "of node n1, which pods with shares have, but belongs to none of them" in message
    assert "greedy" not in message
