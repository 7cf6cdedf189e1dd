"""Processes on devices of groups they don't belong to."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain.device_health.trespasses import Occupant, as_trespass, trespassers, written
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_TRESPASSES, Hardware, Part, Trespass
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices
from tests.unit.domain.objects import GPU, a_ledger, gpus

TEAM = "uid-of-team"


def occupant(index: int, name: str = "python", **who: Any) -> Occupant:
    return Occupant(Device(GPU, index), 1234, name, **who)


@pytest.mark.parametrize("who", [{}, {"pod": "ns/other"}, {"pod": "ns/other", "holder_uid": "uid-of-others"}])
def test_whoever_is_not_of_the_group_trespasses(who: dict[str, str]) -> None:
    """A program on the node, a pod of no group, a pod of another group."""
    ledger = a_ledger(team=gpus(0, 1))

    assert trespassers(ledger, [occupant(0, **who)]) == [occupant(0, **who)]


def test_members_and_users_of_free_devices_do_not() -> None:
    """A free device is nobody's yet; it's the allocator's to keep away from it."""
    ledger = a_ledger(team=gpus(0, 1))

    assert trespassers(ledger, [occupant(1, pod="ns/p", holder_uid=TEAM), occupant(2)]) == []


def test_devices_before_a_rebind_are_still_the_groups() -> None:
    """Its pods hold them until their containers have restarted."""
    ledger = a_ledger()
    claim = Claim("team", whole=list(gpus(1)), former=list(gpus(0)))
    ledger = replace(ledger, spec=replace(ledger.spec, claims={TEAM: claim}))

    assert trespassers(ledger, [occupant(0, pod="ns/p", holder_uid=TEAM)]) == []
    assert trespassers(ledger, [occupant(0, pod="ns/q")]) == [occupant(0, pod="ns/q")]


def test_a_claim_is_found_by_uuid_after_a_renumbering() -> None:
    """What the group holds as 0 is 1 since the reboot."""
    hardware = Hardware(devices=[Part(GPU, 0, "GPU-b"), Part(GPU, 1, "GPU-a")])
    ledger: NodeDevices = replace(a_ledger(), status=LedgerStatus(hardware=hardware))
    ledger = replace(ledger, spec=replace(ledger.spec, claims={TEAM: Claim("team", [Device(GPU, 0, "GPU-a")])}))
    on = {uuid: Occupant(ledger.present(Device(GPU, 9, uuid)), 1, "python") for uuid in ("GPU-a", "GPU-b")}

    assert trespassers(ledger, on.values()) == [on["GPU-a"]]


def test_alike_processes_are_written_once_and_in_order() -> None:
    """Else each look would be a write."""
    who = [occupant(1, "b", pod="ns/p"), occupant(0, "c"), occupant(1, "a", pod="ns/p"), occupant(1, "b", pod="ns/p")]
    found = list(map(as_trespass, who))

    assert written(found) == written(found[::-1])
    assert written(found) == [
        Trespass(GPU, 0, "c"),
        Trespass(GPU, 1, "a", "ns/p"),
        Trespass(GPU, 1, "b", "ns/p"),
    ]


def test_no_crowd_fills_the_object() -> None:
    """etcd takes 1.5 MiB."""
    crowd = written([as_trespass(occupant(0, f"program-{number}")) for number in range(10 * MAX_TRESPASSES)])

    assert len(crowd) == MAX_TRESPASSES
    assert len(msgspec.json.encode(crowd)) < 10_000
