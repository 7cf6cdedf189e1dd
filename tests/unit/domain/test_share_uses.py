"""The use of shares: whose memory counts against which share."""

from typing import Any

from deviceshare.domain.device_health.containers import ControlGroup, NodeContainer, NodeProcess, ProcessUse
from deviceshare.domain.device_health.violations import share_uses, trespassers
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.shares import INIT, Share
from tests.unit.domain.objects import GPU

SIZE = 16384
FIRST, SECOND = Device(GPU, 0, "GPU-0"), Device(GPU, 1, "GPU-1")


def part_of(device: Device, container: str, **amount: Any) -> Share:
    return Share(container, device.resource, device.index, device.uuid, **amount)


def shared(*, size: int = SIZE, **claims: Claim) -> NodeDevices:
    """A node of two devices with these claims by UID."""
    parts = [Part(device.resource, device.index, device.uuid, memory_mib=size) for device in (FIRST, SECOND)]
    status = LedgerStatus(devices=[FIRST, SECOND], hardware=Hardware(devices=parts))
    return NodeDevices(ObjectMeta(name="n1"), LedgerSpec(dict(claims)), status)


def pod(name: str, *shares: Share, within: str = "") -> Claim:
    return Claim(pod=f"ns/{name}", shares=list(shares), within=within)


def process(device: Device, uid: str, container: str, memory: int, holder: str = "") -> NodeProcess:
    use = ProcessUse(1, memory, "python", group=ControlGroup(uid))
    return NodeProcess(device, use, NodeContainer(f"ns/{uid}", uid, container, holder or uid))


def rows(ledger: NodeDevices, *processes: NodeProcess) -> list[tuple[str, str, int, int, int]]:
    """Pod, container, device, used and limit."""
    return [
        (use.pod_uid, use.container, use.device.index, use.used_mib, use.limit_mib)
        for use in share_uses(ledger, processes)
    ]


def test_each_container_counts_alone_and_its_processes_together() -> None:
    """On each device; memory and percent alike, and who uses nothing is there, too."""
    ledger = shared(
        a=pod(
            "a", part_of(FIRST, "x", memory_mib=3072), part_of(FIRST, "y", percent=25), part_of(SECOND, "x", percent=1)
        ),
        b=pod("b", part_of(FIRST, "main", memory_mib=1024)),
    )

    used = [process(FIRST, "a", "x", 1000), process(FIRST, "a", "x", 2500), process(FIRST, "a", "y", 7)]
    assert rows(ledger, *used, process(SECOND, "b", "main", 9)) == [
        ("a", "x", 0, 3500, 3072),
        ("a", "y", 0, 7, 4096),
        ("a", "x", 1, 0, 163),
        ("b", "main", 0, 0, 1024),
    ]


def test_memory_of_no_container_with_a_share_counts_for_the_pod() -> None:
    """With what init containers leave to the others: the larger of both, as the room was counted."""
    shares = [part_of(FIRST, "main", memory_mib=2048), part_of(FIRST, "early", memory_mib=4096, role=INIT)]
    ledger = shared(a=pod("a", *shares))

    used = [process(FIRST, "a", "main", 2000), process(FIRST, "a", "", 900), process(FIRST, "a", "plain", 100)]
    assert rows(ledger, *used)[-1] == ("a", "", 0, 3000, 4096)
    assert share_uses(ledger, used)[-1].containers == 2
    assert [row[1] for row in rows(ledger, used[0])] == ["early", "main"]


def test_the_use_of_others_counts_against_nobody() -> None:
    """Of a program on the node, of a pod without a share, and of the pod itself where its UID isn't known."""
    ledger = shared(a=pod("a", part_of(FIRST, "main", memory_mib=1024)))
    strangers = [process(FIRST, "b", "main", 5000), process(FIRST, "", "", 5000), process(FIRST, "", "main", 5000, "a")]

    assert rows(ledger, *strangers) == [("a", "main", 0, 0, 1024)]


def test_shares_inside_of_a_group_count_alike() -> None:
    """And the group's devices themselves have no limit."""
    group = Claim("team", whole=[FIRST])
    ledger = shared(g=group, a=pod("a", part_of(FIRST, "main", percent=50), within="g"))

    assert rows(ledger, process(FIRST, "a", "main", 9000, "g"), process(FIRST, "mate", "main", 7000, "g")) == [
        ("a", "main", 0, 9000, 8192)
    ]


def test_where_a_devices_size_is_not_known_nothing_is_said() -> None:
    """A percentage of it is no number of MiB."""
    ledger = shared(size=0, a=pod("a", part_of(FIRST, "main", percent=50)))

    assert rows(ledger, process(FIRST, "a", "main", 9000)) == []


def test_a_share_is_found_by_uuid_after_a_renumbering() -> None:
    """What was device 0 may be device 1 since the reboot."""
    ledger = shared(a=pod("a", Share("main", GPU, 1, "GPU-0", memory_mib=1024)))

    assert rows(ledger, process(FIRST, "a", "main", 5)) == [("a", "main", 0, 5, 1024)]


def test_sharers_of_a_device_do_not_trespass_and_everybody_else_does() -> None:
    """A pod of a group, or one that says that it is another, is a stranger on devices of pods with shares."""
    ledger = shared(
        g=Claim("team", whole=[SECOND]),
        a=pod("a", part_of(FIRST, "main", percent=50)),
        b=pod("b", part_of(FIRST, "main", percent=50)),
        nested=pod("nested", part_of(SECOND, "main", percent=50), within="g"),
    )
    fine = [
        process(FIRST, "a", "main", 1),
        process(FIRST, "b", "", 1),
        process(SECOND, "nested", "main", 1, "g"),
        process(SECOND, "member", "main", 1, "g"),
    ]
    strange = [
        process(FIRST, "member", "main", 1, "g"),
        process(FIRST, "liar", "main", 1, "a"),
        process(SECOND, "a", "main", 1),
        NodeProcess(FIRST, ProcessUse(1, 1, "python")),
    ]

    assert trespassers(ledger, [*fine, *strange]) == strange
