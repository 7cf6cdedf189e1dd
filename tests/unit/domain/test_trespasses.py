"""Processes on devices of groups they don't belong to."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from deviceshare.domain.device_health.containers import ControlGroup, NodeContainer, NodeProcess, ProcessUse
from deviceshare.domain.device_health.violations import Trespasses, trespassers
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import MAX_TRESPASSES, Hardware, Part, Trespass
from deviceshare.domain.objects.ledger import Claim, LedgerStatus, NodeDevices
from tests.unit.domain.objects import GPU, a_ledger, gpus

TEAM = "uid-of-team"


def on(device: Device, name: str = "python", **who: Any) -> NodeProcess:
    return NodeProcess(device, ProcessUse(1234, 0, name), NodeContainer(**who))


def process(index: int, name: str = "python", **who: Any) -> NodeProcess:
    return on(Device(GPU, index), name, **who)


@pytest.mark.parametrize("who", [{}, {"pod": "ns/other"}, {"pod": "ns/other", "holder_uid": "uid-of-others"}])
def test_whoever_is_not_of_the_group_trespasses(who: dict[str, str]) -> None:
    """A program on the node, a pod of no group, a pod of another group."""
    ledger = a_ledger(team=gpus(0, 1))

    assert trespassers(ledger, [process(0, **who)]) == [process(0, **who)]


def test_members_and_users_of_free_devices_do_not() -> None:
    """A free device is nobody's yet; it's the allocator's to keep away from it."""
    ledger = a_ledger(team=gpus(0, 1))

    assert trespassers(ledger, [process(1, pod="ns/p", holder_uid=TEAM), process(2)]) == []


def test_devices_before_a_rebind_are_still_the_groups() -> None:
    """Its pods hold them until their containers have restarted."""
    ledger = a_ledger()
    claim = Claim("team", whole=list(gpus(1)), former=list(gpus(0)))
    ledger = replace(ledger, spec=replace(ledger.spec, claims={TEAM: claim}))

    assert trespassers(ledger, [process(0, pod="ns/p", holder_uid=TEAM)]) == []
    assert trespassers(ledger, [process(0, pod="ns/q")]) == [process(0, pod="ns/q")]


def test_a_claim_is_found_by_uuid_after_a_renumbering() -> None:
    """What the group holds as 0 is 1 since the reboot."""
    hardware = Hardware(devices=[Part(GPU, 0, "GPU-b"), Part(GPU, 1, "GPU-a")])
    ledger: NodeDevices = replace(a_ledger(), status=LedgerStatus(hardware=hardware))
    ledger = replace(ledger, spec=replace(ledger.spec, claims={TEAM: Claim("team", [Device(GPU, 0, "GPU-a")])}))
    found = {uuid: on(ledger.present(Device(GPU, 9, uuid))) for uuid in ("GPU-a", "GPU-b")}

    assert trespassers(ledger, found.values()) == [found["GPU-a"]]


def reported(*processes: NodeProcess) -> list[Trespass]:
    """What is reported of processes that stay on devices 0 and 1 of a group."""
    trespasses = Trespasses()
    for _ in range(2):
        trespasses.take(a_ledger(team=gpus(0, 1)), processes)
    return trespasses.rows


def of_pod(index: int, name: str, pod: str) -> NodeProcess:
    return replace(process(index, pod="ns/p"), use=ProcessUse(1, 0, name, group=ControlGroup(pod)))


def test_alike_processes_are_reported_once_and_in_order() -> None:
    """Else each reading would be a write. Of two pods of one name, as after a deletion, one row is enough."""
    who = [of_pod(1, "b", "uid-1"), process(0, "c"), of_pod(1, "a", "uid-2"), of_pod(1, "b", "uid-3")]

    assert reported(*who) == reported(*who[::-1])
    assert reported(*who) == [Trespass(GPU, 0, "c"), Trespass(GPU, 1, "a", "ns/p"), Trespass(GPU, 1, "b", "ns/p")]


def test_no_crowd_fills_the_object() -> None:
    """etcd takes 1.5 MiB."""
    crowd = [
        replace(process(0), use=ProcessUse(number, 0, f"program-{number}")) for number in range(10 * MAX_TRESPASSES)
    ]

    assert len(reported(*crowd)) == MAX_TRESPASSES
    assert len(msgspec.json.encode(reported(*crowd))) < 10_000
