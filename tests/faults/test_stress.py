"""Many groups and pods at once, while deviceshare is killed; fifty and five hundred in the long mode."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import allocation
from deviceshare.kube.api import Api
from deviceshare.kube.connection import connect
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.loops.ports import ApiError, NotFound
from deviceshare_sandbox import Options, Sandbox, running
from tests.controlplane.invariants import Snapshot, snapshot, violations
from tests.controlplane.kills import create_anyway, kill_meanwhile
from tests.controlplane.pool import GPU, SCHEDULER
from tests.faults.conftest import LONG

NODES, DEVICES = 20 if LONG else 8, 4
SIZES = {f"group-{number:02}": 1 + number % 3 for number in range(50 if LONG else 20)}
"""Devices that each group wants: 99 of 80, or 39 of 32, so some must wait."""
PODS_EACH = 10 if LONG else 4
KILLS = 5 if LONG else 2
NAMESPACE = "default"


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Sandbox]:
    """A cluster of its own, since deviceshare is killed in it; pytest keeps its logs."""
    with running(Options(nodes=NODES, devices=DEVICES), tmp_path) as started:
        yield started


class Crowd:
    """The pods that shall exist, and what becomes of them."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made: set[str] = set()
        self.recreated = 0
        self.lost = 0
        self.checks = 0

    async def create_groups(self) -> None:
        """All at once."""
        async with asyncio.TaskGroup() as tasks:
            for name, count in SIZES.items():
                body = {"metadata": {"name": name}, "spec": {"resources": {GPU: count}}}
                tasks.create_task(create_anyway(self._api, GROUPS, body))

    async def create_pods(self) -> None:
        """All at once, groups mixed."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(PODS_EACH):
                for group in SIZES:
                    tasks.create_task(self._create_pod(f"{group}-{number}"))

    async def _create_pod(self, name: str) -> None:
        # With the scheduler named, as the examples do, a pod that slips past the webhook waits instead of running.
        spec = {"schedulerName": SCHEDULER, "containers": [{"name": "main", "image": "busybox"}]}
        metadata = {"name": name, "annotations": {"deviceshare.io/group": name.rpartition("-")[0]}}
        await create_anyway(self._api, PODS, {"metadata": metadata, "spec": spec}, NAMESPACE)
        self._made.add(name)

    async def check(self) -> Snapshot:
        """Reads everything and finds nothing wrong."""
        seen = await snapshot(self._api)
        assert violations(seen) == []
        self.checks += 1
        return seen

    async def bound(self) -> int:
        """How many pods are."""
        return len((await self.check()).pods)

    async def keep(self) -> None:
        """Until cancelled, makes pods again: those that slipped past the webhook, as their events say; or were lost."""
        while True:
            made = list(self._made)
            there = {pod.metadata.name: pod for pod in await self._api.list(PODS, namespace=NAMESPACE)}
            slipped = [pod for pod in there.values() if not pod.injected]
            assert all(pod.pending for pod in slipped)
            await asyncio.gather(*map(self._remove, slipped))
            again = [pod.metadata.name for pod in slipped] + [name for name in made if name not in there]
            await asyncio.gather(*map(self._create_pod, again))
            self.recreated += len(slipped)
            self.lost += len(again) - len(slipped)
            await asyncio.sleep(1)

    async def _remove(self, pod: Pod) -> None:
        try:
            await self._api.delete(PODS, pod.metadata.name, NAMESPACE, uid=pod.metadata.uid)
        except NotFound:
            return


def unfinished(seen: Snapshot) -> list[str]:
    """What is still to come: devices, pods of a bound group, a node for one that fits, the end of an idle claim."""
    running: dict[str, int] = {}
    for pod in seen.pods:
        running[pod.holder_uid] = running.get(pod.holder_uid, 0) + 1
    known = sum(len(ledger.devices) for ledger in seen.ledgers.values())
    texts = [] if known == NODES * DEVICES else [f"only {known} devices are known"]
    claims = [(node, uid) for node, ledger in seen.ledgers.items() for uid in ledger.claims]
    homes = {uid: group.node for uid, group in seen.groups.items()}
    texts += [f"{node} has a claim of {uid}, which isn't bound to it" for node, uid in claims if homes.get(uid) != node]
    for group in seen.groups.values():
        if group.node:
            if running.get(group.uid, 0) != PODS_EACH:
                texts.append(f"{group.name} on {group.node} has {running.get(group.uid, 0)} pods")
            continue
        room = [
            node
            for node, ledger in seen.ledgers.items()
            if allocation.choose(group.request, allocation.available(ledger))
        ]
        texts += [f"{group.name} would fit on {room[0]}"] if room else []
    return texts


async def settle(crowd: Crowd, seconds: float) -> Snapshot:
    """Waits until nothing more is to come; every look on the way finds every invariant held."""
    deadline = time.monotonic() + seconds
    while True:
        seen = await crowd.check()
        missing = unfinished(seen)
        if not missing:
            return seen
        assert time.monotonic() < deadline, f"after {seconds:.0f} s: {missing}"
        await asyncio.sleep(0.5)


async def test_every_invariant_holds_while_deviceshare_is_killed_again_and_again(
    crowded: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """And in the end every pod runs whose group fits; when groups go, those that waited follow."""
    began = time.monotonic()
    async with connect(str(crowded.kubeconfig)) as connection:
        api = Api(connection, timeout=30)
        crowd = Crowd(api)
        await crowd.create_groups()
        async with asyncio.TaskGroup() as tasks:
            operator = tasks.create_task(crowd.keep())
            creating = tasks.create_task(crowd.create_pods())
            await kill_meanwhile(crowded, crowd.bound, kills=KILLS, every=60)
            await creating
            seen = await settle(crowd, seconds=120)
            operator.cancel()
        bound = [group for group in seen.groups.values() if group.node]
        claimed = sum(len(ledger.claimed()) for ledger in seen.ledgers.values())
        assert claimed == sum(SIZES[group.name] for group in bound)
        settled = time.monotonic() - began

        await free_some(api, [group.name for group in bound][::2])
        last = await settle(crowd, seconds=90)
        waited = [group for group in last.groups.values() if group.node and seen.groups[group.uid].node == ""]
        assert waited
    with capsys.disabled():
        print(
            f"\n{len(bound)} of {len(SIZES)} groups bound and {len(seen.pods)} pods placed {settled:.0f} s after the "
            f"start, with {KILLS} kills; {crowd.recreated} pods that slipped past the webhook and {crowd.lost} that "
            f"were lost were recreated; invariants held {crowd.checks} times; {len(waited)} that waited were served "
            f"{time.monotonic() - began - settled:.0f} s later"
        )


async def free_some(api: Api, names: list[str]) -> None:
    """Ends some groups with their pods."""
    for pod in await api.list(PODS, namespace=NAMESPACE):
        if pod.group in names:
            await api.delete(PODS, pod.metadata.name, NAMESPACE, uid=pod.metadata.uid)
    async with asyncio.timeout(60):
        for name in names:
            while True:
                try:
                    await api.delete(GROUPS, name)
                    break
                except NotFound:
                    break
                except ApiError:  # The webhook still sees its pods.
                    await asyncio.sleep(0.1)
