"""The devices' health: marks are read back first, made by what is told, and told to people."""

from typing import Any

import pytest
from msgspec.structs import replace

from deviceshare.agent.monitor import DeviceMonitor
from deviceshare.agent.violations import Violations
from deviceshare.domain.device_health.examination import LOST, SILENT, Inventory, Reading, Xid
from deviceshare.domain.objects.hardware import Hardware, Part
from tests.unit.agent.node import NODE, NOW, EvictionWishes, Node, part, reading, uuid

FELL_OFF = Xid(uuid(1), 79, "Xid 79: GPU has fallen off the bus")


class ExaminedNode(Node):
    """A node and the health of its devices, which is `new` as long as it has no NodeDevices."""

    def __init__(self, *, new: bool = False, **ledger: Any) -> None:
        super().__init__()
        self.counted: list[Xid] = []
        self.said: Hardware | None = None
        self.report = self.own.report
        self.monitor = DeviceMonitor(self.own, Violations(self.own, EvictionWishes()), self.counted.append)
        if not new:
            self.set_ledger(**ledger)
        tell = self.report.tell

        def told(**parts: Any) -> None:
            tell(**parts)
            self.said = self.report.known if "devices" in parts else self.said

        self.report.tell = told  # type: ignore[method-assign]

    def judge(self, seen: Reading) -> Hardware | None:
        """What is reported by this reading; None while nothing is said."""
        self.said = None
        self.monitor.take(seen)
        return self.said

    def marks(self, seen: Reading) -> dict[int, str] | None:
        """Why devices are unhealthy, by index; None while nothing is said."""
        judged = self.judge(seen)
        return None if judged is None else {each.index: each.unhealthy for each in judged.devices if each.unhealthy}


def test_what_is_seen_is_reported_as_it_is() -> None:
    """With the driver, the boot and the links."""
    node = ExaminedNode()
    judged = node.judge(reading(0, 1))

    assert judged == Hardware(driver="550", boot_id="boot-1", devices=[part(0), part(1)])
    assert node.recorder.events == []


def test_what_the_runtime_can_be_told_is_kept_while_the_driver_is_silent() -> None:
    """Pods are bound meanwhile, to devices that are still well."""
    node = ExaminedNode()
    node.judge(replace(reading(0, 1), cdi_kinds=["nvidia.com/gpu"], runtime="cdi"))
    silent = Reading(boot_id="boot-1", trouble="it hangs")
    node.judge(silent)
    judged = node.judge(silent)
    assert judged is not None
    assert (judged.cdi_kinds, judged.runtime) == (["nvidia.com/gpu"], "cdi")


def test_marks_of_an_earlier_agent_are_read_back_before_anything_is_said() -> None:
    """Else the first report of a new agent would hand out what is broken."""
    marked = part(1, unhealthy="Xid 48", since="then")
    node = ExaminedNode(new=True)
    assert node.marks(reading(0, 1)) is None

    node.set_ledger(Hardware(boot_id="boot-1", devices=[part(0), marked]))
    assert node.marks(reading(0, 1)) == {1: "Xid 48"}
    assert node.recorder.events == [], "that is no news"


def test_an_error_of_a_device_is_told_with_its_cure() -> None:
    """To who describes the node."""
    node = ExaminedNode()
    assert node.marks(reading(0, 1, xids=[FELL_OFF])) == {1: FELL_OFF.text}

    [(kind, name, reason, message)] = node.recorder.events
    assert (kind, name, reason) == ("Node", NODE, "DeviceUnhealthy")
    assert FELL_OFF.text in message and f"deviceshare recover {NODE} 1" in message
    assert node.marks(reading(0, 1)) == {1: FELL_OFF.text}
    assert len(node.recorder.events) == 1


def test_an_error_before_the_last_report_is_read_is_not_forgotten() -> None:
    """The driver tells it once."""
    node = ExaminedNode(new=True)
    assert node.marks(reading(0, 1, xids=[FELL_OFF])) is None

    node.set_ledger()
    assert node.marks(reading(0, 1)) == {1: FELL_OFF.text}


def test_an_error_of_a_program_counts_and_marks_nothing() -> None:
    """It ends with the program."""
    node = ExaminedNode()
    fault = Xid(uuid(0), 31, "Xid 31: GPU memory page fault")

    assert node.marks(reading(0, xids=[fault])) == {}
    assert node.counted == [fault]


def test_an_error_of_nobody_knows_which_device_marks_all() -> None:
    """As NVIDIA's own plugin does."""
    assert ExaminedNode().marks(reading(0, 1, xids=[Xid("", 79, "Xid 79")])) == {0: "Xid 79", 1: "Xid 79"}


def test_a_device_that_does_not_answer_is_lost_for_the_drivers_reason() -> None:
    """Where the driver has one."""
    node = ExaminedNode(hardware=Hardware(devices=[part(0), part(1), part(2)]))

    assert node.marks(reading(0, silent={1: "the GPU needs a reset"})) == {1: f"{LOST}: the GPU needs a reset", 2: LOST}


def test_a_driver_that_is_just_restarting_gives_nothing_up() -> None:
    """Nor is anything said meanwhile. Silence that lasts closes all."""
    node = ExaminedNode(hardware=Hardware(devices=[part(0), part(1)]))
    silent = Reading(boot_id="boot-1", trouble="NVML doesn't start")

    assert node.marks(silent) is None
    assert node.marks(reading(0, 1)) == {}
    assert node.marks(silent) is None
    assert node.marks(silent) == {0: SILENT, 1: SILENT}
    assert node.marks(reading(0, 1)) == {}
    assert node.recorder.reasons(NODE) == ["DeviceUnhealthy", "DeviceUnhealthy", "DeviceRecovered", "DeviceRecovered"]


def test_a_node_without_a_driver_reports_that_it_has_none() -> None:
    """What the leader reads from the node's allocatable stands."""
    node = ExaminedNode()
    silent = Reading(boot_id="boot-1", trouble="no library")
    node.judge(silent)

    assert node.judge(silent) == Hardware(boot_id="boot-1")


def test_a_person_says_that_one_finding_is_dealt_with() -> None:
    """By the annotation of the NodeDevices; in words, the event says so."""
    node = ExaminedNode()
    node.marks(reading(0, 1, xids=[FELL_OFF]))
    node.set_ledger(node.report.known, recovered=f"{uuid(1)}@{NOW}")

    assert node.marks(reading(0, 1)) == {}
    assert node.recorder.reasons(NODE) == ["DeviceUnhealthy", "DeviceRecovered"]


def test_a_lost_ledger_does_not_take_the_marks_along() -> None:
    """They are written into the next one."""
    node = ExaminedNode()
    node.marks(reading(0, 1, xids=[FELL_OFF]))
    node.ledgers.set(NODE, None)

    assert node.marks(reading(0, 1)) == {1: FELL_OFF.text}


@pytest.mark.parametrize("parts", [[part(0)], []])
def test_a_boot_id_that_cannot_be_read_does_not_wipe_the_one_that_was(parts: list[Part]) -> None:
    """Or the next reboot would go unseen."""
    node = ExaminedNode(hardware=Hardware(boot_id="boot-1"))
    judged = node.judge(Reading(Inventory("550", parts, [], {})))

    assert judged is not None and judged.boot_id == "boot-1"
