"""The faults: each begins, lasts and ends; what they do to a stage, and in what they may be told from each other."""

import asyncio
import json
import os
import random
import signal
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from tests.faults import fault_proxy
from tests.faults.raw_api import GROUPS, LEASE, Answered
from tests.faults.stage import QUICK, Stage

NETWORK_SECONDS = (1.0, 3.5)
"""Shorter and longer than a leader may go without renewing its lease."""
PAST_LEASE_SECONDS = QUICK.duration + 2.5
PAST_BIND_SECONDS = 16.0
TAKEN_SECONDS = 40.0
"""For a story to reach a boundary; some wait out binds before."""


class Fault(NamedTuple):
    """`inject` returns when the fault is over, and says whether it met anything."""

    name: str
    inject: Callable[[Stage, random.Random], Awaitable[bool]]
    edits: bool = False
    """Whether it takes evidence away by hand, so that claims may be missing for a while."""
    weight: int = 4
    """How often it is chosen; those that take long are chosen less often."""


def network(kind: str) -> Fault:
    """What the proxy does for some seconds."""

    async def inject(stage: Stage, chance: random.Random) -> bool:
        stage.proxy.set(kind)
        try:
            await asyncio.sleep(chance.uniform(*NETWORK_SECONDS))
            return stage.proxy.hit > 0
        finally:
            stage.proxy.set("")

    return Fault(f"network: {kind}", inject)


def killed_at(point: str, boundary: str) -> Fault:
    """kill -9 of who comes first to this boundary of this write."""

    async def inject(stage: Stage, chance: random.Random) -> bool:
        stage.arm(point, boundary, signal.SIGKILL)
        return bool(await stage.taken(TAKEN_SECONDS))

    return Fault(f"kill -9 {boundary} {point}", inject)


def stopped_at(point: str, boundary: str) -> Fault:
    """Who comes there first stops until another leads, and then does what it was about to do."""

    async def inject(stage: Stage, chance: random.Random) -> bool:
        stage.arm(point, boundary, signal.SIGSTOP)
        pid = await stage.taken(TAKEN_SECONDS)
        if pid:
            await asyncio.sleep(PAST_LEASE_SECONDS)
            os.kill(pid, signal.SIGCONT)
        return bool(pid)

    return Fault(f"SIGSTOP past the lease {boundary} {point}", inject)


async def _kill_leader(stage: Stage, chance: random.Random) -> bool:
    (await stage.fleet.leader()).signal(signal.SIGKILL)
    return True


async def _kill_all(stage: Stage, chance: random.Random) -> bool:
    for replica in stage.fleet.replicas:
        if replica.alive:
            replica.signal(signal.SIGKILL)
    return True


def _stop(seconds: float) -> Callable[[Stage, random.Random], Awaitable[bool]]:
    async def inject(stage: Stage, chance: random.Random) -> bool:
        leader = await stage.fleet.leader()
        leader.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        leader.signal(signal.SIGCONT)
        return True

    return inject


def _kill_server(name: str) -> Callable[[Stage, random.Random], Awaitable[bool]]:
    async def inject(stage: Stage, chance: random.Random) -> bool:
        os.kill(stage.sandbox.pid(name), signal.SIGKILL)
        await asyncio.sleep(1)
        async with asyncio.timeout(90):
            while True:
                with suppress(Answered):
                    await stage.api.call("GET", LEASE)
                    return True
                await asyncio.sleep(0.2)

    return inject


async def _jump(stage: Stage, chance: random.Random) -> bool:
    stage.bend_clocks(chance.choice((-3600, 3600)))
    await asyncio.sleep(3)
    stage.bend_clocks(0)
    return True


async def _no_space(stage: Stage, chance: random.Random) -> bool:
    """As etcd does once its quota is spent: https://etcd.io/docs/v3.4/op-guide/maintenance/#space-quota."""
    await asyncio.to_thread(_alarm, stage, "ACTIVATE")
    try:
        await asyncio.sleep(chance.uniform(*NETWORK_SECONDS))
    finally:
        await asyncio.to_thread(_alarm, stage, "DEACTIVATE")
    return True


def _alarm(stage: Stage, action: str) -> None:
    state = stage.sandbox.layout.state()
    assert state is not None
    body = json.dumps({"action": action, "memberID": 0, "alarm": "NOSPACE"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{state.ports.etcd}/v3/maintenance/alarm", data=body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


async def _delete_ledgers(stage: Stage, chance: random.Random) -> bool:
    for name in list(stage.state.ledgers):
        await stage.lose_ledger(name)
    return bool(stage.state.ledgers)


async def _wipe_statuses(stage: Stage, chance: random.Random) -> bool:
    for name in list(stage.state.groups):
        await stage.api.insist("PATCH", f"{GROUPS}/{name}/status", {"status": None})
    return bool(stage.state.groups)


async def _delete_lease(stage: Stage, chance: random.Random) -> bool:
    await stage.api.insist("DELETE", LEASE)
    return True


async def _steal_lease(stage: Stage, chance: random.Random) -> bool:
    await stage.api.insist("PATCH", LEASE, {"spec": {"holderIdentity": "a stranger"}})
    return True


FAULTS: tuple[Fault, ...] = (
    *map(network, fault_proxy.FAULTS),
    Fault("kill -9 of the leader", _kill_leader),
    Fault("kill -9 of all replicas", _kill_all),
    Fault("SIGSTOP of the leader past its lease", _stop(PAST_LEASE_SECONDS)),
    Fault("SIGSTOP of the leader past a bind", _stop(PAST_BIND_SECONDS), weight=1),
    Fault("API server killed", _kill_server("kube-apiserver"), weight=1),
    Fault("etcd killed", _kill_server("etcd"), weight=1),
    Fault("wall clocks moved by an hour and back", _jump),
    Fault("etcd's disk full", _no_space),
    Fault("all ledgers deleted by hand", _delete_ledgers, edits=True, weight=2),
    Fault("all groups' statuses wiped by hand", _wipe_statuses, edits=True, weight=2),
    Fault("lease deleted by hand", _delete_lease),
    Fault("lease given to a stranger by hand", _steal_lease),
)
