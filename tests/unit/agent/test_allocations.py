"""What device plugins allocated: all of it in our names, or unknown."""

from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from deviceshare.agent.allocations import PATIENCE, Allocations, PodResourcesUnknown
from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part
from tests.unit.agent.node import Node, part, uuid
from tests.unit.domain.objects import AMD, GPU, a_ledger, free_on


class Given(Struct, frozen=True):
    name: str
    device_ids: tuple[str, ...]
    resource: str = GPU
    namespace: str = "ns"


class NodeWithKubelet(Node):
    """A node with two GPUs and a kubelet that says what the test has it say."""

    def __init__(self, placeholders: str = "") -> None:
        super().__init__()
        self.answer: list[Given] | PodResourcesUnknown = []
        self.report = self.own.report
        self.report.tell(devices=[part(0), part(1)])
        self.report.resume(Hardware())
        self.changes = 0
        self.allocations = Allocations(self.own, self.ask, placeholders)

    async def ask(self) -> list[Any]:
        if isinstance(self.answer, PodResourcesUnknown):
            raise self.answer
        return self.answer

    def reported(self) -> list[Hardware]:
        """The report that is to be written, if there is one yet."""
        return [self.report._wanted] if self.report._wanted else []

    async def look(self, *given: Given) -> list[Allocation] | None:
        self.answer = list(given)
        before = self.reported()
        await self.allocations.look()
        self.changes += self.reported() != before
        return self.report.known.allocations


async def test_devices_are_named_by_their_numbers_and_pods_by_their_uids() -> None:
    """Whatever the plugin calls them: the UUID, a turn on it, the index."""
    kubelet = NodeWithKubelet()
    kubelet.add_pod("a")
    kubelet.add_pod("b")

    assert await kubelet.look(Given("a", (uuid(1), uuid(0))), Given("b", (f"{uuid(1)}::3", "0"))) == [
        Allocation("ns/a", "uid-of-a", GPU, [0, 1]),
        Allocation("ns/b", "uid-of-b", GPU, [0, 1]),
    ]
    assert kubelet.changes == 1


async def test_amds_plugin_names_devices_by_their_addresses() -> None:
    kubelet = NodeWithKubelet()
    parts = [Part(AMD, number, f"0x{number}", pci=f"0000:{number}5:00.0") for number in range(2)]
    kubelet.report.tell(devices=parts)
    kubelet.add_pod("a")
    allocated = await kubelet.look(Given("a", ("0000:15:00.0",), AMD))
    assert allocated == [Allocation("ns/a", "uid-of-a", AMD, [1])]


async def test_turns_under_another_name_are_turns_on_the_same_devices() -> None:
    """NVIDIA's plugin renames what it shares, if it is told to. Parts by MIG are on devices that are split."""
    kubelet = NodeWithKubelet()
    kubelet.add_pod("a")
    kubelet.add_pod("b")
    turn = Given("a", (f"{uuid(1)}::0",), vendors.NVIDIA.in_turns)
    part_of_one = Given("b", ("MIG-1",), f"{vendors.MIG_PREFIX}1g.5gb")
    known = await kubelet.look(turn, part_of_one)
    assert known == [Allocation("ns/a", "uid-of-a", vendors.NVIDIA.in_turns, [1])]
    hardware = Hardware(devices=[part(0), part(1)], allocations=known)
    seen = a_ledger(devices={GPU: 2})
    assert [device.index for device in free_on(replace(seen, status=replace(seen.status, hardware=hardware)))] == [0]


KEEPER = {contract.PLACEHOLDER: "all"}


async def test_a_placeholder_is_told_from_other_pods() -> None:
    """By its label, and in the one namespace where not everybody may make one."""
    for namespace, expected in (("ns", True), ("other", False), ("", False)):
        kubelet = NodeWithKubelet(placeholders=namespace)
        kubelet.add_pod("keeper", labels=KEEPER)
        kubelet.add_pod("plain")
        told = await kubelet.look(Given("keeper", (uuid(0),)), Given("plain", (uuid(1),)))
        assert told is not None and [each.placeholder for each in told] == [expected, False]
        assert kubelet.report.known.placeholders == bool(namespace)


async def test_a_placeholder_that_goes_keeps_nothing() -> None:
    """Its devices may be anybody's in a moment. Without a word of it, the leader sees a pod with unknown devices."""
    kubelet = NodeWithKubelet(placeholders="ns")
    kubelet.add_pod("keeper", labels=KEEPER, deletionTimestamp="2026-11-21T03:00:00Z")
    assert await kubelet.look(Given("keeper", (uuid(0),))) == []


async def test_who_has_ended_has_nothing_and_other_resources_are_nobodys_business() -> None:
    """The kubelet lists a pod until it is deleted."""
    kubelet = NodeWithKubelet()
    kubelet.add_pod("over", phase="Succeeded")
    kubelet.add_pod("net")

    assert await kubelet.look(Given("over", (uuid(0),)), Given("net", ("eth1",), "example.com/nic")) == []


async def test_a_pod_that_is_not_known_yet_is_left_for_the_next_look() -> None:
    """What was said before stands meanwhile, and nothing new is said."""
    kubelet = NodeWithKubelet()
    kubelet.add_pod("a")
    before = await kubelet.look(Given("a", (uuid(0),)))

    assert await kubelet.look(Given("a", (uuid(0),)), Given("b", (uuid(1),))) == before
    kubelet.add_pod("b")
    after = await kubelet.look(Given("a", (uuid(0),)), Given("b", (uuid(1),)))
    assert after is not None and [each.pod for each in after] == ["ns/a", "ns/b"]
    assert kubelet.changes == 2


@pytest.mark.parametrize("given", [Given("unknown", (uuid(0),)), Given("a", ("GPU-9",)), Given("a", ("card0",), AMD)])
async def test_what_stays_unknown_makes_all_of_it_unknown(given: Given) -> None:
    """A device that we can't name may be any."""
    kubelet = NodeWithKubelet()
    kubelet.add_pod("a")
    await kubelet.look(Given("a", (uuid(0),)))
    known = [await kubelet.look(given) for _ in range(PATIENCE)]

    assert known[-1] is None
    assert None not in known[:-1]


async def test_a_pod_that_was_deleted_by_force_keeps_what_it_has() -> None:
    """Its containers may run on; its UID is remembered from before, by the next agent too."""
    kubelet = NodeWithKubelet()
    kubelet.report.resume(Hardware(allocations=[Allocation("ns/a", "uid-of-a", GPU, [0])]))

    assert await kubelet.look(Given("a", (uuid(0),))) == [Allocation("ns/a", "uid-of-a", GPU, [0])]


async def test_a_kubelet_that_says_nothing_leaves_all_unknown() -> None:
    """Until it speaks again."""
    kubelet = NodeWithKubelet()
    assert kubelet.reported() == []
    kubelet.answer = PodResourcesUnknown("there is no socket")
    await kubelet.allocations.look()
    assert [each.allocations for each in kubelet.reported()] == [None]

    assert await kubelet.look() == []
    kubelet.answer = PodResourcesUnknown("there is no socket")
    await kubelet.allocations.look()
    assert [each.allocations for each in kubelet.reported()] == [None]


async def test_without_a_socket_nothing_is_asked() -> None:
    """What plugins allocated is then unknown from the start."""
    node = NodeWithKubelet()
    node.report.resume(Hardware(allocations=[Allocation("ns/a", "uid-of-a", GPU, [0])]))
    node.allocations = Allocations(node.own, None)
    await node.allocations.look()

    assert [each.allocations for each in node.reported()] == [None]
