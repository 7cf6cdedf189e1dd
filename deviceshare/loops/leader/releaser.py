"""Which claims are suspect, and when to collect them (claims.md, collect).

collecting.py is safe whoever begins it, and whenever. What is decided here is only when it's worth the trouble: at once
where a group was deleted or lives elsewhere, since somebody may wait for the devices; not while a bind is on its way.

Nobody is kept waiting: where binds must be waited out, the claim is put back into the queue for when they are over. For
each mark we remember since when we have seen it standing, so a collection that must start again doesn't wait again.
"""

import random
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog

from deviceshare import timestamps
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import GROUPS, NODE_DEVICES, PODS
from deviceshare.loops.leader.members import Members
from deviceshare.loops.ports import Cluster, Mirror, NotFound, Recorder
from deviceshare.loops.protocol import collect
from deviceshare.loops.protocol.bind import BIND_SECONDS, BINDS_OVER_SECONDS
from deviceshare.loops.protocol.collect import Outcome
from deviceshare.loops.queue import Later, Queue

log = structlog.get_logger(__name__)

WORKERS = 8


class ClaimKey(NamedTuple):
    """A claim on a node, by its holder."""

    node: str
    uid: str


class _Mark(NamedTuple):
    text: str
    since: float


class Releaser:
    """Collects suspect claims, each by itself."""

    def __init__(
        self,
        cluster: Cluster,
        fleet: Fleet,
        *,
        groups: Mirror[Group],
        members: Members,
        recorder: Recorder,
        binds_over: float = BINDS_OVER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue: Queue[ClaimKey] = Queue("claims", self._reconcile, workers=WORKERS, clock=clock)
        self._cluster = cluster
        self._fleet = fleet
        self._groups = groups
        self._members = members
        self._recorder = recorder
        self._clock = clock
        self._binds_over = binds_over
        self._claims: dict[str, set[ClaimKey]] = {}
        """By the name of the group."""
        self._unbound_since: dict[ClaimKey, float] = {}
        self._marks: dict[ClaimKey, _Mark] = {}
        self._in_use: set[ClaimKey] = set()

    def change(self, old: NodeDevices | None, new: NodeDevices | None) -> None:
        """Takes in a change of a ledger; has each of its claims looked at."""
        for key, name in _claims(old):
            self._claims[name].discard(key)
            if not self._claims[name]:
                del self._claims[name]
            self.queue.add(key)
        for key, name in _claims(new):
            self._claims.setdefault(name, set()).add(key)
            self.queue.add(key)

    def look(self, group: str) -> None:
        """Has the claims of groups of this name looked at: the group or one of its pods changed."""
        for key in self._claims.get(group, ()):
            self.queue.add(key)

    async def _reconcile(self, key: ClaimKey) -> None:
        ledger = self._fleet.ledger(key.node)
        claim = ledger.claims.get(key.uid) if ledger else None
        if ledger is None or claim is None:
            self._forget(key)
            return
        if ledger.metadata.unreadable:
            return
        if claim.releasing:
            self._stands(key, claim.releasing)
        if await self._suspect(key, claim):
            await self._collect(key, claim, ledger)

    async def _suspect(self, key: ClaimKey, claim: Claim) -> bool:
        """Whether to collect now; raises `Later` where only time can tell."""
        group = await self._holder(key, claim)
        if group is not None and group.metadata.unreadable:
            return False
        if group is not None and group.node == key.node:
            self._unbound_since.pop(key, None)
            return bool(claim.releasing)  # to have the mark taken away
        lives = key.node in self._fleet.pods(key.uid).values()
        if claim.releasing:
            # Begun already, and by what the mirrors know there is nothing to do before its pods change or time passes.
            if not lives and self._members.pending(claim.group):
                self._wait_out_binds(key, claim.releasing)
            return not lives
        if group is None or group.node:
            return True
        if lives:
            return False  # its status was wiped, and the group's reconciler gives it its node again
        rest = self._unbound_since.setdefault(key, self._clock()) + BIND_SECONDS - self._clock()
        if rest > 0:
            raise Later(rest)
        return True

    async def _holder(self, key: ClaimKey, claim: Claim) -> Group | None:
        """The group that the claim is for. The mirror may not have a new one yet; it alone never proves one gone."""
        group = self._groups.get(claim.group)
        if group is None or group.uid != key.uid:
            try:
                group = await self._cluster.get(GROUPS, claim.group)
            except NotFound:
                return None
        return group if group.uid == key.uid else None

    async def _collect(self, key: ClaimKey, claim: Claim, ledger: NodeDevices) -> None:
        async def wait_out_binds(mark: str) -> None:
            self._wait_out_binds(key, mark)

        outcome = await collect.collect(
            self._cluster, key.node, key.uid, new_mark=new_mark, wait_out_binds=wait_out_binds
        )
        if outcome is Outcome.KEPT_IN_USE:
            self._report_use(key, claim)
            return
        self._in_use.discard(key)
        if outcome is Outcome.FREED:
            log.info("Released claim", node=key.node, group=claim.group, uid=key.uid)
            message = f"released {listed(map(str, sorted(claim.devices)))} of group {claim.group}"
            uid = ledger.metadata.uid
            self._recorder.event(NODE_DEVICES, key.node, "", uid, type_="Normal", reason="Released", message=message)

    def _report_use(self, key: ClaimKey, claim: Claim) -> None:
        if key in self._in_use:
            return
        self._in_use.add(key)
        log.warning("Kept a claim in use", node=key.node, group=claim.group, uid=key.uid)
        message = (
            f"group {claim.group}, whose devices this pod uses, is gone: the devices stay reserved until the pod ends,"
            " and no other pod can join it"
        )
        for pod in self._members.holding(key.node):
            if pod.group_uid == key.uid:
                meta = pod.metadata
                self._recorder.event(
                    PODS, meta.name, meta.namespace, meta.uid, type_="Warning", reason="GroupDeleted", message=message
                )

    def _stands(self, key: ClaimKey, mark: str) -> None:
        if key not in self._marks or self._marks[key].text != mark:
            self._marks[key] = _Mark(mark, self._clock())

    def _wait_out_binds(self, key: ClaimKey, mark: str) -> None:
        """Raises `Later` until every bind is over that began before the claim was marked so."""
        self._stands(key, mark)
        rest = self._marks[key].since + self._binds_over - self._clock()
        if rest > 0:
            raise Later(rest)

    def _forget(self, key: ClaimKey) -> None:
        self._unbound_since.pop(key, None)
        self._marks.pop(key, None)
        self._in_use.discard(key)


def _claims(ledger: NodeDevices | None) -> list[tuple[ClaimKey, str]]:
    return [(ClaimKey(ledger.node, uid), claim.group) for uid, claim in ledger.claims.items()] if ledger else []


def new_mark() -> str:
    """A mark that was never written before: RFC 3339, its last digits drawn by lot."""
    return f"{timestamps.micro_now()[:-1]}{random.randrange(1000):03}Z"
