"""An API server whose CRDs are of an older release drops fields silently: nothing loops, and somebody is told."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from deviceshare.domain.contract import PODS_FINALIZER
from deviceshare.domain.objects.group_life import GroupLife
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES
from deviceshare.loops.ports import Conflict, Kind
from tests.unit.loops.live import LiveCluster, World, a_bound_group, soon
from tests.unit.loops.virtual_time import in_virtual_time

T = TypeVar("T")


class OldSchema(LiveCluster):
    """The CRD of groups lacks some fields of the status, or that of ledgers the summary or the tokens of claims.

    Each write makes a new version, whatever is left of it.
    """

    def __init__(self, *dropped: str, tokens: bool = True, summaries: bool = True) -> None:
        super().__init__()
        self.dropped, self.tokens, self.summaries = set(dropped), tokens, summaries

    async def patch(self, kind: Kind[T], name: str, body: Mapping[str, Any], **more: Any) -> T:
        status = body.get("status") or {}
        if kind is GROUPS and status:
            body = {**body, "status": {key: value for key, value in status.items() if key not in self.dropped}}
        if kind is NODE_DEVICES and not self.summaries and "spec" in body:
            body = {**body, "spec": {key: value for key, value in body["spec"].items() if key != "summary"}}
        claims = (body.get("spec") or {}).get("claims") or {}
        if kind is NODE_DEVICES and not self.tokens:
            left = {uid: claim and {k: v for k, v in claim.items() if k != "token"} for uid, claim in claims.items()}
            body = {**body, "spec": {**body["spec"], "claims": left}} if claims else body
        return await super().patch(kind, name, body, **more)


@in_virtual_time
async def test_dropped_fields_are_not_written_again_and_again() -> None:
    """Once a minute, until the CRD is applied. What the server keeps is written as ever."""
    world = World(OldSchema("reason", "wants", "devices", "idleSince"))
    world.node("n1")
    with capture_logs() as logs:
        async with world.leading():
            await a_bound_group(world)
            await asyncio.sleep(10)
            before = len(world.cluster.writes(GROUPS.plural))
            await asyncio.sleep(300)
            assert len(world.cluster.writes(GROUPS.plural)) - before <= 10
            world.end("a")
            await soon(lambda: not world.read_group("team").status.allocated_pods)
            assert isinstance(world.cluster, OldSchema)
            world.cluster.dropped.clear()
            await soon(lambda: world.read_group("team").status.idle_since, 120)
    told = [entry for entry in logs if entry["event"] == "API server drops fields that the CRD lacks"]
    assert {"devices", "idleSince", "wants"} <= {field for entry in told for field in entry["fields"]}
    assert len(told) <= 10


@in_virtual_time
async def test_a_dropped_token_lets_nobody_join_and_says_what_is_wrong() -> None:
    """Which claim is the group's isn't known; its status is written all the same."""
    world = World(OldSchema("claimToken"))
    world.node("n1")
    async with world.leading():
        await soon(lambda: world.open("n1"))
        world.group("team")
        world.pod("a", "team")
        with pytest.raises(Conflict, match="an older release: deviceshare doctor"):
            await world.bind("a", "n1")
        await soon(lambda: world.condition("team", "Bound") == ("True", "Claimed"))
        before = len(world.cluster.writes(GROUPS.plural))
        await asyncio.sleep(300)
        assert len(world.cluster.writes(GROUPS.plural)) - before <= 10
        assert isinstance(world.cluster, OldSchema)
        world.cluster.dropped.clear()
        await soon(lambda: world.read_group("team").status.claim_token, 120)
        await world.bind("a", "n1")
        [claim] = world.ledger("n1").claims.values()
        assert claim.token == world.read_group("team").status.claim_token
        assert world.cluster.writes(NODE_DEVICES.plural)


@in_virtual_time
async def test_without_tokens_in_ledgers_no_group_leaves_its_node_but_a_deleted_one() -> None:
    """A pod could join by what a bind left on the old node. Once the CRD is applied, the group is released."""
    world = World(OldSchema(tokens=False), life=GroupLife("10s"))
    world.node("n1")
    with capture_logs() as logs:
        async with world.leading():
            await a_bound_group(world)
            world.end("a")
            await soon(lambda: world.read_group("team").status.idle_since)
            world.cluster.edit(GROUPS, "team", {"status": {"idleSince": "2020-01-01T00:00:00Z"}})
            await asyncio.sleep(120)
            assert world.holders("n1") == {"team": "0,1"}
            assert "Kept group, since the CRD of NodeDevices lacks tokens" in {entry["event"] for entry in logs}
            assert isinstance(world.cluster, OldSchema)
            world.cluster.tokens = True
            await soon(lambda: world.holders("n1") == {}, 200)
            assert not world.read_group("team").node


@in_virtual_time
async def test_a_deleted_group_ends_without_tokens() -> None:
    """Nobody binds it again."""
    world = World(OldSchema(tokens=False))
    world.node("n1")
    async with world.leading():
        await a_bound_group(world)
        meta = {"finalizers": [PODS_FINALIZER], "deletionTimestamp": "2026-11-22T00:00:00Z"}
        world.cluster.edit(GROUPS, "team", {"metadata": meta})
        world.end("a")
        await soon(lambda: world.holders("n1") == {})


@in_virtual_time
async def test_a_summary_that_is_dropped_is_not_written_again_and_again() -> None:
    """Each try makes a bind that is claiming there read the ledger. Once the CRD is applied the summary comes."""
    world = World(OldSchema(summaries=False))
    world.node("n1")
    with capture_logs() as logs:
        async with world.leading():
            await a_bound_group(world)
            before = len(world.cluster.writes(NODE_DEVICES.plural))
            await asyncio.sleep(300)
            assert len(world.cluster.writes(NODE_DEVICES.plural)) - before <= 6
            assert isinstance(world.cluster, OldSchema)
            world.cluster.summaries = True
            await soon(lambda: world.ledger("n1").spec.summary.held == "team: nvidia.com/gpu=0,1", 120)
    told = [entry for entry in logs if entry.get("fields") == ["summary"]]
    assert 0 < len(told) <= 7
