"""Rounds of questions to the nodes' agents about the use of their devices, for the page, only while someone looks.

An agent's `/use` is plain HTTP at its pod's own address, without credentials. The API server isn't asked to pass it on,
as `deviceshare top` has it: that takes the right to reach every pod of a namespace, and a replica has no other need of
it. What answers is believed only in what the page shows.

The agents keep the last hour themselves, so nothing has to be asked before someone looks, and nothing is written into
the API server: at 3,000 nodes, one write a minute each would be most of its writes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final, NamedTuple

import structlog
from msgspec import Raw, json

from deviceshare.domain import contract
from deviceshare.domain.answers.pod_view import DETAILED, UseView, view_of_use
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.objects.usage import NodeUse
from deviceshare.kube.http_client import HttpClient, TooLong
from deviceshare.loops.ports import ApiError, Cluster, Kind

log = structlog.get_logger(__name__)

SECONDS: Final = 15.0
"""From the beginning of a round to the next, at least."""
AT_ONCE: Final = 25
"""Agents asked at a time, and in a second: 3,000 take two minutes."""
PATIENCE: Final = 3.0
"""How long the first look waits for answers."""
MOST_AGENTS: Final = 10_000
ANSWER_SECONDS: Final = 2.0
MAX_ANSWER: Final = 256 << 10
"""Bytes; a device takes less than 400."""


AGENT_PODS: Final = Kind("v1", "Pod", "pods", NodePod, namespaced=True)


async def ask_agent(agent: NodePod) -> NodeUse | None:
    """What one agent answers; None where it gives no sensible answer in time."""
    try:
        ip = ip_address(agent.status.pod_ips[0].ip)  # nothing else than an address may be asked
        url = f"http://{f'[{ip}]' if ip.version == 6 else ip}:{contract.AGENT_PORT}"
        client = HttpClient(url, None, {"Accept-Encoding": "identity"})
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await client.call("GET", "/use", {}, most=MAX_ANSWER)
        client.close()
        return json.decode(answer.body, type=NodeUse) if answer.status == 200 else None
    except (OSError, ValueError, RecursionError, TooLong):  # TimeoutError is an OSError
        return None


class _Known(NamedTuple):
    at: float
    devices: int
    detailed: Raw
    brief: Raw


class UseRounds:
    """The owner runs `run()` as a task."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        *,
        ask: Callable[[NodePod], Awaitable[NodeUse | None]] = ask_agent,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._ask_agent = ask
        self._clock = clock
        self._pause = pause
        self._wanted = asyncio.Event()
        self._done = asyncio.Event()
        self._agents = 0
        self._known: dict[str, _Known] = {}
        """By node."""

    async def current(self) -> UseView:
        """What is known; it has the next round begin. The first look waits a moment for the first answers."""
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._done.wait()
        since = self._clock() - 3 * self._seconds
        fresh = [known for _, known in sorted(self._known.items()) if known.at > since]
        detailed = sum(known.devices for known in fresh) <= DETAILED
        return UseView(self._seconds, self._agents, [each.detailed if detailed else each.brief for each in fresh])

    @property
    def _seconds(self) -> float:
        return max(SECONDS, self._agents / AT_ONCE)

    async def run(self) -> None:
        """Asks round by round while someone looks, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            began = self._clock()
            try:
                await self._round()
            except Exception:
                # A failure here must not stop the process, which binds pods.
                log.exception("Failed to ask the agents for the page")
            self._done.set()
            await self._pause(max(began + self._seconds - self._clock(), 1.0))

    async def _round(self) -> None:
        try:
            label = f"app.kubernetes.io/name={contract.AGENT}"
            pods = await self._cluster.list(AGENT_PODS, namespace=self._namespace, label_selector=label)
        except ApiError as error:
            log.warning("Failed to list the agents for the page", error=str(error))
            return
        # A terminating agent may be listed beside its successor, which then counts.
        pods = sorted(pods, key=lambda pod: not pod.metadata.deletion_timestamp)
        running = [pod for pod in pods if pod.status.phase == "Running" and pod.status.pod_ips and pod.spec.node_name]
        agents = {pod.spec.node_name: pod for pod in running}
        nodes = sorted(agents)[:MOST_AGENTS]
        self._agents = len(nodes)
        self._known = {node: known for node, known in self._known.items() if node in agents}
        for at in range(0, len(nodes), AT_ONCE):
            if at:
                await self._pause(1.0)
            batch = [agents[node] for node in nodes[at : at + AT_ONCE]]
            async with asyncio.TaskGroup() as group:
                for agent in batch:
                    group.create_task(self._ask(agent), name=f"ask agent of {agent.spec.node_name}")

    async def _ask(self, agent: NodePod) -> None:
        node, report = agent.spec.node_name, await self._ask_agent(agent)
        if report is not None and report.node == node:
            detailed, brief = (Raw(json.encode(view_of_use(report, detailed=each))) for each in (True, False))
            self._known[node] = _Known(self._clock(), len(report.devices), detailed, brief)
