"""What is wrong with the devices that nodes report: logged, and recorded as Events of the node, when it changes."""

import structlog
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.hardware import Publication
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.reasons import ReasonKind
from deviceshare.domain.objects.requests import POD, Holder
from deviceshare.domain.placement.device_states import device_states
from deviceshare.domain.placement.inventory import Offer
from deviceshare.domain.placement.join_obstacles import claimed_twice
from deviceshare.loops.kinds import PODS
from deviceshare.loops.leader.term import Term
from deviceshare.loops.ports import Subject
from deviceshare.loops.subjects import subject_of

log = structlog.get_logger(__name__)


class InventoryFaults:
    """By node, what was reported last."""

    def __init__(self, term: Term) -> None:
        self._recorder = term.recorder
        self._faults: dict[str, str] = {}
        self._twice: dict[str, set[str]] = {}
        """The devices that DRA allocated, too."""
        self._contradicted: dict[str, set[Holder]] = {}
        """The holders whose claims contradict others'."""

    def report(self, node: Node, offer: Offer) -> None:
        """Why devices of the node aren't offered, or aren't known."""
        name = node.metadata.name
        faults = [*map(str, offer.faults), *map(str, offer.untold)]
        if not offer.devices and not offer.withheld and not faults:
            annotate = f"kubectl annotate node {name} {contract.INVENTORY_ANNOTATION}=nvidia.com/gpu=4"
            cures = f"start its device plugin or deviceshare's agent there, or name what it has: {annotate}"
            faults = [f"the node is shared but has no devices: {cures}"]
        text = "; ".join(faults)
        if text == self._faults.get(name, ""):
            return
        self._faults[name] = text
        if text:
            log.warning("Found faults in inventory of node", node=name, faults=text)
            self._recorder.warn(subject_of(node), "DevicesUnknown", text)

    def report_twice(self, node: Node, seen: NodeDevices, published: Publication) -> None:
        """Reports devices of groups and shares that DRA allocated to ResourceClaims, too."""
        name = node.metadata.name
        if not published.claims and name not in self._twice:
            return
        states = device_states(replace(seen, status=replace(seen.status, published=published)))
        found = {f"{each.device}: {each.resource_claim}" for each in states if each.holders and each.resource_claim}
        new = found - self._twice.get(name, set())
        self._twice[name] = found
        if not found:
            del self._twice[name]
        if new:
            devices = "; ".join(sorted(new))
            log.error("Found devices that DRA allocated, too", node=name, devices=devices)
            text = f"DRA allocated devices that groups or shares have ({devices}): delete the pods of one of them"
            self._recorder.warn(subject_of(node), "DevicesGivenAway", f"{text}, and keep DRA from these devices")

    def report_claimed_twice(self, seen: NodeDevices) -> None:
        """Reports the claims that mean one device; a group's condition says so, too, and has Events of its own."""
        states, before = device_states(seen), self._contradicted.pop(seen.node, set())
        if found := {holder for state in states for holder in state.claimed_twice}:
            self._contradicted[seen.node] = found
        for holder in sorted(found - before):
            reason = str(claimed_twice(states, holder))
            log.error("Found devices that are claimed twice", node=seen.node, holder=str(holder), reason=reason)
            if holder.kind == POD:
                namespace, _, name = holder.name.partition("/")
                self._recorder.warn(Subject(PODS, name, namespace, holder.uid), ReasonKind.CLAIMED_TWICE, reason)

    def forget(self, name: str) -> None:
        """Of a node that is gone, or isn't shared any more."""
        self._faults.pop(name, None)
        self._twice.pop(name, None)
        self._contradicted.pop(name, None)
