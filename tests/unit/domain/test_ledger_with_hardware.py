"""The ledger of a node whose agent reports UUIDs, health and what the device plugin allocated."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.answers.ledger_status import summary
from deviceshare.domain.objects.devices import Device, Devices, devices_of, visible, with_uuids
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.placement.device_states import device_states, held_by, unhealthy_among
from tests.unit.domain.objects import AMD, GPU, a_ledger, free_on, gpus

CARDS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


def seen(*uuids: str, **more: object) -> Hardware:
    """The agent's report on these cards, in their order; `more` as in Part, of the first."""
    parts = [Part(GPU, index, uuid) for index, uuid in enumerate(uuids)]
    return Hardware(devices=[replace(parts[0], **more), *parts[1:]])


def on(ledger: NodeDevices, hardware: Hardware) -> NodeDevices:
    """The ledger after the agent's report."""
    return replace(ledger, status=replace(ledger.status, hardware=hardware))


def cards(*numbered: tuple[int, str]) -> Devices:
    """GPUs by index and UUID."""
    return tuple(Device(GPU, index, uuid) for index, uuid in numbered)


def test_free_devices_are_named_by_their_uuids() -> None:
    """So that a claim names them, too."""
    ledger = on(a_ledger(a=cards((1, "GPU-b"))), seen(*CARDS))
    assert free_on(ledger) == cards((0, "GPU-a"), (2, "GPU-c"), (3, "GPU-d"))


def test_a_claim_follows_its_devices_to_their_new_numbers() -> None:
    """A reboot numbered the cards the other way round."""
    ledger = on(a_ledger(a=cards((0, "GPU-a"), (1, "GPU-b"))), seen(*reversed(CARDS)))
    assert ledger.held(ledger.claims["uid-of-a"]) == cards((2, "GPU-b"), (3, "GPU-a"))
    assert free_on(ledger) == cards((0, "GPU-d"), (1, "GPU-c"))


def test_a_claim_without_uuids_keeps_its_numbers_and_nobody_gets_uuids_beside_it() -> None:
    """Its pods were told numbers, and open whatever card has them after a reboot."""
    ledger = on(a_ledger(a=gpus(0)), seen(*reversed(CARDS)))
    assert ledger.held(ledger.claims["uid-of-a"]) == cards((0, "GPU-d"))
    assert free_on(ledger) == ()
    assert "claims of this node (a) name devices by number" in summary(ledger).reasons


@given(st.permutations(CARDS), st.permutations(CARDS), st.integers(0, 4))
def test_no_card_is_free_that_is_claimed_however_cards_are_numbered(
    before: list[str], after: list[str], count: int
) -> None:
    """The UUID is the identity."""
    ledger = on(a_ledger(), seen(*before))
    taken = free_on(ledger)[:count]
    ledger = on(a_ledger(a=taken), seen(*after))
    free = {device.uuid for device in free_on(ledger)}
    assert free == set(CARDS) - {device.uuid for device in taken}


def test_an_unhealthy_device_is_not_handed_out() -> None:
    """And is named with what is wrong with it."""
    ledger = on(a_ledger(a=cards((0, "GPU-a"))), seen(*CARDS, unhealthy="Xid 79"))
    assert unhealthy_among(held_by(device_states(ledger), "uid-of-a")) == "nvidia.com/gpu 0 is unhealthy (Xid 79)"
    assert free_on(ledger) == cards((1, "GPU-b"), (2, "GPU-c"), (3, "GPU-d"))
    assert free_on(on(a_ledger(), seen(*CARDS, unhealthy="Xid 79"))) == free_on(ledger)


def test_a_device_split_by_mig_is_not_handed_out_whole() -> None:
    """The device plugin gives its parts away as another resource."""
    ledger = on(a_ledger(), seen(*CARDS, mig=True))
    assert free_on(ledger) == cards((1, "GPU-b"), (2, "GPU-c"), (3, "GPU-d"))


def test_a_lost_device_is_not_there_although_its_number_is_another_cards() -> None:
    """The driver counts anew without it."""
    lost = Part(GPU, 0, "GPU-a", unhealthy="lost", lost=True)
    hardware = Hardware(devices=[lost, Part(GPU, 0, "GPU-b"), Part(GPU, 1, "GPU-c")])
    ledger = on(a_ledger(a=cards((0, "GPU-a"))), hardware)
    assert ledger.devices == free_on(ledger) == cards((0, "GPU-b"), (1, "GPU-c"))
    assert unhealthy_among(held_by(device_states(ledger), "uid-of-a")) == "nvidia.com/gpu 0 is lost (lost)"


def test_what_the_device_plugin_gave_away_is_not_free() -> None:
    """Groups and plain pods live on one node and never meet on a device."""
    hardware = replace(seen(*CARDS), allocations=[Allocation("shop/web", "u", GPU, [1, 2])])
    assert free_on(on(a_ledger(), hardware)) == cards((0, "GPU-a"), (3, "GPU-d"))


def test_where_placeholders_keep_devices_from_the_plugin_nothing_else_is_free() -> None:
    """What a plain pod may be given next is no group's; nor is anything while nobody knows what placeholders have."""
    kept = [Allocation("system/keeper", "k", GPU, [1, 2], placeholder=True), Allocation("shop/web", "u", GPU, [3])]
    hardware = replace(seen(*CARDS), allocations=kept, placeholders=True)
    ledger = on(a_ledger(a=cards((1, "GPU-b"))), hardware)
    assert free_on(ledger) == cards((2, "GPU-c"))
    states = {state.device.index: (state.left, state.pod, state.placeholder) for state in device_states(ledger)}
    assert states == {
        0: (True, "", ""),
        1: (False, "", "system/keeper"),
        2: (False, "", "system/keeper"),
        3: (False, "shop/web", ""),
    }
    assert free_on(on(a_ledger(), replace(hardware, allocations=None))) == ()


def test_devices_that_no_agent_sees_are_not_left_to_its_plugin() -> None:
    """Another vendor's beside them, say."""
    hardware = replace(seen(*CARDS), allocations=[], placeholders=True)
    assert free_on(on(a_ledger(devices={GPU: 4, AMD: 2}), hardware)) == devices_of({AMD: 2})


def test_former_devices_stay_reserved() -> None:
    """Containers that have not restarted since a rebind still use them."""
    ledger = a_ledger()
    claim = Claim("a", whole=list(gpus(1)), former=list(gpus(0)))
    ledger = replace(ledger, spec=replace(ledger.spec, claims={"u": claim}))
    assert free_on(ledger) == gpus(2, 3)
    assert ledger.held(claim) == gpus(1)


def test_containers_are_told_uuids_where_all_are_known() -> None:
    """A list of both would mean something else to the runtime after a reboot."""
    assert visible(cards((0, "GPU-a"), (1, "GPU-b")), {}) == {"deviceshare.io/nvidia-visible-devices": "GPU-a,GPU-b"}
    assert visible((*cards((0, "GPU-a")), *gpus(1)), {}) == {"deviceshare.io/nvidia-visible-devices": "0,1"}


@given(st.sets(st.integers(0, 20)), st.booleans())
def test_what_a_pod_was_told_can_be_read_back(indices: set[int], named: bool) -> None:
    """Repair makes claims again from it."""
    devices = tuple(Device(GPU, index, f"GPU-{index}" if named else "") for index in sorted(indices))
    assert with_uuids(tuple(Device(GPU, index) for index in sorted(indices)), visible(devices, {})) == devices


def test_a_report_is_read_as_it_is_written() -> None:
    """The agent and the replicas share these structs; what is empty is left out."""
    report = Hardware("550", "boot", [Part(GPU, 0, "GPU-a", memory_mib=81559, numa_node=0)], allocations=[])
    stored = msgspec.json.encode(report)
    assert msgspec.json.decode(stored, type=Hardware) == report
    assert b"memoryMib" in stored and b"unhealthy" not in stored
