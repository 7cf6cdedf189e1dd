"""The reconciler of claims: decides which are suspect, and when to collect them (claims.md, collect).

The protocol (protocol/collect.py) is safe whoever begins it, and whenever. What is decided here is only when it is
worth the requests: at once where a group was deleted or lives elsewhere, since pods may wait for the devices; not while
a bind is under way.

No worker waits: where binds must be waited out, the claim is enqueued for when they are over. For each mark we remember
since when we have seen it, so a collection that is retried doesn't wait again.
"""

import random
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import structlog

from deviceshare import timestamps
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.wording import listed
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.protocol import collect, holders
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.protocol.collect import Outcome
from deviceshare.loops.queue import Later, Queue
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

WORKERS = 8
AGAIN_SECONDS = 1.0
"""Before a claim is looked at again whose pod was bound while it was being collected, or whose group is leaving."""

UNSEEN_SECONDS = 20.0
"""Before a claim is looked at again that is needed by an object which the mirror doesn't show: after a new list, no
event may ever say that the object was there, or is gone."""


class ClaimKey(NamedTuple):
    """A claim on a node, by its holder."""

    node: str
    uid: str


class Releaser:
    """Keyed by claim."""

    def __init__(self, term: Term) -> None:
        self._term = term
        # One claim of a node after the other: each collection writes the ledger twice and would fail beside another.
        lane = attrgetter("node")
        self.queue: Queue[ClaimKey] = Queue("claims", self._reconcile, workers=WORKERS, lane=lane, clock=term.clock)
        self._claims: dict[str, set[ClaimKey]] = {}
        """By the name of the holder."""
        self._unbound_since: UnchangedSince[ClaimKey] = UnchangedSince(term)
        self._marked_since: UnchangedSince[ClaimKey] = UnchangedSince(term)
        self._in_use: set[ClaimKey] = set()

    def change(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues each claim of a changed ledger."""
        for key, name in _claims(change.old):
            self._claims[name].discard(key)
            if not self._claims[name]:
                del self._claims[name]
            self.queue.add(key)
        for key, name in _claims(change.new):
            self._claims.setdefault(name, set()).add(key)
            self.queue.add(key)

    def enqueue_holder(self, name: str) -> None:
        """Enqueues the claims of holders of this name: the holder or one of its pods changed."""
        for key in self._claims.get(name, ()):
            self.queue.add(key)

    async def _reconcile(self, key: ClaimKey) -> None:
        ledger = self._term.fleet.ledger(key.node)
        claim = ledger.claims.get(key.uid) if ledger else None
        if ledger is None or claim is None:
            self._forget(key)
            return
        if ledger.metadata.unreadable:
            return
        if claim.releasing:
            self._marked_since(key, claim.releasing)
        if key in self._term.leaving or key in self._term.idle:
            # Its mark is of a release under way, which may end without anything written.
            self._term.wait_until(self._term.clock() + AGAIN_SECONDS)
        if await self._suspect(key, claim):
            await self._collect(key, claim, ledger)

    async def _suspect(self, key: ClaimKey, claim: Claim) -> bool:
        """Whether to collect now; raises `Later` where time has to pass first."""
        if claim.pod:
            return await self._suspect_of_pod(key, claim)
        group = await self._holder(key, claim)
        if group is not None and group.metadata.unreadable:
            return False
        if group is not None and group.node == key.node:
            self._unbound_since.forget(key)
            if not claim.releasing and group is not self._term.groups.get(claim.holder_name):
                raise Later(UNSEEN_SECONDS)
            return bool(claim.releasing)  # to have the mark taken away
        lives = key.node in self._term.fleet.pods(key.uid).values()
        if claim.releasing:
            # Begun already, and by what the mirrors know there is nothing to do before its pods change or time passes.
            if not lives and not self._term.compares and self._term.members.pending(claim.holder_name):
                await self._wait_out_binds(key, claim.releasing)
            return not lives
        if group is None or group.node:
            return True
        if lives:
            return False  # Its status was wiped, and the group's reconciler restores its node.
        self._term.wait_until(self._unbound_since(key) + BIND_SECONDS)
        return True

    async def _suspect_of_pod(self, key: ClaimKey, claim: Claim) -> bool:
        """Likewise, of a claim of shares: its pod is gone, finished, elsewhere, or unbound for longer than a bind."""
        holder = claim.holder(key.uid)
        pod = self._term.pods.get(holder.name)
        if pod is None or key.uid not in (pod.metadata.uid, pod.share_uid):
            pod = await holders.read_pod(self._term.cluster, holder)  # the mirror alone never proves a pod gone
        if pod is not None and pod.metadata.unreadable:
            return False
        if pod is not None and pod.lives_on(key.node):
            self._unbound_since.forget(key)
            if not claim.releasing and pod is not self._term.pods.get(holder.name):
                raise Later(UNSEEN_SECONDS)
            return bool(claim.releasing)  # to have the mark taken away
        if pod is None or not pod.pending:
            return True
        if not claim.releasing:
            self._term.wait_until(self._unbound_since(key) + BIND_SECONDS)
        elif not self._term.compares:
            await self._wait_out_binds(key, claim.releasing)
        return True

    async def _holder(self, key: ClaimKey, claim: Claim) -> Group | None:
        """The group that the claim is for. The mirror may not have a new one yet; it alone never proves one gone."""
        group = self._term.groups.get(claim.holder_name)
        if group is not None and group.uid == key.uid:
            return group
        return await holders.read_group(self._term.cluster, claim.holder(key.uid))

    async def _collect(self, key: ClaimKey, claim: Claim, ledger: NodeDevices) -> None:
        wait = partial(self._wait_out_binds, key)
        outcome = await collect.collect(
            self._term.cluster,
            *key,
            new_mark=new_mark,
            wait_out_binds=wait,
            on_unwritable=self._term.report_unwritable,
            compares=self._term.compares,
            marked=bool(claim.releasing),
        )
        if outcome is Outcome.KEPT_IN_USE:
            self._report_use(key, claim)
            return
        self._in_use.discard(key)
        if outcome is Outcome.FREED:
            self.queue.add(key, UNSEEN_SECONDS)  # Another bind may make the same before the mirror shows this one gone.
            holder = claim.holder(key.uid)
            log.info("Released claim", node=key.node, holder=str(holder), uid=key.uid)
            message = f"released {listed(map(str, sorted(claim.devices)))} of {holder}"
            self._term.recorder.note(subject_of(ledger), "Released", message)

    def _report_use(self, key: ClaimKey, claim: Claim) -> None:
        if claim.pod:
            self.queue.add(key, AGAIN_SECONDS)  # It was bound after all: next time the mark is taken away.
            return
        if key.node not in self._term.fleet.pods(key.uid).values():
            self.queue.add(key, UNSEEN_SECONDS)
        if key in self._in_use:
            return
        self._in_use.add(key)
        holder = claim.holder(key.uid)
        log.warning("Kept claim in use", node=key.node, holder=str(holder), uid=key.uid)
        message = (
            f"{holder}, whose devices this pod uses, is gone: the devices stay reserved until the pod ends,"
            " and no other pod can join it"
        )
        for pod in self._term.members.holding(key.node):
            if pod.holder_uid == key.uid:
                self._term.recorder.warn(subject_of(pod), "GroupDeleted", message)

    async def _wait_out_binds(self, key: ClaimKey, mark: str) -> None:
        """Raises `Later` until every bind is over that began before the claim was marked so."""
        self._term.wait_until(self._marked_since(key, mark) + self._term.binds_over)

    def _forget(self, key: ClaimKey) -> None:
        self._unbound_since.forget(key)
        self._marked_since.forget(key)
        self._in_use.discard(key)


def _claims(ledger: NodeDevices | None) -> list[tuple[ClaimKey, str]]:
    return [(ClaimKey(ledger.node, uid), claim.holder_name) for uid, claim in ledger.claims.items()] if ledger else []


def new_mark() -> str:
    """A mark that was never written before: RFC 3339, its last digits random."""
    return f"{timestamps.micro_now()[:-1]}{random.randrange(1000):03}Z"
