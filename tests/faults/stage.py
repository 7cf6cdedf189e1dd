"""One control plane with two replicas behind a proxy of faults, and what people and a kubelet do meanwhile."""

import asyncio
import copy
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import yaml

from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare_sandbox import Options, Sandbox
from deviceshare_sandbox.simulated_nodes import node as node_document
from tests.controlplane.replicas import Fleet, Times, replicated, until
from tests.faults.checker import State, claims_of, never
from tests.faults.fault_proxy import FaultProxy, proxying
from tests.faults.history import StoreHistory, recorded
from tests.faults.raw_api import LEDGERS, NODES, PODS, Answered, Json, RawApi, admin

QUICK = Times(3, 2, 0.5)
"""The election's times; the rules are the same with longer ones."""
STEP_SECONDS = 150.0
"""For one step of a story, whatever happens meanwhile. How long it took is reported."""
_LOOK_SECONDS = 0.25
_DELETIONS = "validate-ledger-deletions.deviceshare.io"
_LAUNCHER = Path(__file__).with_name("faulty_deviceshare.py")
Goal = Callable[[State], list[str]]
"""What is still missing of a state."""


class Stage:
    """What stories play on and faults are put to."""

    def __init__(self, sandbox: Sandbox, api: RawApi, proxy: FaultProxy, fleet: Fleet, history: StoreHistory) -> None:
        self.sandbox, self.api, self.proxy, self.fleet, self.history = sandbox, api, proxy, fleet, history
        self.directory = files_of(sandbox)
        self.state = State({}, {}, {})
        """As seen a moment ago."""
        self.wanted: dict[str, Json] = {}
        """The pods that shall exist."""
        self.slipped = 0
        """Pods that the mutating webhook never saw, and that were recreated, as their events say."""
        self.restarts = 0
        self.paused = False
        """Whether dead replicas stay dead."""

    async def node(self, name: str, devices: int) -> None:
        """Creates a shared node, known to deviceshare when this returns, unless it is there."""
        if await self.api.get(f"{NODES}/{name}"):
            return
        document = node_document(name, Options(devices=devices), self.sandbox.plan.binaries.version)
        document["metadata"]["labels"]["pool"] = name.rpartition("-")[0]
        await self.api.insist("POST", NODES, {"apiVersion": "v1", "kind": "Node", **document})
        await self.api.insist("PATCH", f"{NODES}/{name}", {"spec": {"taints": None}})

    async def create_pod(self, body: Json) -> None:
        """And keeps it created, until `delete_pod`."""
        name = body["metadata"]["name"]
        await self.api.insist("POST", PODS, copy.deepcopy(body))
        self.wanted[name] = body

    async def delete_pod(self, name: str) -> None:
        """As a user does."""
        self.wanted.pop(name, None)
        await self.api.insist("DELETE", f"{PODS}/{name}")

    async def lose_ledger(self, node: str) -> None:
        """By force, past the finalizer that keeps it."""
        await self.api.insist("DELETE", f"{LEDGERS}/{node}")
        await self.api.insist("PATCH", f"{LEDGERS}/{node}", {"metadata": {"finalizers": None}})

    async def reach(self, goal: Goal) -> None:
        """Returns when nothing is missing; fails with what is."""
        deadline = time.monotonic() + STEP_SECONDS
        while missing := goal(self.state):
            assert time.monotonic() < deadline, f"after {STEP_SECONDS:.0f} s: {missing}"
            await asyncio.sleep(_LOOK_SECONDS / 2)

    async def look(self) -> None:
        """Keeps `state`, and does what people do about pods that slipped past the webhook, until cancelled."""
        while True:
            with suppress(Answered):  # the API server is away
                self.state = await self.history.now()
                assert never(self.state) == []
                await self._recreate()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _recreate(self) -> None:
        for name, body in list(self.wanted.items()):
            found = self.state.pods.get(f"default/{name}")
            if found is None:
                await self.api.call("POST", PODS, copy.deepcopy(body))
            elif "deviceshare.io/group" not in (found["metadata"].get("labels") or {}):
                assert not found["spec"].get("nodeName"), f"{name} runs, though the webhook never saw it"
                await self.api.call("DELETE", f"{PODS}/{name}", {"preconditions": {"uid": found["metadata"]["uid"]}})
                self.slipped += 1

    async def keep_alive(self) -> None:
        """Restarts replicas that died, as a kubelet does, until cancelled."""
        while True:
            for replica in self.fleet.replicas:
                if not replica.alive and not self.paused:
                    replica.start()
                    self.restarts += 1
            await asyncio.sleep(0.2)

    def arm(self, point: str, boundary: str, signal: int) -> None:
        """Has the first replica that comes to this boundary of this write send itself the signal."""
        (self.directory / "taken").unlink(missing_ok=True)
        draft = self.directory / "fault.new"
        draft.write_text(json.dumps({"point": point, "boundary": boundary, "signal": signal}))
        draft.rename(self.directory / "fault")

    async def taken(self, seconds: float) -> int:
        """Who sent itself the signal; 0 when nobody came there in time."""
        file = self.directory / "taken"
        with suppress(AssertionError):
            await until(file.exists, seconds, "not taken")
        (self.directory / "fault").unlink(missing_ok=True)
        return int(file.read_text()) if file.exists() else 0

    def visits(self) -> dict[str, int]:
        """How often each boundary was passed so far."""
        counts: dict[str, int] = {}
        for line in (self.directory / "visits").read_text().splitlines():
            counts[line] = counts.get(line, 0) + 1
        return counts

    def bend_clocks(self, seconds: float) -> None:
        """Has the replicas' wall clocks be wrong by so much."""
        (self.directory / "clock").write_text(str(seconds))


def files_of(sandbox: Sandbox) -> Path:
    """The directory by which tests and faulty replicas speak."""
    return sandbox.layout.data / "faults"


def faulty_command(sandbox: Sandbox, server: str) -> list[str]:
    """How a replica is started whose writes are watched, and whose API server is at this address."""
    files = files_of(sandbox)
    files.mkdir(exist_ok=True)
    config = yaml.safe_load(sandbox.kubeconfig_of("deviceshare").read_text())
    config["clusters"][0]["cluster"]["server"] = server
    (files / "kubeconfig.yaml").write_text(yaml.safe_dump(config))
    flags = list(sandbox.deviceshare_command[3:])
    for flag in ("--tls-cert", "--tls-key"):
        at = flags.index(flag)
        del flags[at : at + 2]
    flags += ["--ca-secret", "deviceshare-ca", "--kubeconfig", str(files / "kubeconfig.yaml")]
    return [sys.executable, str(_LAUNCHER), str(files), *flags]


async def forget_authority(api: RawApi) -> None:
    """Has the webhooks' configurations trust nobody, as when they were just installed.

    And nobody refuses to delete ledgers with claims: who loses one by force has taken that away before.
    """
    for kind in ("mutating", "validating"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/deviceshare"
        found = await api.call("GET", path)
        found["webhooks"] = [each for each in found["webhooks"] if each["name"] != _DELETIONS]
        for webhook in found["webhooks"]:
            webhook["clientConfig"].pop("caBundle", None)
        await api.call("PUT", path, found)


@asynccontextmanager
async def staged(sandbox: Sandbox, seed: int) -> AsyncIterator[Stage]:
    """All of it, for the length of the block."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(admin(sandbox.kubeconfig))
        proxy = await stack.enter_async_context(proxying(sandbox.server, sandbox.layout.pki, seed))
        theirs = Api(await stack.enter_async_context(connect(str(sandbox.kubeconfig))))
        command = faulty_command(sandbox, proxy.url)
        await forget_authority(api)
        fleet = await stack.enter_async_context(replicated(sandbox, theirs, QUICK, 2, command))
        history = await stack.enter_async_context(recorded(api))
        stage = Stage(sandbox, api, proxy, fleet, history)
        async with asyncio.TaskGroup() as tasks:
            keeping = [tasks.create_task(each, name="stage") for each in (stage.look(), stage.keep_alive())]
            yield stage
            for task in keeping:
                task.cancel()


async def ledger_of(stage: Stage, node: str) -> Json:
    """With the claims that are there: somebody may just have deleted it, and it is recreated."""
    async with asyncio.timeout(STEP_SECONDS):
        while not claims_of(found := await stage.api.get(f"{LEDGERS}/{node}") or {}):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
    return found
