"""The monitor: from readings to one report and what people are shown."""

import asyncio
from collections.abc import Collection
from typing import Any

from deviceshare.agent.allocations import Allocations
from deviceshare.agent.monitor import BLIND_SECONDS, DeviceMonitor
from deviceshare.agent.violations import Violations
from deviceshare.domain.device_health.containers import ControlGroup, ProcessUse
from deviceshare.domain.device_health.examination import DeviceUse, Reading
from deviceshare.domain.objects.hardware import Allocation, Hardware, Trespass
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage
from tests.unit.agent.node import TEAM, EvictionWishes, Node, part, reading, uuid
from tests.unit.domain.objects import GPU


class MonitoredNode(Node):
    """A node and its monitor, which evicts for these causes; `reported` is what it wants to be written."""

    def __init__(
        self, *, kubelet: Any = None, placeholders: str = "", enforced: Collection[str] = (), **own: Any
    ) -> None:
        super().__init__(**own)
        self.evictions = EvictionWishes()
        self.allocations = Allocations(self.own, kubelet, placeholders)
        violations = Violations(self.own, self.evictions, enforced=enforced)
        self.monitor = DeviceMonitor(self.own, violations)

    @property
    def reported(self) -> Hardware | None:
        return self.own.report._wanted


def used(index: int, *processes: ProcessUse) -> Reading:
    return reading(0, 1, uses=[DeviceUse(index, uuid(index), 4096, 81559, 37, list(processes))])


def running(pid: int, name: str, pod: str = "") -> ProcessUse:
    return ProcessUse(pid, 1024, name, group=ControlGroup(f"uid-of-{pod}", f"id-of-{pod}") if pod else None)


async def test_nothing_is_reported_before_the_last_report_is_read() -> None:
    """What is going on is shown all the same."""
    node = MonitoredNode()
    node.monitor.take(used(0))
    before = node.reported
    assert [device.uuid for device in node.monitor.usage.devices] == [uuid(0)]

    node.set_ledger()
    node.monitor.take(used(0))
    assert before is None
    assert node.reported == Hardware(driver="550", boot_id="boot-1", devices=[part(0), part(1)])


async def test_use_is_told_by_pod_and_container() -> None:
    """Members of the group, strangers, and programs on the node."""
    node = MonitoredNode()
    node.set_ledger(Hardware(boot_id="boot-1", devices=[part(0), part(1)]))
    node.hold(0)
    node.add_pod("member", group_uid=TEAM)
    node.add_pod("stranger", static="uid-of-static")
    seen = used(0, running(1, "train", "member"), running(2, "steal", "static"), running(3, "miner"))
    node.monitor.take(seen)
    node.monitor.take(seen)

    assert node.monitor.usage.devices == [
        DeviceUsage(
            GPU,
            0,
            uuid(0),
            "H100",
            4096,
            81559,
            37,
            [
                DeviceProcess(1, "train", 1024, "ns/member", "main"),
                DeviceProcess(2, "steal", 1024, "ns/stranger", "", trespass=True),
                DeviceProcess(3, "miner", 1024, trespass=True),
            ],
        )
    ]
    assert node.reported is not None
    assert node.reported.trespasses == [Trespass(GPU, 0, "miner"), Trespass(GPU, 0, "steal", "ns/stranger")]


async def test_while_pods_are_not_known_nobody_is_accused() -> None:
    """And nobody is cleared: what stands there stands."""
    node = MonitoredNode()
    node.set_ledger(Hardware(devices=[part(0), part(1)], trespasses=[Trespass(GPU, 0, "miner")]))
    node.hold(0)
    node.pods.synced = False
    for _ in range(3):
        node.monitor.take(used(0, running(1, "train", "member")))

    assert node.reported is not None
    assert node.reported.trespasses == [Trespass(GPU, 0, "miner")]


async def test_the_first_report_waits_for_the_kubelets_first_word() -> None:
    """Else each restart of an agent would make all that plugins allocated unknown for a moment."""
    answered = asyncio.Event()

    async def kubelet() -> list[Any]:
        await answered.wait()
        return []

    node = MonitoredNode(kubelet=kubelet)
    given = [Allocation("ns/a", "uid-of-a", GPU, [0])]
    node.set_ledger(Hardware(devices=[part(0), part(1)], allocations=given))
    node.monitor.take(reading(0, 1))
    asking = asyncio.create_task(node.allocations.look())
    await asyncio.sleep(0)
    before = node.reported

    answered.set()
    await asking
    assert before is None
    assert node.reported is not None and node.reported.allocations == []


async def test_the_report_says_whether_placeholders_decide_what_groups_get() -> None:
    """The leader has no other way to know."""
    for namespace in ("", "system"):
        node = MonitoredNode(placeholders=namespace)
        node.set_ledger(Hardware(devices=[part(0)]))
        node.monitor.take(reading(0))
        assert node.reported is not None and node.reported.placeholders == bool(namespace)


async def test_a_reading_of_a_driver_that_hangs_is_one_and_none_is_not() -> None:
    """The kubelet restarts an agent that doesn't look; it can't mend a driver."""
    node = MonitoredNode()
    node.monitor.take(Reading(boot_id="boot-1", trouble="it hangs"))
    faults = []
    for seconds in (BLIND_SECONDS, 1):
        node.time += seconds
        faults.append(node.monitor.fault())
    node.monitor.take(reading(0))

    assert faults == ["", "the last look at the devices was 61 s ago"]
    assert node.monitor.fault() == ""
