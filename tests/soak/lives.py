"""What comes and goes in a soak: groups with their pods, pods with shares, nodes, and everything that befalls them."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from deviceshare.domain.contract import NAMESPACE, REBIND
from deviceshare.domain.objects.ledger import Claim
from deviceshare.domain.objects.pods import Pod
from deviceshare.kube.api import Api
from deviceshare.loops.kinds import GROUPS, LEASES, NAMESPACES, PODS
from deviceshare.loops.leadership import LEASE_NAME
from deviceshare.loops.ports import AlreadyExists, ApiError, NotFound
from deviceshare.timestamps import micro_now
from tests.controlplane.pool import GPU, SCHEDULER
from tests.soak.machines import LABEL, STAYS, Machines
from tests.soak.sight import GROUPED, PATIENCE_SECONDS, SHARING, Sight, Stuck

GROUP_SLOTS, SHARE_SLOTS = 6, 4
BREATH_SECONDS = 0.5
"""Between two lives of a slot: a soak is long, and needn't be fast."""
LEADER_SECONDS = 90.0
"""Between two losses of the lease."""
TEAM = {"team": "soak"}
LIMITS = ({"deviceshare.io/gpu-mem": "3"}, {"deviceshare.io/gpu-percent": "30"}, {"cnvrg.io/metagpu": "10"})


class Lives:
    """Everything that comes and goes, until `ending` is set; what began is always brought to its end."""

    def __init__(self, api: Api, sight: Sight, machines: Machines, tally: Counter[str]) -> None:
        """`tally` is where what happened is counted, by what it is."""
        self._api = api
        self._sight = sight
        self._machines = machines
        self.tally = tally
        self.stuck: list[str] = []
        self.ending = asyncio.Event()

    def slots(self) -> Iterator[tuple[str, Callable[[int], Awaitable[None]]]]:
        """Names, and what each does one number after the other."""
        for slot in range(GROUP_SLOTS):
            yield f"g{slot}", lambda number, slot=slot: self._group(f"g{slot}-{number}", slot + number)  # type: ignore[misc]
        for slot in range(SHARE_SLOTS):
            yield f"s{slot}", lambda number, slot=slot: self._share(f"s{slot}-{number}", slot + number)  # type: ignore[misc]
        yield "nodes", lambda number: self._node(f"n-{number}")
        yield "namespaces", lambda number: self._namespace(f"soak-{number}")
        yield "leaders", self._leader

    async def run(self) -> None:
        """Returns when `ending` is set and everything has come to its end."""
        async with asyncio.TaskGroup() as tasks:
            for name, live in self.slots():
                tasks.create_task(self._slot(live), name=name)

    async def sweep(self) -> None:
        """Deletes all that is left after something got stuck, so that the rest is one. Raises Stuck."""
        for key in list(self._sight.pods):
            await self._end(key)
        for name, group in list(self._sight.groups.items()):
            if name == group.spec.node_selector.get(LABEL):
                await self._insist(lambda name=name: self._machines.remove(name), NotFound)  # type: ignore[misc]
            await self._delete(GROUPS, name)

    async def _slot(self, live: Callable[[int], Awaitable[None]]) -> None:
        # Numbers are never used twice, over all rounds: what is remembered by name would otherwise not be found.
        for number in itertools.count(self.tally["rounds"] * 100_000):
            if self.ending.is_set():
                return
            try:
                await live(number)
            except Stuck as error:
                self.stuck.append(str(error))
                return  # the sweep before the rest takes what is left
            await self._pause(BREATH_SECONDS)

    async def _pause(self, seconds: float) -> None:
        """Unless the end comes before."""
        try:
            async with asyncio.timeout(seconds):
                await self.ending.wait()
        except TimeoutError:
            return

    async def _group(self, name: str, number: int) -> None:
        variant = ("plain", "idle", "after last pod", "rebound")[number % 4]
        spec: dict[str, Any] = {"resources": {GPU: 1 + number % 2}, "nodeSelector": {LABEL: STAYS}}
        spec |= {"schedulingStrategy": "spread" if number % 3 else "binpack"}
        spec |= {"releaseAfter": "1s"} if variant == "idle" else {}
        spec |= {"deletionPolicy": "AfterLastPod"} if variant == "after last pod" else {}
        await self._create(GROUPS, {"metadata": {"name": name, "labels": TEAM}, "spec": spec})
        pods = [await self._pod(f"{name}-{letter}", name) for letter in "ab"]
        await self._run(*pods)
        pods.append(await self._pod(f"{name}-late", name))
        await self._run(*pods)
        if variant == "rebound":
            await self._rebind(name)
        if variant == "after last pod":
            await self._delete(GROUPS, name)
        await self._end(*pods)
        if variant == "idle":
            await self._sight.until(lambda s: name in s.groups and not s.groups[name].node, f"{name} is released")
            self.tally["groups released"] += 1
            again = await self._pod(f"{name}-again", name)
            await self._run(again)
            await self._end(again)
        await self._delete(GROUPS, name)
        await self._sight.until(lambda s: name not in s.groups, f"group {name} is gone")
        self.tally["groups"] += 1

    async def _rebind(self, name: str) -> None:
        """One of its devices breaks, is replaced, and is healthy again."""
        node, claim = self._claim(name)
        if node == self._machines.watched or claim is None:
            return
        index = claim.whole[0].index
        await self._insist(lambda: self._machines.break_(node, index), NotFound)
        asked = {"metadata": {"annotations": {REBIND: name}}}
        await self._insist(lambda: self._api.patch(GROUPS, name, asked), NotFound)

        def answered(_: Sight) -> bool:
            claim = self._claim(name)[1]
            return claim is not None and claim.rebound == name

        await self._sight.until(answered, f"{name} is rebound")
        replaced = self._claim(name)[1]
        self.tally["rebinds"] += bool(replaced and replaced.former)
        await self._insist(lambda: self._machines.repair(node, index), NotFound)

    def _claim(self, name: str) -> tuple[str, Claim | None]:
        group = self._sight.groups[name]
        ledger = self._sight.ledgers.get(group.node)
        return group.node, ledger.claims.get(group.uid) if ledger else None

    async def _share(self, name: str, number: int) -> None:
        pod = await self._pod(name, limits=LIMITS[number % len(LIMITS)])
        await self._run(pod)
        await self._end(pod)
        self.tally["shares"] += 1

    async def _node(self, name: str) -> None:
        """A node comes, a group lives on it, the node goes under the group's pods; the group leaves it."""
        await self._insist(lambda: self._machines.add(name), AlreadyExists)
        await self._sight.until(lambda s: name in s.ledgers and s.ledgers[name].devices, f"{name} has a ledger")
        spec = {"resources": {GPU: 2}, "nodeSelector": {LABEL: name}, "nodeLossPolicy": "Move"}
        await self._create(GROUPS, {"metadata": {"name": name}, "spec": spec})
        pods = [await self._pod(f"{name}-{letter}", name, node=name) for letter in "ab"]
        await self._run(*pods)
        await self._insist(lambda: self._machines.remove(name), NotFound)
        await self._pause(2)
        await self._end(*pods)
        await self._sight.until(lambda s: not s.groups[name].node, f"{name} leaves its node")
        await self._delete(GROUPS, name)
        await self._sight.until(lambda s: name not in s.groups and name not in s.ledgers, f"{name}'s ledger is gone")
        self.tally["nodes"] += 1

    async def _namespace(self, name: str) -> None:
        await self._create(NAMESPACES, {"metadata": {"name": name, "labels": TEAM}})
        await self._pause(10)
        await self._delete(NAMESPACES, name)
        self.tally["namespaces"] += 1

    async def _leader(self, _: int) -> None:
        """Somebody else takes the lease, and lets it expire: whoever led stops, and another one begins."""
        await self._pause(LEADER_SECONDS)
        if self.ending.is_set():
            return
        spec = {"holderIdentity": "soak", "renewTime": micro_now()}
        await self._insist(lambda: self._api.patch(LEASES, LEASE_NAME, {"spec": spec}, namespace=NAMESPACE), NotFound)
        self.tally["leaders"] += 1

    async def _pod(self, name: str, group: str = "", *, node: str = STAYS, limits: dict[str, str] | None = None) -> str:
        """Creates one, again where it slipped past the webhook; returns its key."""
        container: dict[str, Any] = {"name": "main", "image": "busybox"}
        container |= {"resources": {"limits": limits}} if limits else {}
        spec: dict[str, Any] = {"schedulerName": SCHEDULER, "containers": [container], "nodeSelector": {LABEL: node}}
        spec["terminationGracePeriodSeconds"] = 0
        annotations = {"deviceshare.io/group": group} if group else {}
        body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        space = GROUPED if group else SHARING
        while True:
            made: Pod | None = await self._create(PODS, body, space)
            if made is None or made.injected:
                return f"{space}/{name}"
            self.tally["pods that slipped past the webhook"] += 1
            await self._end(f"{space}/{name}")

    async def _run(self, *keys: str) -> None:
        await self._sight.until(lambda s: s.running(*keys), f"{', '.join(keys)} run")

    async def _end(self, *keys: str) -> None:
        for key in keys:
            space, _, name = key.partition("/")
            await self._delete(PODS, name, space)
        await self._sight.until(lambda s: not any(key in s.pods for key in keys), f"{', '.join(keys)} are gone")
        self.tally["pods"] += len(keys)

    async def _create(self, kind: Any, body: dict[str, Any], space: str = "") -> Any:
        """Until it exists: an API server that can't reach a webhook refuses."""
        return await self._insist(lambda: self._api.create(kind, body, space), AlreadyExists)

    async def _delete(self, kind: Any, name: str, space: str = "") -> None:
        await self._insist(lambda: self._api.delete(kind, name, space), NotFound)

    async def _insist(self, ask: Callable[[], Awaitable[Any]], done: type[ApiError]) -> Any:
        said = ""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    try:
                        return await ask()
                    except done:
                        return None
                    except ApiError as error:
                        said = str(error)
                        self.tally["requests that were repeated"] += 1
                        await asyncio.sleep(0.3)
        except TimeoutError:
            raise Stuck(f"refused for {PATIENCE_SECONDS:.0f} s: {said}") from None
