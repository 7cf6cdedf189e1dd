"""`deviceshare resize pod` against the model API server, with a leader that answers, or none."""

import asyncio

import click
import pytest

from deviceshare.cli.resize import ask
from deviceshare.domain import contract
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import NotFound
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import led_world, soon
from tests.unit.loops.test_resizes import a_node_with
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_it_says_what_the_pod_has_now() -> None:
    """Of a node that only counts, also less."""
    async with led_world() as world:
        await a_node_with(world, by="", p=60)
        for size, shown in (("80%", "80%"), ("30%", "30%")):
            said = await ask(world.cluster, "ns", "p", None, size)
            assert said == f"Pod ns/p now has {shown} of {GPU} 0 on node n1."


@in_virtual_time
async def test_it_fails_with_the_reason_and_the_way_back() -> None:
    async with led_world() as world:
        await a_node_with(world, p=60, q=40)
        with pytest.raises(
            click.ClickException, match=r"needs 3.* more of .*To withdraw the request: kubectl annotate"
        ):
            await ask(world.cluster, "ns", "p", None, "80%")


@in_virtual_time
async def test_it_tells_whose_turn_it_is_when_nobody_answers() -> None:
    """The agent's, which lowers the limit of a container that runs; or deviceshare's. It never hangs."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        wait = r"keeps its share until the node's agent has lowered .* with deviceshare explain pod ns/p"
        with pytest.raises(click.ClickException, match=wait):
            await ask(world.cluster, "ns", "p", None, "30%")
    with pytest.raises(click.ClickException, match=r"deviceshare has not answered within .* explain pod ns/p"):
        await ask(world.cluster, "ns", "p", None, "80%")


@in_virtual_time
async def test_a_pod_deleted_before_the_request_is_not_resized() -> None:
    """Its StatefulSet has recreated it by the next look, with what the command asked for or not."""
    async with led_world() as world:
        await a_node_with(world, by="", p=60)
        world.cluster.fail = lambda verb, plural, _: NotFound("gone") if (verb, plural) == ("patch", "pods") else None
        with pytest.raises(click.ClickException, match=r"Pod ns/p was deleted meanwhile.* explain pod ns/p"):
            await ask(world.cluster, "ns", "p", None, "60%")


@in_virtual_time
async def test_the_size_of_a_pods_successor_is_no_answer() -> None:
    """The request was deleted with the pod."""
    async with led_world() as world:
        await a_node_with(world, by="", p=60)
    asking = asyncio.create_task(ask(world.cluster, "ns", "p", None, "80%"))
    await soon(lambda: contract.RESIZE in world.read_pod("p").metadata.annotations)
    world.cluster.remove(PODS, "p", "ns")
    world.share("p", 80)
    with pytest.raises(click.ClickException, match="Pod ns/p was deleted meanwhile"):
        await asking
