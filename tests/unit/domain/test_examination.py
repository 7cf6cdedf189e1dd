"""Marks of unhealthy devices: made by faults, kept over restarts, taken by signs and by nothing else."""

from collections.abc import Mapping

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.device_health.examination import (
    LOST,
    SILENT,
    Change,
    Inventory,
    Reading,
    examine,
    finding,
    reported_repaired,
)
from deviceshare.domain.objects.hardware import NO_HARDWARE, Hardware, Part
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta

GPU = "nvidia.com/gpu"
A, B = Part(GPU, 0, "GPU-a", model="H100"), Part(GPU, 1, "GPU-b", model="H100")
THEN, NOW = "2026-11-21T03:00:00Z", "2026-11-21T04:00:00Z"
XID = "Xid 79: GPU has fallen off the bus"
BROKEN = replace(A, unhealthy=XID, since=THEN)


def look(
    known: Hardware,
    *seen: Part,
    silent: bool = False,
    boot_id: str = "boot-1",
    faults: Mapping[str, str] | None = None,
    dealt_with: str = "",
) -> tuple[list[Part], list[Change]]:
    """What `examine` makes of the devices that are seen."""
    reading = Reading(None if silent else Inventory("550", list(seen), [], {}), boot_id=boot_id)
    hardware, changes = examine(known, reading, faults=faults or {}, repaired=dealt_with.split(), now=NOW)
    return hardware.devices, changes


def report(*parts: Part, boot_id: str = "boot-1") -> Hardware:
    return Hardware(boot_id=boot_id, devices=list(parts))


def test_new_devices_are_healthy_and_no_news() -> None:
    """In the driver's order, whatever order it tells them in."""
    assert look(NO_HARDWARE, B, A) == ([A, B], [])


def test_a_fault_marks_its_device_alone() -> None:
    """With its reason and the time by which a person can name it."""
    parts, changes = look(report(A, B), A, B, faults={"GPU-a": XID})

    assert parts == [replace(A, unhealthy=XID, since=NOW), B]
    assert [change.part.unhealthy for change in changes] == [XID]


def test_a_mark_stays_while_nothing_happens() -> None:
    """A broken device looks well to the driver."""
    assert look(report(BROKEN, B), A, B) == ([BROKEN, B], [])


def test_a_device_that_is_not_shown_any_more_is_written_down_as_lost() -> None:
    """With what the driver said last: people have to find the right card."""
    parts, _ = look(report(A, B), B)

    assert parts == [replace(A, unhealthy=LOST, since=NOW, lost=True), B]
    assert look(report(*parts), B) == (parts, [])


def test_a_lost_device_that_is_shown_again_was_reset() -> None:
    """However it was found broken before it was lost."""
    parts, changes = look(report(replace(BROKEN, lost=True), B), A, B)

    assert parts == [A, B]
    assert [change.sign for change in changes] == ["the driver shows it again"]


def test_a_reboot_heals_what_is_shown_and_no_more() -> None:
    """A device that is still not there is found lost anew."""
    assert look(report(BROKEN, B), A, B, boot_id="boot-2")[0] == [A, B]
    parts, _ = look(report(replace(BROKEN, lost=True), B), B, boot_id="boot-2")
    assert parts[0] == replace(A, unhealthy=LOST, since=NOW, lost=True)


def test_an_unknown_boot_is_no_reboot() -> None:
    """Neither now nor in the last report."""
    assert look(report(BROKEN), A, boot_id="")[0] == [BROKEN]
    assert look(report(BROKEN, boot_id=""), A)[0] == [BROKEN]


def test_a_person_deals_with_one_finding_and_not_with_the_next() -> None:
    """The annotation may stay for ever."""
    said = f"GPU-b@{THEN} {finding(BROKEN)}"

    assert look(report(BROKEN), A, dealt_with=said)[0] == [A]
    assert look(report(BROKEN), A, dealt_with=f"GPU-a@{NOW}")[0] == [BROKEN]
    assert look(report(A), A, faults={"GPU-a": XID}, dealt_with=said)[0] == [replace(BROKEN, since=NOW)]


def test_a_fault_is_newer_than_the_sign_seen_with_it() -> None:
    """Nobody has dealt with it yet."""
    parts, changes = look(report(BROKEN), A, faults={"GPU-a": "Xid 48: DBE"}, dealt_with=finding(BROKEN))

    assert parts == [replace(A, unhealthy="Xid 48: DBE", since=NOW)]
    assert [change.sign for change in changes] == [""]


def test_a_device_that_was_taken_out_can_be_struck_off() -> None:
    """By the annotation, as long as the driver shows others: one that shows none may have lost its eyes only."""
    gone = replace(BROKEN, lost=True)

    assert look(report(gone, B), B, dealt_with=finding(gone))[0] == [B]
    assert look(report(gone), dealt_with=finding(gone))[0] == [replace(A, unhealthy=LOST, since=NOW, lost=True)]


def test_a_silent_driver_closes_all_its_devices_until_it_speaks() -> None:
    """What was broken before is broken after: that the driver is back says nothing about a reset."""
    parts, _ = look(report(BROKEN, B), silent=True)

    assert parts == [BROKEN, replace(B, unhealthy=SILENT, since=NOW, lost=True)]
    assert look(report(*parts), A, B)[0] == [BROKEN, B]


def test_a_reboot_is_not_forgotten_while_the_driver_is_still_loading() -> None:
    """The report names the new boot at once, so its mark must go then or never."""
    parts, _ = look(report(BROKEN), silent=True, boot_id="boot-2")

    assert look(report(*parts, boot_id="boot-2"), A, boot_id="boot-2")[0] == [A]


def test_an_index_may_move_under_a_mark() -> None:
    """The UUID is the device."""
    moved = replace(A, index=1)

    assert look(report(BROKEN, B), replace(B, index=0), moved)[0] == [
        replace(B, index=0),
        replace(moved, unhealthy=XID, since=THEN),
    ]


def test_repairs_are_reported_by_the_annotation_or_the_status() -> None:
    """People write blanks between findings, and a comma after the last."""
    metadata = ObjectMeta(annotations={contract.RECOVERED: f" GPU-b@{THEN}, {finding(BROKEN)},"})
    ledger = NodeDevices(metadata, status=LedgerStatus(recovered=["GPU-c@then"]))
    assert reported_repaired(ledger) == {f"GPU-b@{THEN}", finding(BROKEN), "GPU-c@then"}


class Marks(RuleBasedStateMachine):
    """Anything may happen between two looks; the agent is a new process at each, with the report as its only memory."""

    uuids = st.sampled_from(["GPU-a", "GPU-b", "GPU-c"])

    def __init__(self) -> None:
        super().__init__()
        self.report = report(A, B, replace(A, uuid="GPU-c", index=2))
        self.there = {"GPU-a", "GPU-b", "GPU-c"}
        self.silent = False
        self.boot = 1
        self.faults: dict[str, str] = {}
        self.said: set[str] = set()
        self.signed: set[str] = set()
        self.broken: set[str] = set()
        self.looks = 0

    @rule(uuid=uuids)
    def fault(self, uuid: str) -> None:
        self.faults[uuid] = XID

    @rule(uuid=uuids)
    def lose(self, uuid: str) -> None:
        self.there.discard(uuid)

    @rule(uuid=uuids)
    def show(self, uuid: str) -> None:
        self.there.add(uuid)

    @rule(silent=st.booleans())
    def speak_or_not(self, silent: bool) -> None:
        self.silent = silent

    @rule()
    def reboot(self) -> None:
        self.boot += 1
        self.signed |= {"GPU-a", "GPU-b", "GPU-c"}

    @precondition(lambda self: self.broken)
    @rule(data=st.data())
    def deal_with(self, data: st.DataObject) -> None:
        part = self.report.named(data.draw(st.sampled_from(sorted(self.broken))))
        if part:
            self.said.add(finding(part))
            self.signed.add(part.uuid)

    @rule()
    def look(self) -> None:
        self.looks += 1
        seen = [Part(GPU, index, uuid) for index, uuid in enumerate(sorted(self.there))]
        returned = {part.uuid for part in self.report.devices if part.lost and part.uuid in self.there}
        reading = Reading(None if self.silent else Inventory("550", seen, [], {}), boot_id=f"boot-{self.boot}")
        now = f"second {self.looks}"
        report, changes = examine(self.report, reading, faults=self.faults, repaired=self.said, now=now)
        healthy = {part.uuid for part in report.devices if not part.unhealthy}
        shown = set() if self.silent else self.there

        assert healthy <= shown, "what nobody sees is never handed out"
        assert not healthy & self.faults.keys(), "every fault marks"
        assert healthy & self.broken <= self.signed | returned, "a mark goes by a sign only"
        assert shown - healthy <= self.broken | self.faults.keys(), "nothing else marks what is there"
        stayed = {part.uuid for part in report.devices}
        assert self.broken - stayed <= self.signed, "nothing is struck off without being told"
        changed = {change.part.uuid for change in changes}
        assert (self.broken & healthy) | (self.faults.keys() & stayed) <= changed, "people hear of every change"

        self.broken = {part.uuid for part in report.devices if part.unhealthy}
        self.report = report
        self.faults = {}
        self.signed = set()

    @invariant()
    def a_restart_forgets_nothing(self) -> None:
        self.report = msgspec.json.decode(msgspec.json.encode(self.report), type=Hardware)


TestMarks = Marks.TestCase
TestMarks.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
