"""A node whose devices come from a DRA driver: who gets what, by which name, and what keeps it from others."""

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.answers.explanation import verdicts
from deviceshare.domain.objects.devices import Device, visible
from deviceshare.domain.objects.hardware import NO_HARDWARE, NOTHING_PUBLISHED, Hardware, Part, Publication
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice
from deviceshare.domain.objects.shares import Share
from deviceshare.domain.placement import handover
from deviceshare.domain.placement.device_states import Health, Use, device_states
from deviceshare.domain.placement.handover import HandoverSetting, steady
from deviceshare.domain.placement.inventory import UNPUBLISHED, UNSEEN, take
from tests.unit.domain.dra_objects import a_claim, a_slice, a_view, card, gpu_json, mig_json
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_ledger, a_node, free_on, gpus

FOUR = tuple(gpu_json(number) for number in range(4))
BARE = a_node(devices={})


def published(*objects: ResourceSlice | ResourceClaim) -> Publication:
    """What these say of n1."""
    return a_view(*objects).publication("n1")


def written(found: Publication, team: tuple[Device, ...] = ()) -> NodeDevices:
    """The ledger of n1 as the leader writes it, without an agent."""
    offer = take(BARE, NO_HARDWARE, found)
    ledger = a_ledger(devices={}, team=team) if team else a_ledger(devices={})
    status = replace(
        ledger.status, devices=list(offer.devices), withheld=list(offer.withheld), published=found, handover={}
    )
    return replace(ledger, status=status)


def agent(*numbers: int) -> Hardware:
    """An agent that sees these GPUs, which it numbers from 0."""
    return Hardware(devices=[Part(GPU, index, card(number)) for index, number in enumerate(numbers)])


def test_without_an_agent_groups_get_published_devices_by_uuid() -> None:
    """The number is the kernel's, which no runtime takes."""
    ledger = written(published(a_slice("n1", *FOUR)))
    assert free_on(ledger) == tuple(Device(GPU, number, card(number)) for number in range(4))
    decided = handover.decide(vendors.NVIDIA, {}, ledger.hardware, handover.DEFAULT)
    given = handover.as_claimed(free_on(ledger)[:1], {"nvidia": decided.words})
    assert visible(given, {"nvidia": decided.words}) == {vendors.NVIDIA.annotation: card(0)}
    assert ledger.memory_of(free_on(ledger)[0]) == 81920


def test_nobody_watches_published_devices() -> None:
    """So their health is unknown, as without an agent."""
    ledger = written(published(a_slice("n1", *FOUR)))
    assert {state.health for state in device_states(ledger)} == {Health.UNKNOWN}


@pytest.mark.parametrize("setting", [({contract.HANDOVER_LABEL: "index"}, "auto"), ({}, "index")])
def test_numbers_of_resource_slices_are_not_handed_over(setting: tuple[dict[str, str], str]) -> None:
    """They may be other GPUs' for the runtime."""
    labels, style = setting
    hardware = written(published(a_slice("n1", *FOUR))).hardware
    decided = handover.decide(vendors.NVIDIA, labels, hardware, HandoverSetting(style))
    assert decided.words == handover.NONE
    assert "ResourceSlices have others" in decided.obstacle


def test_what_a_claim_holds_is_nobodys() -> None:
    """Shown with the claim, and counted among what the node has."""
    ledger = written(published(a_slice("n1", *FOUR), a_claim("ns/train", "gpu-1")))
    states = {state.device.index: state for state in device_states(ledger)}
    assert (states[1].use, states[1].resource_claim, states[1].offered) == (Use.CLAIMED, "ns/train", True)
    assert [device.index for device in free_on(ledger)] == [0, 2, 3]
    [node] = verdicts(a_fleet(a_node(), ledgers=(ledger,)), a_group().request)
    verdict = node.devices[1]
    assert verdict.reason == "held by ResourceClaim ns/train"
    assert "ResourceClaim ns/train is deallocated" in verdict.cure


def test_a_device_that_dra_allocated_after_us_is_held_by_both() -> None:
    """Neither is believed to have it alone."""
    mine = (Device(GPU, 1, card(1)),)
    ledger = written(published(a_slice("n1", *FOUR), a_claim("ns/train", "gpu-1")), mine)
    (state,) = (each for each in device_states(ledger) if each.device.index == 1)
    assert (state.use, state.resource_claim) == (Use.HELD, "ns/train")
    assert state.allocated_twice
    assert not state.dependable


def test_a_claim_follows_the_uuid_where_an_agent_numbers_otherwise() -> None:
    """gpu-1 of the pool is the agent's 0."""
    found = published(a_slice("n1", *FOUR), a_claim("ns/train", "gpu-1"))
    hardware = agent(1, 0, 3, 2)
    offer = take(BARE, hardware, found)
    ledger = a_ledger(devices={})
    status = replace(ledger.status, devices=list(offer.devices), published=found, hardware=hardware)
    ledger = replace(ledger, status=status)
    assert [str(state.device) for state in device_states(ledger) if state.use is Use.CLAIMED] == [f"{GPU} 0"]


def test_what_only_the_agent_or_only_the_driver_knows_is_nobodys() -> None:
    """An annotation that names the devices overrules the former."""
    found, hardware = published(a_slice("n1", *FOUR[:3])), agent(0, 1, 3)
    offer = take(BARE, hardware, found)
    assert [device.index for device in offer.devices] == [0, 1]
    assert {each.reason: [d.uuid for d in each.devices] for each in offer.withheld} == {
        UNPUBLISHED: [card(3)],
        UNSEEN: [card(2)],
    }
    meta = replace(BARE.metadata, annotations={contract.INVENTORY_ANNOTATION: f"{GPU}=0-2"})
    assert len(take(replace(BARE, metadata=meta), hardware, found).devices) == 3


def test_an_untrusted_pool_keeps_everything_whatever_else_is_known() -> None:
    """The agent's devices, and an annotation's, too: what claims hold may be missing."""
    found = published(a_slice("n1", *FOUR, resourceSliceCount=2))
    meta = replace(BARE.metadata, annotations={contract.INVENTORY_ANNOTATION: f"{GPU}=4"})
    for node, hardware in (
        (BARE, agent(0, 1, 2, 3)),
        (replace(BARE, metadata=meta), NO_HARDWARE),
        (a_node(), NO_HARDWARE),
    ):
        offer = take(node, hardware, found)
        assert offer.devices == ()
        assert "incomplete" in offer.withheld[0].reason


def test_a_device_plugin_beside_the_driver_counts_no_more() -> None:
    """The slices say which GPUs there are; one is split."""
    found = published(a_slice("n1", *FOUR[:2], mig_json(2)))
    assert len(take(a_node(), NO_HARDWARE, found).devices) == 3
    assert [device.index for device in free_on(written(found))] == [0, 1]


def test_numbers_from_before_keep_everybody_out() -> None:
    """A device plugin's 0 may be the kernel's 1."""
    before = a_ledger(team=gpus(0))
    found = steady(published(a_slice("n1", *FOUR), a_claim("ns/train", "gpu-1")), before)
    assert (found.devices, found.claims) == ([], [])
    offer = take(a_node(), NO_HARDWARE, found)
    assert offer.devices == ()
    assert "team hold devices by number" in offer.withheld[0].reason
    agreed = replace(before, status=replace(before.status, hardware=agent(0, 1, 2, 3)))
    assert len(steady(published(a_slice("n1", *FOUR)), agreed).devices) == 4


def test_devices_in_use_stay_known_when_their_slices_go() -> None:
    """Else a device plugin's numbers would mean them, which are others."""
    ledger = written(published(a_slice("n1", *FOUR)), team=(Device(GPU, 1, card(1)),))
    gone = steady(NOTHING_PUBLISHED, ledger)
    assert [(part.uuid, part.lost) for part in gone.devices] == [(card(1), True)]
    assert take(a_node(), NO_HARDWARE, gone).devices == ()
    assert "its ResourceSlices are gone" in gone.withheld[0].reason
    assert steady(NOTHING_PUBLISHED, replace(ledger, spec=a_ledger().spec)) == NOTHING_PUBLISHED


def test_devices_in_use_are_not_lost_while_a_pool_is_incomplete() -> None:
    """The slice that has them may only be late; a complete pool without them says that they are gone."""
    ledger = written(published(a_slice("n1", *FOUR)), team=(Device(GPU, 3, card(3)),))
    late = steady(published(a_slice("n1", *FOUR[:2], resourceSliceCount=2)), ledger)
    assert [(part.index, part.lost) for part in late.devices] == [(0, False), (1, False), (3, False)]
    gone = steady(published(a_slice("n1", *FOUR[:2])), ledger)
    assert [(part.index, part.lost) for part in gone.devices] == [(0, False), (1, False), (3, True)]
    after = written(gone, team=(Device(GPU, 3, card(3)),))
    (state,) = (each for each in device_states(after) if each.uid)
    assert state.health is Health.LOST


@pytest.mark.parametrize("former", [False, True], ids=["held", "replaced by a rebind"])
def test_a_device_of_which_a_pod_has_a_share_stays_known(former: bool) -> None:
    """Also one that its containers may still use."""
    share = Share("main", GPU, 3, uuid=card(3), percent=30, former=former)
    ledger = written(published(a_slice("n1", *FOUR)))
    ledger = replace(ledger, spec=replace(ledger.spec, claims={"uid-of-p": Claim(pod="ns/p", shares=[share])}))
    gone = steady(published(a_slice("n1", *FOUR[:2])), ledger)
    assert [(part.index, part.lost) for part in gone.devices] == [(0, False), (1, False), (3, True)]


def test_a_publication_is_stored_with_every_field() -> None:
    """A merge patch would keep what isn't named."""
    assert set(to_builtins(NOTHING_PUBLISHED)) == {"driver", "devices", "claims", "withheld", "held"}
