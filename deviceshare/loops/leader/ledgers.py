"""The reconciler of shared nodes: keeps a ledger for each, with what the node has, and fills one that was lost.

A new ledger names no devices and so is closed: nothing can be claimed in it. Only when everything that lives on the
node has a claim is it opened, by writing the devices (repair.fill). It has no owner and bears a finalizer, so it is
lost by force only: one that is deleted serves on until it is empty.
"""

from contextlib import suppress
from typing import Final

import structlog

from deviceshare.domain import contract
from deviceshare.domain.answers import ledger_status
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Publication
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node, same_boot
from deviceshare.domain.placement import device_memory, handover, steady_numbers
from deviceshare.domain.placement.dra_view import DraView
from deviceshare.domain.placement.inventory import Offer, take
from deviceshare.domain.wording import listed
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.leader.coverage import Coverage
from deviceshare.loops.leader.inventory_faults import InventoryFaults
from deviceshare.loops.leader.releaser import new_mark
from deviceshare.loops.leader.residents import Residents
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import NotFound
from deviceshare.loops.protocol import repair
from deviceshare.loops.protocol.claiming import write_claims
from deviceshare.loops.queue import Later, Queue
from deviceshare.loops.shared_read import SharedRead
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

WORKERS = 8
SUMMARY_SECONDS = 2.0
"""Between two writes of a ledger's one-line summaries. Each makes a bind that is claiming there at the moment retry."""
GATHER_SECONDS = 1.0
"""Between a claim and the summaries that include it: where one group is bound, others often follow."""
LOOK_SECONDS: Final = 1.5
"""Between the change that shows a group without its claim and the look at it: the mirror of ledgers may be behind."""
CLAIMS_SECONDS = 20.0
"""Between two looks at a node with ResourceSlices while ResourceClaims can't be read."""


class Ledgers:
    """The reconciler of shared nodes and their NodeDevices, keyed by node name."""

    def __init__(self, term: Term, residents: Residents, dra: DraView) -> None:
        self._term = term
        self._residents = residents
        self._dra = dra
        self.queue: Queue[str] = Queue("nodes", self._reconcile, workers=WORKERS, clock=term.clock)
        self._coverage = Coverage(term, residents)
        # A cluster's first start opens all ledgers at once: what they ask of the API server is the same for all.
        self._evidence = SharedRead(lambda _: repair.evidence(term.cluster))
        self._new_since: UnchangedSince[str] = UnchangedSince(term)
        """By node, with the UID of its ledger that has to be filled."""
        self._hidden_since: UnchangedSince[str] = UnchangedSince(term)
        self._written: dict[str, float] = {}
        self._outdated_since: dict[str, float] = {}
        self._faults = InventoryFaults(term)

    async def close(self) -> None:
        """Ends the reads under way."""
        await self._evidence.close()

    async def _reconcile(self, name: str) -> None:
        node, seen = self._term.nodes.get(name), self._term.ledgers.get(name)
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
            self._forget(name)
            if seen is not None:
                await self._coverage.check(name)
                await self._retire(name, seen)
            elif self._residents[name] or self._term.members.holding(name):
                await self._create(name)
            else:
                self._coverage.forget(name)
            return
        if seen is None:
            await self._create(name)
            return
        if seen.metadata.deletion_timestamp and not seen.claims:
            await self._let_go(seen)
            return
        published = self._published(seen)
        offer, words = self._offer(node, seen, published)
        self._faults.report(node, offer)
        self._faults.report_twice(node, seen, published)
        self._faults.report_claimed_twice(seen)
        if await self._name_by_uuid(node, seen):
            return  # The change of the ledger enqueues this node again.
        await self._keep_devices(node, seen, offer, _rest(node, offer, words, published))
        await self._coverage.check(name)

    def enqueue_home(self, group: Group) -> None:
        """Enqueues the node of a bound group if its ledger or its claim seems to be missing."""
        seen = self._term.ledgers.get(group.node)
        if group.node and (seen is None or group.uid not in seen.claims):
            self.queue.add(group.node, LOOK_SECONDS)

    async def _create(self, name: str) -> None:
        self._term.ledgers.put(await self._term.cluster.create(NODE_DEVICES, ledger.new_ledger(name)))
        log.info("Created ledger", node=name)

    async def _fill(self, seen: NodeDevices) -> None:
        """Adds the claims of who lives there, when binds are over that may have used an earlier ledger."""

        async def wait_out_binds(uid: str) -> None:
            self._term.wait_until(self._new_since(seen.node, uid) + self._term.binds_over)

        made, disputed = await repair.fill(
            self._term.cluster,
            seen.node,
            gather=lambda: self._evidence(""),
            mark=new_mark(),
            wait_out_binds=wait_out_binds,
        )
        self._term.ledgers.put(made)
        log.info("Filled ledger", node=seen.node, claims=len(made.claims))
        if made.claims:
            holders = listed(sorted(claim.holder_name for claim in made.claims.values()))
            text = f"recreated with what groups and running pods hold: {holders}"
            self._term.recorder.note(subject_of(made), "Repaired", text)
        self._coverage.report_disputed(seen.node, disputed)

    async def _restore(self, seen: NodeDevices) -> None:
        name, hidden = seen.node, seen.hidden_claims
        since = self._hidden_since(name, (seen.metadata.uid, hidden))

        async def wait_out_binds() -> None:
            self._term.wait_until(since + self._term.binds_over)

        made = await repair.restore_claims(
            self._term.cluster,
            seen,
            gather=lambda: self._evidence(""),
            mark=new_mark(),
            wait_out_binds=wait_out_binds,
        )
        self._term.ledgers.put(made)
        log.warning("Restored claims that could not be read", node=name, claims=len(hidden))
        text = f"{len(hidden)} claims that could not be read were written again from groups and running pods"
        self._term.recorder.note(subject_of(made), "Repaired", text)

    async def _convert(self, seen: NodeDevices) -> None:
        """Makes a ledger of an older release one that isn't lost with its node."""
        patch = ledger.filled_patch(seen, {})
        self._term.ledgers.put(await self._term.cluster.patch(NODE_DEVICES, seen.node, patch))
        log.info("Converted ledger", node=seen.node)

    async def _name_by_uuid(self, node: Node, seen: NodeDevices) -> bool:
        """Writes the UUIDs into claims from before the agent's first report; whether any was written."""
        if not same_boot(node, seen.status.hardware):
            return False
        here = [pod for pod in self._term.members.holding(seen.node) if pod.sealed or pod.metadata.unreadable]
        told = steady_numbers.by_uuid(seen, {uid for pod in here for uid in (pod.holder_uid, pod.share_uid)})
        if not told:
            return False
        self._term.ledgers.put(await write_claims(self._term.cluster, seen, ledger.claims_patch(seen, told)))
        log.info("Named devices of claims by UUID", node=seen.node, claims=len(told))
        return True

    async def _keep_devices(self, node: Node, seen: NodeDevices, offer: Offer, rest: LedgerStatus) -> None:
        name = node.metadata.name
        decided = rest == _as_written(seen.status)
        # It is opened once it says what is withheld, and in which words.
        devices = offer.devices if decided or seen.status.devices else ()
        same_devices = decided and tuple(sorted(seen.status.devices)) == devices
        if not same_devices or seen.status.former_summary:
            patch = ledger_status.devices_patch(seen, devices, rest)
            seen = await self._term.cluster.patch(NODE_DEVICES, name, patch, subresource="status")
            self._term.ledgers.put(seen)
            log.info("Recorded devices of node", node=name, devices=len(seen.status.devices))
        await self._keep_summary(seen, at_once=not same_devices)

    async def _keep_summary(self, seen: NodeDevices, *, at_once: bool) -> None:
        """Corrects the summary: who writes claims does so himself, who writes devices or hardware doesn't."""
        name = seen.node
        if seen.spec.summary == ledger_status.summary(seen):
            self._outdated_since.pop(name, None)
            return
        if not at_once and (left := self._until_summary(name)) > 0:
            self.queue.add(name, left)
            return
        patch = ledger_status.summary_patch(seen)
        self._term.ledgers.put(await self._term.cluster.patch(NODE_DEVICES, name, patch))
        self._written[name] = self._term.clock()
        self._outdated_since.pop(name, None)

    def _until_summary(self, name: str) -> float:
        """Seconds until the ledger's outdated summaries may be written."""
        now = self._term.clock()
        gathered = self._outdated_since.setdefault(name, now) + GATHER_SECONDS
        return max(gathered, self._written.get(name, -SUMMARY_SECONDS) + SUMMARY_SECONDS) - now

    async def _retire(self, name: str, seen: NodeDevices) -> None:
        """Deletes the ledger of a node that is no longer shared, once nothing of it is held."""
        if seen.claims:
            return
        node = await find(self._term.cluster, NODES, name)
        if node and node.shared:
            raise Later(1.0)  # The mirror is behind.
        meta = seen.metadata
        if meta.deletion_timestamp:
            await self._let_go(seen)
            return
        with suppress(NotFound):
            await self._term.cluster.delete(NODE_DEVICES, name, uid=meta.uid, resource_version=meta.resource_version)

    async def _let_go(self, seen: NodeDevices) -> None:
        """Takes the finalizer from an empty ledger that is being deleted."""
        if contract.CLAIMS_FINALIZER in seen.metadata.finalizers:
            with suppress(NotFound):
                await self._term.cluster.patch(NODE_DEVICES, seen.node, ledger.let_go_patch(seen))
            log.info("Deleted ledger", node=seen.node)

    def _published(self, seen: NodeDevices) -> Publication:
        """What DRA says of the node. Two mirrors know it, and one of them may be without what it is to show."""
        known = self._term.claims_known()
        published = steady_numbers.steady(self._dra.publication(seen.node, claims_known=known), seen)
        if not known and published != NOTHING_PUBLISHED:
            self.queue.add(seen.node, CLAIMS_SECONDS)  # Without any claim, no event shows that they can be read.
        return published

    def _offer(self, node: Node, seen: NodeDevices, published: Publication) -> tuple[Offer, dict[str, str]]:
        """The node's devices for groups, and how each vendor's are named to its runtime."""
        reported = seen.status.hardware
        offer, hardware = take(node, reported, published), published.behind(reported)
        return handover.apply(offer, node.metadata.labels, hardware, self._term.handover)

    def _forget(self, name: str) -> None:
        self._written.pop(name, None)
        self._outdated_since.pop(name, None)
        self._faults.forget(name)


def _rest(node: Node, offer: Offer, words: dict[str, str], published: Publication) -> LedgerStatus:
    """All that the leader writes of a node's devices, but which these are and the lines that follow."""
    return LedgerStatus(
        withheld=list(offer.withheld),
        handover=words,
        memory_mib=device_memory.memory_mib(node),
        for_shares=list(offer.for_shares),
        for_groups=list(offer.for_groups),
        published=published,
    )


def _as_written(status: LedgerStatus) -> LedgerStatus:
    """The same, as a ledger has it."""
    return LedgerStatus(
        withheld=status.withheld,
        handover=status.handover,
        memory_mib=status.memory_mib,
        for_shares=sorted(status.for_shares),
        for_groups=sorted(status.for_groups),
        published=status.published,
    )
