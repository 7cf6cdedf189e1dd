"""The reconciler of DeviceQuotas: what bound groups hold is counted, and what nobody needs is not (claims.md, Quotas).

The protocol (protocol/reserve.py) is safe whenever it is begun. What is decided here is when that is worth the
requests: not while a bind is under way, and not while a claim or a live pod of the group still has devices.
"""

from typing import Final

import structlog

from deviceshare.domain.objects.device_quota import DeviceQuota, Reservation, counted
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.requests import GROUP, Holder, Request
from deviceshare.loops.leader.context import ControllerContext, UnchangedSince
from deviceshare.loops.ports import ObjectChange
from deviceshare.loops.protocol import reserve
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.queue import Later, Queue

log = structlog.get_logger(__name__)

GATHER_SECONDS: Final = 0.1
"""Between a change and the count: a bind writes the quota, a ledger and the group one after the other."""


class QuotaCounts:
    """Keyed by the quota's name."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self.queue: Queue[str] = Queue("quotas", self._reconcile, workers=1, clock=context.clock)
        self._unbound_since: UnchangedSince[tuple[str, str]] = UnchangedSince(context)

    def change_group(self, change: ObjectChange[Group]) -> None:
        """Enqueues the quotas that count the group, or did, unless only its status changed in other ways."""
        old, new = change.old, change.new
        if old and new and _facets(old) == _facets(new):
            return
        for quota in self._quotas():
            held = quota.status.reservations
            if any(quota.matches(side.metadata.labels) or side.uid in held for side in change.sides):
                self.queue.add(quota.name, GATHER_SECONDS)

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues the quotas with a reservation of a group whose claim went."""
        old, new = change.old, change.new
        gone = (old.claims.keys() if old else set()) - (new.claims.keys() if new else set())
        for quota in self._quotas() if gone else ():
            if gone & quota.status.reservations.keys():
                self.queue.add(quota.name, GATHER_SECONDS)

    def _quotas(self) -> list[DeviceQuota]:
        return list(self._context.quotas.values()) if self._context.quotas else []

    async def _reconcile(self, name: str) -> None:
        quota = self._context.quotas.get(name) if self._context.quotas else None
        held = quota.status.reservations if quota else {}
        self._unbound_since.keep(lambda key: key[0] != name or key[1] in held)
        if quota is None or quota.metadata.unreadable:
            return
        suspects, rest = [], 0.0
        # What was counted stays while nobody knows what should be.
        sure = not quota.counts_all
        known = [group for group in self._context.groups.values() if sure and not group.metadata.unreadable]
        labelled = [group for group in known if quota.matches(group.metadata.labels)]
        bound = [group for group in labelled if group.node and not quota.holds(group)]
        for uid, reservation in quota.status.reservations.items() if sure else ():
            wait = self._wait(quota, uid, reservation)
            if wait == 0.0:
                suspects.append(uid)
            elif wait:
                rest = min(rest or wait, wait)
        if suspects or bound or counted(quota, quota.status.reservations, complete=sure) != quota.status:
            written = await reserve.recount(self._context.cluster, name, suspects=suspects, bound=bound)
            for uid in suspects:
                self._unbound_since.forget((name, uid))
            if written is not None and self._context.quotas:
                self._context.quotas.put(written)
                log.info("Counted quota", quota=name, used=written.status.summary)
        if rest:
            raise Later(rest)

    def _wait(self, quota: DeviceQuota, uid: str, reservation: Reservation) -> float | None:
        """Seconds until the reservation may be dropped; None where it is needed."""
        key, group = (quota.name, uid), self._context.groups.get(reservation.name)
        if group is not None and group.uid == uid:
            if group.metadata.unreadable:
                return None  # what it holds is unknown until somebody corrects it
            if group.node:
                self._unbound_since.forget(key)
            matches = quota.matches(group.metadata.labels)
            if group.node or not matches:
                return None if group.node and matches else 0.0
        if self._context.fleet.home(Request(Holder(uid, GROUP, reservation.name), {}, "", {}, "")):
            return BIND_SECONDS  # a claim is there, or a pod lives, whose devices nobody else can have
        if group is None or group.uid != uid or not self._context.index.pending[group.name]:
            return 0.0
        waited = self._context.clock() - self._unbound_since(key, reservation.group_version)
        return max(BIND_SECONDS - waited, 0.0)


def _facets(group: Group) -> tuple[object, ...]:
    """What of a group concerns quotas."""
    return group.uid, group.node, group.metadata.labels, group.metadata.fault, group.spec.resources


def allows_no_more(new: DeviceQuota, old: DeviceQuota) -> bool:
    """Whether no group can be bound by the new one that could not by the old one."""
    same = new.spec == old.spec and new.metadata.unreadable == old.metadata.unreadable
    same = same and (old.observed or not new.observed)
    return same and old.status.reservations.items() <= new.status.reservations.items()
