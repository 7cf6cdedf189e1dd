"""The bind that the extender serves: assume, write, then confirm or forget.

The claim protocol (claims.md, bind) decides and is safe whatever this process believes. What is added here makes it
fast: devices are assumed in memory at once, so that the pods scheduled meanwhile go to the same node; binds of one
group that arrive together follow one another instead of conflicting; reads and claims are shared; every bind ends in
time.
"""

import asyncio
import copy
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import structlog
from msgspec import Struct

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.answers.group_status import status_once_bound, status_patch
from deviceshare.domain.objects.device_quota import DeviceQuota
from deviceshare.domain.objects.groups import BOUND, Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Request
from deviceshare.domain.placement import allocation
from deviceshare.domain.placement.allocation import Assumption
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.handover import annotations_of, share_annotations
from deviceshare.domain.placement.holds import not_held
from deviceshare.domain.placement.join_obstacles import elsewhere, left_out, missing, pod_obstacle, request_of
from deviceshare.loops.kinds import PODS, find
from deviceshare.loops.ports import Cluster, Conflict, Mirror, ObjectChange
from deviceshare.loops.protocol import bind, holders, reserve
from deviceshare.loops.protocol.bind import BIND_SECONDS, BINDING_SECONDS, Moved, Refused, WantedClaim
from deviceshare.loops.shared_read import SharedRead

log = structlog.get_logger(__name__)

REMEMBERED_PODS: Final = 2_000
"""Pods that filter was asked about lately, of some 4 KiB each; another replica may have bound them."""
ATTEMPTS: Final = 5
HOLD_SECONDS: Final = 3.0
"""How long a bind waits until kube-scheduler has allocated the devices to deviceshare; then the pod is retried."""
HOLD_LOOK_SECONDS: Final = 0.05


def boottime() -> float:
    """Seconds that pass while the machine is suspended, too, where the system counts those."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Binder:
    """Binds pods. One for each process; its only state is what it assumes while it writes."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        *,
        groups: Mirror[Group],
        ledgers: Mirror[NodeDevices],
        quotas: Mirror[DeviceQuota],
        on_conflict: Callable[[], None],
        lifts: bool = False,
        clock: Callable[[], float] = boottime,
        keeps_nodes: bool = False,
        holds_namespace: str = "",
    ) -> None:
        """`lifts`: whether the last step lifts a gate, in place of a Binding.

        `keeps_nodes`: whether autoscalers are to leave the nodes of bound pods alone. `holds_namespace`: where our own
        ResourceClaims are.
        """
        self._cluster = cluster
        self._fleet = fleet
        self._groups = groups
        self._ledgers = ledgers
        self._quotas = quotas
        self._on_conflict = on_conflict
        self._attach = bind.lift if lifts else bind.attach
        self._clock = clock
        self._marks = contract.KEEPING if keeps_nodes else {}
        self._seen: OrderedDict[str, Pod] = OrderedDict()
        self._settling: dict[str, asyncio.Future[Group | None]] = {}
        self._fresh_ledger = SharedRead(partial(bind.read_ledger, cluster))
        self._fresh_holds = SharedRead(partial(bind.list_holds, cluster, holds_namespace))
        self._claim = SharedClaims(cluster, ledgers, on_conflict)

    def remember(self, pod: Pod) -> None:
        """Keeps a pod that filter was asked about, so that its bind needs no read."""
        self._seen[pod.metadata.uid] = pod.trimmed()
        self._seen.move_to_end(pod.metadata.uid)
        if len(self._seen) > REMEMBERED_PODS:
            self._seen.popitem(last=False)

    def change(self, change: ObjectChange[Pod]) -> None:
        """Forgets a mirrored pod that another replica bound, or that is gone: nobody will ask to bind it here."""
        if change.old and (change.new is None or change.new.spec.node_name):
            self._seen.pop(change.old.metadata.uid, None)

    def deviceless(self, uid: str) -> bool:
        """Whether this is known to be a pod without a group or share, whose bind needs nothing of what is mirrored."""
        pod = self._seen.get(uid)
        return pod is not None and not (pod.bound_by_us or pod.left_out)

    async def close(self) -> None:
        """Ends the reads and writes under way."""
        await self._fresh_ledger.close()
        await self._fresh_holds.close()
        await self._claim.close()

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Binds the pod to the node, with its group's devices, or with its shares.

        Raises:
            Refused: with the reason, for the pod's events; the scheduler retries.
            ApiError: the API server didn't do its part; likewise.
        """
        deadline = self._clock() + BIND_SECONDS
        try:
            async with asyncio.timeout(BIND_SECONDS):
                pod = self._seen.get(uid) or await self._read_pod(namespace, name, uid)
                if (pod.metadata.namespace, pod.metadata.name, pod.metadata.uid) != (namespace, name, uid):
                    raise Refused(f"pod {namespace}/{name} has not the UID {uid!r}: bind it by its own")
                for attempt in range(1, ATTEMPTS + 1):
                    try:
                        await self._try(pod, node, deadline)
                        break
                    except Moved as moved:
                        if attempt == ATTEMPTS:
                            raise
                        if (moved.pod.group, moved.pod.share) != (pod.group, pod.share):
                            raise Refused(f"pod {pod.metadata.key} has changed; it is scheduled again") from None
                        pod = moved.pod
                        self.remember(pod)
                    except Conflict:
                        self._on_conflict()
                        if attempt == ATTEMPTS:
                            raise
                        await asyncio.sleep(random.uniform(0, 0.02 * attempt))
                self._seen.pop(uid, None)
        except TimeoutError:
            raise Refused(_LATE) from None

    async def _try(self, pod: Pod, node: str, deadline: float) -> None:
        """The steps of claims.md, by a pod as it was read before: whoever fenced it off did so after L is read here."""
        if pod.left_out:
            raise Refused(left_out(pod))
        if not pod.bound_by_us:
            await bind.post_binding(self._cluster, pod, node, {}, timeout=BINDING_SECONDS)
            return
        # 1. What the pod wants, and of which group; the mirror will do.
        group = self._groups.get(pod.group) if pod.group else None
        request, obstacle = request_of(pod, group), pod_obstacle(pod, group, self._fleet.namespaces)
        if obstacle or request is None:
            raise Refused(obstacle or missing(pod))
        ledger = None
        if group is not None:
            # Of the binds that waited for one that failed, the first to wake begins another, for which the rest wait.
            while not group.node and (settling := self._settling.get(group.uid)):
                # Shielded: others wait for the same bind, and one of them may give up.
                group = await asyncio.shield(settling) or group
                request = group.request._replace(share=request.share, sharer=request.sharer)
        home = self._fleet.home(request) if group else self._fleet.pinned(request)
        if home and home != node:
            raise Refused(elsewhere(request.holder, home))
        if group is not None and not group.node:
            # 3. and 4. The group's first pod claims for it, and binds it.
            group, ledger = await self.settle(group, node, pod.metadata.key)
        if request.share:
            # Shares. Of nobody's devices, or of the group's.
            ledger = await self._claim_share(request, node)
        elif ledger is None:
            # 2. Another pod joins.
            ledger = await self._fresh_ledger(node)
        if ledger.status.published.held is not None:
            ledger = await self._await_holds(ledger, request, node)
        # 5. The Binding, with the devices that L says, unless this process was held up: where versions aren't compared,
        # the claim may have been collected meanwhile.
        devices = _annotations(pod, request, ledger, group.status.claim_token if group else "")
        devices |= {key: mark for key, mark in self._marks.items() if key not in pod.metadata.annotations}
        if self._clock() >= deadline:
            raise Refused(_LATE)
        await self._attach(self._cluster, pod, request.holder, node, devices, timeout=BINDING_SECONDS)
        log.info("Bound pod", pod=pod.metadata.key, holder=str(request.holder), node=node)

    async def _await_holds(self, ledger: NodeDevices, request: Request, node: str) -> NodeDevices:
        """L, once DRA gives the pod's devices to nobody else, which the leader sees to (leader/holds.py).

        The holds are read after L: the leader looks into L before it clears one.
        """
        uids, until = (request.holder.uid, request.taker.uid), self._clock() + HOLD_SECONDS
        while reason := not_held(ledger, *uids) or not_held(ledger, *uids, by=await self._fresh_holds(node)):
            if self._clock() >= until:
                raise Refused(reason)
            await asyncio.sleep(HOLD_LOOK_SECONDS)
            if (mirrored := self._ledgers.get(node)) and not not_held(mirrored, *uids):
                ledger = await (self._claim_share(request, node) if request.share else self._fresh_ledger(node))
        return ledger

    async def settle(self, group: Group, node: str, pod: str) -> tuple[Group, NodeDevices]:
        """Steps 3 and 4, once for all binds of the group that are under way in this process.

        `pod` is the first of it, as `namespace/name`. Raises as `bind`.
        """
        request = group.request
        if reason := self._fleet.opacity(request, node):
            raise Refused(reason)  # Since filter, the node may have got a pod with devices of the device plugin.
        devices = allocation.choose(request, self._fleet.available(node))
        if devices is not None:
            self._fleet.assume(group.uid, Assumption(node, devices))
        outcome = self._settling[group.uid] = asyncio.get_running_loop().create_future()
        settled: Group | None = None
        try:
            await self._reserve(group)
            ledger = await self._claim(bind.wanted_devices(request, token=secrets.token_hex(8)), node)
            token = ledger.claims[group.uid].token
            devices = bind.joinable(ledger, group.holder, token)
            said = self._said(group, node, ledger, pod)
            settled = await holders.settle(self._cluster, group, node, devices, token=token, said=said)
            self._groups.put(settled)
            log.info("Bound group", group=group.name, node=node, devices=settled.status.selected_devices)
            return settled, ledger
        finally:
            # Either the mirrors hold the outcome now, or there is none: forget what was assumed.
            del self._settling[group.uid]
            outcome.set_result(settled)
            self._fleet.forget(group.uid)

    async def _reserve(self, group: Group) -> None:
        """Before step 3, for groups that a quota counts; others cost nothing (claims.md, Quotas)."""
        if names := self._fleet.quotas.matching(group.metadata.labels):
            known = {name: quota for name in names if (quota := self._quotas.get(name))}
            for quota in await reserve.reserve(self._cluster, group, names, known):
                self._quotas.put(quota)

    def _said(self, group: Group, node: str, ledger: NodeDevices, pod: str) -> Mapping[str, Any]:
        """What the group's status says besides, its first pod included, so that the leader need not write it.

        What isn't well is left to the leader, which tells people of it.
        """
        home = self._fleet.node(node)
        status = status_once_bound(group, home, ledger, pod, timestamps.now()) if home else None
        return status_patch(group.status, status) if status and status.phase == BOUND else {}

    async def _claim_share(self, request: Request, node: str) -> NodeDevices:
        if not request.sharer and (reason := self._fleet.opacity(request, node)):
            raise Refused(reason)  # As above.
        uid, within = request.taker.uid, request.within
        if shares := allocation.choose_shares(request.share, request.strategy, self._fleet.rooms(node, within)):
            self._fleet.assume(uid, Assumption(node, shares=shares, within=within))
        try:
            return await self._claim(bind.wanted_share(request, partial(self._fleet.opaque, node)), node)
        finally:
            self._fleet.forget(uid)

    async def _read_pod(self, namespace: str, name: str, uid: str) -> Pod:
        """A pod that this process was never asked about: it restarted between filter and bind."""
        pod = await find(self._cluster, PODS, name, namespace)
        if pod is None:
            raise Refused(f"pod {namespace}/{name} is gone")
        if uid and pod.metadata.uid != uid:
            raise Refused(f"pod {namespace}/{name} was recreated; the new pod is scheduled separately")
        return pod


_LATE: Final = f"binding took longer than {BIND_SECONDS:.0f} s; kube-scheduler retries it"


def _annotations(pod: Pod, request: Request, ledger: NodeDevices, token: str) -> dict[str, str]:
    """The annotations that name the pod's devices; raises Refused where it can't join its group, and Conflict."""
    devices = {}
    if request.resources:
        devices = annotations_of(bind.joinable(ledger, request.holder, token), ledger.status.handover)
    if request.share:
        devices |= share_annotations(pod, ledger, ledger.claims[request.taker.uid].shares)
    return devices


class _Asked(Struct, eq=False):
    wanted: WantedClaim
    given_up: bool = False
    answer: NodeDevices | Exception | None = None


class SharedClaims:
    """Claims written together, by node: those that arrive while its ledger is written share the next write.

    kube-scheduler binds pods side by side and fills one node after the other, so that without this nearly every write
    of a ledger would conflict with another of our own. Its tasks are its own: `close` ends them.
    """

    def __init__(self, cluster: Cluster, ledgers: Mirror[NodeDevices], on_conflict: Callable[[], None]) -> None:
        """`ledgers` get what is read and written here, so that the next write begins with the newest version."""
        self._cluster = cluster
        self._ledgers = ledgers
        self._on_conflict = on_conflict
        self._asked: dict[str, list[_Asked]] = {}
        self._write: SharedRead[None] = SharedRead(self._claim)

    async def __call__(self, wanted: WantedClaim, node: str) -> NodeDevices:
        """The node's ledger with the claim that is wanted, as it was at a moment after this call.

        Raises:
            Refused: there is no room, or the claim is being released.
            Conflict: somebody else wrote the ledger; retry.
            ApiError: the ledger could not be read or written.
        """
        asked = _Asked(wanted)
        self._asked.setdefault(node, []).append(asked)
        try:
            await self._write(node)
        finally:
            asked.given_up = True  # It claims nothing then, unless the write is under way.
        if isinstance(asked.answer, NodeDevices):
            return asked.answer
        # Each gets an exception of its own: a traceback grows with everybody who raises it.
        raise copy.copy(asked.answer or RuntimeError("a claim has no answer")) from asked.answer

    async def close(self) -> None:
        """Ends the writes under way."""
        await self._write.close()
        self._asked.clear()

    async def _claim(self, node: str) -> None:
        """Answers all that have asked until now. Those who gave up meanwhile get no claim."""
        waiting = [each for each in self._asked.pop(node, []) if not each.given_up]
        if not waiting:
            return
        try:
            wanted, known = [each.wanted for each in waiting], self._ledgers.get(node)
            ledger, refused = await bind.claim_all(self._cluster, wanted, node, known, on_conflict=self._on_conflict)
        except Exception as error:  # noqa: BLE001 - everybody who asked raises it
            for each in waiting:
                each.answer = error
            return
        self._ledgers.put(ledger)
        for each in waiting:
            reason = refused.get(each.wanted.uid)
            each.answer = Refused(reason) if reason else ledger
