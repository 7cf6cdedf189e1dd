"""Many pods with shares on many nodes, with deletions, while deviceshare is killed."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import PODS
from deviceshare.loops.ports import NotFound
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.kills import create_anyway, kill_meanwhile
from tests.controlplane.pool import SCHEDULER
from tests.controlplane.share_invariants import SharesSeen, leaked, look, overfull, uncovered
from tests.faults.conftest import LONG

PODS_IN_ALL = int(os.environ.get("SHARE_PODS", "240" if LONG else "80"))
"""With SHARE_PODS=1000, on fifty nodes, it takes five minutes."""
NODES, DEVICES, SIZE = PODS_IN_ALL // 20, 2, 16384
DELETED, KILLS = PODS_IN_ALL // 4, 5 if LONG else 2
SETTLE_SECONDS = 180
NAMESPACE = "default"
LIMITS: tuple[dict[str, int], ...] = (
    {"deviceshare.io/gpu-mem": 1},
    {"deviceshare.io/gpu-mem": 3},
    {"deviceshare.io/gpu-percent": 7},
    {"aliyun.com/gpu-mem": 2},
    {"cnvrg.io/metagpu": 10},
)
"""2.0 of 16 GiB on average: nine pods in ten would fit, were none deleted."""


@pytest.fixture
def many_nodes(tmp_path: Path) -> Iterator[Sandbox]:
    with running(Options(nodes=NODES, devices=DEVICES), tmp_path) as started:
        yield started


class Sharers:
    """The pods that shall exist, and the checks of what became of them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.wanted: set[str] = set()
        self._created: set[str] = set()
        self.checks = 0
        self.slipped = 0
        self._random = random.Random(7)

    async def create_all(self) -> None:
        """Forty at a time."""
        slots = asyncio.Semaphore(40)

        async def one(number: int) -> None:
            async with slots:
                self.wanted.add(f"sharer-{number}")
                await self._create(f"sharer-{number}")
                self._created.add(f"sharer-{number}")

        await asyncio.gather(*map(one, range(PODS_IN_ALL)))

    async def _create(self, name: str) -> None:
        limits = {key: str(size) for key, size in LIMITS[int(name.rpartition("-")[2]) % len(LIMITS)].items()}
        container = {"name": "main", "image": "busybox", "resources": {"limits": limits}}
        # With the scheduler named, so that a pod that slips past the webhook waits, as the docs say.
        body: dict[str, Any] = {"metadata": {"name": name}}
        body["spec"] = {"schedulerName": SCHEDULER, "containers": [container], "terminationGracePeriodSeconds": 0}
        await create_anyway(self._api, PODS, body, NAMESPACE, seconds=180)

    async def delete_some(self) -> None:
        """Living ones at random, a few at a time, never to be recreated."""
        left = DELETED
        while left:
            seen = await self.check()
            for pod in self._random.sample(sorted(seen.pods.values(), key=_name), min(10, left, len(seen.pods))):
                if pod.metadata.name in self.wanted:
                    self.wanted.discard(pod.metadata.name)
                    await self._remove(pod)
                    left -= 1
            await asyncio.sleep(0.5)

    async def recreate_slipped(self) -> None:
        """Until cancelled, recreates pods that were created while the mutating webhook was away."""
        while True:
            there = {pod.metadata.name: pod for pod in await self._api.list(PODS, namespace=NAMESPACE)}
            slipped = [pod for pod in there.values() if "deviceshare.io/group" not in pod.metadata.labels]
            assert all(pod.pending for pod in slipped)
            self.slipped += len(slipped)
            for pod in slipped:
                await self._remove(pod)
            # Those, too, whose earlier pod was still being deleted when they were recreated.
            for name in sorted((self._created & self.wanted) - (there.keys() - {pod.metadata.name for pod in slipped})):
                if name in self.wanted:  # it may have come, run and been deleted since
                    await self._create(name)
            await asyncio.sleep(1)

    async def _remove(self, pod: Pod) -> None:
        try:
            await self._api.delete(PODS, pod.metadata.name, NAMESPACE, uid=pod.metadata.uid)
        except NotFound:
            return

    async def check(self) -> SharesSeen:
        """Reads everything and finds nothing wrong."""
        seen = await look(self._api, NAMESPACE)
        assert overfull(seen, SIZE) == []
        assert [fault for fault in uncovered(seen) if await self._stays(fault, seen)] == []
        self.checks += 1
        return seen

    async def bound(self) -> int:
        """How many pods are."""
        return len((await self.check()).pods)

    async def _stays(self, fault: str, seen: SharesSeen) -> bool:
        """Whether it is a fault at a second look, too: a pod may have ended between the two lists."""
        return fault in uncovered(await look(self._api, NAMESPACE))

    async def unfinished(self) -> list[str]:
        """What is still to come."""
        seen = await self.check()
        pods = {pod.metadata.name: pod for pod in await self._api.list(PODS, namespace=NAMESPACE)}
        texts = [f"{name} doesn't exist" for name in self.wanted - pods.keys()]
        texts += [f"{pod.metadata.key} was never refused" for pod in pods.values() if not (pod.node or pod.refusal)]
        return [*texts, *leaked(seen)]


def _name(pod: Pod) -> str:
    return pod.metadata.name


def test_shares_with_deletions_and_kills(many_nodes: Sandbox) -> None:
    """No device over its size at any moment, no living pod without its claim, and in the end nothing leaked."""

    async def story() -> None:
        async with connect(str(many_nodes.kubeconfig)) as connection:
            sharers = Sharers(Api(connection, timeout=30))
            keeper = asyncio.create_task(sharers.recreate_slipped(), name="keeper")
            started = time.monotonic()
            try:
                await asyncio.gather(
                    sharers.create_all(),
                    sharers.delete_some(),
                    kill_meanwhile(many_nodes, sharers.bound, kills=KILLS, every=PODS_IN_ALL // 8),
                )
                deadline = time.monotonic() + SETTLE_SECONDS
                while left := await sharers.unfinished():
                    assert not keeper.done(), keeper.exception()
                    assert time.monotonic() < deadline, f"after {SETTLE_SECONDS} s: {left}"
                    await asyncio.sleep(1)
            finally:
                keeper.cancel()
            seen = await sharers.check()
            while (used := seen.claims) != len(seen.pods) or used < PODS_IN_ALL // 2:
                # One was bound between the two lists; or those that were refused while nobody answered are to be woken.
                assert time.monotonic() < deadline, f"after {SETTLE_SECONDS} s: {used} pods, and most of them fit"
                await asyncio.sleep(1)
                seen = await sharers.check()
            assert {pod.metadata.name for pod in seen.pods.values()} <= sharers.wanted, "what was deleted stays so"
            print(
                f"{used} pods with shares on {NODES * DEVICES} devices, {DELETED} deleted, {KILLS} kills,"
                f" {sharers.slipped} recreated, {sharers.checks} checks, {time.monotonic() - started:.0f} s"
            )

    asyncio.run(story())
