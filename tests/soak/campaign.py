"""One soak: a control plane, three replicas and an agent; churn to warm up, rest, churn, rest."""

import asyncio
import contextlib
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import DEVICE_QUOTAS, NAMESPACES
from deviceshare_sandbox import Options, Sandbox
from deviceshare_sandbox.nvml.library import build
from tests.controlplane.agents import NodeAgent
from tests.controlplane.bare_cluster import bare_cluster
from tests.controlplane.replicas import Fleet, Times, replicated
from tests.soak import samples
from tests.soak.lives import TEAM, Lives
from tests.soak.machines import DEVICES, Machines
from tests.soak.samples import Sample, Subject
from tests.soak.sight import GROUPED, MEMORY_MIB, SHARING, Sight, Stuck
from tests.soak.verdict import Rest, grown

NODES: Final = 8
WATCHED: Final = "node-1"
"""The node with a real agent."""
TIMES: Final = Times()
WARM_PODS: Final = 250
"""That come and go at least before the first rest: then bounded caches, as of 256 ledgers' states, are full."""
WARM_SECONDS: Final = 600.0
"""After which it rests in any case."""
REST_SECONDS: Final = 25.0
"""After the last object has gone: namespaces end, caches and retries forget."""
XID_SECONDS: Final = 60
APPLICATION_XID: Final = 31
"""A program's fault, which leaves the device healthy."""
HURRIED: Final = Path(__file__).with_name("hurried.py")
Say = Callable[[str, list[Sample]], None]


class Outcome(NamedTuple):
    """What a soak found."""

    before: Rest
    after: Rest
    series: list[Sample]
    tally: Counter[str]
    checks: int
    faults: list[str]
    seconds: float
    kubernetes: str


class Soak:
    """One soak in a sandbox that runs."""

    def __init__(self, sandbox: Sandbox, api: Api, fleet: Fleet, agent: NodeAgent, directory: Path) -> None:
        self._api = api
        self._directory = directory
        self._sight = Sight(api)
        self._machines = Machines(api, sandbox.plan.binaries.version, watched=WATCHED)
        self._agent = agent
        self._server_port = urlsplit(sandbox.server).port or 443
        self._replicas = [Subject(each.name, each.pid, each.probe) for each in fleet.replicas]
        self._subjects = [*self._replicas, Subject("agent", agent.pid, agent.port)]
        self._began = time.monotonic()
        self.tally: Counter[str] = Counter()
        self.series: list[Sample] = []
        self.stuck: list[str] = []

    async def run(self, warm_up: float, main: float, every: float, say: Say) -> tuple[Rest, Rest]:
        """Seconds each; the two rests. Raises AssertionError where a process has ended."""
        await self._prepare()
        async with self._beside():
            await self._churn(warm_up, every, lambda taken: say("warms up", taken), least=WARM_PODS)
            before = await self._rest()
            say("at rest", before.samples)

            def note(taken: list[Sample]) -> None:
                self.series += taken
                say("churns", taken)

            await self._churn(main, every, note)
            after = await self._rest()
            say("at rest", after.samples)
        return before, after

    def faults(self, before: Rest, after: Rest) -> list[str]:
        """Everything that was wrong, at any time."""
        return [*self._sight.violations, *self.stuck, *grown(before, after, self.series)]

    @property
    def checks(self) -> int:
        return self._sight.checks

    async def _prepare(self) -> None:
        for name in (GROUPED, SHARING):
            await self._api.create(NAMESPACES, {"metadata": {"name": name}})
        quota = {"groupSelector": {"matchLabels": TEAM}, "hard": {"nvidia.com/gpu": NODES * DEVICES}}
        await self._api.create(DEVICE_QUOTAS, {"metadata": {"name": "soak"}, "spec": quota})
        await self._machines.keep(NODES)

    @contextlib.asynccontextmanager
    async def _beside(self) -> AsyncIterator[None]:
        """Looks at the cluster and asks the agent, all the while; their failure ends the soak."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._sight.keep(), name="sight"), tasks.create_task(self._ask(), name="ask")]
            yield
            for task in beside:
                task.cancel()

    async def _ask(self) -> None:
        """As monitoring and people do; and an application on a GPU makes an error now and then."""
        gpus = self._agent.script.gpus(DEVICES, memory_mib=MEMORY_MIB, nvlink_pairs=True)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            number = 0
            while True:
                number += 1
                try:
                    async with session.get(f"http://127.0.0.1:{self._agent.port}/usage") as answer:
                        await answer.read()
                except (aiohttp.ClientError, TimeoutError):
                    self.tally["requests that were repeated"] += 1
                self._agent.script.use(gpus[number % DEVICES], used_mib=number % MEMORY_MIB, percent=number % 100)
                if number % XID_SECONDS == 0:
                    self._agent.script.xid(gpus[0], APPLICATION_XID)
                await asyncio.sleep(1)

    async def _churn(self, seconds: float, every: float, note: Callable[[list[Sample]], None], least: int = 0) -> None:
        """For so many seconds, and until at least so many pods have come and gone."""
        self.tally["rounds"] += 1
        lives = Lives(self._api, self._sight, self._machines, self.tally)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lives.run(), name="lives")
            began = time.monotonic()
            while (left := began + seconds - time.monotonic()) > 0 or (
                self.tally["pods"] < least and time.monotonic() < began + WARM_SECONDS
            ):
                await asyncio.sleep(min(every, left) if left > 0 else every)
                try:
                    note(await self._take())
                except OSError as error:  # at rest it must work
                    self.stuck.append(f"a sample couldn't be taken: {error}")
            lives.ending.set()
        if lives.stuck:
            self.stuck += lives.stuck
            try:
                await lives.sweep()
            except Stuck as error:
                self.stuck.append(f"while sweeping: {error}")

    async def _rest(self) -> Rest:
        try:
            await self._sight.until(lambda sight: sight.empty, "nothing is left of the churn")
        except Stuck as error:
            left = [*self._sight.groups, *self._sight.pods]
            self.stuck.append(f"{error}; left are {left} and {self._sight.ledgers}")
        await asyncio.sleep(REST_SECONDS)
        classes: Counter[str] = Counter()
        tasks: Counter[str] = Counter()
        for each in self._replicas:
            found = await samples.count(self._directory, each.pid)
            classes += found[0]
            tasks += found[1]
        return Rest(await self._take(), classes, tasks)

    async def _take(self) -> list[Sample]:
        hours = (time.monotonic() - self._began) / 3600
        return await samples.take(self._subjects, self._server_port, hours=hours, pods=self.tally["pods"])


def soak(directory: Path, warm_up: float, main: float, every: float, say: Say) -> Outcome:
    """A whole soak, with everything that it needs, in this directory."""
    options = Options(nodes=NODES, devices=DEVICES, memory_mib=MEMORY_MIB)
    began = time.monotonic()
    with bare_cluster(directory / "sandbox", options) as sandbox:

        async def story() -> Outcome:
            async with connect(str(sandbox.kubeconfig)) as connection:
                api = Api(connection, timeout=30)
                command = hurried(sandbox.deviceshare_command, directory)
                async with replicated(sandbox, api, TIMES, command=command) as fleet:
                    agent = _agent(sandbox, directory)
                    await asyncio.to_thread(agent.start)
                    try:
                        one = Soak(sandbox, api, fleet, agent, directory)
                        before, after = await one.run(warm_up, main, every, say)
                    finally:
                        await asyncio.to_thread(agent.stop)
                    faults = one.faults(before, after)
                    version = sandbox.plan.binaries.version
                    seconds = time.monotonic() - began
                    return Outcome(before, after, one.series, one.tally, one.checks, faults, seconds, version)

        return asyncio.run(story())


def hurried(command: list[str], directory: Path) -> list[str]:
    """The sandbox's command of deviceshare, in a hurry, and with certificates that it makes for itself."""
    at = command.index("run")
    flags, kept = command[at:], []
    while flags:
        taken, flags = (flags[:2], flags[2:]) if flags[0] in ("--tls-cert", "--tls-key") else ([], flags)
        kept += [] if taken else [flags.pop(0)]
    return [sys.executable, str(HURRIED), str(directory), *kept, "--ca-secret", "deviceshare-ca"]


def _agent(sandbox: Sandbox, directory: Path) -> NodeAgent:
    place, library = directory / "agent", directory / "nvml"
    for each in (place, library):
        each.mkdir()
    agent = NodeAgent(sandbox, WATCHED, build(library), place)
    agent.script.gpus(DEVICES, memory_mib=MEMORY_MIB, nvlink_pairs=True)
    return agent
