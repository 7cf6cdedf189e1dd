"""Evictions: asked for as long as they are meant, once a minute, and never of a pod that has stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from deviceshare.agent.violations import OVERUSE, TRESPASS, Evictions
from deviceshare.loops.ports import NotFound, Unavailable
from tests.unit.agent.node import Node, pod_subject
from tests.unit.loops.virtual_time import in_virtual_time, now

STRANGER = pod_subject("stranger")


@asynccontextmanager
async def evicting(node: Node) -> AsyncIterator[tuple[Evictions, list[str]]]:
    done: list[str] = []
    evictions = Evictions(replace(node.own, clock=now), done.append)
    task = asyncio.create_task(evictions.run())
    try:
        yield evictions, done
    finally:
        task.cancel()
        await asyncio.wait({task})


async def insist(evictions: Evictions, seconds: float) -> None:
    """As is done at each reading again."""
    end = now() + seconds
    while now() < end:
        evictions.want(STRANGER, TRESPASS)
        await asyncio.sleep(5)


@in_virtual_time
async def test_a_pod_is_given_its_time_to_go() -> None:
    """Before it is asked again."""
    node = Node()
    async with evicting(node) as (evictions, done):
        await insist(evictions, 55)
        assert node.evicted == ["ns/stranger"]
        await insist(evictions, 30)
        assert node.evicted == ["ns/stranger"] * 2
        assert done == [TRESPASS] * 2


@in_virtual_time
async def test_a_budget_that_forbids_is_asked_again_while_it_is_meant() -> None:
    """And a pod that has stopped meanwhile is spared."""
    node = Node()
    node.fail = lambda: Unavailable("the budget forbids")
    async with evicting(node) as (evictions, done):
        await insist(evictions, 60)
        await asyncio.sleep(30)
        node.fail = lambda: None
        await asyncio.sleep(60)
        assert node.evicted == done == []
        await insist(evictions, 30)
        assert node.evicted == ["ns/stranger"]


@in_virtual_time
async def test_a_pod_that_is_spared_is_not_evicted_when_the_budget_allows() -> None:
    """At once, unless it is to go for another cause, too."""
    node = Node()
    node.fail = lambda: Unavailable("the budget forbids")
    async with evicting(node) as (evictions, done):
        evictions.want(STRANGER, OVERUSE)
        await asyncio.sleep(3)
        evictions.spare(OVERUSE)
        node.fail = lambda: None
        await asyncio.sleep(60)
        assert node.evicted == done == []
        evictions.want(STRANGER, TRESPASS)
        evictions.spare(OVERUSE)
        await asyncio.sleep(60)
        assert done == [TRESPASS]


@in_virtual_time
async def test_a_pod_that_is_gone_is_no_failure() -> None:
    """Nor counted."""
    node = Node()
    node.fail = lambda: NotFound("gone")
    async with evicting(node) as (evictions, done):
        await insist(evictions, 20)
        assert done == []
