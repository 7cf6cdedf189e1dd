"""The status of a NodeDevices, and what `kubectl get ndev` shows of it."""

from msgspec.structs import replace

from deviceshare.domain.answers.ledger_status import devices_patch, summary
from deviceshare.domain.objects.devices import Device, as_json
from deviceshare.domain.objects.hardware import Hardware, Part, Withheld
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, Summary
from tests.unit.domain.objects import AMD, GPU, a_ledger, gpus
from tests.unit.domain.test_drawing import with_claim, with_hardware
from tests.unit.domain.test_ledger_with_hardware import CARDS, on, seen


def test_a_summary_says_who_holds_what_in_one_line_each() -> None:
    """Groups by name, every resource of the node, a mark in words."""
    have = [*gpus(0, 1, 2), Device(AMD, 0)]
    before = a_ledger(b=gpus(2), a=(Device(AMD, 0), *gpus(0)), releasing=("b",))
    withheld = Withheld(GPU, "out of order", "repair it", [*gpus(3)])
    assert devices_patch(before, have, LedgerStatus(withheld=[withheld]))["status"] == {
        "devices": as_json(have),
        "withheld": [{"resource": GPU, "reason": "out of order", "cure": "repair it", "devices": as_json(gpus(3))}],
        "handover": {},
        "memoryMib": {},
        "forShares": [],
        "forGroups": [],
    }
    then = replace(before, status=replace(before.status, devices=have, withheld=[withheld]))
    assert summary(then) == Summary(
        total="amd.com/gpu=1, nvidia.com/gpu=3",
        free="amd.com/gpu=0, nvidia.com/gpu=1",
        held="a: amd.com/gpu=0 nvidia.com/gpu=0; b (releasing): nvidia.com/gpu=2",
        reasons="nvidia.com/gpu 3: out of order; repair it",
    )


def test_a_claim_on_a_lost_device_is_not_counted_as_free_or_had() -> None:
    """The node shrank."""
    assert summary(a_ledger(devices={GPU: 2}, a=gpus(0, 3))).free == "nvidia.com/gpu=1"
    assert summary(a_ledger(devices={}, a=gpus(0, 3))).total == ""


def test_the_leader_writes_numbers_only_and_counts_the_unhealthy() -> None:
    """What the agent knows is the agent's to write."""
    before = on(a_ledger(), seen(*CARDS, unhealthy="Xid 79"))
    status = devices_patch(before, gpus(0, 1), before.status)["status"]
    assert status["devices"] == [{"resource": GPU, "index": 0}, {"resource": GPU, "index": 1}]
    lines = summary(replace(before, status=replace(before.status, devices=[*gpus(0, 1)])))
    assert (lines.total, lines.free) == ("nvidia.com/gpu=2 (1 unhealthy)", "nvidia.com/gpu=1")


def test_a_claim_says_which_of_its_devices_are_broken_or_former() -> None:
    """Held and unhealthy at once: who only reads who holds what must not be misled."""
    claim = Claim("a", [*gpus(0, 1), Device(GPU, 7)], former=[*gpus(2)])
    parts = [Part(GPU, 0), Part(GPU, 1, unhealthy="Xid 79"), Part(GPU, 2, unhealthy="Xid 79"), Part(GPU, 3)]
    lines = summary(with_claim(with_hardware(a_ledger(), Hardware(devices=parts)), "uid-of-a", claim))
    assert lines.held == "a: nvidia.com/gpu=0,1,7 (unhealthy 1; lost 7; former 2)"
    assert lines.total == "nvidia.com/gpu=4 (2 unhealthy, 1 lost)"
    assert lines.free == "nvidia.com/gpu=1"


def test_what_no_longer_holds_is_nulled_and_the_rest_stays() -> None:
    """A merge patch keeps what it doesn't name; who writes devices alone leaves all else as it is."""
    seen = a_ledger()
    known = replace(seen.status, memory_mib={GPU: 16384, AMD: 8192}, for_shares=[*gpus(0)], for_groups=[*gpus(1)])
    before = replace(seen, status=known)
    status = devices_patch(before, gpus(0, 1), LedgerStatus(memory_mib={GPU: 24576}, for_groups=[*gpus(0)]))["status"]
    assert status["memoryMib"] == {GPU: 24576, AMD: None}
    assert (status["forShares"], status["forGroups"]) == ([], as_json(gpus(0)))
    kept = devices_patch(before, gpus(0), before.status)["status"]
    assert kept["memoryMib"] == {GPU: 16384, AMD: 8192}
    assert (kept["forShares"], kept["forGroups"]) == (as_json(gpus(0)), as_json(gpus(1)))
