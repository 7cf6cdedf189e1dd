"""The reconciler of rebinds: replaces a group's devices, updates its pods, releases what they had (claims.md, rebind).

The protocol (protocol/rebind.py) is safe whoever begins it, and whenever. Here the mirrors only say when it is worth
the requests: a group whose request has no answer, a pod whose annotations differ from its group's claim, a former
device that no pod has any more. Claims that were never to be rebound cost one comparison.
"""

import asyncio
from functools import partial

import structlog

from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.nodes import rebooted
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.placement import replacement
from deviceshare.loops.leader.releaser import ClaimKey
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import ObjectChange, Unavailable
from deviceshare.loops.protocol import rebind as protocol
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.protocol.rebind import Answer
from deviceshare.loops.queue import Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

WORKERS = 4
GATHER_SECONDS = 0.1
"""Between a change of a pod and the work on its group's claim: pods change in bursts."""


class Rebinder:
    """The reconciler of claims whose devices are, or were, to be replaced."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.queue: Queue[ClaimKey] = Queue("rebinds", self._reconcile, workers=WORKERS, clock=term.clock)
        self._unchanged_since: UnchangedSince[ClaimKey] = UnchangedSince(term)

    def enqueue_holder(self, group: Group) -> None:
        """Enqueues the group's claim if a rebind of it was ever requested."""
        if group.node and group.rebind:
            self.queue.add(ClaimKey(group.node, group.uid))

    def change(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues those claims of a changed ledger that are or were to be rebound."""
        for ledger in change.sides:
            for uid, claim in ledger.claims.items():
                if self._concerns(claim, uid):
                    self.queue.add(ClaimKey(ledger.node, uid))

    def enqueue_pod(self, pod: Pod) -> None:
        """Enqueues the claim that the pod has its devices from; the pod may have ended."""
        ledger = self._term.fleet.ledger(pod.node)
        claim = ledger.claims.get(pod.holder_uid) if ledger else None
        if claim and self._concerns(claim, pod.holder_uid):
            self.queue.add(ClaimKey(pod.node, pod.holder_uid), GATHER_SECONDS)

    def _concerns(self, claim: Claim, uid: str) -> bool:
        if claim.former or claim.rebound:
            return True
        group = self._term.groups.get(claim.group)
        return group is not None and group.uid == uid and bool(group.rebind)

    async def _reconcile(self, key: ClaimKey) -> None:
        ledger = self._term.fleet.ledger(key.node)
        claim = ledger.claims.get(key.uid) if ledger else None
        if ledger is None or claim is None or ledger.metadata.unreadable:
            self._unchanged_since.forget(key)
            return
        self._unchanged_since(key, claim)
        group = self._asking(key, ledger, claim)
        if group is not None:
            await self._answer(group.name)
        elif outdated := [pod for pod in self._mine(key) if replacement.annotation_changes(pod, ledger, claim)]:
            await self._update(key, outdated)
        elif len(replacement.still_held(claim, self._mine(key))) < len(claim.former):
            await self._release(key)
        # What any of these wrote is a change of the claim or of pods, which enqueues it again.

    def _asking(self, key: ClaimKey, ledger: NodeDevices, claim: Claim) -> Group | None:
        """The group of the claim, if it waits for other devices and they can be chosen now."""
        group, node = self._term.groups.get(claim.group), self._term.fleet.node(key.node)
        if group is None or (group.uid, group.node) != (key.uid, key.node):
            return None
        if node is not None and rebooted(node, ledger.hardware):
            return None  # The indices may have changed; the agent's next report enqueues it again.
        return group if replacement.awaits(group, ledger, claim) else None

    def _mine(self, key: ClaimKey) -> list[Pod]:
        return [pod for pod in self._term.members.holding(key.node) if pod.holder_uid == key.uid]

    async def _answer(self, name: str) -> None:
        if answer := await protocol.rebind(self._term.cluster, name, opaque=self._term.fleet.opaque):
            self._term.ledgers.put(answer.ledger)
            self._report(answer)

    def _report(self, answer: Answer) -> None:
        group, node, verdict = answer.group, answer.ledger.node, answer.verdict
        subject = subject_of(group)
        if verdict.obstacle:
            log.warning("Could not rebind group", group=group.name, node=node, reason=verdict.obstacle)
            cure = "request it again when one is, or repair one and record it with deviceshare recover"
            self._term.recorder.warn(subject, "RebindImpossible", f"it {verdict.obstacle}: {cure}")
        elif not verdict.replacements:
            text = f"its devices on node {node} are healthy; it keeps them"
            self._term.recorder.note(subject, "RebindNotNeeded", text)
        else:
            gone, by = described(verdict.broken), described(verdict.replacements)
            log.info("Rebound group", group=group.name, node=node, replaced=gone, by=by)
            by_cdi = replacement.by_cdi(answer.ledger, verdict.devices)
            when = "pods see that when they are recreated" if by_cdi else "containers see that when they restart"
            message = (
                f"now holds {described(verdict.devices)} on node {node}; {when};"
                f" {gone} stays reserved until the pods that had it have ended"
            )
            self._term.recorder.note(subject, "Rebound", message)

    async def _update(self, key: ClaimKey, pods: list[Pod]) -> None:
        try:
            # Within the time of a bind: who recreates a lost ledger waits that long for both.
            async with asyncio.timeout(BIND_SECONDS):
                changed = await protocol.update_pods(self._term.cluster, key.node, key.uid, pods)
        except TimeoutError:
            raise Unavailable(f"updating pods on node {key.node} took longer than {BIND_SECONDS:g} s") from None
        for pod in changed:
            self._term.pods.put(pod)
            meta = pod.metadata
            if not pod.former:
                continue  # The same devices, in another notation.
            devices = described(pod.devices)
            log.info("Updated pod with replaced devices", pod=meta.key, devices=devices, sealed=pod.sealed)
            if pod.sealed:
                message = (
                    f"its group no longer holds {described(pod.former)}; its containers keep that, also when they"
                    " restart, since devices are injected by CDI: recreate the pod (kubectl delete pod"
                    f" -n {meta.namespace} {meta.name})"
                )
            else:
                message = (
                    f"its containers see {described(pod.devices)} when they restart, and may hold"
                    f" {described(pod.former)} until then: restart them, or delete the pod"
                )
            self._term.recorder.warn(subject_of(pod), "DevicesReplaced", message)

    async def _release(self, key: ClaimKey) -> None:
        wait = partial(self._wait_out_binds, key)
        written = await protocol.release_former(self._term.cluster, *key, wait_out_binds=wait)
        if written is None:
            return
        self._term.ledgers.put(written)
        log.info("Released former devices", node=key.node, holder=str(written.claims[key.uid].holder(key.uid)))

    async def _wait_out_binds(self, key: ClaimKey, claim: Claim) -> None:
        """Raises `Later` until every bind is over that read another state of the claim."""
        self._term.wait_until(self._unchanged_since(key, claim) + self._term.binds_over)
