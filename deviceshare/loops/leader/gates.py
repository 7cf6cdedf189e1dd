"""Scheduling gates: the leader chooses the nodes of pods behind deviceshare's gate, claims, and lifts it (decision 16).

It stands in for a kube-scheduler of ours in clusters that allow none: pods are taken in the order of
kube-scheduler's queue, one decision after the other, while the writes of earlier ones are under way. Each decision
counts what those have taken in memory. The claim protocol decides, whatever is believed here.
"""

import asyncio
import re
from collections.abc import Collection
from typing import Final

import structlog

from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.pods import UNSCHEDULABLE, Pod
from deviceshare.domain.placement.join_obstacles import BEHIND_OUR_GATE, missing, pod_obstacle, request_of
from deviceshare.domain.placement.node_choice import Choice, Occupancy, alike, choose_node, in_turn
from deviceshare.domain.placement.shared_resources import capacity_patch, lacking
from deviceshare.loops.kinds import NODES, subject_of
from deviceshare.loops.leader.context import ALL, ControllerContext, UnchangedSince, WaitingEvents, in_pauses
from deviceshare.loops.leader.releaser import Releaser
from deviceshare.loops.ports import ApiError, NotFound, ObjectChange
from deviceshare.loops.protocol.bind import Refused
from deviceshare.loops.queue import Backoff, Later, RateLimit
from deviceshare.loops.replica.binder import Binder

log = structlog.get_logger(__name__)

AT_ONCE: Final = 16
"""Pods being placed at a time; the next ones are decided when one of these is done."""
GATHER_SECONDS: Final = 0.02
"""Between a change and the decision: changes come in bursts."""
CROWD_SECONDS: Final = 0.5
"""After a change of other pods' requests, of which a large cluster has many a second."""
AGAIN_SECONDS: Final = 20.0
"""While pods wait: whatever was missed is noticed then."""
BACKOFF_SECONDS: Final = (0.2, 1.0, 2.0, 5.0, 10.0)
"""After placing a pod failed so many times in a row; the last for ever."""
ADVERTISED_SECONDS: Final = 20.0
"""Between two writes of one node's share capacities, whose kubelet may insist on another number."""
UNSCHEDULABLE_SECONDS: Final = 4.0
"""How long kube-scheduler must have found no place: it retries when something in the cluster changes."""
NOMINATED_SECONDS: Final = 300.0
"""How long it may evict others for a pod: they may take their grace period."""
LOOK_SECONDS: Final = 30.0
"""Between two looks at a pod that is left as it is: when the others of its group end, nothing of it changes."""
DELETIONS_A_SECOND: Final = 1.0
APART_SECONDS: Final = (1.0, 1.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Between deletions of one group's pods, or one controller's: the next nodes are tried at once, and where it happens
more often there may be none; the last for ever."""
FORGOTTEN_SECONDS: Final = 3600.0
"""After so long more without a deletion it starts again."""
AVOID_SECONDS: Final = 600.0
"""How long pods are kept from the node: what kept the first of them from it may be gone then."""

_OF_THE_POD: Final = re.compile(r"0/[0-9]+ nodes are available: (?!node\(s\))[A-Za-z]")
"""kube-scheduler's words where it looked at no node, since the pod can't be scheduled yet: a volume claim isn't bound,
others of its gang are missing. Reasons of nodes follow their number, or begin with `node(s)` where plugins disagree on
which to look at (kubernetes/kubernetes, `pkg/scheduler/framework/types.go`, FitError)."""


class Placer:
    """Decides for all pods at once; its tasks are its own: `close` ends them."""

    def __init__(self, context: ControllerContext, binder: Binder, releaser: Releaser) -> None:
        self._context = context
        self._binder = binder
        self._unschedulable = UnschedulablePods(context, releaser)
        self._capacities = ShareCapacities(context)
        self._displaced = releaser.displaced
        self._events = WaitingEvents(context, "NotPlaced")
        self._occupancy = Occupancy()
        """Of pods that are being placed, or were, which the mirror has yet to show: until then they stay assumed."""
        self._placing: set[asyncio.Task[None]] = set()
        self._failed: Backoff[str] = Backoff(context.clock, *BACKOFF_SECONDS)
        """Pods that could not be placed, by UID."""
        self._took = 0.0
        """Seconds of the last pass over all waiting pods: half of the time is left to everything else."""
        self.queue = context.queue("placement", self._decide, workers=1)

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        self._unschedulable.change(change)
        freed = self._occupancy.change(change.old, change.new)
        old, new = change.old, change.new
        if old and not (new and new.awaits_placement):
            self._occupancy.forget(old)
            self._failed.forget(old.metadata.uid)
            self._events.forget(old)
        if freed or (new and new.awaits_placement):
            self.enqueue()

    def change_other(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of any other pod. One behind our gate would wait for ever: nothing is placed for it."""
        if (new := change.new) and new.awaits_placement:
            self._events.record(new, BEHIND_OUR_GATE)
        elif change.old:
            self._events.forget(change.old)
        if self._occupancy.change(change.old, change.new) and self._context.index.gated:
            self.queue.add(ALL, CROWD_SECONDS)

    def change_node(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node, heartbeats included."""
        self._capacities.change(change)
        old, new = change.old, change.new
        if self._context.index.gated and not (old and new and _facets(old) == _facets(new)):
            self.enqueue()

    def enqueue(self) -> None:
        """Has every waiting pod looked at: devices came free, or a pod came."""
        self.queue.add(ALL, max(GATHER_SECONDS, self._took))

    async def close(self) -> None:
        """Ends what is being placed. What was claimed for it is found by the next leader."""
        for task in self._placing:
            task.cancel()
        await asyncio.gather(*self._placing, return_exceptions=True)

    async def _decide(self, _: str) -> None:
        now, waits, soonest = self._context.clock(), False, AGAIN_SECONDS
        refused: dict[bytes, Choice] = {}
        for key in [pod.metadata.key for pod in in_turn(self._context.index.gated)]:
            await asyncio.sleep(0)  # the mirrors, the webhooks and the probes go on meanwhile
            pod = self._context.pods.get(key)
            if pod is None or not pod.awaits_placement or pod.metadata.deletion_timestamp:
                continue
            if self._occupancy.assumed(pod):
                continue
            waits = True
            if (after := self._failed.until(pod.metadata.uid)) > now:
                soonest = min(soonest, after - now)
                continue
            if len(self._placing) >= AT_ONCE:
                break
            try:
                # What one was refused for holds for all that are alike: what is left only gets less in one pass.
                avoided = self._unschedulable.avoided(pod)
                same = alike(self._context.fleet, pod, avoided)
                choice = refused.get(same) or await self._choose(pod, avoided)
            except Exception:
                # A bug that one pod triggers must not stop those behind it.
                log.exception("Choosing a node for a pod raised an exception", pod=key)
                self._fail(pod, "choosing a node for it failed: see deviceshare's logs")
                continue
            if self._context.pods.get(key) is not pod:
                continue  # It changed meanwhile, and is looked at again for that.
            if choice.node:
                self._occupancy.assume(pod, choice.node)
                self._placing.add(task := asyncio.create_task(self._place(pod, choice.node), name=f"place {key}"))
                task.add_done_callback(self._placing.discard)
                # It assumes the devices before its first request, so that the next decision counts them.
                await asyncio.sleep(0)
            else:
                refused[same] = choice
                self._events.record(pod, choice.reason)
        self._took = self._context.clock() - now
        if waits:
            self.queue.add(ALL, soonest)

    async def _choose(self, pod: Pod, avoided: Collection[str]) -> Choice:
        group = self._context.groups.get(pod.group) if pod.group else None
        request, obstacle = request_of(pod, group), pod_obstacle(pod, group, self._context.fleet.namespaces)
        if obstacle or request is None:
            return Choice("", str(obstacle or missing(pod)))
        if group and (group.node, group.uid, group.name) in self._displaced:
            return Choice("", f"group {group.name} is being moved off node {group.node}, where its pods did not fit")
        return await in_pauses(choose_node(self._context.fleet, self._occupancy, pod, request, avoided))

    async def _place(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        try:
            self._binder.remember(pod)
            await self._binder.bind(meta.namespace, meta.name, meta.uid, node)
        except (Refused, ApiError) as error:
            log.warning("Refused to place pod", pod=meta.key, node=node, reason=str(error))
            self._fail(pod, f"placing it on node {node} failed: {error}")
        except Exception:
            # A bug that one pod triggers must not stop the others.
            log.exception("Placing a pod raised an exception", pod=meta.key, node=node)
            self._fail(pod, f"placing it on node {node} failed: see deviceshare's logs")
        else:
            log.info("Placed pod", pod=meta.key, node=node)
            what = f"with the devices of group {pod.group}" if pod.group else "with a share of its devices"
            text = f"placed on node {node} {what}; kube-scheduler binds it there"
            self._context.recorder.note(subject_of(pod), "Placed", text)
            self.enqueue()

    def _fail(self, pod: Pod, why: str) -> None:
        uid, seen = pod.metadata.uid, self._context.pods.get(pod.metadata.key)
        self._occupancy.forget(pod)
        if seen is None or seen.metadata.uid != uid:
            return  # It is gone, and with it what was remembered of it.
        self._failed.fail(uid)
        self._events.record(pod, why)
        self.enqueue()


class UnschedulablePods:
    """The reconciler of pods that were placed where kube-scheduler finds no place: they lead back to a decision.

    A gate that was lifted can't be put back, nor a node affinity be loosened. So a pod that is unschedulable for longer
    than a moment, and that a controller would recreate, is deleted as it is: it never ran. The new one is behind a gate
    again, and is kept from this node for a while. A pod whose group lives on the node with others has no other choice
    and stays; one without a controller is for a person to recreate.

    Keyed by `namespace/name`. Which nodes to avoid another leader would learn by one more try.
    """

    def __init__(self, context: ControllerContext, releaser: Releaser) -> None:
        self._context = context
        self._releaser = releaser
        self._unfit: Backoff[tuple[str, str]] = Backoff(context.clock, AVOID_SECONDS, forgotten=0)
        """Whom a node's refusal concerns, and the node."""
        self.queue = context.queue("unschedulable", self._reconcile, workers=1)
        self._since: UnchangedSince[str] = UnchangedSince(context)
        self._turns: RateLimit[str] = RateLimit(DELETIONS_A_SECOND)
        self._deleted: Backoff[str] = Backoff(context.clock, *APART_SECONDS, forgotten=FORGOTTEN_SECONDS)
        """By whom the node's refusal concerned."""
        self._events = WaitingEvents(context, "NodeDoesNotFit")

    def change(self, change: ObjectChange[Pod]) -> None:
        """Takes in a change of a pod that wants devices."""
        if any(_refused(pod) for pod in change.sides):
            self.queue.add(change.key)
        if change.old and not (change.new and _refused(change.new)):
            self._events.forget(change.old)
        if change.new and change.new.spec.node_name:
            self._unfit.forget((_subject(change.new), change.new.spec.node_name))

    def avoided(self, pod: Pod) -> frozenset[str]:
        """The nodes that this pod is to be kept from now, since kube-scheduler found no place there for one like it."""
        who = _subject(pod)
        return frozenset(node for whose, node in self._unfit.left_alone() if whose == who)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or not _refused(pod):
            self._since.forget(key)
            self._turns.over(key)
            return
        since, nominated = self._since(key, pod.metadata.uid), bool(pod.status.nominated_node_name)
        leaving = (pod.node, pod.holder_uid, pod.group) in self._releaser.displaced
        if nominated:
            self._context.wait_until(since + NOMINATED_SECONDS)
        self._unfit.fail((_subject(pod), pod.node))  # Pods like it go to other nodes at once.
        if not (nominated or leaving):
            self._context.wait_until(since + UNSCHEDULABLE_SECONDS)
        if why := self._stays(pod):
            self._events.record(pod, why)
            raise Later(LOOK_SECONDS)
        if not leaving:
            self._context.wait_until(self._deleted.until(_subject(pod)))
        self._context.wait_until(self._turns.at(key, self._context.clock()))
        await self._delete(key, pod)

    def _stays(self, pod: Pod) -> str:
        """Why the pod is left as it is, and what a person can do, or ""."""
        said = pod.refusal.message if pod.refusal else ""
        where = f"kube-scheduler finds no place for it on node {pod.node}, for which deviceshare placed it: {said}"
        named = self._context.index.named[pod.group] if pod.group else []
        mine = [each for each in named if each.holds(pod.holder_uid, pod.node)]
        if any(each.spec.node_name == pod.node for each in mine):
            return f"{where}; group {pod.group} lives there with other pods, so it can't go elsewhere"
        if pod.metadata.controller is None:
            return (
                f"{where}; no controller would recreate it: delete it (kubectl delete pod) and create it again from its"
                " manifest, not from kubectl get -o yaml, which names this node"
            )
        stuck = f"{where}; group {pod.group} can't leave the node while pod"
        if alone := sorted(each.metadata.key for each in mine if each.metadata.controller is None):
            cure = "delete that one, and create it again from its manifest"
            return f"{stuck} {alone[0]} waits there, too, which no controller would recreate: {cure}"
        if others := sorted(each.metadata.key for each in mine if not _refused(each)):
            return f"{stuck} {others[0]} may yet be bound there"
        return ""

    async def _delete(self, key: str, pod: Pod) -> None:
        if pod.group:
            self._releaser.displace(pod.node, pod.holder_uid, pod.group)  # before it is recreated
        if not await self._context.delete_unchanged(pod):
            return
        self._deleted.fail(_subject(pod))
        log.warning("Deleted pod that did not fit", pod=key, node=pod.node, uid=pod.metadata.uid)
        text = "deleted, so that its controller recreates it and it is placed elsewhere: kube-scheduler found no place"
        text = f"{text} for it on node {pod.node}: {pod.refusal.message if pod.refusal else ''}"
        self._context.recorder.warn(subject_of(pod), "FailedPlacement", text)


class ShareCapacities:
    """The reconciler of what shared nodes advertise, keyed by node: the resources of shares (shared_resources.py).

    A kubelet sets them to 0 when its node reboots; they are advertised again then.
    """

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("share-capacities", self._reconcile)
        self._written: dict[str, float] = {}

    def change(self, change: ObjectChange[Node]) -> None:
        """Takes in a change of a node."""
        if change.new is None or (change.new.shared and lacking(change.new, self._context.share_resources)):
            self.queue.add(change.key)

    async def _reconcile(self, name: str) -> None:
        node = self._context.nodes.get(name)
        if node is None:
            self._written.pop(name, None)  # here, since a write of it may have been under way when it went
        elif node.shared and (missing := lacking(node, self._context.share_resources)):
            if name in self._written:
                self._context.wait_until(self._written[name] + ADVERTISED_SECONDS)
            try:
                await self._context.cluster.patch(NODES, name, capacity_patch(node, missing), subresource="status")
            except NotFound:
                return
            self._written[name] = self._context.clock()
            log.info("Advertised resources of shares", node=name, resources=missing)


def _facets(node: Node) -> tuple[object, ...]:
    """What of a node the fit check asks for."""
    spec, status = node.spec, node.status
    return spec.unschedulable, spec.taints, status.allocatable, node.ready, node.metadata.labels


def _refused(pod: Pod) -> bool:
    """Whether kube-scheduler tried the pod in vain on the node that its gate was lifted for.

    An error of its own (`SchedulerError`) says nothing of the node, and it retries. Nor does what the pod itself waits
    for: another node would not help, and a Job would have failed.
    """
    said = pod.refusal if pod.placed_on else None
    return said is not None and said.reason == UNSCHEDULABLE and not _OF_THE_POD.match(said.message)


def _subject(pod: Pod) -> str:
    """Whom a node's refusal concerns: the pod's group, the controller that recreates it, or the pod alone."""
    controller = pod.metadata.controller
    return f"group {pod.group}" if pod.group else controller.uid if controller else f"pod {pod.metadata.key}"
