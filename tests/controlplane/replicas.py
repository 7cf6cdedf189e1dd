"""Several deviceshares on one control plane, and what stands before them in a cluster: a Service each for the extender
and the webhooks, which passes connections on to the replicas that are ready.
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import NamedTuple

import aiohttp

from deviceshare.kube.api import Api
from deviceshare.loops.kinds import LEASES
from deviceshare.loops.leadership import LEASE_NAME
from deviceshare.loops.ports import ApiError
from deviceshare_sandbox import Sandbox
from deviceshare_sandbox.network import free_ports

LOOK_SECONDS = 0.2
"""Between two looks whether a replica is ready; a kubelet takes seconds, but then it also learns of deaths."""
READY_SECONDS = 180.0
_ANSWER_SECONDS = 4.0
"""A busy machine has a replica answer late, which must not count as dead: kubelets look three times."""
GRACE_SECONDS = 30.0
"""After a SIGTERM, until a kubelet kills."""
FORGET_SECONDS = 0.5
"""Until the Services lead nobody to a replica that is told to end, whatever its readiness says by then. kube-proxy may
take a second, but a busy machine also takes its time to begin a connection."""
_BUFFER = 65536


async def until(true: Callable[[], object], seconds: float, why: str) -> None:
    """Returns when it is true; fails with `why` after so many seconds."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{why} after {seconds:.0f} s"
        await asyncio.sleep(0.02)


class Times(NamedTuple):
    """The election's, in seconds."""

    duration: int = 15
    deadline: float = 10.0
    retry: float = 2.0


class Replica:
    """One `deviceshare run`, over all its lives, as a pod's container is."""

    def __init__(self, sandbox: Sandbox, name: str, times: Times, command: Sequence[str] = ()) -> None:
        """`command` is how deviceshare is run, if not as the sandbox would."""
        self.name = name
        self.extender, self.webhook, self.probe, self.ui = free_ports(4)
        self.ready = False
        """As the Services saw it last."""
        self._told_to_end: float | None = None
        self._log = sandbox.layout.logs / f"{name}.log"
        self._command = [*(command or sandbox.deviceshare_command), "--instance", name]
        for flag in ("extender", "webhook", "probe", "ui"):
            self._command += [f"--{flag}-bind", f"127.0.0.1:{getattr(self, flag)}"]
        self._command += ["--lease-duration", str(times.duration), "--renew-deadline", str(times.deadline)]
        self._command += ["--retry-period", str(times.retry)]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_begins = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def serves(self) -> bool:
        """Whether the Services lead to it."""
        told = self._told_to_end
        return self.ready if told is None else time.monotonic() < told + FORGET_SECONDS

    def start(self) -> None:
        """Begins a new life."""
        self._told_to_end = None
        with self._log.open("ab") as log:
            self._log_begins = log.tell()
            # It finds modules as this process does: the wheel's before the checkout's.
            modules = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=modules
            )

    def signal(self, number: signal.Signals) -> None:
        if number == signal.SIGTERM and self.ready:
            self._told_to_end = time.monotonic()
        os.kill(self.pid, number)

    async def ended(self) -> int:
        """The exit status, once there is one; fails where a kubelet would kill."""
        process = self._process
        assert process is not None
        await until(lambda: process.poll() is not None, GRACE_SECONDS, f"{self.name} runs on")
        return process.returncode

    async def restart(self) -> None:
        """Ends it with kill -9 and starts it again, as the kubelet would."""
        self.signal(signal.SIGKILL)
        await self.ended()
        self.start()

    def log(self) -> str:
        """What it said in its present life."""
        return self._log.read_bytes()[self._log_begins :].decode()


class Fleet:
    """The replicas of one Deployment, and their Services."""

    def __init__(self, sandbox: Sandbox, api: Api, times: Times, count: int, command: Sequence[str] = ()) -> None:
        self._api = api
        self.replicas = [Replica(sandbox, f"replica-{number + 1}", times, command) for number in range(count)]
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS))

    async def close(self) -> None:
        await self._session.close()

    def named(self, identity: str) -> Replica | None:
        """The replica that calls itself so in a Lease."""
        return next((each for each in self.replicas if each.name == identity.rpartition("_")[0]), None)

    def others(self, replica: Replica) -> list[Replica]:
        return [each for each in self.replicas if each is not replica]

    async def readiness(self, replica: Replica) -> str:
        """What `/readyz` says: "ok", else why not."""
        return await self._ask(replica, "readyz")

    async def is_ready(self, replica: Replica) -> bool:
        """Whether it says so now."""
        return await self.readiness(replica) == "ok"

    async def leads(self, replica: Replica) -> bool:
        """Whether it says so itself."""
        return "\ndeviceshare_leader 1.0" in await self._ask(replica, "metrics")

    async def _ask(self, replica: Replica, path: str) -> str:
        try:
            async with self._session.get(f"http://127.0.0.1:{replica.probe}/{path}") as answer:
                return await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"no answer: {error!r}"

    async def binding(self, replica: Replica) -> bool:
        """Whether it is answering a bind now."""
        return '\ndeviceshare_requests_inflight{verb="bind"} 1.0' in await self._ask(replica, "metrics")

    async def keep_looking(self) -> None:
        """Keeps the Services' endpoints, until cancelled. A replica that hangs holds up the look at no other."""
        async with asyncio.TaskGroup() as tasks:
            for replica in self.replicas:
                tasks.create_task(self._keep_looking_at(replica), name=f"look at {replica.name}")

    async def _keep_looking_at(self, replica: Replica) -> None:
        while True:
            replica.ready = await self.is_ready(replica)
            await asyncio.sleep(LOOK_SECONDS)

    async def await_ready(self, *replicas: Replica) -> None:
        """Until these, or all, are endpoints of the Services."""
        awaited = replicas or self.replicas
        deadline = time.monotonic() + READY_SECONDS
        while not all(each.ready for each in awaited):
            if time.monotonic() > deadline:
                raise AssertionError(f"some replica isn't ready after {READY_SECONDS:.0f} s:\n{await self._account()}")
            await asyncio.sleep(0.02)

    async def holder(self) -> str:
        """Whose lease it is, "" for nobody's."""
        return (await self._api.get(LEASES, LEASE_NAME, "deviceshare-system")).spec.holder_identity

    async def leader(self) -> Replica:
        """Who has the lease, waiting until somebody has."""
        found, _ = await self.takeover("", 60)
        return found

    async def takeover(self, before: str, seconds: float) -> tuple[Replica, float]:
        """The next leader after `before`, and how long it took from now on; fails after `seconds`."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            with suppress(ApiError):
                identity = await self.holder()
                found = self.named(identity)
                if found and identity != before and found.alive and await self.leads(found):
                    return found, time.monotonic() - began
            await asyncio.sleep(0.05)
        raise AssertionError(f"nobody followed {before or 'nobody'} within {seconds:.0f} s:\n{await self._account()}")

    async def _account(self) -> str:
        """Who has the lease, and of each replica whether it lives, what it answers and what it said last."""
        try:
            lines = [f"the lease is held by {await self.holder() or 'nobody'}"]
        except ApiError as error:
            lines = [f"the lease can't be read: {error}"]
        for each in self.replicas:
            lines.append(f"{each.name} {'lives' if each.alive else 'is dead'}; ready: {await self.readiness(each)}")
            lines.append(f"leads: {await self.leads(each)}; its log ends so:\n{each.log()[-3000:]}")
        return "\n".join(lines)


@asynccontextmanager
async def replicated(
    sandbox: Sandbox,
    api: Api,
    times: Times = Times(),  # noqa: B008 it is a tuple
    count: int = 3,
    command: Sequence[str] = (),
) -> AsyncIterator[Fleet]:
    """So many replicas, all ready when the block begins, behind the ports that scheduler and webhooks were told.

    `command` runs one in place of the sandbox's own command.
    """
    async with AsyncExitStack() as stack:
        fleet = Fleet(sandbox, api, times, count, command)
        stack.push_async_callback(fleet.close)
        looking = asyncio.create_task(fleet.keep_looking(), name="look")
        stack.push_async_callback(_stop, looking)
        for replica in fleet.replicas:
            replica.start()
            stack.push_async_callback(_end, replica)
        for url, port in ((sandbox.extender_url, "extender"), (sandbox.webhook_url, "webhook")):
            await stack.enter_async_context(_service(int(url.rpartition(":")[2]), fleet.replicas, port))
        await fleet.await_ready()
        await fleet.leader()
        yield fleet


async def _stop(task: "asyncio.Task[None]") -> None:
    """Raises what the task ended by, if it did: nobody is ready any more without its looks."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _end(replica: Replica) -> None:
    if replica.alive:
        replica.signal(signal.SIGCONT)
        replica.signal(signal.SIGTERM)
        try:
            await replica.ended()
        except AssertionError:
            replica.signal(signal.SIGKILL)
            await replica.ended()


@asynccontextmanager
async def _service(port: int, replicas: Sequence[Replica], target: str) -> AsyncIterator[None]:
    turn = itertools.count()

    def endpoint() -> int | None:
        ready = [each for each in replicas if each.serves]
        return getattr(ready[next(turn) % len(ready)], target) if ready else None

    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not server.is_serving():
            writer.close()  # it was accepted just before the end
            return
        task = asyncio.create_task(_pass_on(reader, writer, endpoint()))
        connections.add(task)
        task.add_done_callback(connections.discard)
        # A task that is cancelled before its first step closes nothing by itself.
        task.add_done_callback(lambda _: writer.close())

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int | None) -> None:
    """One connection to one replica, or none where there is nobody: as kube-proxy does it, and no cleverer."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close, writer)
        if port is None:
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        stack.push_async_callback(_close, back)
        directions = [asyncio.create_task(_copy(*pair)) for pair in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BUFFER):
            writer.write(data)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
