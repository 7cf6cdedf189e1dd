"""The reconciler of claims that their holders ask to be changed: rebinds and resizes (claims.md, rebind, resize).

The protocol (protocol/rebind.py) is safe whoever begins it, and whenever. Here the mirrors only say when it is worth
the requests: a group, or a pod with a share, whose request has no answer; a pod whose annotations differ from its
claim; a former device that no pod has any more; a pod that asks for another size. Claims that were never to be changed
cost one comparison. Claims are written first, then pods' annotations: the agent's limit follows what both say, and the
lesser of the two.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.answers.device_parts import parts_text
from deviceshare.domain.objects.devices import Device, described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices, claims_patch
from deviceshare.domain.objects.nodes import rebooted
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share, current
from deviceshare.domain.placement.replacement import awaits, by_cdi, pod_changes, still_held
from deviceshare.domain.placement.resizing import counts_shares, judge
from deviceshare.loops.kinds import NODE_DEVICES, PODS, RESOURCE_QUOTAS, find, subject_of
from deviceshare.loops.leader.context import ClaimKey, ControllerContext, UnchangedSince, own_key
from deviceshare.loops.ports import ApiError, Forbidden, ObjectChange, Unavailable
from deviceshare.loops.protocol import rebind as protocol
from deviceshare.loops.protocol.bind import BIND_SECONDS, write_claims
from deviceshare.loops.protocol.rebind import Answer

log = structlog.get_logger(__name__)

GATHER_SECONDS: Final = 0.1
"""Between a change of a pod and the work on its group's claim: pods change in bursts."""
REFUSED_SECONDS: Final = 20.0
"""Before the update of a pod that refused it is retried."""
UNREADABLE_SECONDS: Final = 30.0
"""Before a claim is looked at again whose ledger can't be read, of whose pod was said that it waits."""
AGAIN_SECONDS: Final = 5.0
"""Between two answers for one pod. Who can change a pod of theirs could have the ledger written without an end."""
QUOTA: Final = (
    "asks for more than its limits say, and a ResourceQuota of its namespace counts shares by these: recreate it with"
    " larger limits"
)


class Rebinder:
    """Replaces devices in claims, and resizes shares. Keyed by claim."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue = context.queue("rebinds", self._reconcile, workers=4)
        self._unchanged_since: UnchangedSince[ClaimKey] = UnchangedSince(context)
        self._said: dict[str, str] = {}
        """Why each pod that asks for another size waits, by its UID."""

    # What enqueues a claim.

    def change_group(self, group: Group) -> None:
        """Enqueues the group's claim if a rebind of it was ever requested."""
        if group.node and group.rebind:
            self.queue.add(own_key(group))

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues those claims of a changed ledger that are or were to be changed: room may have come, or a report."""
        new = change.new
        for uid, claim in change.old.claims.items() if change.old else ():
            key = ClaimKey(change.key, uid, claim.holder_name)
            if new and new.metadata.unreadable:
                self._look_later(key)
            elif not new or uid not in new.claims:
                self._forget(key)
        if new:
            self._enqueue(new, new.claims)

    def change_node(self, name: str) -> None:
        """Enqueues the claims of a node that may just have become known to have rebooted before its agent reported."""
        if ledger := self._context.fleet.ledger(name):
            self._enqueue(ledger, ledger.claims)

    def change_pod(self, pod: Pod) -> None:
        """Enqueues the claims that the pod has its devices from; the pod may have ended."""
        if contract.RESIZE not in pod.metadata.annotations:
            self._said.pop(pod.metadata.uid, None)
        if ledger := self._context.fleet.ledger(pod.node):
            self._enqueue(ledger, {pod.holder_uid, pod.share_uid}, GATHER_SECONDS)

    def _enqueue(self, ledger: NodeDevices, uids: Iterable[str], after: float = 0.0) -> None:
        for uid in uids:
            claim = ledger.claims.get(uid)
            holder = self._context.holder(uid, claim) if claim else None
            asks = holder and (holder.rebind or contract.RESIZE in holder.metadata.annotations)
            if claim and (asks or claim.replaced or claim.rebound):
                self.queue.add(ClaimKey(ledger.node, uid, claim.holder_name), after)

    def _forget(self, key: ClaimKey) -> None:
        self._unchanged_since.forget(key)
        self._said.pop(key.uid, None)

    def _look_later(self, key: ClaimKey) -> None:
        """Forgets nothing that was said, since the claim may only be hidden: whether it is gone is seen then."""
        self._unchanged_since.forget(key)
        if key.uid in self._said:
            self.queue.add(key, UNREADABLE_SECONDS)

    # What is done.

    async def _reconcile(self, key: ClaimKey) -> None:
        fleet, ledger = self._context.fleet, self._context.fleet.ledger(key.node)
        claim = ledger.claims.get(key.uid) if ledger else None
        if ledger and ledger.metadata.unreadable:
            self._look_later(key)
            return
        if ledger is None or claim is None:
            self._forget(key)
            return
        since, holder = self._unchanged_since(key, claim), self._context.holder(key.uid, claim)
        node = fleet.node(key.node)
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
        elif isinstance(holder, Pod) and holder in mine:
            await self._resize(ledger, holder)
        # What any of these wrote is a change of the claim or of pods, which enqueues it again.

    async def _update(self, key: ClaimKey, claim: Claim, pods: list[Pod]) -> None:
        """Within the time of a bind: who recreates a lost ledger waits that long for both."""

        def refused(pod: Pod, why: ApiError) -> None:
            self._context.report_unwritable(pod, why)
            self.queue.add(key, REFUSED_SECONDS)

        cluster, before = self._context.cluster, {pod.metadata.uid: pod for pod in pods}
        try:
            async with asyncio.timeout(BIND_SECONDS):
                holds_in = self._context.holds_namespace
                told = await protocol.update_pods(cluster, key.node, key.uid, pods, refused, holds_in=holds_in)
        except TimeoutError:
            raise Unavailable(f"updating pods on node {key.node} took longer than {BIND_SECONDS:g} s") from None
        for pod in told:
            self._context.pods.put(pod)
            self._report_update(before[pod.metadata.uid], pod, claim)

    async def _resize(self, known: NodeDevices, pod: Pod) -> None:
        """Decides by the pod and the ledger as they are, and by that ledger's version alone."""
        cluster, meta, found = self._context.cluster, pod.metadata, judge(known, pod)
        if found.obstacle:
            self._say(pod, found.obstacle)
        if not found.claim:
            return
        fresh = await find(cluster, PODS, meta.name, meta.namespace)
        seen = await find(cluster, NODE_DEVICES, pod.node)
        if fresh is None or seen is None or fresh.metadata.uid != meta.uid:
            return
        found = judge(seen, fresh)
        if found.claim and found.uncounted and await self._is_counted(meta.namespace):
            self._say(pod, QUOTA)
        elif found.claim:
            self._context.ledgers.put(await write_claims(cluster, seen, claims_patch(seen, {meta.uid: found.claim})))

    async def _is_counted(self, namespace: str) -> bool:
        """Whether a ResourceQuota counts shares of the namespace, by pods' limits, which can't be changed."""
        try:
            quotas = await self._context.cluster.list(RESOURCE_QUOTAS, namespace=namespace)
        except Forbidden:
            return True
        return any(counts_shares(each.spec.hard) for each in quotas)

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

    def _say(self, pod: Pod, text: str) -> None:
        said = f"{pod.metadata.annotations[contract.RESIZE]} {text}"
        if self._said.get(pod.metadata.uid) != said:
            self._said[pod.metadata.uid] = said
            self._context.recorder.warn(subject_of(pod), "ResizeWaits", f"it {text}")

    def _report_update(self, before: Pod, pod: Pod, claim: Claim) -> None:
        """Logs and notes what a pod was told of the claim, unless it has the same devices in another notation."""
        had, now = current(before.shares), current(pod.shares)
        has = parts_text(now) if claim.pod else described(pod.devices)
        if claim.pod and had != now and _places(had) == _places(now):
            log.info("Resized share", pod=pod.metadata.key, node=pod.node, devices=has)
            self._context.recorder.note(subject_of(pod), "Resized", f"its share is now {has}")
            return
        former = tuple(claim.replaced) if claim.pod else pod.former
        if not former:
            return
        meta, whose = pod.metadata, "it" if claim.pod else "its group"
        log.info("Updated pod with replaced devices", pod=meta.key, devices=has, sealed=pod.sealed)
        if pod.sealed:
            why = "its containers keep that, also when they restart, since devices are injected by CDI"
            cure = f"recreate the pod (kubectl delete pod -n {meta.namespace} {meta.name})"
            message = f"{whose} no longer holds {described(former)}; {why}: {cure}"
        else:
            message = f"its containers see {has} when they restart, and may hold {described(former)} until then"
            message = f"{message}: restart them, or delete the pod"
        self._context.recorder.warn(subject_of(pod), "DevicesReplaced", message)


def _places(shares: Iterable[Share]) -> set[tuple[str, Device]]:
    """What a resize leaves as it is, and a rebind doesn't."""
    return {(share.container, share.device) for share in shares}


def _rebound(answer: Answer) -> str:
    """What a holder has now, and how long what it had stays reserved."""
    node, verdict, gone = answer.ledger.node, answer.verdict, described(answer.verdict.broken)
    claim = verdict.claims[answer.holder.uid]
    if claim.pod:
        has, see = parts_text(current(claim.shares)), "containers see that when they restart"
        return f"now has {has} on node {node}; {see}; what it had of {gone} stays reserved until it has ended"
    cdi, shares = by_cdi(answer.ledger, claim.devices), len(verdict.claims) - 1
    when = "pods see that when they are recreated" if cdi else "containers see that when they restart"
    moved = f", with the shares of {shares} pod{'s' * (shares > 1)}" if shares else ""
    until = f"{gone} stays reserved until the pods that had it have ended"
    return f"now holds {described(claim.devices)} on node {node}{moved}; {when}; {until}"
