"""`deviceshare rebind` against the model API server, with a leader that answers, or none."""

import asyncio

import click
import pytest

from deviceshare.cli.cluster import OUTCOME_SECONDS
from deviceshare.cli.rebind import ask, new_token
from deviceshare.domain import contract
from deviceshare.loops.kinds import GROUPS
from deviceshare.loops.ports import NotFound
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.test_rebinder import a_bound_group, claim, numbers, report
from tests.unit.loops.virtual_time import in_virtual_time, now


@in_virtual_time
async def test_it_says_what_the_group_holds_and_who_sees_it_when() -> None:
    """The pods are named, since somebody has to restart them."""
    async with led_world() as world:
        await a_bound_group(world)
        await soon(lambda: world.read_group("team").status.allocated_pods)
        report(world, 1)
        said = await ask(world.cluster, "team")
        assert said.splitlines()[0] == f"Group team now holds {GPU} 0,2 on node n1, and no longer {GPU} 1."
        assert said.splitlines()[-1] == "  ns/a"
        assert numbers(claim(world).devices) == [0, 2]


@in_virtual_time
async def test_a_group_that_is_well_is_left_alone() -> None:
    """Nothing is written."""
    async with led_world() as world:
        await a_bound_group(world)
        said = await ask(world.cluster, "team")
        assert said == f"All devices of group team are healthy: it keeps {GPU} 0,1 on node n1."
        assert contract.REBIND not in world.read_group("team").metadata.annotations


@in_virtual_time
async def test_it_fails_with_the_reason_where_no_healthy_device_is_free() -> None:
    """And names both ways out."""
    async with led_world(2) as world:
        await a_bound_group(world)
        report(world, 1, devices=2)
        with pytest.raises(click.ClickException, match="to replace 1, but node n1 has 0 free") as caught:
            await ask(world.cluster, "team")
        assert caught.value.message.endswith("deviceshare recover n1 GPU-1")


@in_virtual_time
async def test_it_fails_where_only_the_leader_knows_why_not() -> None:
    """What a plugin allocated can't be seen in the ledger without an agent's word."""
    async with led_world() as world:
        await a_bound_group(world)
        world.fleet.set_plugin_pods("n1", {"uid-of-plain": frozenset([GPU])})
        report(world, 1)
        with pytest.raises(click.ClickException, match=f"Group team keeps {GPU} 1, .*kubectl describe sdg team"):
            await ask(world.cluster, "team")


@in_virtual_time
async def test_it_gives_up_when_nobody_answers() -> None:
    """It never hangs, and says where to look."""
    async with led_world() as world:
        await a_bound_group(world)
        report(world, 1)
    began = now()
    with pytest.raises(click.ClickException, match="has not answered within 30 s"):
        await ask(world.cluster, "team")
    assert now() - began < OUTCOME_SECONDS + 1


@in_virtual_time
async def test_a_group_deleted_meanwhile_is_not_waited_for() -> None:
    """Before the request, or with it: another of its name was asked for nothing."""
    async with led_world() as world:
        await a_bound_group(world)
        report(world, 1)
    world.cluster.fail = lambda verb, plural, _: NotFound("gone") if verb == "patch" else None
    began = now()
    with pytest.raises(click.ClickException, match="Group team was deleted meanwhile"):
        await ask(world.cluster, "team")
    assert now() - began < OUTCOME_SECONDS
    world.cluster.fail = lambda verb, plural, _: None
    asking = asyncio.create_task(ask(world.cluster, "team"))
    await soon(lambda: contract.REBIND in world.read_group("team").metadata.annotations)
    world.cluster.edit(GROUPS, "team", {"metadata": {"uid": "another"}})
    with pytest.raises(click.ClickException, match=r"Group team was deleted meanwhile.* explain group team"):
        await asking


@in_virtual_time
async def test_groups_that_hold_nothing_or_are_not_there_are_told_apart() -> None:
    """Each with the command that goes on from there."""
    world = World()
    world.group("idle")
    with pytest.raises(click.ClickException, match="deviceshare explain group idle"):
        await ask(world.cluster, "idle")
    with pytest.raises(click.ClickException, match="There is no group nobody"):
        await ask(world.cluster, "nobody")
    world.cluster.edit(GROUPS, "idle", {"status": {"nodeName": "n1"}})
    with pytest.raises(click.ClickException, match="deviceshare inspect n1"):
        await ask(world.cluster, "idle")


def test_two_requests_never_have_one_name() -> None:
    """The leader answers a name once."""
    assert len({new_token() for _ in range(100)}) == 100
