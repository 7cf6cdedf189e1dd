"""The reconcilers that change claims: by rebinds, which replace devices (claims.md, rebind), and by resizes.

The protocol (protocol/rebind.py) is safe whoever begins it, and whenever. Here the mirrors only say when it is worth
the requests: a group, or a pod with a share, whose request has no answer; a pod whose annotations differ from its
claim; a former device that no pod has any more. Claims that were never to be rebound cost one comparison.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices, claims_patch
from deviceshare.domain.objects.nodes import rebooted
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import current
from deviceshare.domain.placement.replacement import awaits, by_cdi, pod_changes, still_held
from deviceshare.domain.placement.resizing import counts_shares, judge
from deviceshare.loops.kinds import NODE_DEVICES, PODS, RESOURCE_QUOTAS, find, subject_of
from deviceshare.loops.leader.context import ClaimKey, ControllerContext, UnchangedSince, own_key
from deviceshare.loops.ports import ApiError, Forbidden, ObjectChange, Unavailable
from deviceshare.loops.protocol import rebind as protocol
from deviceshare.loops.protocol.bind import BIND_SECONDS, write_claims
from deviceshare.loops.protocol.holders import OnUnwritable, ignore
from deviceshare.loops.protocol.rebind import Answer

log = structlog.get_logger(__name__)

GATHER_SECONDS: Final = 0.1
"""Between a change of a pod and the work on its group's claim: pods change in bursts."""
REFUSED_SECONDS: Final = 20.0
"""Before the update of a pod that refused it is retried."""
AGAIN_SECONDS: Final = 5.0
"""Between two answers for one pod. Who can change a pod of theirs could have the ledger written without an end."""


class Rebinder:
    """The reconciler of claims whose devices are, or were, to be replaced."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("rebinds", self._reconcile, workers=4)
        self._unchanged_since: UnchangedSince[ClaimKey] = UnchangedSince(context)

    # What enqueues a claim.

    def change_group(self, group: Group) -> None:
        """Enqueues the group's claim if a rebind of it was ever requested."""
        if group.node and group.rebind:
            self.queue.add(own_key(group))

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues those claims of a changed ledger that are or were to be rebound."""
        left = change.new.claims.keys() if change.new else set()
        for uid, claim in change.old.claims.items() if change.old else ():
            if uid not in left:
                self._unchanged_since.forget(ClaimKey(change.key, uid, claim.holder_name))
        for ledger in change.sides:
            self._enqueue(ledger, ledger.claims)

    def change_node(self, name: str) -> None:
        """Enqueues the claims of a node that may just have become known to have rebooted before its agent reported."""
        if ledger := self._context.fleet.ledger(name):
            self._enqueue(ledger, ledger.claims)

    def change_pod(self, pod: Pod) -> None:
        """Enqueues the claims that the pod has its devices from; the pod may have ended."""
        if ledger := self._context.fleet.ledger(pod.node):
            self._enqueue(ledger, {pod.holder_uid, pod.share_uid}, GATHER_SECONDS)

    def _enqueue(self, ledger: NodeDevices, uids: Iterable[str], after: float = 0.0) -> None:
        for uid in uids:
            claim = ledger.claims.get(uid)
            holder = self._holder(uid, claim) if claim else None
            if claim and (claim.replaced or claim.rebound or (holder and holder.rebind)):
                self.queue.add(ClaimKey(ledger.node, uid, claim.holder_name), after)

    def _holder(self, uid: str, claim: Claim) -> Group | Pod | None:
        found = self._context.pods.get(claim.pod) if claim.pod else self._context.groups.get(claim.group)
        return found if found is not None and found.metadata.uid == uid else None

    # What is done.

    async def _reconcile(self, key: ClaimKey) -> None:
        fleet, ledger = self._context.fleet, self._context.fleet.ledger(key.node)
        claim = ledger.claims.get(key.uid) if ledger else None
        if ledger is None or claim is None or ledger.metadata.unreadable:
            self._unchanged_since.forget(key)
            return
        since, holder, node = self._unchanged_since(key, claim), self._holder(key.uid, claim), fleet.node(key.node)
        mine = [each for each in self._context.index.holding[key.node] if key.uid in (each.holder_uid, each.share_uid)]
        # After a reboot the indices may have changed; what the agent, or the node, says next enqueues each claim again.
        sure = node is None or not rebooted(node, ledger.hardware)
        if holder and awaits(holder, ledger, claim) and sure:
            if claim.pod and claim.rebound:
                self._context.wait_until(since + AGAIN_SECONDS)
            who = claim.holder(key.uid)
            if answer := await protocol.rebind(self._context.cluster, key.node, who, opaque=fleet.opaque):
                self._context.ledgers.put(answer.ledger)
                self._report_answer(answer)
        elif outdated := [pod for pod in mine if pod_changes(pod, ledger, claim)]:
            await self._update(key, claim, outdated)
        elif len(still_held(claim, mine)) < len(claim.former):
            stop_binds = self._context.stop_binds(self._unchanged_since, key)
            if written := await protocol.release_former(self._context.cluster, key.node, key.uid, stop_binds):
                self._context.ledgers.put(written)
                log.info("Released former devices", node=key.node, holder=str(claim.holder(key.uid)))
        # What any of these wrote is a change of the claim or of pods, which enqueues it again.

    async def _update(self, key: ClaimKey, claim: Claim, pods: list[Pod]) -> None:
        def refused(pod: Pod, why: ApiError) -> None:
            self._context.report_unwritable(pod, why)
            self.queue.add(key, REFUSED_SECONDS)

        for pod in await _update_pods(self._context, key.node, key.uid, pods, refused):
            self._context.pods.put(pod)
            self._report_update(pod, claim)

    # What is said.

    def _report_answer(self, answer: Answer) -> None:
        recorder, asked, node, verdict = self._context.recorder, answer.asked, answer.ledger.node, answer.verdict
        holder, subject, gone = str(answer.holder), subject_of(asked), described(verdict.broken)
        if verdict.obstacle:
            log.warning("Could not rebind", holder=holder, node=node, reason=verdict.obstacle)
            cure = "request it again when one is, or repair one and record it with deviceshare recover"
            cure = "delete and recreate the pod" if isinstance(asked, Pod) else cure
            recorder.warn(subject, "RebindImpossible", f"it {verdict.obstacle}: {cure}")
        elif not verdict.replacements:
            recorder.note(subject, "RebindNotNeeded", f"its devices on node {node} are healthy; it keeps them")
        else:
            log.info("Rebound", holder=holder, node=node, replaced=gone, by=described(verdict.replacements))
            recorder.note(subject, "Rebound", _rebound(answer))

    def _report_update(self, pod: Pod, claim: Claim) -> None:
        """Logs and notes what a pod was told of the claim, unless it has the same devices in another notation."""
        former = tuple(claim.replaced) if claim.pod else pod.former
        if not former:
            return
        meta, whose = pod.metadata, "it" if claim.pod else "its group"
        now = parts_text(current(pod.shares)) if claim.pod else described(pod.devices)
        log.info("Updated pod with replaced devices", pod=meta.key, devices=now, sealed=pod.sealed)
        if pod.sealed:
            why = "its containers keep that, also when they restart, since devices are injected by CDI"
            cure = f"recreate the pod (kubectl delete pod -n {meta.namespace} {meta.name})"
            message = f"{whose} no longer holds {described(former)}; {why}: {cure}"
        else:
            message = f"its containers see {now} when they restart, and may hold {described(former)} until then"
            message = f"{message}: restart them, or delete the pod"
        self._context.recorder.warn(subject_of(pod), "DevicesReplaced", message)


def _rebound(answer: Answer) -> str:
    """What a holder has now, and how long what it had stays reserved."""
    node, verdict, gone = answer.ledger.node, answer.verdict, described(answer.verdict.broken)
    if isinstance(answer.asked, Pod):
        has = parts_text(current(verdict.claims[answer.holder.uid].shares))
        see = "containers see that when they restart"
        return f"now has {has} on node {node}; {see}; what it had of {gone} stays reserved until it has ended"
    cdi, shares = by_cdi(answer.ledger, verdict.devices), len(verdict.claims)
    when = "pods see that when they are recreated" if cdi else "containers see that when they restart"
    moved = f", with the shares of {shares} pod{'s' * (shares > 1)}" if shares else ""
    until = f"{gone} stays reserved until the pods that had it have ended"
    return f"now holds {described(verdict.devices)} on node {node}{moved}; {when}; {until}"


# Claims of the size that a pod's annotation asks for (claims.md, resize).

QUOTA: Final = (
    "asks for more than its limits say, and a ResourceQuota of its namespace counts shares by these: recreate it with"
    " larger limits"
)


class Resizer:
    """Claims first, then the pod's annotation: the agent's limit follows what both say, and the lesser of the two."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("resizes", self._reconcile, workers=2)
        self._asking: dict[str, set[str]] = {}
        """By node, the pods whose annotation asks for a size."""
        self._said: dict[str, str] = {}

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueues a pod that asks for a size."""
        old, new = change.old, change.new
        asks = new is not None and contract.RESIZE in new.metadata.annotations and new.lives
        if old and self._asking and old.node in self._asking and not asks:
            self._asking[old.node].discard(change.key)
            self._said.pop(change.key, None)
        if new and asks and new.node:
            self._asking.setdefault(new.node, set()).add(change.key)
            self.queue.add(change.key)

    def change_ledger(self, node: str) -> None:
        """Enqueues the node's pods that ask: room may have come, or a report."""
        for key in self._asking.get(node, ()):
            self.queue.add(key)

    async def _reconcile(self, key: str) -> None:
        pod = self._context.pods.get(key)
        if pod is None or contract.RESIZE not in pod.metadata.annotations or not pod.lives or pod.impostor:
            return
        known = self._context.fleet.ledger(pod.node)
        claim = known.claims.get(pod.metadata.uid) if known else None
        if known is None or claim is None or known.metadata.unreadable:
            return
        if pod_changes(pod, known, claim):
            await self._update(pod)
            return
        found = judge(known, pod)
        if found.obstacle:
            self._say(pod, found.obstacle)
        elif found.claim:
            await self._claim(pod)

    async def _update(self, pod: Pod) -> None:
        for changed in await _update_pods(self._context, pod.node, pod.metadata.uid, [pod]):
            self._context.pods.put(changed)
            has = parts_text(current(changed.shares))
            log.info("Resized share", pod=pod.metadata.key, node=pod.node, devices=has)
            self._context.recorder.note(subject_of(changed), "Resized", f"its share is now {has}")

    async def _claim(self, pod: Pod) -> None:
        """Decides by the pod and the ledger as they are, and by that ledger's version alone."""
        fresh = await find(self._context.cluster, PODS, pod.metadata.name, pod.metadata.namespace)
        seen = await find(self._context.cluster, NODE_DEVICES, pod.node)
        if fresh is None or seen is None or fresh.metadata.uid != pod.metadata.uid:
            return
        found = judge(seen, fresh)
        if found.claim and found.uncounted and await self._is_counted(pod.metadata.namespace):
            self._say(pod, QUOTA)
        elif found.claim:
            patch = claims_patch(seen, {pod.metadata.uid: found.claim})
            self._context.ledgers.put(await write_claims(self._context.cluster, seen, patch))

    async def _is_counted(self, namespace: str) -> bool:
        """Whether a ResourceQuota counts shares of the namespace, by pods' limits, which can't be changed."""
        try:
            quotas = await self._context.cluster.list(RESOURCE_QUOTAS, namespace=namespace)
        except Forbidden:
            return True
        return any(counts_shares(each.spec.hard) for each in quotas)

    def _say(self, pod: Pod, text: str) -> None:
        said = f"{pod.metadata.uid} {pod.metadata.annotations[contract.RESIZE]} {text}"
        if self._said.get(pod.metadata.key) != said:
            self._said[pod.metadata.key] = said
            self._context.recorder.warn(subject_of(pod), "ResizeWaits", f"it {text}")


async def _update_pods(
    context: ControllerContext, node: str, uid: str, pods: list[Pod], refused: OnUnwritable = ignore
) -> list[Pod]:
    """Within the time of a bind: who recreates a lost ledger waits that long for both."""
    try:
        async with asyncio.timeout(BIND_SECONDS):
            holds_in = context.holds_namespace
            return await protocol.update_pods(context.cluster, node, uid, pods, refused, holds_in=holds_in)
    except TimeoutError:
        raise Unavailable(f"updating pods on node {node} took longer than {BIND_SECONDS:g} s") from None
