"""DraView: what ResourceSlices and ResourceClaims say of each node, kept up to date at each change.

A claim's result names a driver, a pool and a device; which node that is, its pool's slices say. Where they are gone,
as when the driver was uninstalled while pods use its devices, the node that the allocation names, and the pool's own
name, which NVIDIA's driver and others take from the node, must do.
"""

from collections.abc import Mapping
from typing import Final

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Publication, ResourceHold, Withheld, holders
from deviceshare.domain.objects.printable import quoted
from deviceshare.domain.objects.resource_slices import AllocatedDevice, ResourceClaim, ResourceSlice
from deviceshare.domain.placement import slice_pools
from deviceshare.domain.placement.slice_pools import PoolDevice, PoolReading
from deviceshare.domain.vendors import DraDriver, Vendor

PoolKey = tuple[str, str]
"""Driver and pool."""

_DRIVER_CURE: Final = "see the pods of that driver on the node"
_UNREAD: Final = "ResourceClaims can't be read, and may hold any of its devices"
_READ: Final = "let deviceshare list and watch resourceclaims: apply the roles of its version (deviceshare doctor)"
_ENDED: Final = "it is free when the claim is deallocated, as when its last pod ends"


class DraView:
    """Mutable, but pure: no await, no clock, no log."""

    def __init__(self) -> None:
        self._pools: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._pools_of: dict[str, set[PoolKey]] = {}
        """By node, the pools of which a slice names it."""
        self._claims: dict[PoolKey | str, dict[str, ResourceClaim]] = {}
        """By pool of what they hold, and by the nodes that the allocation may mean otherwise."""
        self._hidden: dict[str, ResourceClaim] = {}
        """Those of which it can't be read what they hold."""

    def change_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> set[str]:
        """Takes in a slice's change; None is for one that isn't there. Returns the nodes that it concerns."""
        nodes: set[str] = set()
        for each in filter(None, (old, new)):
            nodes |= self._nodes_at(each.pool)
            pool = self._pools.setdefault(each.pool, {})
            pool.pop(each.metadata.name, None)
            if each is new and vendors.dra_vendor(each.spec.driver):
                pool[each.metadata.name] = each
            for node in self._nodes_at(each.pool) | {each.spec.node_name}:
                named = any(one.spec.node_name == node for one in pool.values())
                _put(self._pools_of, node, each.pool, there=named)
            if not pool:
                del self._pools[each.pool]
            nodes |= self._nodes_at(each.pool) | {each.spec.node_name}
        return nodes - {""}

    def change_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> set[str]:
        """Likewise a claim's."""
        nodes: set[str] = set()
        for each in filter(None, (old, new)):
            for place in _places(each):
                mine = self._claims.setdefault(place, {})
                mine.pop(each.metadata.key, None)
                if each is new:
                    mine[each.metadata.key] = each
                if not mine:
                    del self._claims[place]
                nodes |= {place} if isinstance(place, str) else self._nodes_at(place)
            if each.hidden or each.metadata.key in self._hidden:
                nodes |= self._pools_of.keys()
            self._hidden.pop(each.metadata.key, None)
            if each is new and each.hidden:
                self._hidden[each.metadata.key] = each
        return nodes - {""}

    def _nodes_at(self, pool: PoolKey) -> set[str]:
        """The nodes that slices of the pool name, and the one that has its name."""
        return {each.spec.node_name for each in self._pools.get(pool, {}).values()} | {pool[1]} - {""}

    def publication(self, node: str, *, claims_known: bool = True) -> Publication:
        """What is known of the node's devices. Without `claims_known`, who holds which of them isn't."""
        found = [self._of_driver(node, vendor, vendor.dra, claims_known) for vendor in vendors.VENDORS if vendor.dra]
        every = [each for each in found if each != NOTHING_PUBLISHED]
        if len(every) < 2:
            return every[0] if every else NOTHING_PUBLISHED
        return Publication(
            next(filter(None, (each.driver for each in every)), ""),
            [part for each in every for part in each.devices],
            [hold for each in every for hold in each.claims],
            [withheld for each in every for withheld in each.withheld],
        )

    def _of_driver(self, node: str, vendor: Vendor, driver: DraDriver, claims_known: bool) -> Publication:
        keys = {key for key in self._pools_of.get(node, ()) if key[0] == driver.name}
        held = self._held(node, driver, keys)
        if not keys and not held:
            return NOTHING_PUBLISHED
        unread = [] if claims_known or not keys else [Withheld(vendor.resource, _UNREAD, _READ)]
        if not driver.whole:
            return Publication(withheld=[*unread, *_unmatched(vendor, driver, held)])
        pools = {name: self._pools[driver.name, name].values() for _, name in keys}
        reading = slice_pools.read(node, vendor, driver, pools)
        hidden = sorted(self._hidden)
        withheld = [*reading.tainted, *unread]
        if reading.trouble:
            withheld.append(Withheld(vendor.resource, reading.trouble, _DRIVER_CURE))
        if hidden and keys:
            reason = f"ResourceClaim {hidden[0]} can't be read, and may hold any of its devices"
            cure = f"see what is wrong with it: {quoted(self._hidden[hidden[0]].metadata.fault)}"
            withheld.append(Withheld(vendor.resource, reason, cure))
        holds, unknown = _match(reading, held)
        if unknown:
            withheld += _unmatched(vendor, driver, unknown)
        return Publication(reading.driver, list(reading.parts), holds, withheld)

    def _held(self, node: str, driver: DraDriver, keys: set[PoolKey]) -> dict[PoolDevice, set[str]]:
        """What claims hold there: by the device's name in its pool, the claims."""
        claims: dict[str, ResourceClaim] = dict(self._claims.get(node, {}))
        for key in keys:
            claims |= self._claims.get(key, {})
        found: dict[PoolDevice, set[str]] = {}
        for name, claim in claims.items():
            for each in claim.holds:
                if each.driver == driver.name and self._is_here(node, claim, each):
                    found.setdefault((each.pool, each.device), set()).add(name)
        return found

    def _is_here(self, node: str, claim: ResourceClaim, held: AllocatedDevice) -> bool:
        """Whether the device may be the node's."""
        named = {each.spec.node_name for each in self._pools.get((held.driver, held.pool), {}).values()}
        return node in (named - {""} or claim.nodes or {held.pool})


def _put(table: dict[str, set[PoolKey]], node: str, pool: PoolKey, *, there: bool) -> None:
    pools = table.setdefault(node, set())
    (pools.add if there else pools.discard)(pool)
    if not pools:
        del table[node]


def _places(claim: ResourceClaim) -> set[PoolKey | str]:
    """Where it is looked for: at its devices' pools, and at the nodes that may be meant where these are gone."""
    pools: set[PoolKey | str] = {(each.driver, each.pool) for each in claim.holds}
    return pools | {each.pool for each in claim.holds} | (claim.nodes if pools else set())


def _match(
    reading: PoolReading, held: Mapping[PoolDevice, set[str]]
) -> tuple[list[ResourceHold], dict[PoolDevice, set[str]]]:
    """The node's devices that claims hold, and what they hold that none of its slices names."""
    mine: dict[Device, set[str]] = {}
    unknown: dict[PoolDevice, set[str]] = {}
    for name, claims in held.items():
        if name not in reading.named:
            unknown[name] = claims
        elif device := reading.named[name]:
            mine.setdefault(device, set()).update(claims)
    holds = [ResourceHold(each.resource, each.index, each.uuid, holders(by)) for each, by in sorted(mine.items())]
    return holds, unknown


def _unmatched(vendor: Vendor, driver: DraDriver, held: Mapping[PoolDevice, set[str]]) -> list[Withheld]:
    """All of the vendor's devices, while it can't be said which of them claims hold."""
    if not held:
        return []
    (_, device), claims = min(held.items())
    what = f"ResourceClaim {holders(claims)} holds {quoted(device)} of the DRA driver {driver.name}"
    unknown = "deviceshare can't tell which device that is"
    why = "none of the node's ResourceSlices names it" if driver.whole else unknown
    return [Withheld(vendor.resource, f"{what}, and {why}", _ENDED)]
