"""The reconciler of shared nodes: keeps a ledger for each, with what the node has, and recreates one that was lost.

A new ledger names no devices and so is closed: nothing can be claimed in it. Only when everything that lives on the
node has a claim is it opened, by writing the devices (repair.open_ledger). A ledger that has lost all its devices for a
moment, as when a device plugin restarts, is opened in the same way.
"""

import structlog

from deviceshare.domain.answers import ledger_status
from deviceshare.domain.objects import ledger
from deviceshare.domain.objects.ledger import LedgerStatus, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.publication import NOTHING_PUBLISHED, Publication
from deviceshare.domain.placement import device_memory, handover
from deviceshare.domain.placement.dra_view import DraView
from deviceshare.domain.placement.inventory import Offer, take
from deviceshare.domain.placement.steady_numbers import steady
from deviceshare.domain.wording import listed
from deviceshare.loops.api_objects import find
from deviceshare.loops.kinds import NODE_DEVICES, NODES
from deviceshare.loops.leader.coverage import Coverage
from deviceshare.loops.leader.dropped_fields import AGAIN_SECONDS
from deviceshare.loops.leader.inventory_faults import InventoryFaults
from deviceshare.loops.leader.releaser import new_mark
from deviceshare.loops.leader.term import Term, UnchangedSince
from deviceshare.loops.ports import NotFound
from deviceshare.loops.protocol import repair
from deviceshare.loops.queue import Later, Queue
from deviceshare.loops.shared_read import SharedRead
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)

WORKERS = 8
SUMMARY_SECONDS = 2.0
"""Between two writes of a ledger's one-line summaries. Each makes a bind that is claiming there at the moment retry."""
GATHER_SECONDS = 1.0
"""Between a claim and the summaries that include it: where one group is bound, others often follow."""
CLAIMS_SECONDS = 20.0
"""Between two looks at a node with ResourceSlices while ResourceClaims can't be read."""


class Ledgers:
    """The reconciler of shared nodes and their NodeDevices, keyed by node name."""

    def __init__(self, term: Term, coverage: Coverage, dra: DraView) -> None:
        self._term = term
        self._dra = dra
        self.queue: Queue[str] = Queue("nodes", self._reconcile, workers=WORKERS, clock=term.clock)
        self._coverage = coverage
        # A cluster's first start opens all ledgers at once: what they ask of the API server is the same for all.
        self._fenced_evidence = SharedRead(lambda _: repair.fenced_evidence(term.cluster))
        self._evidence = SharedRead(lambda _: repair.evidence(term.cluster))
        self._missing_since: UnchangedSince[str] = UnchangedSince(term)
        self._written: dict[str, float] = {}
        self._outdated_since: dict[str, float] = {}
        self._not_kept_until = 0.0
        """The API server drops summaries: the CRD is of an older release."""
        self._faults = InventoryFaults(term)

    async def close(self) -> None:
        """Ends the reads under way."""
        await self._fenced_evidence.close()
        await self._evidence.close()

    async def _reconcile(self, name: str) -> None:
        node, seen = self._term.nodes.get(name), self._term.ledgers.get(name)
        if any(each.metadata.unreadable for each in (node, seen) if each):
            return  # What it hides may be in use: nothing is overwritten, nor concluded from the rest.
        if node is None or not node.shared:
            self._forget(name)
            if seen is None:
                self._coverage.forget(name)
            await self._retire(name, seen)
            return
        if seen is None:
            await self._recreate(node)
            return
        published = self._published(seen)
        offer, words = self._offer(node, seen, published)
        self._faults.report(node, offer)
        self._faults.report_twice(node, seen, published)
        self._missing_since.forget(name)
        if node.metadata.uid not in {owner.uid for owner in seen.metadata.owner_references}:
            await self._adopt(node, seen)
            return
        await self._keep_devices(node, seen, offer, _rest(node, offer, words, published))
        await self._coverage.check(name)

    async def _recreate(self, node: Node) -> None:
        name = node.metadata.name
        since = self._missing_since(name)

        async def wait_out_binds() -> None:
            # Binds that began after the ledger was seen missing can't have claimed in it.
            self._term.wait_until(since + self._term.binds_over)

        made, disputed = await repair.recreate(
            self._term.cluster,
            node,
            gather=lambda: self._fenced_evidence(""),
            mark=new_mark(),
            wait_out_binds=wait_out_binds,
        )
        self._term.ledgers.put(made)
        log.info("Created ledger", node=name, claims=len(made.claims))
        if made.claims:
            holders = listed(sorted(claim.holder_name for claim in made.claims.values()))
            text = f"recreated with what groups and running pods hold: {holders}"
            self._term.recorder.note(subject_of(made), "Repaired", text)
        self._coverage.report_disputed(name, disputed)

    async def _adopt(self, node: Node, seen: NodeDevices) -> None:
        """Makes the ledger the child of a node that was recreated, before it is deleted with the old one."""
        body = {
            "metadata": {
                "resourceVersion": seen.metadata.resource_version,
                "ownerReferences": ledger.new_ledger(node, {})["metadata"]["ownerReferences"],
            }
        }
        self._term.ledgers.put(await self._term.cluster.patch(NODE_DEVICES, seen.node, body))
        log.info("Adopted ledger", node=seen.node)

    async def _keep_devices(self, node: Node, seen: NodeDevices, offer: Offer, rest: LedgerStatus) -> None:
        name, devices = node.metadata.name, offer.devices
        decided = rest == _as_written(seen.status)
        if devices and decided and not seen.status.devices:
            disputed = await repair.open_ledger(
                self._term.cluster, name, devices, gather=lambda: self._evidence(""), mark=new_mark()
            )
            log.info("Opened ledger", node=name, devices=len(devices))
            self._coverage.report_disputed(name, disputed)
            return
        same_devices = decided and tuple(sorted(seen.status.devices)) in (devices, ())
        if not same_devices or seen.status.former_summary:
            # A closed ledger stays closed here: it is opened above, once it says what is withheld, and in which words.
            patch = ledger_status.devices_patch(seen, devices if seen.status.devices else (), rest)
            seen = await self._term.cluster.patch(NODE_DEVICES, name, patch, subresource="status")
            self._term.ledgers.put(seen)
            log.info("Recorded devices of node", node=name, devices=len(seen.status.devices))
        await self._keep_summary(seen, at_once=not same_devices)

    async def _keep_summary(self, seen: NodeDevices, *, at_once: bool) -> None:
        """Corrects the summary: who writes claims does so himself, who writes devices or hardware doesn't."""
        name, wanted = seen.node, ledger_status.summary(seen)
        if seen.spec.summary == wanted:
            self._outdated_since.pop(name, None)
            return
        left = max(0.0 if at_once else self._until_summary(name), self._not_kept_until - self._term.clock())
        if left > 0:
            self.queue.add(name, left)
            return
        written = await self._term.cluster.patch(NODE_DEVICES, name, ledger_status.summary_patch(seen))
        self._term.ledgers.put(written)
        self._written[name] = self._term.clock()
        self._outdated_since.pop(name, None)
        if written.spec.summary != wanted:
            self._not_kept_until = self._term.clock() + AGAIN_SECONDS
            self.queue.add(name, AGAIN_SECONDS)
            cure = "apply the CRDs of this release (deviceshare doctor); kubectl get ndev shows no devices until then"
            log.error("API server drops fields that the CRD lacks", kind="NodeDevices", fields=["summary"], cure=cure)

    def _until_summary(self, name: str) -> float:
        """Seconds until the ledger's outdated summaries may be written."""
        now = self._term.clock()
        gathered = self._outdated_since.setdefault(name, now) + GATHER_SECONDS
        return max(gathered, self._written.get(name, -SUMMARY_SECONDS) + SUMMARY_SECONDS) - now

    async def _retire(self, name: str, seen: NodeDevices | None) -> None:
        """Deletes the ledger of a node that is no longer shared, once nothing of it is held."""
        if seen is None or seen.claims:
            return
        node = await find(self._term.cluster, NODES, name)
        if node and node.shared:
            raise Later(1.0)  # The mirror is behind.
        meta = seen.metadata
        try:
            await self._term.cluster.delete(NODE_DEVICES, name, uid=meta.uid, resource_version=meta.resource_version)
        except NotFound:
            return
        log.info("Deleted ledger", node=name)

    def _published(self, seen: NodeDevices) -> Publication:
        """What DRA says of the node. Two mirrors know it, and one of them may be without what it is to show."""
        known = self._term.claims_known()
        published = steady(self._dra.publication(seen.node, claims_known=known), seen)
        if not known and published != NOTHING_PUBLISHED:
            self.queue.add(seen.node, CLAIMS_SECONDS)  # Without any claim, no event shows that they can be read.
        return published

    def _offer(self, node: Node, seen: NodeDevices, published: Publication) -> tuple[Offer, dict[str, str]]:
        """The node's devices for groups, and how each vendor's are named to its runtime."""
        reported = seen.status.hardware
        offer, hardware = take(node, reported, published), published.behind(reported)
        return handover.apply(offer, node.metadata.labels, hardware, self._term.handover)

    def _forget(self, name: str) -> None:
        self._missing_since.forget(name)
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
