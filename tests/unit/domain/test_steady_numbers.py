"""Numbers and UUIDs on one node: whatever boots, renumbers and reports, no card has two owners.

The test knows the cards: a claim by number is the card that has the number now, a claim by UUID that card for ever.
"""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import NO_HARDWARE, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.shares import Share, current
from deviceshare.domain.placement import allocation, handover
from deviceshare.domain.placement.device_states import Use, device_states
from deviceshare.domain.placement.handover import INDEX, as_claimed
from tests.unit.domain.objects import GPU

CARDS = "ABCD"
STEPS = ("group", "group", "share", "ends", "report", "report", "lost report", "reboot", "named", "told", "hand-over")


class Machine:
    """A node with cards, its ledger, and what its pods were told; each step as the product decides it."""

    def __init__(self) -> None:
        self.order = list(CARDS)
        self.numbers = count(1)
        self.reported = False
        """Whether the agent has reported in this boot."""
        self.ledger = NodeDevices(status=LedgerStatus(devices=[Device(GPU, n) for n in range(len(CARDS))]))

    def put(self, **claims: Claim | None) -> None:
        left = {uid: claim for uid, claim in (self.ledger.claims | claims).items() if claim is not None}
        self.ledger = replace(self.ledger, spec=LedgerSpec(left))

    def say(self, **status: object) -> None:
        self.ledger = replace(self.ledger, status=replace(self.ledger.status, **status))

    def take(self, step: str, data: st.DataObject) -> None:
        words = self.ledger.status.handover
        can_bind = self.reported or not self.ledger.hardware.devices  # else NODE_REBOOTED (join_obstacles.py)
        free, rooms = allocation.available(self.ledger).devices, allocation.available(self.ledger).rooms
        uid = f"uid-{next(self.numbers)}"
        if step == "group" and free and can_bind:
            self.put(**{uid: Claim(uid, list(as_claimed([data.draw(st.sampled_from(free))], words)))})
        elif step == "share" and can_bind and (fit := [device for device, room in rooms if room.free >= 60]):
            [device] = as_claimed([data.draw(st.sampled_from(fit))], words)
            self.put(**{uid: Claim(pod=uid, shares=[Share("main", GPU, device.index, device.uuid, percent=60)])})
        elif step == "ends" and self.ledger.claims:
            self.put(**{data.draw(st.sampled_from(sorted(self.ledger.claims))): None})
        elif step == "report":
            parts = [Part(GPU, n, f"GPU-{card}") for n, card in enumerate(self.order)]
            self.say(hardware=Hardware(devices=parts))
            self.reported = True
        elif step == "lost report":
            self.say(hardware=NO_HARDWARE)  # as in a ledger that was lost, and opened by count
            self.reported = False
        elif step == "reboot":
            self.order = data.draw(st.permutations(CARDS))
            self.reported = False
        elif step == "named" and self.reported:
            self.put(**handover.by_uuid(self.ledger, ()))
        elif step == "told":  # the pods, and binds are over: release_former (loops/protocol/rebind.py)
            self.put(**{uid: replace(claim, former=[]) for uid, claim in self.ledger.claims.items()})
        elif step == "hand-over":
            self.say(handover={"nvidia": data.draw(st.sampled_from((INDEX, "uuid")))})

    def card(self, device: Device) -> str:
        return device.uuid.removeprefix("GPU-") or self.order[device.index]

    def owners(self) -> dict[str, tuple[set[str], int]]:
        """By card, the groups that have it, and how many percent of it pods have; without former devices."""
        found: dict[str, tuple[set[str], int]] = {card: (set(), 0) for card in CARDS}
        for claim in self.ledger.claims.values():
            for device in claim.whole:
                found[self.card(device)][0].add(claim.group)
            for share in current(claim.shares):
                groups, percent = found[self.card(share.device)]
                found[self.card(share.device)] = groups, percent + share.percent
        return found


@given(st.lists(st.sampled_from(STEPS), min_size=20, max_size=40), st.data())
def test_no_card_has_two_owners_however_cards_are_numbered_and_named(steps: list[str], data: st.DataObject) -> None:
    """Groups and shares come and go, the agent comes later or its report is lost, reboots renumber."""
    machine = Machine()
    for step in steps:
        machine.take(step, data)
        for card, (groups, percent) in machine.owners().items():
            assert len(groups) + bool(percent) <= 1, f"{card} has two owners after {step}"
            assert percent <= 100, f"{card} is shared out by {percent}% after {step}"
        if machine.reported and not any(claim.former for claim in machine.ledger.claims.values()):
            assert not any(state.claimed_twice for state in device_states(machine.ledger))


def test_a_number_that_pods_may_still_be_told_keeps_uuids_from_everybody() -> None:
    """Named a moment ago: who gets another card now might share it after a reboot with a pod that isn't told yet."""
    claim = Claim("a", [Device(GPU, 1, "GPU-B")], former=[Device(GPU, 1)])
    parts = [Part(GPU, n, f"GPU-{card}") for n, card in enumerate(CARDS)]
    status = LedgerStatus(devices=[part.device for part in parts], hardware=Hardware(devices=parts))
    seen = NodeDevices(spec=LedgerSpec({"a": claim}), status=status)
    assert not allocation.available(seen).devices
    assert not allocation.available(seen).rooms
    barriers = [dict(state.barriers) for state in device_states(seen)]
    said = "in doubt: claims of this node (a) name devices by number, and it is not known which have these now"
    assert barriers == [{Use.UNUSABLE: said}, {}, {Use.UNUSABLE: said}, {Use.UNUSABLE: said}]
    told = replace(seen, spec=LedgerSpec({"a": replace(claim, former=[])}))
    assert [device.uuid for device in allocation.available(told).devices] == ["GPU-A", "GPU-C", "GPU-D"]


def test_all_claims_by_number_are_named_or_none_and_what_was_replaced_keeps_its_card() -> None:
    """After a reboot those that stayed numbers would mean cards that others are told by UUID."""
    parts = [Part(GPU, n, f"GPU-{card}") for n, card in enumerate("ABC")]
    whole = Claim("whole", [Device(GPU, 1)], former=[Device(GPU, 2)])
    hardware = LedgerStatus(hardware=Hardware(devices=parts))
    seen = NodeDevices(spec=LedgerSpec({"whole": whole}), status=hardware)
    former = [Device(GPU, 2, "GPU-C"), Device(GPU, 1)]
    assert handover.by_uuid(seen, ()) == {"whole": Claim("whole", [Device(GPU, 1, "GPU-B")], former=former)}
    for uid, other in {
        "half": Claim("half", [Device(GPU, 0), Device(GPU, 7)]),
        "sealed": Claim("sealed", [Device(GPU, 0)]),
        "restored": Claim("restored", [Device(GPU, 0, "GPU-B")]),
    }.items():
        beside = NodeDevices(spec=LedgerSpec({"whole": whole, uid: other}), status=hardware)
        assert handover.by_uuid(beside, {"sealed"}) == {}
    by_cdi = replace(seen, status=replace(seen.status, handover={"nvidia": "nvidia.com/gpu"}))
    by_number = replace(seen, status=replace(seen.status, handover={"nvidia": INDEX}))
    assert handover.by_uuid(by_cdi, ()) == handover.by_uuid(by_number, ()) == {}
