"""Objects that can't be read are in use: nothing is released, recreated or overwritten because of them."""

import asyncio
from typing import Any

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS, Refused
from deviceshare.loops.replica.feed import Feed
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import MemoryMirror, World, a_bound_group, led_world, soon
from tests.unit.loops.model import decoded
from tests.unit.loops.virtual_time import in_virtual_time, now

NO_NODE: dict[str, Any] = {"spec": {"nodeName": 3}}
NO_ANNOTATIONS: dict[str, Any] = {"metadata": {"annotations": {contract.GROUP_UID: 3}}}
LONG = 60.0
"""Longer than whatever is waited out."""


@pytest.mark.parametrize("spoilt", [NO_NODE, NO_ANNOTATIONS])
@in_virtual_time
async def test_a_claim_is_kept_while_a_pod_that_cannot_be_read_may_use_it(spoilt: dict[str, Any]) -> None:
    """Its group is gone; where it lives or whose devices it has can't be read. When it goes, they are free."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(PODS, "a", spoilt, "ns")
        await asyncio.sleep(1)
        world.cluster.remove(GROUPS, "team")
        await asyncio.sleep(LONG)
        assert world.holders("n1") == {"team": "0,1*"}
        world.cluster.remove(PODS, "a", "ns")
        await soon(lambda: world.holders("n1") == {}, LONG)


@in_virtual_time
async def test_a_claim_is_given_back_when_a_pod_turns_out_not_to_use_it() -> None:
    """Somebody corrects the pod: it is on another node."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(PODS, "a", NO_NODE, "ns")
        await asyncio.sleep(1)
        world.cluster.remove(GROUPS, "team")
        await asyncio.sleep(LONG)
        assert world.holders("n1") == {"team": "0,1*"}
        world.cluster.edit(PODS, "a", {"spec": {"nodeName": "n2"}}, "ns")
        await soon(lambda: world.holders("n1") == {}, LONG)


@pytest.mark.parametrize(
    ("plural", "spoilt", "right"),
    [
        ("pods", NO_NODE, {"spec": {"nodeName": "n1"}}),
        ("groups", {"status": {"nodeName": ["n1"]}}, {"status": {"nodeName": "n1"}}),
        ("groups", {"status": {"selectedDevices": {GPU: 0}}}, {"status": {"selectedDevices": {GPU: "0,1"}}}),
    ],
)
@in_virtual_time
async def test_a_lost_ledger_is_not_filled_over_what_cannot_be_read(
    plural: str, spoilt: dict[str, Any], right: dict[str, Any]
) -> None:
    """It would look free, and be given to others. Once the object is corrected, the ledger is there with its claim."""
    async with led_world() as world:
        await a_bound_group(world)
        kind, name, namespace = (PODS, "a", "ns") if plural == "pods" else (GROUPS, "team", "")
        world.cluster.edit(kind, name, spoilt, namespace)
        await asyncio.sleep(1)
        world.cluster.remove(NODE_DEVICES, "n1")
        await asyncio.sleep(LONG)
        assert not world.open("n1")
        world.cluster.edit(kind, name, right, namespace)
        await soon(lambda: world.open("n1"), 2 * LONG)
        assert world.holders("n1") in ({"team": "0,1"}, {"team": "0,1*"})


@in_virtual_time
async def test_a_group_that_wants_nonsense_keeps_no_node_from_being_used() -> None:
    """It is bound nowhere, and that can be read: what else is wrong with it concerns nobody else."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.put(GROUPS, {"metadata": {"name": "odd"}, "spec": {"resources": {GPU: "2"}}})
        world.pod("b", "odd", refused=True)
        await asyncio.sleep(1)
        world.node("n2")
        await soon(lambda: world.open("n2"), LONG)
        await asyncio.sleep(LONG)
        assert "odd" not in world.cluster.writes("shareddevicegroups"), "nothing is concluded from half a group"
        assert "b" not in world.cluster.writes("pods"), "it fits nowhere, so nobody wakes its pod"


@in_virtual_time
async def test_a_claim_is_not_collected_while_its_group_cannot_be_read() -> None:
    """A loosened schema let somebody write a number where the node's name belongs: the group may live here."""
    async with led_world() as world:
        await a_bound_group(world)
        world.end("a")
        await asyncio.sleep(1)
        world.cluster.edit(GROUPS, "team", {"status": {"nodeName": 1}})
        await asyncio.sleep(LONG)
        assert world.holders("n1") == {"team": "0,1"}, "not even marked"


@in_virtual_time
async def test_nothing_is_written_into_a_ledger_that_cannot_be_read() -> None:
    """Who holds what stands in it; the group says what is wrong, and waits for somebody to correct it."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(NODE_DEVICES, "n1", {"status": {"published": 3}})
        await soon(lambda: world.condition("team", "Healthy") == ("Unknown", "Unreadable"), 10)
        said = "status.published: Expected `object`, got `int`"
        assert said in world.message("team", "Healthy")
        before = len(world.cluster.writes("nodedevices"))
        world.cluster.remove(GROUPS, "team")
        await asyncio.sleep(LONG)
        assert len(world.cluster.writes("nodedevices")) == before
        other = world.group("other", 1)
        await asyncio.sleep(1)
        reason = world.fleet.filter(other.request, ["n1"]).reasons["n1"]
        assert (reason.kind, reason.cure) == (ReasonKind.UNREADABLE, "kubectl edit ndev n1")
        assert said in reason.text
        assert world.fleet.free("n1") == ()


@in_virtual_time
async def test_a_node_that_cannot_be_read_gets_no_group_until_it_can() -> None:
    """And its ledger stays as it is; another node is placed on all the while."""
    world = World()
    world.node("n1")
    world.node("n2")
    async with world.leading():
        await soon(lambda: world.open("n1") and world.open("n2"))
        team = world.group("team")
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {GPU: [0]}}})
        await soon(lambda: world.fleet.filter(team.request, ["n1", "n2"]).fits == ["n2"])
        assert f"status.allocatable[{GPU}]" in world.fleet.filter(team.request, ["n1"]).reasons["n1"].text
        await asyncio.sleep(LONG)
        assert len(world.ledger("n1").devices) == 4
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {GPU: "2"}}})
        await soon(lambda: len(world.ledger("n1").devices) == 2, 10)
        assert world.fleet.filter(team.request, ["n1"]).fits == ["n1"]


@in_virtual_time
async def test_a_node_that_can_be_read_again_is_looked_at_again() -> None:
    """Its ledger was lost meanwhile, and nothing else of the node has changed."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.cluster.edit(NODES, "n1", {"spec": {"unschedulable": "no"}})
        await asyncio.sleep(1)
        world.cluster.remove(NODE_DEVICES, "n1")
        await asyncio.sleep(LONG)
        assert not world.open("n1")
        world.cluster.edit(NODES, "n1", {"spec": {"unschedulable": False}})
        await soon(lambda: world.open("n1"), LONG)


def other(name: str, node: Any, containers: Any, phase: str = "Running") -> Pod:
    """A pod outside of groups."""
    meta = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": f"{len(phase)}"}
    body = {"metadata": meta, "spec": {"nodeName": node, "containers": containers}, "status": {"phase": phase}}
    return decoded(body, PODS)


@in_virtual_time
async def test_a_plain_pod_that_cannot_be_read_closes_its_node_and_no_other() -> None:
    """What it asks the device plugin for is hidden; the reason names it. When it has ended, the node is open again."""
    world = World()
    fleet, others = Fleet(), MemoryMirror()
    mirrors = (world.cluster.mirrors[kind.plural] for kind in (NODES, NODE_DEVICES, PODS))
    nodes, ledgers, pods = mirrors
    Feed(fleet, nodes=nodes, ledgers=ledgers, pods=pods, others=others)
    world.node("n1")
    world.node("n2")
    async with world.leading():
        await soon(lambda: world.open("n1") and world.open("n2"))
        await asyncio.sleep(1)
        team = world.group("team")
        odd = other("odd", "n1", "none")
        assert odd.past_us, "so no mirror leaves it out"
        others.set("ns/odd", odd)
        answer = fleet.filter(team.request, ["n1", "n2"])
        assert answer.fits == ["n2"]
        text = answer.reasons["n1"].text
        assert text.startswith("pod ns/odd on the node can't be read (spec.containers: Expected `array`")
        assert fleet.opaque("n1") == {GPU}
        assert [each.name for each in fleet.unreadable()] == ["ns/odd"]
        others.set("ns/odd", other("odd", "n1", "none", phase="Succeeded"))
        assert fleet.filter(team.request, ["n1", "n2"]).fits == ["n1", "n2"]
        others.set("ns/lost", other("lost", 3, 4))
        assert fleet.filter(team.request, ["n1", "n2"]).fits == [], "it may be anywhere"
        others.set("ns/lost", None)
        assert fleet.filter(team.request, ["n1", "n2"]).fits == ["n1", "n2"]


def pruned(world: World, uid: str) -> None:
    """The claim as a CRD that knows neither shares nor groups leaves it."""
    gone = dict.fromkeys(("group", "devices", "pod", "shares", "token", "within", "former"))
    world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: gone}}})


@in_virtual_time
async def test_a_pruned_claim_closes_what_is_free_and_is_written_again_from_its_pod() -> None:
    """An older CRD was there for a moment. Who has a claim that can be read takes pods all the while."""
    async with led_world() as world:
        await a_bound_group(world)
        world.share("s", 30)
        await world.bind("s", "n1")
        [uid] = [uid for uid, claim in world.ledger("n1").claims.items() if claim.pod]
        before = world.ledger("n1").claims
        pruned(world, uid)
        await asyncio.sleep(1)
        assert world.ledger("n1").hidden_claims == {uid}
        team, other = world.read_group("team"), world.group("other", 1)
        await asyncio.sleep(0.5)
        assert world.fleet.filter(other.request, ["n1"]).reasons["n1"].kind is ReasonKind.UNREADABLE
        assert world.fleet.filter(team.request, ["n1"]).fits == ["n1"]
        world.pod("b", "team")
        await world.bind("b", "n1")
        world.pod("c", "other")
        world.share("t", 10)
        for stranger in ("c", "t"):
            with pytest.raises(Refused, match="can't be read"):
                await world.bind(stranger, "n1")
        assert world.ledger("n1").hidden_claims == {uid}
        await soon(lambda: world.ledger("n1").claims == before, LONG)
        await soon(lambda: world.fleet.filter(other.request, ["n1"]).fits == ["n1"])


@in_virtual_time
async def test_a_pruned_claim_of_a_group_is_written_again() -> None:
    """With the token that its status names, or nobody could join; and one without a pod from its status."""
    async with led_world() as world:
        await a_bound_group(world)
        [uid] = world.ledger("n1").claims
        [before] = world.ledger("n1").claims.values()
        pruned(world, uid)
        await soon(lambda: world.ledger("n1").claims == {uid: before}, LONG)
        world.pod("b", "team")
        await world.bind("b", "n1")
        world.end("a")
        world.end("b")
        await asyncio.sleep(1)
        pruned(world, uid)
        await soon(lambda: world.ledger("n1").claims == {uid: before}, LONG)


@in_virtual_time
async def test_a_pruned_claim_of_nobody_is_dropped_once_binds_have_ended() -> None:
    """Its pod is gone, or waits without a node; as if it had been marked when it was pruned."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.share("s", 30)
        await world.bind("s", "n1")
        world.share("t", 30)
        await world.bind("t", "n1")
        world.cluster.remove(PODS, "s", "ns")
        for uid in world.ledger("n1").claims:
            pruned(world, uid)
        begun = now()
        await asyncio.sleep(BINDS_OVER_SECONDS / 2)
        assert len(world.ledger("n1").hidden_claims) == 2
        await soon(lambda: not world.ledger("n1").hidden_claims, LONG)
        assert now() - begun >= BINDS_OVER_SECONDS
        [claim] = world.ledger("n1").claims.values()
        assert claim.pod == "ns/t"


def test_every_claim_that_can_not_be_read_is_known_by_its_holder() -> None:
    """However many there are; and one that is odd elsewhere, too, is closed as a whole."""
    claims: dict[str, Any] = {f"uid-{number}": {} for number in range(2000)}
    body: dict[str, Any] = {"metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {"claims": claims}}
    assert decoded(body, NODE_DEVICES).hidden_claims == claims.keys()
    odd = {**body, "status": {"devices": 3}}
    assert decoded(odd, NODE_DEVICES).hidden_claims == frozenset()


@in_virtual_time
async def test_a_share_is_not_claimed_beside_a_claim_that_can_not_be_read() -> None:
    """The replica that binds it doesn't know yet: its mirror shows room, and the ledger itself is asked."""
    world = World()
    world.node("n1")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.share("s", 60)
        await world.bind("s", "n1")
    seen = world.ledger("n1")
    [uid] = seen.claims
    pruned(world, uid)
    world.share("t", 60)
    binder = world.binder()
    pod = world.read_pod("t")
    binder.remember(pod)
    with pytest.raises(Refused, match="can't be read"):
        await binder.bind("ns", "t", pod.metadata.uid, "n1")
    await binder.close()
    assert world.ledger("n1").hidden_claims == {uid}
    assert not world.ledger("n1").claims


@in_virtual_time
async def test_a_pruned_claim_of_a_group_is_marked_when_it_is_written_again() -> None:
    """A release may be under way by a mark that was pruned with it: collect takes the mark away, or ends it."""
    async with led_world() as world:
        await a_bound_group(world)
        [uid] = world.ledger("n1").claims
        marks: list[str] = []

        def note(change: ObjectChange[Any]) -> None:
            marks.extend(claim.releasing for claim in change.new.claims.values()) if change.new else None

        pruned(world, uid)
        await asyncio.sleep(1)
        world.cluster.mirrors[NODE_DEVICES.plural].subscribe(note)
        await soon(lambda: uid in world.ledger("n1").claims and not world.ledger("n1").claims[uid].releasing, LONG)
        assert marks[0]


@in_virtual_time
async def test_a_pruned_claim_that_contradicts_another_stays_for_a_person() -> None:
    """Two live pods name one device; which of them is right can't be known, and neither's claim may go."""
    async with led_world() as world:
        await a_bound_group(world)
        world.group("other", 2)
        world.pod("b", "other")
        await world.bind("b", "n1")
        [uid] = [uid for uid, claim in world.ledger("n1").claims.items() if claim.group == "other"]
        world.cluster.edit(
            PODS, "b", {"metadata": {"annotations": {contract.SELECTED_DEVICES: f'{{"{GPU}": "0,1"}}'}}}, "ns"
        )
        await asyncio.sleep(0.1)
        pruned(world, uid)
        await asyncio.sleep(LONG)
        assert world.ledger("n1").hidden_claims == {uid}
        assert world.holders("n1") == {"team": "0,1"}
