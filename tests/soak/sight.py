"""What the API server stores, read again and again past every cache, judged each time, and waited on by the churn."""

import asyncio
from collections.abc import Callable

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import GROUPS, NODES, PODS
from deviceshare.loops.ports import ApiError
from tests.controlplane.invariants import Snapshot, snapshot, violations
from tests.controlplane.share_invariants import SharesSeen, look, overfull, uncovered

GROUPED, SHARING = "soak", "soak-shares"
"""The namespaces of pods of groups, and of pods with shares."""
MEMORY_MIB = 16384
"""Of each device."""
PAUSE_SECONDS = 0.4
PATIENCE_SECONDS = 300.0


class Stuck(Exception):
    """What was to happen didn't, within five minutes."""


class Sight:
    """The cluster as it was read last, and everything that was found wrong with it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._looked = asyncio.Condition()
        self.groups: dict[str, Group] = {}
        """By name, as ledgers and pods are; pods by namespace and name, as in `default/one`."""
        self.pods: dict[str, Pod] = {}
        self.ledgers: dict[str, NodeDevices] = {}
        self.checks = 0
        self.unread = 0
        """How often the API server didn't answer in time."""
        self.violations: list[str] = []

    async def keep(self) -> None:
        """Looks until cancelled."""
        while True:
            try:
                await self._look()
            except (ApiError, TimeoutError):
                self.unread += 1
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(PAUSE_SECONDS)

    async def until(self, true: Callable[["Sight"], object], what: str) -> None:
        """Returns when it is true; raises Stuck with `what` after five minutes."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS), self._looked:
                await self._looked.wait_for(lambda: true(self))
        except TimeoutError:
            raise Stuck(f"after {PATIENCE_SECONDS:.0f} s still not so: {what}") from None

    def running(self, *keys: str) -> bool:
        """Whether these pods all live on nodes."""
        return all(key in self.pods and self.pods[key].lives for key in keys)

    @property
    def empty(self) -> bool:
        """Whether nothing is left of the churn, and no device is anybody's."""
        return not (self.groups or self.pods or any(each.claims for each in self.ledgers.values()))

    async def _look(self) -> None:
        seen, shares = await snapshot(self._api), await look(self._api, SHARING)
        # What went while it was being read went together with its claim. What stayed must have had its claim.
        groups = {group.name: group for group in await self._api.list(GROUPS)}
        pods = {
            pod.metadata.key: pod for space in (GROUPED, SHARING) for pod in await self._api.list(PODS, namespace=space)
        }
        homes = {group.uid: group.node for group in groups.values()}
        living = {pod.metadata.uid for pod in pods.values() if pod.lives and not pod.metadata.deletion_timestamp}
        # The ledger of a node that is gone goes with it.
        known = seen.ledgers.keys() | {node.metadata.name for node in await self._api.list(NODES)}
        stayed = Snapshot(
            {uid: each for uid, each in seen.groups.items() if homes.get(uid) == each.node and each.node in known},
            [pod for pod in seen.pods if pod.metadata.uid in living and pod.node in known],
            seen.ledgers,
        )
        sharing = SharesSeen({uid: pod for uid, pod in shares.pods.items() if uid in living}, shares.ledgers)
        try:
            found = [*violations(stayed), *overfull(sharing, MEMORY_MIB), *uncovered(sharing)]
        except KeyError as node:
            found = [f"node {node} has no ledger, though it is there"]
        self.violations += found
        self.groups, self.pods, self.ledgers = groups, pods, seen.ledgers
        self.checks += 1
