"""Rounds of questions to agents: only while someone looks, never too many at once, believed for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from deviceshare.domain.answers.pod_view import DETAILED
from deviceshare.domain.device_health.containers import NodePod, NodePodSpec, NodePodStatus, PodAddress
from deviceshare.domain.objects.object_decoder import ObjectMeta
from deviceshare.domain.objects.usage import DeviceHour, NodeUse
from deviceshare.kube.use_rounds import AT_ONCE, SECONDS, UseRounds
from deviceshare.loops.ports import Kind, Unavailable


def agent(node: str, phase: str = "Running", ip: str = "10.0.0.1", deleted: str | None = None) -> NodePod:
    meta = ObjectMeta(name=f"agent-{node}", deletion_timestamp=deleted)
    return NodePod(meta, NodePodSpec(node), NodePodStatus(phase, pod_ips=[PodAddress(ip)] if ip else []))


class Agents:
    """The agents of a cluster, the API server that lists them, and the clock."""

    def __init__(self) -> None:
        self.pods: list[NodePod] = []
        self.asked: list[str] = []
        self.pauses: list[float] = []
        self.time = 1000.0
        self.fault: Exception | None = None
        self.at_once = self.most = 0
        self.answers: Callable[[NodePod], NodeUse | None] = lambda pod: NodeUse(pod.spec.node_name, "now")
        cluster: Any = self  # which lists the agents' pods, and no more
        self.rounds = UseRounds(cluster, "gpu", ask=self.ask, clock=lambda: self.time, pause=self.pause)
        self.go_on = asyncio.Semaphore(0)

    async def list(self, kind: Kind[NodePod], *, namespace: str, label_selector: str) -> list[NodePod]:
        assert (namespace, label_selector) == ("gpu", "app.kubernetes.io/name=deviceshare-agent")
        if self.fault:
            raise self.fault
        return self.pods

    async def ask(self, pod: NodePod) -> NodeUse | None:
        self.asked.append(pod.metadata.name)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return self.answers(pod)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds
        if seconds > 1.0:
            await self.go_on.acquire()

    async def look(self) -> tuple[str, ...]:
        return tuple(msgspec.json.decode(each)["node"] for each in (await self.rounds.current()).nodes)


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    agents = Agents()
    task = asyncio.create_task(agents.rounds.run())
    async with asyncio.timeout(20):
        yield agents
    assert not task.done(), "a failure would end the process, which binds pods"
    task.cancel()
    await asyncio.wait({task})


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_nobody_is_asked_while_nobody_looks(agents: Agents) -> None:
    """A look has one round begin, and no more."""
    agents.pods = [agent("n1"), agent("n2")]
    await settle()
    assert agents.asked == []
    assert await agents.look() == ("n1", "n2")
    agents.go_on.release()
    await settle()
    assert len(agents.asked) == 2
    assert agents.pauses == [SECONDS]


async def test_agents_are_asked_a_few_at_a_time(agents: Agents) -> None:
    """However many there are, and the more there are, the more seldom."""
    agents.pods = [agent(f"n{number:04}") for number in range(20 * AT_ONCE)]
    found = await agents.rounds.current()
    assert (len(found.nodes), found.agents, found.seconds) == (20 * AT_ONCE, 20 * AT_ONCE, 20.0)
    assert agents.most <= AT_ONCE
    assert agents.pauses[:19] == [1.0] * 19


async def test_in_a_large_cluster_only_nodes_have_an_hour(agents: Agents) -> None:
    """The tiles are too small for lines, and the answer would have megabytes."""
    devices = [DeviceHour("nvidia.com/gpu", 0, hour=[7])]
    agents.answers = lambda pod: NodeUse(pod.spec.node_name, "now", devices)
    agents.pods = [agent(f"n{number:04}") for number in range(DETAILED + 1)]
    large = (await agents.rounds.current()).nodes
    agents.pods.pop()
    agents.go_on.release()
    await agents.rounds.current()
    await settle()
    detailed = (await agents.rounds.current()).nodes
    assert (len(large), len(detailed)) == (DETAILED + 1, DETAILED)
    assert [msgspec.json.decode(each, type=NodeUse).hour for each in (large[0], detailed[0])] == [[7], [7]]
    assert [msgspec.json.decode(each, type=NodeUse).devices[0].hour for each in (large[0], detailed[0])] == [[], [7]]


async def test_an_agent_that_does_not_answer_is_left_out(agents: Agents) -> None:
    """Nor is one that isn't there yet asked, nor believed what it says of another node."""
    said = {"agent-good": "good", "agent-liar": "good"}
    agents.answers = lambda pod: NodeUse(said[pod.metadata.name]) if pod.metadata.name in said else None
    agents.pods = [agent("good"), agent("liar"), agent("silent"), agent("new", "Pending", ""), agent("done", "Failed")]
    assert await agents.look() == ("good",)
    assert sorted(agents.asked) == ["agent-good", "agent-liar", "agent-silent"]


async def test_the_successor_of_a_terminating_agent_counts(agents: Agents) -> None:
    """Both are listed for a while."""
    leaving, next_one = agent("n1", ip="10.0.0.1", deleted="then"), agent("n1", ip="10.0.0.2")
    seen: list[str] = []

    def answer(pod: NodePod) -> NodeUse:
        seen.append(pod.status.pod_ips[0].ip)
        return NodeUse("n1")

    agents.answers = answer
    agents.pods = [next_one, leaving]
    assert await agents.look() == ("n1",)
    assert seen == ["10.0.0.2"]


async def test_what_is_old_is_not_shown(agents: Agents) -> None:
    """As after a night in which nobody looked."""
    agents.pods = [agent("n1")]
    assert await agents.look() == ("n1",)
    agents.answers = lambda _: None
    agents.time += 12 * 3600
    assert await agents.look() == ()


@pytest.mark.parametrize("fault", [Unavailable("no answer"), RuntimeError("a fault of ours")])
async def test_a_round_that_fails_is_followed_by_the_next(agents: Agents, fault: Exception) -> None:
    """The page then shows no use; the process goes on."""
    agents.pods, agents.fault = [agent("n1")], fault
    assert await agents.look() == ()
    agents.fault = None
    agents.go_on.release()
    await agents.look()
    await settle()
    assert await agents.look() == ("n1",)
