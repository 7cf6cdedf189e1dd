"""The reconciler of claims that are to go: when a holder leaves a node, and why (claims.md, release).

The protocol (protocol/release.py) is safe whoever begins it, and whenever: it asks the API server again what the
mirrors say here. What is decided here is only when that is worth the requests.

| Cause      | Begins where, by the mirrors                        | Asked again            | Leaves behind       |
|------------|-----------------------------------------------------|------------------------|---------------------|
| (none)     | holder gone, elsewhere, or unbound for BIND_SECONDS | where the holder lives | Event of the node   |
| deleted    | it bears our finalizer, and no pod uses it          | whether one does       | Event Deleted       |
| preempted  | a pod of higher priority is to have its devices     | who could join         | Preempted, condition|
| displaced  | kube-scheduler has no place there for its pods      |                        | Event LeftNode      |
| no devices | others have the devices that it had (Ledgers)       |                        | that, condition     |
| node lost  | its policy is Move, and no pod of it is there       | both                   | that, condition     |
| cordoned   | so is its node, and a pod of it waits for another   | that                   | that, condition     |
| not held   | DRA gave its devices to others before its pods had  |                        | that, condition     |
| idle       | it has had no pods for as long as it says           | that; who could join   | Released, condition |

Whatever the cause, a group one of whose pods lives on the node stays. The mark on the claim of a holder that is to stay
is taken away. No worker waits: where binds must be waited out, the claim is enqueued for when they are over, and since
when each mark has been seen is remembered, so that a release that is retried doesn't wait again.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

import structlog

from deviceshare import timestamps
from deviceshare.domain import contract
from deviceshare.domain.answers.group_status import left_cordoned, moved, release_reason, unbound_for
from deviceshare.domain.objects.devices import described
from deviceshare.domain.objects.groups import Group, claim_name, uses
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.quantities import seconds_between
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement.holds import hold_of, is_kept, taken_by_others
from deviceshare.domain.placement.join_obstacles import pod_obstacle
from deviceshare.domain.placement.node_choice import is_lost, leaves_cordoned, left_behind, moves, ruled_out
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import GROUPS, NODES, find, subject_of
from deviceshare.loops.leader.context import ClaimKey, ControllerContext, UnchangedSince, own_key
from deviceshare.loops.ports import NotFound, ObjectChange
from deviceshare.loops.protocol import holders
from deviceshare.loops.protocol.bind import BIND_SECONDS
from deviceshare.loops.protocol.release import Cause, Keeps, Outcome, end_hold, never_keeps, release
from deviceshare.loops.queue import Backoff, Later

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 1.0
"""Before a claim is looked at again whose pod was bound while it was being released."""
UNSEEN_SECONDS: Final = 20.0
"""Before a claim is looked at again that is needed by an object which the mirror doesn't show: after a new list, no
event may ever say that the object was there, or is gone."""
LOOK_SECONDS: Final = 30.0
"""Between two looks at an idle group that is wanted, and at a node that the mirror of shared nodes doesn't show."""
STAYED_SECONDS: Final = (5.0, 10.0, 20.0, 40.0, 80.0)
"""Before a group that stays is looked at again: the mirror of pods is behind, or shows something else than a list for
good, as of a pod that can't be read."""
DISPLACED_SECONDS: Final = 0.5
"""Between two looks at the pods of a displaced group."""
GIVE_UP_SECONDS: Final = 90.0
"""After so long a displaced group stays: some pod of it neither ends nor is bound. Longer than binds_over."""


class Releaser:
    """Keyed by claim. `displace` begins what no object says."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        # One claim of a node after the other: each release writes the ledger twice and would fail beside another.
        self.queue = context.queue("claims", self._reconcile, workers=8, lane=lambda key: key.node or key.uid)
        self._claims: dict[str, set[ClaimKey]] = {}
        """By the name of the holder."""
        self._unbound_since: UnchangedSince[ClaimKey] = UnchangedSince(context)
        self._marked_since: UnchangedSince[ClaimKey] = UnchangedSince(context)
        self._in_use: set[ClaimKey] = set()
        """Those of which was said that pods keep them."""
        self._stayed: Backoff[ClaimKey] = Backoff(context.clock, *STAYED_SECONDS, forgotten=STAYED_SECONDS[-1])
        """Groups that were found to be in use after all. That one stays writes it, which enqueues it again."""
        self.displaced: dict[ClaimKey, float] = {}
        """Groups that are about to leave the node, since kube-scheduler found no place for their pods; since when."""
        self._preempted: dict[ClaimKey, tuple[str, float]] = {}
        """For whom an idle group's devices are wanted, the end of a sentence, and since when."""

    # What enqueues a claim.

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues each claim of a ledger that changed, came or went."""
        old, new = change.old, change.new
        before, after = _claims(old), _claims(new)
        for key in before.keys() - after.keys():
            self._claims[key.name].discard(key)
            if not self._claims[key.name]:
                del self._claims[key.name]
        for key in after.keys() - before.keys():
            self._claims.setdefault(key.name, set()).add(key)
        all_of_them = not (old and new) or old.metadata.unreadable != new.metadata.unreadable
        for key in before.keys() | after.keys():
            if all_of_them or before.get(key) != after.get(key):
                self.queue.add(key)

    def change_group(self, change: ObjectChange[Group]) -> None:
        """Enqueues a changed group's claims, and the group itself: it may be deleted, or have to leave."""
        self._enqueue_holder(change.key)
        if change.new:
            self.queue.add(own_key(change.new))

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueues the claims of the holder of a changed pod, where a release may have waited for the change."""
        old, new, sides = change.old, change.new, change.sides
        if old and (old.metadata.unreadable or not (new and new.lives)):
            self._enqueue_holder(old.holder_name)
        if any(pod.share for pod in sides):
            self._enqueue_holder(change.key)
        for name in {pod.group for pod in sides} - {""}:
            group = self._context.groups.get(name)
            if group and (group.status.idle_since or group.deleting):
                self.queue.add(own_key(group))

    def change_node(self, name: str) -> None:
        """Enqueues the groups that leave the node if it is lost, or cordoned."""
        for group in self._context.index.bound[name]:
            if moves(group) or group.status.idle_since:
                self.queue.add(own_key(group))

    def displace(self, node: str, uid: str, group: str) -> None:
        """Has a group leave the node, where kube-scheduler found no place for its pods."""
        key = ClaimKey(node, uid, group)
        self.displaced.setdefault(key, self._context.clock())
        self.queue.add(key, DISPLACED_SECONDS)

    def retry(self, key: ClaimKey) -> None:
        """Looks again at a group by claim: no pod is entered in its ResourceClaim, as one may have been before."""
        self._stayed.forget(key)
        self.queue.add(key)

    def preempt(self, key: ClaimKey, why: str) -> None:
        """Has a group that no pod uses leave its node, so that a pod of higher priority gets its devices."""
        self._preempted.setdefault(key, (why, self._context.clock()))
        self.queue.add(key)

    def _enqueue_holder(self, name: str) -> None:
        for key in self._claims.get(name, ()):
            self.queue.add(key)

    # What is done.

    async def _reconcile(self, key: ClaimKey) -> None:
        ledger, group = self._context.fleet.ledger(key.node), self._bound_by(key)
        claim = ledger.claims.get(key.uid) if ledger else None
        if group and not group.deleting:
            await self._keep_finalizer(group)
        if ledger is None or claim is None:
            self._forget(key)
            if group and self._context.is_over(group):
                await self._let_go(group)
            return
        if ledger.metadata.unreadable:
            return
        if claim.releasing:
            self._marked_since(key, claim.releasing)
        cause = await self._cause(key, group, claim) if group else None
        if cause or await self._unneeded(key, claim):
            await self._release(key, ledger, claim, group, cause)

    def _bound_by(self, key: ClaimKey) -> Group | None:
        """The group, where the key is that of its own claim, by a mirror that can read it."""
        group = self._context.groups.get(key.name)
        return group if group and key == own_key(group) and not group.metadata.unreadable else None

    async def _release(
        self, key: ClaimKey, ledger: NodeDevices, claim: Claim, group: Group | None, cause: Cause | None
    ) -> None:
        outcome = await release(
            *(self._context.cluster, key.node, key.uid, self._context.stop_binds(self._marked_since, key)),
            cause,
            marked=bool(claim.releasing) and cause is None,
            frees=partial(self._end_hold, key.uid, claim),
        )
        if outcome is Outcome.IN_USE:
            self._report_use(key, claim)
            return
        self._in_use.discard(key)
        if cause:
            self._preempted.pop(key, None)
        if outcome is Outcome.STAYS and cause:
            self._stayed.fail(key)
            return
        if outcome is Outcome.FREED:
            self.queue.add(key, UNSEEN_SECONDS)  # Another bind may make the same before the mirror shows this one gone.
        if outcome is Outcome.FREED or (outcome is Outcome.LEFT and group and group.deleting):
            holder = claim.holder(key.uid)
            log.info("Released claim", node=key.node, holder=str(holder), uid=key.uid)
            message = f"released {listed(map(str, sorted(claim.devices)))} of {holder}"
            self._context.recorder.note(subject_of(ledger), "Released", message)
        if cause and group:
            self.displaced.pop(key, None)
            self._stayed.forget(key)
            if outcome is Outcome.LEFT:
                log.info("Released group", group=group.name, node=group.node, cause=cause.name)
                if cause.event:
                    self._context.recorder.note(subject_of(group), cause.event, cause.text)
                if cause.name == "idle":
                    self._context.on_released()

    async def _end_hold(self, uid: str, of: Claim) -> bool:
        """Whether no pod can join by the group's ResourceClaim any more. Others may bear its marks, not our entry."""
        claims, group = self._context.resource_claims.values() if of.group else (), self._context.groups.get(of.group)
        named = [each for each in claims if each.metadata.name == claim_name(uid)]
        mine = [c for c in named if hold_of(c, "") and (is_kept(c) or (group and c.metadata.key == group.claim))]
        return all([await end_hold(self._context.cluster, each) for each in mine])

    def _forget(self, key: ClaimKey) -> None:
        self._unbound_since.forget(key)
        self._marked_since.forget(key)
        self._in_use.discard(key)
        self._stayed.forget(key)
        self.displaced.pop(key, None)
        self._preempted.pop(key, None)

    def _report_use(self, key: ClaimKey, claim: Claim) -> None:
        if claim.pod:
            self.queue.add(key, AGAIN_SECONDS)  # It was bound after all: next time the mark is taken away.
            return
        if key.node not in self._context.fleet.pods(key.uid).values():
            self.queue.add(key, UNSEEN_SECONDS)
        if key in self._in_use:
            return
        self._in_use.add(key)
        holder = str(claim.holder(key.uid))
        log.warning("Kept claim in use", node=key.node, holder=holder, uid=key.uid)
        text = "is gone: the devices stay reserved until the pod ends, and no other pod can join it"
        message = f"{holder}, whose devices this pod uses, {text}"
        for pod in self._context.index.holding[key.node]:
            if pod.holder_uid == key.uid:
                self._context.recorder.warn(subject_of(pod), "GroupDeleted", message)

    # Without a cause: a claim that no holder needs.

    async def _unneeded(self, key: ClaimKey, claim: Claim) -> bool:
        """Whether to release the claim now, or to take its mark away; raises `Later` where time has to pass first.

        A pod with shares may be gone, finished, elsewhere, or unbound for longer than a bind takes; a group likewise.
        """
        # The mirror may not have a new holder yet; it alone never proves one gone.
        mirrored = self._context.holder(key.uid, claim)
        holder = mirrored or await holders.read(self._context.cluster, claim.holder(key.uid))
        if holder is not None and holder.metadata.unreadable:
            return False
        if holders.home(holder) == key.node:
            self._unbound_since.forget(key)
            if not (claim.releasing or mirrored):
                raise Later(UNSEEN_SECONDS)
            return bool(claim.releasing)
        lives = key.node in self._context.fleet.pods(key.uid).values()
        if claim.releasing:
            # Begun already, and by what the mirrors know there is nothing to do before its pods change or time passes.
            pending = holder.pending if isinstance(holder, Pod) else self._context.index.pending[key.name]
            if pending and not lives and not self._context.compares:
                self._context.wait_until(self._marked_since(key, claim.releasing) + self._context.binds_over)
            return not lives
        if not (holder.pending if isinstance(holder, Pod) else holder and not holder.node):
            return True
        if lives:
            return False  # Its status was wiped, and the group's reconciler restores its node.
        self._context.wait_until(self._unbound_since(key) + BIND_SECONDS)
        return True

    # The causes.

    async def _cause(self, key: ClaimKey, group: Group, claim: Claim) -> Cause | None:
        if (rest := self._stayed.until(key) - self._context.clock()) > 0:
            self.queue.add(key, rest)
            return None
        if self._context.is_over(group):
            return Cause(_used, name="deleted")  # The Event is recorded when the finalizer goes.
        if wanted := self._preempted_idle(key, group) or self._without_place(key, group):
            return wanted
        if not claim.devices:
            return _left("no devices", f"left node {group.node}, where others have the devices that it had")
        if gone := await self._on_lost_node(key, group) or self._on_cordoned_node(key, group):
            return gone
        now = self._context.fleet.ledger(key.node)  # It may have changed while the node was read.
        if now and not self._context.fleet.pods(group.uid) and (taken := taken_by_others(now, group.uid)):
            by_scheduler = f"kube-scheduler gave {taken} to others before any pod of it had it"
            return _left("not held", f"left node {group.node}, where {by_scheduler}")
        return self._idle(key, group)

    def _preempted_idle(self, key: ClaimKey, group: Group) -> Cause | None:
        """It stays if a pod uses it after all, or waits for it."""
        why, began = self._preempted.get(key, ("", 0.0))
        used = self._context.fleet.pods(group.uid) or self._wanted(group, self._context.index.pending[group.name])
        if not why or used or self._context.clock() > began + GIVE_UP_SECONDS:
            self._preempted.pop(key, None)
            return None
        text = f"left node {group.node}, where no pod used it: its devices are given up {why}"
        return _left("preempted", text, "Preempted", keeps=self._wanted)

    def _without_place(self, key: ClaimKey, group: Group) -> Cause | None:
        """While a group is displaced, none of its pods is placed. It stays if one is bound after all, or they stay."""
        began = self.displaced.get(key)
        if began is None:
            return None
        mine = [pod for pod in self._context.index.named[group.name] if pod.holds(key.uid, key.node)]
        if self._context.clock() > began + GIVE_UP_SECONDS or any(pod.spec.node_name for pod in mine):
            del self.displaced[key]
            return None
        self.queue.add(key, DISPLACED_SECONDS)
        text = f"left node {key.node}, where kube-scheduler found no place for its pods"
        return None if mine else Cause(name="displaced", event="LeftNode", text=text)

    async def _on_lost_node(self, key: ClaimKey, group: Group) -> Cause | None:
        """The mirror holds shared nodes only, and may be behind: the node is read from the API server each time.

        One that comes back meanwhile is safe, since nobody can join by a marked claim.
        """
        seen = self._context.fleet.node(group.node)
        if not moves(group) or not (seen is None or is_lost(seen)):
            return None
        node = await find(self._context.cluster, NODES, group.node)
        if is_lost(node) and not left_behind(group, self._context.index.named[group.name]):
            return _left("node lost", moved(group.node, node).text, keeps=stays_on_lost_node)
        if seen is None:
            self.queue.add(key, LOOK_SECONDS)
        return None

    def _on_cordoned_node(self, key: ClaimKey, group: Group) -> Cause | None:
        fleet, pending = self._context.fleet, self._context.index.pending[group.name]
        if not leaves_cordoned(fleet, group, pending):
            home = fleet.node(group.node)
            if pending and home and home.spec.unschedulable:
                self.queue.add(key, LOOK_SECONDS)  # Nothing tells when another node has room.
            return None
        text = left_cordoned(group.node).text
        return _left("cordoned", text, keeps=lambda fresh, pods: not leaves_cordoned(fleet, fresh, pods))

    def _idle(self, key: ClaimKey, group: Group) -> Cause | None:
        """How long is read from `status.idleSince`, so that it doesn't start again with each leader."""
        after = self._release_seconds(group)
        if after is None or self._context.fleet.pods(group.uid):
            return None
        if (rest := _rest(group, after)) > 0:  # Clocks move, so it is asked again then.
            self.queue.add(key, min(rest, after))
            return None
        if self._wanted(group, self._context.index.pending[group.name]):
            self.queue.add(key, LOOK_SECONDS)
            return None
        held = described(group.status.selected_devices) or "its devices"
        text = f"{held} on node {group.node} {release_reason(after)}"
        return Cause(self._keeps_idle, self._says_idle, "idle", "Released", text)

    def _release_seconds(self, group: Group) -> int | None:
        """After how long without pods the group is to be released; None for never."""
        return self._context.life.release_seconds(group.spec.release_after)

    def _keeps_idle(self, group: Group, pods: Collection[Pod]) -> bool:
        """What is so now counts: somebody may have changed the group's spec, and a pod of it may wait."""
        after = self._release_seconds(group)
        return after is None or _rest(group, after) > 0 or self._wanted(group, pods)

    def _says_idle(self, group: Group) -> Mapping[str, Any]:
        return unbound_for(group, release_reason(self._release_seconds(group) or 0), timestamps.now())

    def _wanted(self, group: Group, pods: Iterable[Pod]) -> bool:
        """Whether a pod waits that could join the group where it is.

        One that can't, for whatever reason of its own or because others gate it, binds the group again when it can.
        """
        if self._context.fleet.assumed(group.uid):
            return True
        waiting = [pod for pod in pods if pod.pending and not pod.metadata.deletion_timestamp]
        able = [pod for pod in waiting if pod_obstacle(pod, group, self._context.fleet.namespaces) is None]
        return len(able) > len(ruled_out(self._context.fleet, group.request, able))

    # The finalizer of groups that end after their last pod.

    async def _keep_finalizer(self, group: Group) -> None:
        """Has it there where the policy wants it, from when the group is bound: no pod uses it before.

        So a bind never meets this write. It can't be added once a group is deleted.
        """
        wanted = self._context.life.outlives_deletion(group.spec.deletion_policy)
        there = contract.PODS_FINALIZER in group.metadata.finalizers
        if there and not wanted:
            await self._write_finalizers(group, [])
        elif wanted and not there and group.node:
            await self._write_finalizers(group, [contract.PODS_FINALIZER])

    async def _let_go(self, group: Group) -> None:
        """Ends a deleted group that no pod uses, and that was released, so that no bind under way can commit it.

        Its claim may be missing, with its node or before somebody recreates the ledger: then nobody can join, either.
        Who dies before this leaves a group that is being deleted, for the next leader to look at.
        """
        fresh = await holders.read_group(self._context.cluster, group.holder)
        pods = await holders.pods(self._context.cluster, group.holder)
        if fresh is None or fresh.node not in ("", group.node) or _used(fresh, pods):
            return
        await self._write_finalizers(fresh, [])
        log.info("Let deleted group go", group=group.name, node=group.node)
        text = "no pod uses it any more: it is deleted, and its devices are free"
        self._context.recorder.note(subject_of(group), "Deleted", text)

    async def _write_finalizers(self, group: Group, ours: list[str]) -> None:
        """Raises Conflict where somebody else wrote the group meanwhile."""
        others = [each for each in group.metadata.finalizers if each != contract.PODS_FINALIZER]
        meta = {**group.as_read, "finalizers": [*others, *ours]}
        try:
            written = await self._context.cluster.patch(GROUPS, group.name, {"metadata": meta})
        except NotFound:
            return
        if written.metadata.finalizers or not written.deleting:
            self._context.groups.put(written)


def _claims(ledger: NodeDevices | None) -> dict[ClaimKey, Claim]:
    return (
        {ClaimKey(ledger.node, uid, claim.holder_name): claim for uid, claim in ledger.claims.items()} if ledger else {}
    )


def _left(name: str, text: str, event: str = "LeftNode", keeps: Keeps = never_keeps) -> Cause:
    """A cause that the group's condition names, too."""
    reason = Reason(ReasonKind.RELEASED, text)
    return Cause(keeps, lambda group: unbound_for(group, reason, timestamps.now()), name, event, text)


def _used(group: Group, pods: Iterable[Pod]) -> bool:
    return any(uses(pod, group) for pod in pods)


def stays_on_lost_node(group: Group, pods: Collection[Pod]) -> bool:
    """Whether the group stays on its lost node: its policy was changed, or the API server still has a pod of it.

    A pending pod doesn't keep it: it waits for a node that runs nothing.
    """
    return not moves(group) or bool(left_behind(group, pods))


def _rest(group: Group, after: int) -> float:
    """The seconds until the group has been idle for so long; all of them where its status doesn't say since when."""
    idle = seconds_between(group.status.idle_since, timestamps.now())
    return after - idle if idle is not None and idle >= 0 else after
