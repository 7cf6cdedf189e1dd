"""A node's shape: all that placement needs to know of a node, but for its name and labels.

A filter call may name thousands of nodes, most of them in the same situation; it reasons once per shape.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping
from itertools import chain, islice
from typing import NamedTuple

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement import sharing
from deviceshare.domain.placement.allocation import Preference, shortage
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.dialect_leftovers import leftover_reason
from deviceshare.domain.placement.join_obstacles import opaque_reason
from deviceshare.domain.placement.ledger_budget import Crowding
from deviceshare.domain.placement.rooms import Room

Counts = tuple[tuple[str, int], ...]
"""Devices by resource, sorted."""


class Shape(NamedTuple):
    """Equal for nodes on which the same requests fit."""

    obstacle: Reason | None
    """Why no device of it can be had at all."""
    free: Counts
    total: Counts
    opaque: frozenset[str]
    """Resources of which pods hold devices through the vendor's device plugin, unknown which."""
    withheld: tuple[tuple[str, Reason], ...] = ()
    """Resources of which the node withholds devices, and why."""
    rooms: tuple[Room, ...] = ()
    """What is left for shares, sorted; none of opaque resources."""
    advertised: frozenset[str] = frozenset()
    """Resources by which shares are asked for and that the node itself has, so that its kubelet would count them."""
    doubts: tuple[tuple[str, Reason], ...] = ()
    """Resources of which no device is free since claims may mean any of them, and why."""
    whole: tuple[Room, ...] = ()
    """The devices that a group may get, sorted, and thus the smallest first."""

    crowded: Crowding | None = None
    """Of its ledger, where not every claim would fit."""

    @property
    def outline(self) -> "Shape":
        """All that requests without a share ask about."""
        return self._replace(rooms=(), whole=(), advertised=frozenset())

    def room(self, resources: Container[str]) -> int:
        """How many devices of these resources are free."""
        return sum(count for resource, count in self.free if resource in resources)

    def obstacle_to(self, request: Request, effort: sharing.Effort | None = None) -> Reason | None:
        """Why the request doesn't fit."""
        lacks = (
            self._obstacle_to_share(request, effort)
            if not request.resources
            else self._obstacle_to_group(request, effort)
        )
        return lacks or (self.crowded.obstacle_to(request) if self.crowded else None)

    def _obstacle_to_group(self, request: Request, effort: sharing.Effort | None) -> Reason | None:
        if obstacle := self.obstacle or opaque_reason(self.opaque & request.resources.keys()):
            return obstacle
        total = dict(self.total)
        for resource, reason in self.withheld:
            if resource in request.resources and resource not in total:
                return reason
        lacks = shortage(request, dict(self.free), total)
        # kube-scheduler writes the number of nodes in front of a reason, hence words like those of its own reasons.
        if lacks:
            for resource, reason in self.doubts:
                if resource in request.resources:
                    return reason
            return Reason(ReasonKind.TOO_FULL, f"node(s) too full: {request.holder} needs {lacks}")
        if not request.share:
            return None
        if left := self.advertised & set(request.share.resources):
            return leftover_reason(left)
        # Which of them the group gets isn't known yet, and once it has them it keeps them: so the smallest must do.
        mine = (islice((room for room in self.whole if room.resource == r), n) for r, n in request.resources.items())
        return sharing.shortage(request.share, list(chain.from_iterable(mine)), effort)

    def _obstacle_to_share(self, request: Request, effort: sharing.Effort | None) -> Reason | None:
        share = request.share
        if obstacle := self.obstacle:
            return obstacle
        if left := self.advertised & set(share.resources):
            return leftover_reason(left)
        lacks = sharing.shortage(share, self.rooms, effort)
        if lacks is None or lacks is sharing.NOT_COMPARED:
            return lacks
        if reason := opaque_reason(self.opaque & set(share.of)):
            return reason
        there = {resource for resource, _ in self.total}
        withheld = (reason for resource, reason in self.withheld if resource in share.of and resource not in there)
        doubts = (reason for resource, reason in self.doubts if resource in share.of)
        return next(chain(withheld, doubts), lacks)

    def preference(self, request: Request, effort: sharing.Effort | None = None) -> Preference:
        """By which nodes are compared for the request (allocation.scores): the less, the fuller.

        Of nodes where a share fits as tightly, as where it opens a device that is nobody's yet, the one with fewer
        devices that are nobody's is the fuller: so whole devices stay together for groups.
        """
        if request.resources:
            return self.room(request.resources), 0
        mine, whole = request.share.of, sum(room.resource in request.share.of for room in self.whole)
        if request.strategy == sharing.SPREAD:
            return sum(room.free for room in self.rooms if room.resource in mine), whole
        return sharing.tightness(request.share, self.rooms, effort), whole


def counts(devices: Iterable[Device]) -> Counts:
    """How many of these there are of each resource."""
    return tuple(sorted(Counter(device.resource for device in devices).items()))


def opaque(ledger: NodeDevices, states: Iterable[DeviceState], pods: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Resources of which pods hold devices, unless the node's agent reports which; `pods` are resources by pod UID.

    A vendor's devices are the same under all its resources, whole, in turns or in parts, so all of them are named.
    """
    known = {(allocation.uid, allocation.resource) for allocation in ledger.hardware.allocations or ()}
    held = {resource for uid, resources in pods.items() for resource in resources if (uid, resource) not in known}
    if any(state.split for state in states):  # Who has a part by MIG has it of these, and no group gets these.
        held = {resource for resource in held if not resource.startswith(vendors.MIG_PREFIX)}
    if not held:
        return frozenset()
    owners = {vendors.plugin_vendor_of(resource) for resource in held}
    mine = {device.resource for device in (*ledger.devices, *ledger.claimed())}
    return frozenset(held | {resource for resource in mine if vendors.vendor_of(resource) in owners})
