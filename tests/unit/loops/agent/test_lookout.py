"""The lookout: from sights to one report and what people are shown."""

import asyncio
from typing import Any

from msgspec.structs import replace

from deviceshare.domain.device_health.process_owners import Owner
from deviceshare.domain.objects.hardware import Allocation, Hardware, Trespass
from deviceshare.domain.objects.usage import DeviceProcess, DeviceUsage
from deviceshare.loops.agent.allocations import Allocations
from deviceshare.loops.agent.guard import IntruderGuard
from deviceshare.loops.agent.judge import Judge
from deviceshare.loops.agent.lookout import BLIND_SECONDS, Lookout
from deviceshare.loops.agent.ports import ReadUse, Running, Sight
from deviceshare.loops.agent.reporter import Reporter
from deviceshare.loops.agent.share_watch import ShareWatch
from tests.unit.domain.objects import GPU
from tests.unit.loops.agent.node import TEAM, Node, part, sight, uuid


class Tower(Node):
    """A node and its lookout; `reported` is what it wants to be written."""

    def __init__(self, *, kubelet: Any = None, placeholders: str = "") -> None:
        super().__init__()
        self.judge = Judge(self.own)
        self.allocations = Allocations(kubelet, self.pods, list, self._report, placeholders)
        self.reporter = _Wishes(self, self.own)
        self.lookout = Lookout(
            self.own,
            judge=self.judge,
            guard=IntruderGuard(self.own),
            shares=ShareWatch(self.own),
            allocations=self.allocations,
            reporter=self.reporter,
        )

    def _report(self) -> None:
        self.lookout.report()

    @property
    def reported(self) -> Hardware | None:
        return self.reporter.wanted


class _Wishes(Reporter):
    wanted: Hardware | None = None

    def want(self, hardware: Hardware) -> None:
        self.wanted = hardware


def used(index: int, *processes: Running) -> Sight:
    return sight(0, 1, uses=[ReadUse(uuid(index), 4096, 81559, 37, list(processes))])


def running(pid: int, name: str, pod: str = "") -> Running:
    return Running(pid, name, 1024, Owner(f"uid-of-{pod}", f"id-of-{pod}") if pod else None)


async def test_nothing_is_reported_before_the_last_report_is_read() -> None:
    """What is going on is shown all the same."""
    tower = Tower()
    tower.lookout.take(used(0))
    before = tower.reported
    assert [device.uuid for device in tower.lookout.usage.devices] == [uuid(0)]

    tower.set_ledger()
    tower.lookout.take(used(0))
    assert before is None
    assert tower.reported == Hardware(driver="550", boot_id="boot-1", devices=[part(0), part(1)])


async def test_use_is_told_by_pod_and_container() -> None:
    """Members of the group, strangers, and programs on the node."""
    tower = Tower()
    tower.set_ledger(Hardware(boot_id="boot-1", devices=[part(0), part(1)]))
    tower.hold(0)
    tower.add_pod("member", group_uid=TEAM)
    tower.add_pod("stranger", static="uid-of-static")
    seen = used(0, running(1, "train", "member"), running(2, "steal", "static"), running(3, "miner"))
    tower.lookout.take(seen)
    tower.lookout.take(seen)

    assert tower.lookout.usage.devices == [
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
    assert tower.reported is not None
    assert tower.reported.trespasses == [Trespass(GPU, 0, "miner"), Trespass(GPU, 0, "steal", "ns/stranger")]


async def test_while_pods_are_not_known_nobody_is_accused() -> None:
    """And nobody is cleared: what stands there stands."""
    tower = Tower()
    tower.set_ledger(Hardware(devices=[part(0), part(1)], trespasses=[Trespass(GPU, 0, "miner")]))
    tower.hold(0)
    tower.pods.synced = False
    for _ in range(3):
        tower.lookout.take(used(0, running(1, "train", "member")))

    assert tower.reported is not None
    assert tower.reported.trespasses == [Trespass(GPU, 0, "miner")]


async def test_the_first_report_waits_for_the_kubelets_first_word() -> None:
    """Else each restart of an agent would make all that plugins allocated unknown for a moment."""
    answered = asyncio.Event()

    async def kubelet() -> list[Any]:
        await answered.wait()
        return []

    tower = Tower(kubelet=kubelet)
    given = [Allocation("ns/a", "uid-of-a", GPU, [0])]
    tower.set_ledger(Hardware(devices=[part(0), part(1)], allocations=given))
    tower.lookout.take(sight(0, 1))
    asking = asyncio.create_task(tower.allocations.look())
    await asyncio.sleep(0)
    before = tower.reported

    answered.set()
    await asking
    assert before is None
    assert tower.reported is not None and tower.reported.allocations == []


async def test_the_report_says_whether_placeholders_decide_what_groups_get() -> None:
    """The leader has no other way to know."""
    for namespace in ("", "system"):
        tower = Tower(placeholders=namespace)
        tower.set_ledger(Hardware(devices=[part(0)]))
        tower.lookout.take(sight(0))
        assert tower.reported is not None and tower.reported.placeholders == bool(namespace)


async def test_a_sight_of_a_driver_that_hangs_is_a_look_and_none_is_not() -> None:
    """The kubelet restarts an agent that doesn't look; it can't mend a driver."""
    tower = Tower()
    tower.lookout.take(replace(sight(0), parts=None, uses=[]))
    faults = []
    for seconds in (BLIND_SECONDS, 1):
        tower.time += seconds
        faults.append(tower.lookout.fault())
    tower.lookout.take(sight(0))

    assert faults == ["", "the last look at the devices was 61 s ago"]
    assert tower.lookout.fault() == ""
