"""Groups and pods that come and go without end, and every invariant judged all the while.

There is little more room than the stream needs, so it stands still soon after nobody releases the devices of the groups
that went: it needs the leader as much as the extender and the webhooks.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import GROUPS, PODS
from deviceshare.loops.ports import AlreadyExists, ApiError, NotFound, Unavailable
from tests.controlplane.invariants import Snapshot, snapshot, violations
from tests.controlplane.pool import GPU, SCHEDULER
from tests.controlplane.replicas import until

NAMESPACE = "default"
SLOTS, PODS_EACH = 8, 2
FINISH_SECONDS = 90.0
PATIENCE_SECONDS = 180.0
"""For one group's pods, an API server's absence included."""


class Stream:
    """What came and went, and what was refused on the way."""

    def __init__(self, api: Api) -> None:
        self.created = 0
        """Pods whose creation succeeded."""
        self.ran = 0
        """Pods that were bound, and have been deleted since."""
        self.groups = 0
        """Groups that came and went."""
        self.failures: list[ApiError] = []
        """Creations that had to be repeated."""
        self.slipped = 0
        """Pods that the mutating webhook never saw, and that were recreated."""
        self.lost = 0
        """Pods that somebody else deleted, and that were recreated (1.20's pod collector deletes by name alone)."""
        self.checks = 0
        self._wanted: dict[str, str] = {}
        self._api = api
        self._bound: set[str] = set()
        self._ending = False

    def __str__(self) -> str:
        return (
            f"{self.created} pods of {self.groups} groups came, ran and went; {len(self.failures)} creations were"
            f" repeated, {self.slipped} pods had slipped past the webhook, {self.lost} were lost;"
            f" invariants held {self.checks} times"
        )

    @property
    def denied(self) -> list[str]:
        """Creations that were refused by a verdict; nothing in this stream deserves one."""
        return [str(error) for error in self.failures if not isinstance(error, Unavailable)]

    async def served(self, more: int) -> None:
        """Until so many more pods have run; fails after a minute and a half."""
        goal = self.ran + more
        await until(lambda: self.ran >= goal, FINISH_SECONDS, f"no {more} more pods have run: {self}")

    async def flow(self, slot: int) -> None:
        """One group after the other, until the stream ends."""
        number = 0
        while not self._ending:
            number += 1
            await self._live(f"slot-{slot}-{number}", 1 + (slot + number) % 2)

    async def end(self) -> None:
        """What has begun is finished, no more begins."""
        self._ending = True

    async def watch(self) -> None:
        """Checks, and does what people do about pods that slipped past the webhook, until cancelled."""
        while True:
            try:
                await self._look()
            except ApiError:
                await asyncio.sleep(1)  # Nothing can be seen while the API server is away.
            await asyncio.sleep(0.3)

    async def _look(self) -> None:
        seen = await snapshot(self._api)
        self._bound = {pod.metadata.name for pod in seen.pods}
        # What went while it was being read, went together with its claim. What stayed must have had its claim.
        # A deleted group leaves its node, with its claim, a moment before it goes.
        groups = {group.uid: group.node for group in await self._api.list(GROUPS)}
        wanted = dict(self._wanted)
        pods = await self._api.list(PODS, namespace=NAMESPACE)
        living = {pod.metadata.uid for pod in pods if pod.lives and not pod.metadata.deletion_timestamp}
        stayed = Snapshot(
            {uid: group for uid, group in seen.groups.items() if groups.get(uid) == group.node},
            [pod for pod in seen.pods if pod.metadata.uid in living],
            seen.ledgers,
        )
        broken = violations(stayed)
        assert broken == [], broken
        self.checks += 1
        for name in wanted.keys() - {pod.metadata.name for pod in pods}:
            if name in self._wanted:
                await self._create_pod(name, wanted[name])
                self.lost += 1
        for pod in pods:
            if pod.group and not pod.injected and pod.pending:
                await self._make_again(pod)

    async def _live(self, group: str, count: int) -> None:
        await self._create(GROUPS, {"metadata": {"name": group}, "spec": {"resources": {GPU: count}}})
        names = {f"{group}-{number}" for number in range(PODS_EACH)}
        for name in names:
            await self._create_pod(name, group)
            self._wanted[name] = group
            self.created += 1
        await until(lambda: names <= self._bound, PATIENCE_SECONDS, f"{sorted(names)} don't run: {self}")
        for name in names:
            del self._wanted[name]
            await _insist(lambda name=name: self._api.delete(PODS, name, NAMESPACE))
        self.ran += len(names)
        await _insist(lambda: self._api.delete(GROUPS, group))
        self.groups += 1

    async def _make_again(self, pod: Pod) -> None:
        await _insist(lambda: self._api.delete(PODS, pod.metadata.name, NAMESPACE, uid=pod.metadata.uid))
        await self._create_pod(pod.metadata.name, pod.group)
        self.slipped += 1

    async def _create_pod(self, name: str, group: str) -> None:
        spec = {"schedulerName": SCHEDULER, "containers": [{"name": "main", "image": "busybox"}]}
        metadata = {"name": name, "annotations": {"deviceshare.io/group": group}}
        await self._create(PODS, {"metadata": metadata, "spec": spec}, NAMESPACE)

    async def _create(self, kind: Any, body: dict[str, Any], namespace: str = "") -> None:
        while True:
            try:
                await self._api.create(kind, body, namespace)
                return
            except AlreadyExists:
                return
            except ApiError as error:
                self.failures.append(error)
                await asyncio.sleep(0.3)


async def _insist(delete: Any) -> None:
    """Until it's gone: a group is kept while the webhook still sees its pods, or isn't there."""
    while True:
        try:
            deletion: Awaitable[None] = delete()
            await deletion
            return
        except NotFound:
            return
        except ApiError:
            await asyncio.sleep(0.2)


@asynccontextmanager
async def streaming(api: Api) -> AsyncIterator[Stream]:
    """For the length of the block, and on until everything that had begun was served. Nobody was refused wrongly."""
    stream = Stream(api)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(stream.watch())
        slots = [tasks.create_task(stream.flow(slot)) for slot in range(SLOTS)]
        await stream.served(SLOTS)
        yield stream
        await stream.end()
        _, unserved = await asyncio.wait(slots, timeout=FINISH_SECONDS)
        assert not unserved, f"{len(unserved)} of {SLOTS} slots still wait: {stream}"
        watching.cancel()
    assert stream.ran == stream.created
    assert stream.denied == []
