"""Device states in every combination that can occur, and the same answer from every surface that shows them."""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from deviceshare import web
from deviceshare.cli.inspect_view import view
from deviceshare.cli.output import show
from deviceshare.domain import contract
from deviceshare.domain.answers.census import count_devices
from deviceshare.domain.answers.explanation import verdicts
from deviceshare.domain.answers.group_status import desired_status
from deviceshare.domain.answers.ledger_status import summary
from deviceshare.domain.answers.picture import draw
from deviceshare.domain.answers.waiting import WaitingReasons
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Allocation, Hardware, Part
from deviceshare.domain.objects.ledger import Claim, LedgerSpec, LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.placement.device_states import ALLOCATED, DeviceState, Health, Use, device_states, held_by
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.inventory import KEPT_OUT, take
from deviceshare.domain.placement.replacement import judge
from deviceshare.loops.protocol.bind import Refused, joinable
from tests.unit.cli.test_inspect_view import NOW
from tests.unit.domain.objects import GPU, a_fleet, a_group, a_node, free_on

XID = "Xid 79: GPU has fallen off the bus"
SINCE = "2026-11-21T03:00:00Z"
POD, KEEPER = "shop/web", "system/keeper"
HELD, RELEASING, FORMER = "holds", "still uses", "may still use"
PLAIN, KEPT, LOOSE = "a plain pod's", "a placeholder's", "left to the plugin"


class Case(NamedTuple):
    """What is so of device 0 of a node. Device 1 is free, and device 2 is too, unless a rebind took it."""

    claim: str
    """What the group team does with it, or ""."""
    plugin: str
    """Whose it is to the device plugin; "" where no placeholders are used and no pod has it."""
    health: Health
    split: bool
    withheld: bool
    watched: bool
    """Whether the node has an agent."""

    @property
    def sick(self) -> bool:
        return self.health in (Health.UNHEALTHY, Health.LOST)

    @property
    def use(self) -> str:
        """Who has it is more than why nobody gets it."""
        by_claim = {HELD: "held", RELEASING: "releasing", FORMER: "former"}
        kept_back = (
            (self.plugin == PLAIN, "plugin"),
            (self.split, "split"),
            (self.withheld, "withheld"),
            (self.plugin == LOOSE, "left"),
            (self.sick, "unusable"),
        )
        return by_claim.get(self.claim) or next((word for so, word in kept_back if so), "free")

    @property
    def reasons(self) -> list[str]:
        """Every word that who asks why the device can't be had must find, but for the claim."""
        words = {
            POD: self.plugin == PLAIN,
            "split by MIG": self.split,
            KEPT_OUT: self.withheld,
            "left to the device plugin": self.plugin == LOOSE,
            f"unhealthy: {XID}": self.health is Health.UNHEALTHY,
            "lost: ": self.health is Health.LOST,
        }
        return [word for word, so in words.items() if so]


def possible(case: Case) -> bool:
    """Whether a node can be so. What is lost is not split nor the plugin's; without an agent only claims know of it."""
    if case.health is Health.LOST and (case.plugin or case.split or case.withheld):
        return False
    if case.watched:
        return case.health is not Health.UNKNOWN
    lost = case.health is Health.LOST and case.claim
    return bool((case.health is Health.UNKNOWN or lost) and not case.plugin and not case.split)


CASES = [
    case
    for case in map(
        Case._make, product(("", HELD, RELEASING, FORMER), ("", PLAIN, KEPT, LOOSE), Health, *((False, True),) * 3)
    )
    if possible(case)
]


def name_of(case: Case) -> str:
    facts = ("split" * case.split, "withheld" * case.withheld, "" if case.watched else "no agent")
    return ", ".join(filter(None, (case.claim, case.plugin, case.health, *facts)))


def a_home(case: Case) -> Node:
    """The node as its owner describes it."""
    node = a_node(devices={GPU: 3})
    listed = {contract.INVENTORY_ANNOTATION: f"{GPU}=1-2"} if case.withheld else {}
    if case.health is Health.LOST and not case.watched:
        listed, node = {contract.INVENTORY_ANNOTATION: f"{GPU}=1-2"}, a_node(devices={})
    return replace(node, metadata=replace(node.metadata, annotations=listed))


def a_report(case: Case) -> Hardware:
    """What the node's agent reports, if it has one."""
    if not case.watched:
        return Hardware()
    first = Part(GPU, 0, "GPU-0", mig=case.split, lost=case.health is Health.LOST)
    parts = [replace(first, unhealthy=XID, since=SINCE) if case.sick else first, Part(GPU, 1, "GPU-1")]
    parts.append(Part(GPU, 2, "GPU-2"))
    placeholders = case.plugin in (KEPT, LOOSE)
    kept = [0, 1, 2] if case.plugin == KEPT else [1, 2]
    allocations = [Allocation(KEEPER, "k", GPU, kept, placeholder=True)] if placeholders else []
    if case.plugin == PLAIN:
        allocations.append(Allocation(POD, "w", GPU, [0]))
    return Hardware(devices=parts, allocations=allocations, placeholders=placeholders)


def a_ledger(case: Case) -> NodeDevices:
    """The ledger as the leader and the binders write it on such a node."""
    hardware = a_report(case)
    device, spare = (Device(GPU, n, f"GPU-{n}" if case.watched else "") for n in (0, 2))
    claims = {
        HELD: Claim("team", [device]),
        RELEASING: Claim("team", [device], releasing=SINCE),
        FORMER: Claim("team", [spare], former=[device]),
    }
    offer = take(a_home(case), hardware)
    spec = LedgerSpec({"uid-of-team": claims[case.claim]} if case.claim else {})
    status = LedgerStatus(list(offer.devices), list(offer.withheld), hardware=hardware)
    return NodeDevices(ObjectMeta(name="n1", resource_version="7"), spec, status)


def state_of(case: Case) -> DeviceState:
    """The state of device 0."""
    (state,) = [each for each in device_states(a_ledger(case)) if each.device.index == 0]
    return state


every_case = pytest.mark.parametrize("case", CASES, ids=name_of)


def a_fleet_of(case: Case) -> Fleet:
    return a_fleet(a_home(case), ledgers=(a_ledger(case),))


def shown(case: Case, *, details: bool) -> list[str]:
    """The lines of `deviceshare inspect`."""
    with CliRunner().isolation() as (out, _, _):
        show(*view(draw(a_fleet_of(case), [], []), now=NOW, details=details, wide=False))
        return out.getvalue().decode().splitlines()


@every_case
def test_use_and_health_are_decided_independently(case: Case) -> None:
    """And each fact is kept, whichever of them comes first."""
    state = state_of(case)
    assert (state.use, state.health, state.group) == (case.use, case.health, "team" * bool(case.claim))
    assert (state.pod, state.placeholder) == (POD * (case.plugin == PLAIN), KEEPER * (case.plugin == KEPT))
    assert (state.split, state.left, bool(state.withheld)) == (case.split, case.plugin == LOOSE, case.withheld)
    assert (state.unhealthy, state.since) == ((XID, SINCE) if case.sick and case.watched else ("", ""))


@every_case
def test_a_device_is_free_where_nothing_at_all_is_in_the_way(case: Case) -> None:
    """For binds, for the filter and for every count of free devices alike."""
    free = not case.claim and not case.reasons
    spare = 1 if case.claim == FORMER else 2
    assert (0 in {device.index for device in free_on(a_ledger(case))}) == free
    assert free_on(a_ledger(case)) == a_fleet_of(case).free("n1")
    assert summary(a_ledger(case)).free == f"{GPU}={spare + free}"
    (node,) = draw(a_fleet_of(case), [], []).nodes
    assert node.counts[0].free == spare + free
    assert a_fleet_of(case).filter(a_group("other", count=spare + free).request, ["n1"]).fits
    assert not a_fleet_of(case).filter(a_group("other", count=spare + free + 1).request, ["n1"]).fits


@every_case
def test_metrics_and_page_say_the_same(case: Case) -> None:
    """The page shows what is in the JSON."""
    of_others = {"former": [(Use.HELD, Health.UNKNOWN if not case.watched else Health.HEALTHY)]}.get(case.use, [])
    others = Health.HEALTHY if case.watched else Health.UNKNOWN
    counted = {(use, health): number for (_, _, use, health), number in count_devices(a_fleet_of(case)).items()}
    expected: dict[tuple[Any, Any], int] = {}
    for key in [(case.use, case.health), *of_others, *[(Use.FREE, others)] * (2 - len(of_others))]:
        expected[key] = expected.get(key, 0) + 1
    assert counted == expected
    (node,) = msgspec.to_builtins(draw(a_fleet_of(case), [], []))["nodes"]
    (tile,) = [each for each in node["devices"] if each["index"] == 0]
    assert (tile["use"], tile.get("health", "unknown")) == (case.use, case.health)
    assert (tile.get("group", ""), tile.get("pod", "")) == ("team" * bool(case.claim), POD * (case.plugin == PLAIN))
    assert bool(tile.get("lost")) == (case.health is Health.LOST)
    there, used = case.health is not Health.LOST, case.use in ALLOCATED
    count = node["counts"][0]
    assert (count["total"], count["unhealthy"]) == (2 + there, int(case.sick))
    assert count["allocated"] == (there and used) + len(of_others)


@every_case
def test_inspect_shows_use_and_health(case: Case) -> None:
    """In a line of its own, and in few words."""
    (line,) = [each for each in shown(case, details=True) if f"{GPU} 0 " in each and case.use in each]
    health = {"healthy": "healthy", "unhealthy": f"unhealthy: {XID}", "lost": "lost", "unknown": "not watched"}
    assert health[case.health] in line
    assert ("team" in line) == bool(case.claim)
    (short, *_) = [each for each in shown(case, details=False) if each.startswith("n1 ")]
    assert (" 0!" in short) == case.sick
    assert ("team" in short) == bool(case.claim)


@every_case
def test_explain_and_a_waiting_group_name_every_reason(case: Case) -> None:
    """Who holds it, whose it is to the plugin, that it is split, withheld, left or broken: none hides another."""
    (node,) = verdicts(a_fleet_of(case), a_group("other", count=4).request)
    (device,) = [each for each in node.devices if each.index == 0]
    waits = str(WaitingReasons(a_fleet_of(case)).of(a_group("other", count=4).request))
    for word in case.reasons:
        assert word in device.reason
        assert word in waits
    assert bool(device.reason) == bool(case.reasons or case.claim) == bool(device.cure)
    assert ("team" in device.reason) == bool(case.claim)
    assert not case.claim or f"team {case.claim} 0" in waits
    assert not (case.claim and case.reasons) or f"team {case.claim} 0, of which 0 is " in waits


@every_case
def test_the_lines_of_the_ledger_say_who_holds_it_and_its_health(case: Case) -> None:
    """`kubectl get ndev`."""
    lines, there = summary(a_ledger(case)), case.health is not Health.LOST and not case.withheld
    ill = {Health.UNHEALTHY: " (1 unhealthy)", Health.LOST: " (1 lost)"}.get(case.health, "")
    assert lines.total == f"{GPU}={2 + there}{ill}"
    mark = f" ({case.health} 0)" if case.sick else ""
    held = {
        HELD: f"team: {GPU}=0{mark}",
        RELEASING: f"team (releasing): {GPU}=0{mark}",
        FORMER: f"team: {GPU}=2 (former 0)",
    }
    assert lines.held == held.get(case.claim, "")


@pytest.mark.parametrize("case", [case for case in CASES if case.claim == HELD], ids=name_of)
def test_a_groups_condition_its_next_pod_and_a_rebind_agree(case: Case) -> None:
    """It still holds the device; whether it is healthy is another condition."""
    fleet, group, home = a_fleet_of(case), a_group("team", 1, node="n1"), a_home(case)
    bound, healthy, _ = desired_status(group, fleet, home=home, pods=[], now="").conditions
    assert (bound.status, bound.message) == ("True", f"holds {GPU} 0 on node n1")
    assert (healthy.status == "False") == (case.sick or case.plugin in (PLAIN, LOOSE))
    assert not (case.sick and case.watched) or f"{GPU} 0 is {case.health} ({XID})" in healthy.message
    assert bool(fleet.joining_obstacle(group.request, "n1")) == case.sick
    broken = judge(a_ledger(case), a_group()).broken
    assert bool(broken) == (case.sick or case.plugin in (PLAIN, LOOSE) or case.withheld)


def test_the_page_has_words_for_every_use() -> None:
    """A new use of a device needs a sentence."""
    words = (Path(web.__file__).parent / "page" / "words.js").read_text()
    assert [use for use in Use if f"    {use}: " not in words] == []


def test_nothing_is_free_where_the_ledger_cannot_be_read() -> None:
    """What it hides may be a claim; nobody is said to have the devices."""
    ledger = a_ledger(Case("", "", Health.HEALTHY, split=False, withheld=False, watched=True))
    hidden = replace(ledger, metadata=replace(ledger.metadata, unreadable={"spec.claims": "Expected object"}))
    assert {(state.use, state.free) for state in device_states(hidden)} == {(Use.UNUSABLE, False)}


def test_a_device_of_two_names_is_held_under_both() -> None:
    """Two resources behind one variable are one set of devices."""
    devices = [Device("huawei.com/Ascend310P", 0), Device("huawei.com/Ascend910", 0)]
    spec = LedgerSpec({"u": Claim("team", [devices[1]])})
    ledger = NodeDevices(ObjectMeta(name="n1"), spec, LedgerStatus(devices))
    assert [(state.device, state.use) for state in device_states(ledger)] == [(each, Use.HELD) for each in devices]


def test_a_withheld_device_is_not_free_although_it_is_offered_too() -> None:
    """As in the moment after a reboot renumbered the cards, before the leader has looked."""
    ledger = a_ledger(Case("", "", Health.HEALTHY, split=False, withheld=True, watched=True))
    offered = replace(ledger, status=replace(ledger.status, devices=[Device(GPU, n) for n in range(3)]))
    assert [device.index for device in free_on(offered)] == [1, 2]


def test_a_device_in_two_claims_is_judged_for_either_holder() -> None:
    """As after an edit by hand: neither group takes pods, nor is called healthy."""
    hardware = Hardware(devices=[Part(GPU, 0, uuid="GPU-0", unhealthy=XID)])
    spec = LedgerSpec({"uid-of-a": Claim("a", [Device(GPU, 0)]), "uid-of-b": Claim("b", [Device(GPU, 0, "GPU-0")])})
    status = LedgerStatus([Device(GPU, 0)], hardware=hardware)
    ledger = NodeDevices(ObjectMeta(name="n1"), spec, status)
    for name in ("a", "b"):
        assert [state.device.index for state in held_by(device_states(ledger), f"uid-of-{name}")] == [0]
        with pytest.raises(Refused, match=rf"nvidia.com/gpu 0 \(GPU-0\) of group {name} is claimed by group [ab], too"):
            joinable(ledger, a_group(name).holder, "")
    assert summary(ledger).held == "a: nvidia.com/gpu=0 (unhealthy 0); b: nvidia.com/gpu=0 (unhealthy 0)"


def test_a_lost_device_is_not_found_by_the_number_that_another_has_now() -> None:
    """Also where the other is not offered yet: what is claimed or allocated by that number is the one that is there."""
    hardware = Hardware(
        devices=[Part(GPU, 0, uuid="GPU-old", lost=True), Part(GPU, 0, uuid="GPU-new", unhealthy=XID)],
        allocations=[Allocation(POD, "u", GPU, [0])],
    )
    spec = LedgerSpec({"uid-of-a": Claim("a", [Device(GPU, 0)])})
    ledger = NodeDevices(ObjectMeta(name="n1"), spec, LedgerStatus(hardware=hardware))
    [state] = held_by(device_states(ledger), "uid-of-a")
    assert (state.device.uuid, state.unhealthy, state.pod) == ("GPU-new", XID, POD)
    with pytest.raises(Refused, match="Xid 79"):
        joinable(ledger, a_group("a").holder, "")


def test_a_claim_of_former_devices_alone_names_no_number_as_held() -> None:
    """Of a resource of which a group only has what a rebind replaced."""
    spec = LedgerSpec({"uid-of-a": Claim("a", former=[Device(GPU, 0)])})
    ledger = NodeDevices(ObjectMeta(name="n1"), spec, LedgerStatus([Device(GPU, 0)]))
    assert summary(ledger).held == "a: nvidia.com/gpu (former 0)"
