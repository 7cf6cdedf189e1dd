"""The numbers behind `deviceshare_devices` and `deviceshare_groups`."""

from deviceshare.domain.answers.census import DeviceCount, count_devices, count_groups
from deviceshare.domain.objects.devices import Device, devices_of
from deviceshare.domain.objects.groups import Group, GroupStatus
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_meta import ObjectMeta
from deviceshare.domain.placement.device_state import Health, Use
from deviceshare.domain.placement.fleet import Fleet

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
    assert list(count_devices(fleet)) == [
        DeviceCount("n1", GPU, Use.FREE, Health.UNKNOWN, 2),
        DeviceCount("n1", GPU, Use.HELD, Health.LOST, 1),
        DeviceCount("n1", GPU, Use.HELD, Health.UNKNOWN, 1),
        DeviceCount("n1", GPU, Use.RELEASING, Health.UNKNOWN, 1),
    ]


def test_what_nobody_may_have_is_not_counted_as_free() -> None:
    """Split, broken, given to a plain pod, left to the device plugin."""
    parts = [Part(GPU, 0, mig=True), Part(GPU, 1, unhealthy="Xid 79"), *(Part(GPU, index) for index in range(2, 5))]
    given = [Allocation("ns/x", "x", GPU, [2]), Allocation("ns/keeper", "k", GPU, [0, 1, 3], placeholder=True)]
    hardware = Hardware(devices=parts, allocations=given, placeholders=True)
    status = LedgerStatus(list(devices_of({GPU: 5})), hardware=hardware)
    fleet = Fleet()
    fleet.set_ledger("n1", NodeDevices(ObjectMeta(name="n1"), status=status))
    states = {count.use: (count.health, count.number) for count in count_devices(fleet)}
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
