"""Each shared node has its ledger: created with the node, kept with what the node has, recreated when it was lost."""

import asyncio

import pytest

from deviceshare.domain import contract
from deviceshare.domain.objects.ledger import Summary, new_ledger
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, NODES, PODS
from deviceshare.loops.leader.ledgers import Ledgers
from deviceshare.loops.protocol.bind import BINDS_OVER_SECONDS
from tests.unit.domain.objects import GPU, free_on
from tests.unit.loops.live import World, a_bound_group, led_world, soon
from tests.unit.loops.virtual_time import in_virtual_time, now


@in_virtual_time
async def test_a_shared_node_gets_a_ledger_of_its_own() -> None:
    """Of no owner, with which it would be lost; with its devices and summaries."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        await soon(lambda: world.ledger("n1").spec.summary.total)
    ledger = world.ledger("n1")
    assert (ledger.metadata.owner_references, ledger.metadata.finalizers) == ([], [contract.CLAIMS_FINALIZER])
    assert ledger.spec.summary == Summary("nvidia.com/gpu=4", "nvidia.com/gpu=4")
    assert len(ledger.devices) == 4


@in_virtual_time
async def test_the_summaries_follow_the_claims() -> None:
    """In the same write."""
    async with led_world(8) as world:
        await soon(lambda: world.open("n1"))
        await soon(lambda: world.ledger("n1").spec.summary.total)
        before = len(world.cluster.writes("nodedevices"))
        for number in range(8):
            world.group(f"g{number}", 1)
            world.pod(f"p{number}", f"g{number}")
            await world.bind(f"p{number}", "n1")
            assert world.ledger("n1").spec.summary.free == f"nvidia.com/gpu={7 - number}"
        await asyncio.sleep(5)
        assert len(world.cluster.writes("nodedevices")) - before == 8
    assert world.ledger("n1").spec.summary.held.startswith("g0: nvidia.com/gpu=0; g1: nvidia.com/gpu=1")


@in_virtual_time
async def test_the_lines_of_an_older_version_are_cleared_once() -> None:
    """They say what was so before the upgrade, and nobody keeps them up to date any more."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        await soon(lambda: world.ledger("n1").spec.summary.total)
        lines = {"total": "nvidia.com/gpu=4", "free": "", "held": "a: nvidia.com/gpu=0"}
        world.cluster.edit(NODE_DEVICES, "n1", {"status": lines})
        before = len(world.cluster.writes("nodedevices"))
        await asyncio.sleep(60)
        status = world.ledger("n1").status
        assert (status.former_summary, len(status.devices)) == ({}, 4)
        assert len(world.cluster.writes("nodedevices")) - before == 1


@in_virtual_time
async def test_a_summary_that_nobody_wrote_with_the_claims_is_corrected() -> None:
    """A replica of an older version claims without it; several claims are summed up in one write."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        await soon(lambda: world.ledger("n1").spec.summary.total)
        before = len(world.cluster.writes("nodedevices"))
        for number in range(2):
            group = world.group(f"g{number}", 1)
            claim = {"group": group.name, "devices": [{"resource": GPU, "index": number}]}
            world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {group.uid: claim}}})
        await soon(lambda: world.ledger("n1").spec.summary.free == "nvidia.com/gpu=2", 4)
        assert len(world.cluster.writes("nodedevices")) - before == 1


@in_virtual_time
async def test_a_node_without_devices_gets_a_closed_ledger_and_an_event() -> None:
    """In which its agent may write what it sees, or until its device plugin says how many there are."""
    async with led_world(0) as world:
        await asyncio.sleep(5)
        assert world.ledger("n1").devices == ()
        assert world.recorder.reasons("n1") == ["DevicesUnknown"]
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {GPU: "2"}}})
        await soon(lambda: world.open("n1"))
    assert world.recorder.reasons("n1") == ["DevicesUnknown"]


@in_virtual_time
async def test_a_wrong_inventory_annotation_is_told_once() -> None:
    """The rest of it counts."""
    async with led_world(0, annotations={contract.INVENTORY_ANNOTATION: "nvidia.com/gpu=2,example.org/gpu=1"}) as world:
        await soon(lambda: world.open("n1"))
        for _ in range(5):
            world.cluster.edit(NODES, "n1", {"metadata": {"labels": {"beat": str(now())}}})
            await asyncio.sleep(1)
    assert len(world.ledger("n1").devices) == 2
    ((_, _, reason, message),) = world.recorder.events
    assert reason == "DevicesUnknown"
    assert "unknown resource 'example.org/gpu'" in message


@in_virtual_time
async def test_devices_that_do_not_exist_are_not_in_the_ledger() -> None:
    """Four GPUs, on each of which four pods take turns; without a word of how many take turns, none."""
    world = World()
    labels = {contract.MODE_LABEL: contract.MODE_SHARED, "nvidia.com/gpu.count": "4"}
    world.node("n1", 16, labels=labels)
    async with world.leading():
        await asyncio.sleep(5)
        await soon(lambda: "contradict 16 allocatable" in world.ledger("n1").spec.summary.reasons)
        assert world.ledger("n1").devices == ()
        ((_, _, reason, message),) = world.recorder.events
        assert (reason, "contradict 16 allocatable" in message) == ("DevicesUnknown", True)
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": {"nvidia.com/gpu.replicas": "4"}}})
        await soon(lambda: world.open("n1"))
        assert len(world.ledger("n1").devices) == 4
        await soon(lambda: not world.ledger("n1").spec.summary.reasons)


@in_virtual_time
async def test_the_ledger_follows_what_the_node_says_of_memory() -> None:
    """Written, changed and taken back, each once."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        for label, expected in (("16384", {GPU: 16384}), ("24576", {GPU: 24576}), ("much", {}), (None, {})):
            world.cluster.edit(NODES, "n1", {"metadata": {"labels": {f"{GPU}.memory": label}}})
            await soon(lambda expected=expected: world.ledger("n1").status.memory_mib == expected)  # type: ignore[misc]
        capacity = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
        owners = {contract.INVENTORY_ANNOTATION: f"{GPU}=2"}
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": owners}, "status": {"capacity": capacity}})
        await soon(lambda: world.ledger("n1").status.memory_mib == {GPU: 15360})
        world.cluster.edit(NODES, "n1", {"status": {"capacity": {"aliyun.com/gpu-mem": "32"}}})
        await soon(lambda: world.ledger("n1").status.memory_mib == {GPU: 16384})
        await asyncio.sleep(5)
        written = len(world.cluster.writes("nodedevices"))
        await asyncio.sleep(60)
        assert len(world.cluster.writes("nodedevices")) == written
        assert len(world.ledger("n1").devices) == 2


@in_virtual_time
async def test_the_ledger_says_which_devices_serve_shares_and_which_groups() -> None:
    """While that is unclear it offers none, and people are told once; who holds some keeps them."""
    async with led_world() as world:
        await a_bound_group(world)
        said = {contract.SHARE_DEVICES: f"{GPU}=3-3", contract.GROUP_DEVICES: f"{GPU}=0-1"}
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": said}})
        await soon(lambda: [device.index for device in world.ledger("n1").status.for_shares] == [3])
        assert [device.index for device in world.ledger("n1").status.for_groups] == [0, 1]
        assert world.recorder.reasons("n1") == []
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": {contract.SHARE_DEVICES: f"{GPU}=1-3"}}})
        await soon(lambda: world.ledger("n1").devices == ())
        status = world.ledger("n1").status
        assert (status.for_shares, status.for_groups, free_on(world.ledger("n1"))) == ([], [], ())
        await soon(lambda: "name each device in one of them" in world.ledger("n1").spec.summary.reasons)
        assert world.recorder.reasons("n1") == ["DevicesUnknown"]
        assert world.holders("n1") == {"team": "0,1"}
        assert world.condition("team", "Healthy") == ("True", "AsClaimed")
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": {contract.SHARE_DEVICES: None}}})
        await soon(lambda: len(world.ledger("n1").devices) == 4 and world.ledger("n1").spec.summary.reasons == "")
    assert world.recorder.reasons("n1") == ["DevicesUnknown"]


@in_virtual_time
async def test_another_systems_plugin_on_a_node_is_told() -> None:
    """The devices come when it is gone, without a word of ours."""
    resource = "aliyun.com/gpu-mem"
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {resource: "30"}}})
        await soon(lambda: world.ledger("n1").devices == ())
        [(_, _, reason, message)] = world.recorder.events
        assert reason == "DevicesUnknown" and "the device plugin of gpushare (aliyun.com/gpu-mem)" in message
        world.cluster.edit(NODES, "n1", {"status": {"allocatable": {resource: "0"}}})
        await soon(lambda: len(world.ledger("n1").devices) == 4)


@in_virtual_time
async def test_a_device_that_is_kept_out_stays_with_the_group_that_holds_it() -> None:
    """It is given to nobody else; another pod joins; and when the group is gone it stays out."""
    async with led_world() as world:
        await a_bound_group(world)
        listed = {contract.INVENTORY_ANNOTATION: f"{GPU}=1-3"}
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": listed}})
        await soon(lambda: world.ledger("n1").spec.summary.reasons == f"{GPU} 0: kept out by the node's annotation")
        await asyncio.sleep(5)
        assert world.holders("n1") == {"team": "0,1"}
        assert world.condition("team", "Healthy") == ("True", "AsClaimed")
        world.pod("b", "team")
        await world.bind("b", "n1")
        for name in "ab":
            world.cluster.remove(PODS, name, "ns")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: [device.index for device in free_on(world.ledger("n1"))] == [1, 2, 3])


@in_virtual_time
async def test_the_devices_of_a_pod_without_a_claim_are_claimed_though_kept_out() -> None:
    """It runs with them."""
    async with led_world(annotations={contract.INVENTORY_ANNOTATION: f"{GPU}=0-3"}) as world:
        await a_bound_group(world)
        world.cluster.edit(NODES, "n1", {"metadata": {"annotations": {contract.INVENTORY_ANNOTATION: f"{GPU}=1-3"}}})
        await soon(lambda: len(world.ledger("n1").devices) == 3)
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {world.read_group("team").uid: None}}})
        await soon(lambda: world.holders("n1") == {"team": "0,1"})


@in_virtual_time
async def test_a_node_no_longer_shared_loses_its_ledger_once_nobody_holds_anything() -> None:
    """Not before."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": {contract.MODE_LABEL: None}}})
        await asyncio.sleep(5)
        assert world.holders("n1") == {"team": "0,1"}
        world.cluster.remove(PODS, "a", "ns")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.cluster.all(NODE_DEVICES) == [])


@in_virtual_time
async def test_a_ledger_that_somebody_else_just_wrote_is_not_deleted() -> None:
    """The deletion carries the version that was looked at."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))

        def claim_first(verb: str, plural: str, name: str) -> None:
            if verb == "delete":
                device = {"resource": GPU, "index": 0}
                claims = {"uid-of-a-group-bound-just-now": {"group": "late", "devices": [device]}}
                world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": claims}})
                world.cluster.fail = lambda *_: None

        world.cluster.fail = claim_first
        world.cluster.edit(NODES, "n1", {"metadata": {"labels": None}})
        await soon(lambda: world.holders("n1") == {"late": "0"})


@in_virtual_time
async def test_a_deleted_ledger_serves_on_until_it_is_empty() -> None:
    """Pods join by it; then it goes, and a new one takes its place."""
    async with led_world() as world:
        await a_bound_group(world)
        before = world.ledger("n1").metadata.uid
        await world.cluster.delete(NODE_DEVICES, "n1")
        await asyncio.sleep(30)
        world.pod("b", "team")
        await world.bind("b", "n1")
        assert (world.ledger("n1").metadata.uid, world.holders("n1")) == (before, {"team": "0,1"})
        for name in "ab":
            world.cluster.remove(PODS, name, "ns")
        world.cluster.remove(GROUPS, "team")
        await soon(lambda: world.open("n1") and world.ledger("n1").metadata.uid != before, 5)
        assert world.holders("n1") == {}


@in_virtual_time
async def test_a_ledger_that_is_claimed_in_meanwhile_keeps_its_finalizer() -> None:
    """It goes with the version that showed it empty."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))

        def claim_first(verb: str, plural: str, name: str) -> None:
            if (verb, plural) == ("patch", NODE_DEVICES.plural):
                world.cluster.fail = lambda *_: None
                claims = {group.uid: {"group": "late", "devices": [{"resource": GPU, "index": 0}]}}
                world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": claims}})
                world.cluster.edit(GROUPS, "late", {"status": {"nodeName": "n1"}})

        group, uid = world.group("late", 1), world.ledger("n1").metadata.uid
        await asyncio.sleep(5)
        world.cluster.fail = claim_first
        await world.cluster.delete(NODE_DEVICES, "n1")
        await asyncio.sleep(30)
        assert (world.ledger("n1").metadata.uid, world.holders("n1")) == (uid, {"late": "0"})


@in_virtual_time
async def test_a_ledger_whose_finalizer_was_removed_by_force_comes_back_with_its_claims() -> None:
    """From the groups bound there and the pods' annotations, when binds are over that may have used it."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.remove(NODE_DEVICES, "n1")
        lost = now()
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        assert now() >= lost + BINDS_OVER_SECONDS
        await soon(lambda: world.holders("n1") == {"team": "0,1"})
        await soon(lambda: world.condition("team", "Healthy") == ("True", "AsClaimed"))
        assert "Repaired" in world.recorder.reasons("n1")


@in_virtual_time
async def test_a_ledger_that_was_restored_from_elsewhere_is_filled_first() -> None:
    """It bears all our marks, but that of another UID."""
    async with led_world() as world:
        await a_bound_group(world)
        await soon(lambda: bool(world.ledger("n1").spec.summary.held))
        backup = world.cluster.objects[NODE_DEVICES.plural]["n1"]["metadata"]
        meta = {"name": "n1", "finalizers": backup["finalizers"], "annotations": dict(backup["annotations"])}
        world.cluster.remove(NODE_DEVICES, "n1")
        await world.cluster.create(NODE_DEVICES, {"metadata": meta, "spec": {"claims": {}}})
        restored = now()
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        assert now() >= restored + BINDS_OVER_SECONDS
        assert world.holders("n1").keys() <= {"team"} != set()
        await soon(lambda: world.holders("n1") == {"team": "0,1"})


@in_virtual_time
async def test_a_ledger_of_an_older_release_is_converted_with_its_claims() -> None:
    """Its node owned it: it would be lost with that."""
    async with led_world() as world:
        await a_bound_group(world)
        owner = [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-of-n1"}]
        old = {"ownerReferences": owner, "finalizers": ["example.com/theirs"], "annotations": None}
        world.cluster.edit(NODE_DEVICES, "n1", {"metadata": old})
        await soon(lambda: world.ledger("n1").lasting)
    meta = world.ledger("n1").metadata
    assert (meta.owner_references, meta.finalizers) == ([], ["example.com/theirs", contract.CLAIMS_FINALIZER])
    assert world.holders("n1") == {"team": "0,1"}


@in_virtual_time
async def test_a_ledger_comes_back_although_its_group_is_gone_and_pods_live() -> None:
    """The group was deleted while the webhook was away. Who may just be telling its pods of others is waited out."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.remove(GROUPS, "team")
        await asyncio.sleep(1)
        world.cluster.remove(NODE_DEVICES, "n1")
        await soon(lambda: world.open("n1"), BINDS_OVER_SECONDS + 2)
        await asyncio.sleep(30)
        assert world.holders("n1") == {"team": "0,1*"}
        world.end("a")
        await soon(lambda: world.holders("n1") == {})


@in_virtual_time
async def test_binds_are_waited_out_since_this_very_ledger_was_seen() -> None:
    """It was lost before, and the mirror that says so is late: only the wait for that one is over."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"))
        world.pod("orphan", "gone")
        await asyncio.sleep(1)
        world.cluster.remove(NODE_DEVICES, "n1")
        await asyncio.sleep(BINDS_OVER_SECONDS - 1)
        mirror = world.cluster.mirrors[NODE_DEVICES.plural]
        mirror.deaf = True
        world.cluster.remove(NODE_DEVICES, "n1")
        await world.cluster.create(NODE_DEVICES, new_ledger("n1"))
        lost = now()
        await asyncio.sleep(0.5)
        mirror.deaf = False
        world.cluster.edit(NODE_DEVICES, "n1", {})
        await soon(lambda: world.open("n1"), 2 * BINDS_OVER_SECONDS)
        assert now() >= lost + BINDS_OVER_SECONDS


@in_virtual_time
async def test_a_new_ledger_is_open_at_once_where_nobody_waits() -> None:
    """Or lives there."""
    async with led_world() as world:
        await soon(lambda: world.open("n1"), 1)


@in_virtual_time
async def test_a_node_recreated_under_its_name_keeps_its_ledger() -> None:
    """As when a VM is stopped and started."""
    async with led_world() as world:
        await a_bound_group(world)
        uid = world.ledger("n1").metadata.uid
        world.cluster.remove(NODES, "n1")
        await asyncio.sleep(30)
        world.node("n1")
        await asyncio.sleep(5)
    assert (world.ledger("n1").metadata.uid, world.holders("n1")) == (uid, {"team": "0,1"})


@in_virtual_time
async def test_devices_held_without_a_claim_are_claimed_again() -> None:
    """Somebody deleted the claim by hand while its pod runs."""
    async with led_world() as world:
        await a_bound_group(world)
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": None}})
        await soon(lambda: world.holders("n1") == {"team": "0,1"})
        assert world.uncovered == []


@in_virtual_time
async def test_a_pod_with_devices_that_somebody_else_holds_is_reported_once() -> None:
    """In an event on the pod and a number; a person must decide."""
    async with led_world() as world:
        await a_bound_group(world)
        uid = world.read_group("team").uid
        theirs = {"group": "thief", "devices": [{"resource": GPU, "index": 0}]}
        thief = world.group("thief", 1)
        world.cluster.edit(GROUPS, "thief", {"status": {"nodeName": "n1"}})
        world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: None, thief.uid: theirs}}})
        await soon(lambda: world.uncovered == [1])
        await asyncio.sleep(30)
        assert world.uncovered == [1]
        assert world.recorder.reasons("a") == ["DevicesNotHeld"]
        assert world.holders("n1") == {"thief": "0"}
        world.pod("b", "team")
        annotations = world.cluster.objects["pods"]["ns/a"]["metadata"]["annotations"]
        mine = {**annotations, contract.POD_UID: world.read_pod("b").metadata.uid}
        world.cluster.edit(PODS, "b", {"spec": {"nodeName": "n1"}, "metadata": {"annotations": mine}}, "ns")
        await soon(lambda: world.uncovered == [1, 2])
        assert (world.recorder.reasons("a"), world.recorder.reasons("b")) == (["DevicesNotHeld"],) * 2
        world.cluster.remove(PODS, "a", "ns")
        world.cluster.remove(PODS, "b", "ns")
        await soon(lambda: world.uncovered[-1] == 0)


@in_virtual_time
async def test_a_leader_that_stops_reports_no_uncovered_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody corrects its number after that; also where its end fails."""

    async def fail(_: Ledgers) -> None:
        raise RuntimeError("no end")

    monkeypatch.setattr(Ledgers, "close", fail)
    world = World()
    world.node("n1")
    task = asyncio.create_task(world.controller.run(), name="controller")
    await a_bound_group(world)
    uid, thief = world.read_group("team").uid, world.group("thief", 1)
    world.cluster.edit(GROUPS, "thief", {"status": {"nodeName": "n1"}})
    theirs = {"group": "thief", "devices": [{"resource": GPU, "index": 0}]}
    world.cluster.edit(NODE_DEVICES, "n1", {"spec": {"claims": {uid: None, thief.uid: theirs}}})
    await soon(lambda: world.uncovered == [1])
    task.cancel()
    await asyncio.wait({task})
    assert isinstance(task.exception(), RuntimeError)
    assert world.uncovered == [1, 0]
