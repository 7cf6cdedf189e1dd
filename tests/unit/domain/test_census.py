"""The numbers behind the metrics of devices, groups and waiting pods."""

from deviceshare.domain.answers.census import (
    count_devices,
    count_groups,
    count_waiting,
    memory_allocated,
    memory_capacity,
)
from deviceshare.domain.objects.devices import Device, devices_of
from deviceshare.domain.objects.groups import Group, GroupStatus
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement.device_states import Health, Use
from deviceshare.domain.placement.fleet import Fleet
from tests.unit.domain.test_gates import gated
from tests.unit.domain.test_shown_shares import bound, sharing

GPU = "nvidia.com/gpu"


def test_every_device_is_counted_once_by_what_is_done_with_it() -> None:
    """Free, held, releasing; and lost where the node no longer has it."""
    claims = {
        "a": Claim("team-a", [Device(GPU, 0), Device(GPU, 5)]),
        "b": Claim("team-b", [Device(GPU, 1)], releasing="2026-11-20T00:00:00Z"),
    }
    fleet = Fleet()
    status = LedgerStatus(list(devices_of({GPU: 4})))
    fleet.set_ledger("n1", NodeDevices(ObjectMeta(name="n1"), LedgerSpec(claims), status))
    assert list(count_devices(fleet).items()) == [
        (("n1", GPU, Use.FREE, Health.UNKNOWN), 2),
        (("n1", GPU, Use.HELD, Health.LOST), 1),
        (("n1", GPU, Use.HELD, Health.UNKNOWN), 1),
        (("n1", GPU, Use.RELEASING, Health.UNKNOWN), 1),
    ]


def test_what_nobody_may_have_is_not_counted_as_free() -> None:
    """Split, broken, given to a plain pod, left to the device plugin."""
    parts = [Part(GPU, 0, mig=True), Part(GPU, 1, unhealthy="Xid 79"), *(Part(GPU, index) for index in range(2, 5))]
    given = [Allocation("ns/x", "x", GPU, [2]), Allocation("ns/keeper", "k", GPU, [0, 1, 3], placeholder=True)]
    hardware = Hardware(devices=parts, allocations=given, placeholders=True)
    status = LedgerStatus(list(devices_of({GPU: 5})), hardware=hardware)
    fleet = Fleet()
    fleet.set_ledger("n1", NodeDevices(ObjectMeta(name="n1"), status=status))
    states = {use: (health, number) for (_, _, use, health), number in count_devices(fleet).items()}
    assert states == {
        "split": ("healthy", 1),
        "unusable": ("unhealthy", 1),
        "plugin": ("healthy", 1),
        "free": ("healthy", 1),
        "left": ("healthy", 1),
    }


def test_a_group_nobody_looked_at_yet_counts_as_pending() -> None:
    """Its status is empty until the controller writes it."""
    groups = [Group(), Group(status=GroupStatus(phase="Bound")), Group(status=GroupStatus(phase="Bound"))]
    assert count_groups(groups) == {"Pending": 1, "Bound": 2}


def test_memory_is_allocated_by_parts_or_as_a_whole() -> None:
    """Unknown and lost devices have no numbers."""
    claims = {
        "a": Claim("team", [Device(GPU, 0)]),
        "b": Claim(pod="ns/b", shares=[Share("main", GPU, 1, memory_mib=1024), Share("side", GPU, 1, percent=25)]),
        "c": Claim("gone", [Device(GPU, 7)]),
    }
    fleet = Fleet()
    status = LedgerStatus(list(devices_of({GPU: 3, "amd.com/gpu": 1})), memory_mib={GPU: 4096})
    fleet.set_ledger("n1", NodeDevices(ObjectMeta(name="n1"), LedgerSpec(claims), status))
    devices = [("n1", GPU, str(index), "") for index in range(3)]
    assert list(memory_capacity(fleet).items()) == [(device, 4096 << 20) for device in devices]
    assert memory_allocated(fleet) == dict(zip(devices, (4096 << 20, 2048 << 20, 0), strict=True))
    assert [use for _, _, use, _ in count_devices(fleet)] == ["free", "free", "held", "held", "shared"]


def test_waiting_pods_are_counted_by_what_they_want() -> None:
    """A pod on a node waits no more, and nobody may try a gated one."""
    waiting = [sharing("a"), sharing("b"), sharing("c", group="team"), gated(sharing("d"))]
    assert count_waiting([*waiting, bound(sharing("e"), "n1")]) == {"group": 1, "share": 2}
