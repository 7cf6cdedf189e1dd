"""The reconciler of shared nodes: keeps a ledger for each, with what the node has, and fills one that was lost.

A new ledger names no devices and so is closed: nothing can be claimed in it. Only when everything that lives on the
node has a claim is it opened, by writing the devices (repair.fill). It has no owner and bears a finalizer, so it is
lost by force only: one that is deleted serves on until it is empty.

A node's claims may not cover what runs there when a ledger is edited by hand, or when evidence contradicted itself as a
ledger was filled. A device must never be allocated while a pod uses it, so what is free is claimed; the rest is
reported, for a person to decide (claims.md, repair).
"""

from contextlib import suppress
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.answers import ledger_status
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Hardware, Publication
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node, same_boot
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.objects.shares import POD, Holder
from deviceshare.domain.placement import handover, shared_resources
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.inventory import Offer, take
from deviceshare.domain.placement.join_obstacles import claimed_twice
from deviceshare.domain.placement.replacement import covers
from deviceshare.domain.placement.resource_pools import DraView
from deviceshare.domain.wording import listed
from deviceshare.loops.kinds import NODE_DEVICES, NODES, PODS, find, subject_of
from deviceshare.loops.leader.context import ControllerContext, UnchangedSince
from deviceshare.loops.ports import NotFound, ObjectChange, Subject
from deviceshare.loops.protocol import holders, repair
from deviceshare.loops.protocol.bind import write_claims
from deviceshare.loops.queue import Later
from deviceshare.loops.shared_read import SharedRead

log = structlog.get_logger(__name__)

SUMMARY_SECONDS: Final = 2.0
"""Between two writes of a ledger's one-line summaries. Each makes a bind that is claiming there at the moment retry."""
GATHER_SECONDS: Final = 1.0
"""Between a claim and the summaries that include it: where one group is bound, others often follow."""
UNSEEN_SECONDS: Final = 1.0
"""Between the change that shows somebody on a node without a ledger and the look at it: its mirror may be behind."""
CLAIMS_SECONDS: Final = 20.0
"""Between two looks at a node with ResourceSlices while ResourceClaims can't be read."""
COVER_SECONDS: Final = 1.0
"""Between the change that shows a pod without a claim and the look at its node: the mirror of ledgers may be behind."""
LOOK_SECONDS: Final = 1.5
"""The same for a bound group without one."""


class _Inventory(Struct, frozen=True):
    source: tuple[str, Hardware, Publication]
    """The resourceVersion of the Node, and what the agent and DRA say."""
    offer: Offer
    status: LedgerStatus
    """All that is written of the devices, but which these are and the lines that follow."""


class Ledgers:
    """Keyed by node, in two queues: its ledger, and what of it a change may have left without a claim."""

    def __init__(self, context: ControllerContext, dra: DraView) -> None:
        self._context = context
        self._dra = dra
        self.queue = context.queue("nodes", self._reconcile, workers=8)
        self._coverage = context.queue("coverage", self._cover, workers=8)
        # A cluster's first start opens all ledgers at once: what they ask of the API server is the same for all.
        self._evidence = SharedRead(lambda _: repair.evidence(context.cluster))
        self._new_since: UnchangedSince[str] = UnchangedSince(context)
        """By node, with the UID of its ledger that has to be filled."""
        self._hidden_since: UnchangedSince[str] = UnchangedSince(context)
        self._inventories: dict[str, _Inventory] = {}
        self._written: dict[str, float] = {}
        self._outdated_since: dict[str, float] = {}
        # What was reported last, by node.
        self._faults: dict[str, str] = {}
        self._allocated_twice: dict[str, set[str]] = {}
        self._claimed_twice: dict[str, set[Holder]] = {}
        self._uncovered: dict[str, set[str]] = {}
        """The UIDs of pods that were reported, by node: they use devices for which they have no claim there."""

    async def close(self) -> None:
        """Ends the reads under way."""
        await self._evidence.close()

    def change_pod(self, change: ObjectChange[Pod]) -> None:
        """Enqueues the node of a pod with devices that has no ledger, or none that covers it, or that was reported."""
        for pod in change.sides if self._uncovered else ():
            if pod.metadata.uid in self._uncovered.get(pod.node, ()):
                self._coverage.add(pod.node)
        new = change.new
        if new is None or not new.node:
            return
        seen = self._context.ledgers.get(new.node)
        if seen is None and new.holder_uid:
            self.queue.add(new.node, UNSEEN_SECONDS)
        elif seen and _by_right(new) and not _covered(new, seen):
            self._coverage.add(new.node, COVER_SECONDS)

    def change_group(self, group: Group) -> None:
        """Enqueues the node of a bound group that has no ledger, or none with its claim."""
        seen = self._context.ledgers.get(group.node)
        if group.node and seen is None:
            self.queue.add(group.node, UNSEEN_SECONDS)
        elif seen and group.uid not in seen.claims:
            self._coverage.add(group.node, LOOK_SECONDS)

    def change_ledger(self, change: ObjectChange[NodeDevices]) -> None:
        """Enqueues the node; also for its coverage, where claims changed or went, or devices have other names."""
        old, new = change.old, change.new
        self.queue.add(change.key)
        if not (old and new) or change.key in self._uncovered or _told(old) != _told(new):
            self._coverage.add(change.key)
        elif any(new.claims.get(uid) != claim for uid, claim in old.claims.items()):
            self._coverage.add(change.key)  # Mostly claims were added, if anything.

    async def _reconcile(self, name: str) -> None:
        node, seen = self._context.nodes.get(name), self._context.ledgers.get(name)
        if seen and seen.hidden_claims:
            await self._restore(seen)
            return
        self._hidden_since.forget(name)
        if any(each.metadata.unreadable for each in (node, seen) if each):
            return  # What it hides may be in use: nothing is overwritten, nor concluded from the rest.
        if seen is not None and (not seen.filled or not seen.lasting):
            await (self._convert if seen.filled else self._fill)(seen)
            return
        self._new_since.forget(name)
        if node is None or not node.shared:
            remembered = self._inventories, self._written, self._outdated_since
            for known in (*remembered, self._faults, self._allocated_twice, self._claimed_twice):
                known.pop(name, None)
            if seen is not None:
                await self._retire(seen)
            elif self._context.index.bound[name] or self._context.index.holding[name]:
                await self._create(name)
        elif seen is None:
            await self._create(name)
        elif seen.metadata.deletion_timestamp and not seen.claims:
            await self._let_go(seen)
        else:
            await self._keep_devices(node, seen)

    # Its life.

    async def _create(self, name: str) -> None:
        self._context.ledgers.put(await self._context.cluster.create(NODE_DEVICES, ledger.new_ledger(name)))
        log.info("Created ledger", node=name)

    async def _fill(self, seen: NodeDevices) -> None:
        """Adds the claims of who lives there, when binds are over that may have used an earlier ledger."""
        made, disputed = await repair.fill(
            self._context.cluster,
            seen.node,
            gather=lambda: self._evidence(""),
            wait_out_binds=self._context.stop_binds(self._new_since, seen.node).wait,
        )
        self._context.ledgers.put(made)
        log.info("Filled ledger", node=seen.node, claims=len(made.claims))
        if made.claims:
            names = listed(sorted(claim.holder_name for claim in made.claims.values()))
            text = f"recreated with what groups and running pods hold: {names}"
            self._context.recorder.note(subject_of(made), "Repaired", text)
        for holding in disputed:  # Its pods are found without a claim (`_cover`).
            devices = listed(map(str, holding.claim.devices))
            log.error("Left out a disputed holding", node=seen.node, holder=str(holding.holder), devices=devices)

    async def _restore(self, seen: NodeDevices) -> None:
        number = len(seen.hidden_claims)
        made = await repair.restore_claims(
            self._context.cluster,
            seen,
            gather=lambda: self._evidence(""),
            wait_out_binds=self._context.stop_binds(self._hidden_since, seen.node).wait,
        )
        self._context.ledgers.put(made)
        log.warning("Restored claims that could not be read", node=seen.node, claims=number)
        text = f"{number} claims that could not be read were written again from groups and running pods"
        self._context.recorder.note(subject_of(made), "Repaired", text)

    async def _convert(self, seen: NodeDevices) -> None:
        """Makes a ledger of an older release one that isn't lost with its node."""
        patch = ledger.filled_patch(seen, {})
        self._context.ledgers.put(await self._context.cluster.patch(NODE_DEVICES, seen.node, patch))
        log.info("Converted ledger", node=seen.node)

    async def _retire(self, seen: NodeDevices) -> None:
        """Deletes the ledger of a node that is no longer shared, once nothing of it is held."""
        name, meta = seen.node, seen.metadata
        if seen.claims:
            return
        node = await find(self._context.cluster, NODES, name)
        if node and node.shared:
            raise Later(1.0)  # The mirror is behind.
        if meta.deletion_timestamp:
            await self._let_go(seen)
            return
        with suppress(NotFound):
            await self._context.cluster.delete(NODE_DEVICES, name, uid=meta.uid, resource_version=meta.resource_version)

    async def _let_go(self, seen: NodeDevices) -> None:
        """Takes the finalizer from an empty ledger that is being deleted."""
        if contract.CLAIMS_FINALIZER in seen.metadata.finalizers:
            with suppress(NotFound):
                await self._context.cluster.patch(NODE_DEVICES, seen.node, ledger.let_go_patch(seen))
            log.info("Deleted ledger", node=seen.node)

    # What it says of the node's devices.

    async def _keep_devices(self, node: Node, seen: NodeDevices) -> None:
        inventory = self._inventory(node, seen)
        self._report_faults(node, inventory.offer)
        self._report_allocated_twice(node, seen, inventory.status.published)
        self._report_claimed_twice(seen)
        if await self._name_by_uuid(node, seen):
            return  # The change of the ledger enqueues this node again.
        others = dict.fromkeys(seen.status.former_summary, "")
        decided = inventory.status == replace(seen.status, devices=[], hardware=Hardware(), recovered=[], **others)
        # It is opened once it says what is withheld, and in which words.
        devices = inventory.offer.devices if decided or seen.status.devices else ()
        same_devices = decided and tuple(sorted(seen.status.devices)) == devices
        if not same_devices or seen.status.former_summary:
            patch = ledger_status.devices_patch(seen, devices, inventory.status)
            seen = await self._context.cluster.patch(NODE_DEVICES, seen.node, patch, subresource="status")
            self._context.ledgers.put(seen)
            log.info("Recorded devices of node", node=seen.node, devices=len(seen.status.devices))
        await self._keep_summary(seen, at_once=not same_devices)

    def _inventory(self, node: Node, seen: NodeDevices) -> _Inventory:
        """The node's devices for groups, and how each vendor's are named to its runtime, whoever has claims."""
        published, reported = self._published(seen), seen.status.hardware
        source, kept = (node.metadata.resource_version, reported, published), self._inventories.get(seen.node)
        if kept is None or kept.source != source:
            taken, hardware = take(node, reported, published), published.behind(reported)
            offer, words = handover.apply(taken, node.metadata.labels, hardware, self._context.handover)
            status = LedgerStatus(
                withheld=list(offer.withheld),
                handover=words,
                memory_mib=shared_resources.memory_mib(node),
                for_shares=list(offer.for_shares),
                for_groups=list(offer.for_groups),
                published=published,
            )
            kept = self._inventories[seen.node] = _Inventory(source, offer, status)
        return kept

    def _published(self, seen: NodeDevices) -> Publication:
        """What DRA says of the node. Two mirrors know it, and one of them may be without what it is to show."""
        known = self._context.claims_known()
        groups = (self._context.groups.get(claim.group) for claim in seen.claims.values() if claim.group)
        holders = {group.claim for group in groups if group} - {""}
        published = handover.steady(self._dra.publication(seen.node, claims_known=known, holders=holders), seen)
        if not known and published != NOTHING_PUBLISHED:
            self.queue.add(seen.node, CLAIMS_SECONDS)  # Without any claim, no event shows that they can be read.
        return published

    async def _name_by_uuid(self, node: Node, seen: NodeDevices) -> bool:
        """Writes the UUIDs into claims from before the agent's first report; whether any was written."""
        if not same_boot(node, seen.status.hardware):
            return False
        here = [pod for pod in self._context.index.holding[seen.node] if pod.sealed or pod.metadata.unreadable]
        told = handover.by_uuid(seen, {uid for pod in here for uid in (pod.holder_uid, pod.share_uid)})
        if told:
            self._context.ledgers.put(await write_claims(self._context.cluster, seen, ledger.claims_patch(seen, told)))
            log.info("Named devices of claims by UUID", node=seen.node, claims=len(told))
        return bool(told)

    async def _keep_summary(self, seen: NodeDevices, *, at_once: bool) -> None:
        """Corrects the summary: who writes claims does so himself, who writes devices or hardware doesn't."""
        name, now = seen.node, self._context.clock()
        if seen.spec.summary == ledger_status.summary(seen):
            self._outdated_since.pop(name, None)
            return
        gathered = self._outdated_since.setdefault(name, now) + GATHER_SECONDS
        left = max(gathered, self._written.get(name, -SUMMARY_SECONDS) + SUMMARY_SECONDS) - now
        if not at_once and left > 0:
            self.queue.add(name, left)
            return
        patch = ledger_status.summary_patch(seen)
        self._context.ledgers.put(await self._context.cluster.patch(NODE_DEVICES, name, patch))
        self._written[name] = self._context.clock()
        self._outdated_since.pop(name, None)

    # What is wrong with it: logged, and recorded as Events, when it changes.

    def _report_faults(self, node: Node, offer: Offer) -> None:
        """Why devices of the node aren't offered, or aren't known."""
        name, faults = node.metadata.name, [*map(str, offer.faults), *map(str, offer.untold)]
        if not offer.devices and not offer.withheld and not faults:
            annotate = f"kubectl annotate node {name} {contract.INVENTORY_ANNOTATION}=nvidia.com/gpu=4"
            cures = f"start its device plugin or deviceshare's agent there, or name what it has: {annotate}"
            faults = [f"the node is shared but has no devices: {cures}"]
        before, now = self._faults.get(name, ""), "; ".join(faults)
        self._faults[name] = now
        if now not in ("", before):
            log.warning("Found faults in inventory of node", node=name, faults=now)
            self._context.recorder.warn(subject_of(node), "DevicesUnknown", now)

    def _report_allocated_twice(self, node: Node, seen: NodeDevices, published: Publication) -> None:
        """Devices of groups and shares that DRA allocated to ResourceClaims, too."""
        before = self._allocated_twice.get(seen.node, set())
        if not published.claims and not before:
            return
        states = device_states(replace(seen, status=replace(seen.status, published=published)))
        twice = [each for each in states if each.holders and each.resource_claim]
        if published.held is not None:  # What isn't held yet is nobody's before a pod has it: its holder leaves it.
            twice = [each for each in twice if any(map(self._context.fleet.pods, each.holders))]
        found = {f"{each.device}: {each.resource_claim}" for each in twice}
        if devices := "; ".join(sorted(found - before)):
            log.error("Found devices that DRA allocated, too", node=seen.node, devices=devices)
            text = f"DRA allocated devices that groups or shares have ({devices}): delete the pods of one of them"
            text = f"{text}, and keep DRA from these devices"
            self._context.recorder.warn(subject_of(node), "DevicesGivenAway", text)
        self._allocated_twice[seen.node] = found

    def _report_claimed_twice(self, seen: NodeDevices) -> None:
        """The claims that mean one device; a group's condition says so, too, and has Events of its own."""
        states = self._context.fleet.states(seen.node)
        found = {holder for state in states for holder in state.claimed_twice}
        for holder in sorted(found - self._claimed_twice.get(seen.node, set())):
            reason = str(claimed_twice(states, holder))
            log.error("Found devices that are claimed twice", node=seen.node, holder=str(holder), reason=reason)
            if holder.kind == POD:
                namespace, _, name = holder.name.partition("/")
                subject = Subject(PODS, name, namespace, holder.uid)
                self._context.recorder.warn(subject, ReasonKind.CLAIMED_TWICE, reason)
        self._claimed_twice[seen.node] = found

    # Whether its claims cover what runs there.

    async def _cover(self, node: str) -> None:
        """Claims what live pods and bound groups of the node hold without a claim, and reports what can't be."""
        seen, holding = self._context.ledgers.get(node), self._context.index.holding[node]
        if seen is None:
            self._remember(node, [pod for pod in holding if pod.metadata.uid in self._uncovered.get(node, ())])
            return
        meta = seen.metadata
        if not seen.filled or meta.unreadable or (meta.deletion_timestamp and not seen.claims):
            return
        if all(_covered(pod, seen) for pod in holding) and not self._unclaimed(seen):
            self._remember(node, [])
            return
        # The ledger first: a pod bound after it was read has a claim that makes our write fail.
        seen = await find(self._context.cluster, NODE_DEVICES, node)
        if seen is None:
            return
        self._context.ledgers.put(seen)
        groups = [await holders.read_group(self._context.cluster, group.holder) for group in self._unclaimed(seen)]
        pods = await self._context.cluster.list(PODS, label_selector=contract.GROUP)
        here = [pod for pod in pods if pod.node == node and _by_right(pod)]
        uncovered = [pod for pod in here if not _covered(pod, seen)]
        using = {pod.holder_uid for pod in uncovered if pod.group} | {pod.share_uid for pod in uncovered if pod.shares}
        bound = {group.uid: group for group in groups if group and group.node == node}
        for uid in sorted((using | bound.keys()) - seen.claims.keys()):
            mine = [pod for pod in here if uid in (pod.holder_uid, pod.share_uid)]
            if await repair.cover(self._context.cluster, seen, mine, uid, bound.get(uid)):
                log.warning("Claimed devices that had no claim", node=node, uid=uid)
                self._coverage.add(node, COVER_SECONDS)
                return
        self._remember(node, uncovered)

    def _unclaimed(self, seen: NodeDevices) -> list[Group]:
        """The groups that the mirror shows bound there, and whose claim is missing."""
        bound = self._context.index.bound[seen.node]
        return [group for group in bound if group.uid not in seen.claims and not group.metadata.unreadable]

    def _remember(self, node: str, uncovered: list[Pod]) -> None:
        before = self._uncovered.get(node, set())
        now = {pod.metadata.uid for pod in uncovered}
        if before == now:
            return
        for pod in uncovered:
            if pod.metadata.uid not in before:
                self._report(pod)
        self._uncovered[node] = now
        if not now:
            del self._uncovered[node]
        self._context.on_uncovered(sum(map(len, self._uncovered.values())))

    def _report(self, pod: Pod) -> None:
        devices = listed(map(str, pod.devices))
        log.error("Found a pod with devices that others hold", pod=pod.metadata.key, node=pod.node, devices=devices)
        cure = f"delete the pod; kubectl get ndev {pod.node} shows who holds what"
        message = f"the pod uses {devices} of node {pod.node}, for which it has no claim there, and others may get them"
        self._context.recorder.warn(subject_of(pod), "DevicesNotHeld", f"{message}: {cure}")


def _told(ledger: NodeDevices) -> tuple[object, ...]:
    return ledger.filled, ledger.status, ledger.metadata.unreadable


def _by_right(pod: Pod) -> bool:
    return pod.lives and bool(pod.holder_uid) and not pod.impostor


def _covered(pod: Pod, ledger: NodeDevices) -> bool:
    """Whether the claims of its group and of its share reserve what it received."""
    if pod.group and (received := pod.received):
        claim = ledger.claims.get(pod.holder_uid)
        if claim is None or not covers(ledger, claim, received):
            return False
    if shares := pod.shares:
        claim = ledger.claims.get(pod.share_uid)
        return claim is not None and covers(ledger, claim, (share.device for share in shares))
    return True
