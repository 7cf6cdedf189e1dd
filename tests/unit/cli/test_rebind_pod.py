"""`deviceshare rebind pod` against the model API server, with a leader that answers, or none."""

import asyncio

import click
import pytest
from click.testing import CliRunner

from deviceshare.cli.rebind import ask, new_token, rebind
from deviceshare.domain import contract
from deviceshare.domain.answers.explanation import Case, explain_pod
from deviceshare.domain.objects.shares import token_fault
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import NotFound
from tests.unit.domain.objects import GPU
from tests.unit.loops.live import World, led_world, soon
from tests.unit.loops.test_share_rebinds import a_node_with, claim, places, report
from tests.unit.loops.virtual_time import in_virtual_time


@in_virtual_time
async def test_it_says_what_the_pod_has_now_and_when_containers_see_it() -> None:
    """And `explain` says it of the pod, before and after."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
        await soon(lambda: "unhealthy" in facts(world).get("health", ""))
        assert facts(world)["health"].endswith("deviceshare rebind pod ns/p, or repair it")
        said = await ask(world.cluster, "p", "ns")
        assert said.splitlines()[0] == (
            f"Pod ns/p now has 60% of {GPU} 1 on node n1, and no longer a share of {GPU} 0."
        )
        assert places(claim(world, "p").shares) == [(0, True), (1, False)]
        await soon(lambda: "before a rebind" in facts(world) and "health" not in facts(world))
        assert facts(world)["before a rebind"] == f"60% of {GPU} 0, reserved until the pod ends"
        assert facts(world)["container main"] == f"60% of {GPU} 1"


def facts(world: World) -> dict[str, str]:
    return explain_pod(Case(world.fleet, None, None, []), world.read_pod("p")).facts


@in_virtual_time
async def test_a_pod_that_is_well_is_left_alone() -> None:
    """Nothing is written."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        said = await ask(world.cluster, "p", "ns")
        assert said == f"All devices of which pod ns/p has a share are healthy: it keeps 60% of {GPU} 0 on node n1."
        assert contract.REBIND not in world.read_pod("p").metadata.annotations


@in_virtual_time
async def test_it_fails_with_the_reason_where_no_device_has_room() -> None:
    """And names the way out."""
    async with led_world() as world:
        await a_node_with(world, p=60, q=70, r=70, s=70)
        report(world, 0)
        with pytest.raises(click.ClickException, match=f"needs 60% of {GPU} in place of") as caught:
            await ask(world.cluster, "p", "ns")
        assert caught.value.message.endswith("kubectl delete pod -n ns p)")


@in_virtual_time
async def test_it_gives_up_when_nobody_answers_and_says_where_to_look() -> None:
    """It never hangs."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
    with pytest.raises(click.ClickException, match=r"has not answered within 30 s.*kubectl describe pod -n ns p"):
        await ask(world.cluster, "p", "ns")


@in_virtual_time
async def test_a_pod_deleted_meanwhile_is_not_waited_for() -> None:
    """Before the request, or with it: its successor was asked for nothing."""
    async with led_world() as world:
        await a_node_with(world, p=60)
        report(world, 0)
    world.cluster.fail = lambda verb, plural, _: NotFound("gone") if verb == "patch" else None
    with pytest.raises(click.ClickException, match=r"Pod ns/p was deleted meanwhile.* explain pod ns/p"):
        await ask(world.cluster, "p", "ns")
    world.cluster.fail = lambda verb, plural, _: None
    asking = asyncio.create_task(ask(world.cluster, "p", "ns"))
    await soon(lambda: contract.REBIND in world.read_pod("p").metadata.annotations)
    world.cluster.remove(PODS, "p", "ns")
    world.share("p", 60)
    with pytest.raises(click.ClickException, match="Pod ns/p was deleted meanwhile"):
        await asking


@in_virtual_time
async def test_pods_without_a_share_and_pods_that_are_not_there_are_told_apart() -> None:
    """Each with the command that goes on from there."""
    world = World()
    world.share("idle", 10)
    world.pod("member", "team")
    with pytest.raises(click.ClickException, match="deviceshare explain pod ns/idle"):
        await ask(world.cluster, "idle", "ns")
    with pytest.raises(click.ClickException, match="deviceshare rebind team"):
        await ask(world.cluster, "member", "ns")
    with pytest.raises(click.ClickException, match="There is no pod ns/nobody"):
        await ask(world.cluster, "nobody", "ns")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pod", "a", "b"], "Name a group, or a pod as pod NAMESPACE/NAME."),
        (["group", "a"], "Name a group, or a pod as pod NAMESPACE/NAME."),
        (["pod", "/a"], "Name the pod as NAME or NAMESPACE/NAME."),
        (["pod", "a/"], "Name the pod as NAME or NAMESPACE/NAME."),
        (["pod", "a/b", "-n", "c"], "a/b is not in the namespace c that --namespace names"),
    ],
)
def test_other_words_are_refused_with_the_right_ones(words: list[str], said: str) -> None:
    """Before anything is asked of a cluster."""
    done = CliRunner().invoke(rebind, words)
    assert (done.exit_code, said in done.output) == (2, True)


def test_what_the_commands_write_is_a_token() -> None:
    """Which the webhook admits."""
    assert token_fault(new_token()) == ""
