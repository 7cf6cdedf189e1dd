"""Resource pools: devices as Dynamic Resource Allocation's ResourceSlices and ResourceClaims show them."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from deviceshare.domain import vendors
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import NOTHING_PUBLISHED, Part, Publication, ResourceHold, Withheld, holders_of
from deviceshare.domain.objects.nodes import REPELLING
from deviceshare.domain.objects.quantities import amount
from deviceshare.domain.objects.resource_slices import ResourceClaim, ResourceSlice, SliceDevice
from deviceshare.domain.placement.holds import Hold, hold_of, is_firm
from deviceshare.domain.placement.node_indexes import put, put_at
from deviceshare.domain.placement.shared_resources import DEVICE_UUID, LEAST_MIB, MOST, MOST_MIB
from deviceshare.domain.vendors import DraDriver, Vendor
from deviceshare.domain.wording import LONGEST_QUOTE, printable, quoted

# Slice pools: what the ResourceSlices of a vendor's DRA driver say of a node's devices, and whether that is complete.
# What NVIDIA's driver publishes stands in decision 17. A GPU that is split beforehand is not listed itself; one that is
# split on demand is, and shares counters with its parts. `gpu-vfio-N` is for virtual machines; its UUID is made up.
# Whoever may write ResourceSlices may write anything into them, so what isn't understood makes the whole untrusted.

WHOLE_GPU: Final = "gpu"
MIG_PART: Final = "mig"
PASSED_THROUGH: Final = "vfio"
MOST_TAINTS: Final = 16
"""Named one by one."""
_MIB: Final = 1 << 20

PoolDevice = tuple[str, str]
"""A pool's name and a device's in it."""


class PoolReading(NamedTuple):
    """What one driver's pools say of a node."""

    parts: tuple[Part, ...] = ()
    """Whole devices, and those that are split, sorted by number."""
    tainted: tuple[Withheld, ...] = ()
    named: Mapping[PoolDevice, Device | None] = {}
    """The device that an allocation of this name holds; None where it is none that containers could get."""
    trouble: str = ""
    """Why none of it can be trusted."""
    driver: str = ""
    """The version of the devices' driver."""


def read_pools(
    node: str, vendor: Vendor, driver: DraDriver, pools: Mapping[str, Iterable[ResourceSlice]]
) -> PoolReading:
    """The pools of the driver, by name, of which some slice names the node.

    A pool with trouble is read nevertheless: its devices are known by name, and nobody new gets them.
    """
    troubles: list[str] = []
    every: list[tuple[str, SliceDevice]] = []
    for name, pool in sorted(pools.items()):
        slices = list(pool)
        # Those of earlier generations are left over, or not yet updated.
        generation = max(each.spec.pool.generation for each in slices)
        newest = [each for each in slices if each.spec.pool.generation == generation]
        if trouble := _trouble(node, newest):
            troubles.append(f"the pool {quoted(name)} of the DRA driver {driver.name} {trouble}")
        every += [(name, device) for each in newest for device in each.spec.devices]
    if len(every) > MOST:
        return PoolReading(trouble=f"the DRA driver {driver.name} publishes more than {MOST} devices")
    if doubled := [name for name, number in Counter((p, d.name) for p, d in every).items() if number > 1]:
        troubles.append(f"the DRA driver {driver.name} publishes {quoted(doubled[0][1])} twice")
    reading = _read(vendor, driver, every)
    return reading._replace(trouble=troubles[0]) if troubles else reading


def _trouble(node: str, slices: list[ResourceSlice]) -> str:
    """What of the newest generation can't be trusted, as the end of a sentence."""
    if unread := [each for each in slices if each.metadata.unreadable]:
        return f"can't be read ({quoted(unread[0].metadata.fault)})"
    if any(each.spec.node_name != node for each in slices):
        return "isn't of this node alone"
    counts = {each.spec.pool.resource_slice_count for each in slices}
    if counts != {len(slices)}:
        return f"is incomplete: {len(slices)} of {max(counts)} ResourceSlices of its newest generation"
    return ""


def _read(vendor: Vendor, driver: DraDriver, every: list[tuple[str, SliceDevice]]) -> PoolReading:
    found = [(name, part) for name in every if (part := _part(vendor, driver, name[1]))]
    whole, pieces = ([each for each in found if each[1].mig is mig] for mig in (False, True))
    counters = {counter for (_, device), _ in whole for counter in _counters(device)}
    # Of a GPU that can be split on demand the parts are only possible ones until somebody gets one.
    split = {part.uuid for (_, device), part in pieces if not _counters(device) & counters}
    parts = {part.uuid: part for _, part in pieces if part.uuid in split}
    parts |= {part.uuid: replace(part, mig=part.uuid in split) for _, part in whole}
    by_pci = {part.pci: part for _, part in whole if part.pci}
    named: dict[PoolDevice, Device | None] = {(pool, device.name): part.device for (pool, device), part in found}
    odd = []
    for pool, device in every:
        if device.fields.attributes.type.string == PASSED_THROUGH:
            same = by_pci.get(device.fields.attributes.pci.string)
            named[pool, device.name] = same.device if same else None
        elif (pool, device.name) not in named:
            odd.append(device.name)
    trouble = f"the DRA driver {driver.name} publishes {quoted(odd[0])}, which isn't understood" if odd else ""
    uuids, numbers = [part.uuid for _, part in whole], [part.index for part in parts.values()]
    if not trouble and (len(uuids) > len(set(uuids)) or len(numbers) > len(set(numbers))):
        trouble = f"the DRA driver {driver.name} publishes two devices of one number or one UUID"
    tainted = [each for (_, device), part in whole if (each := _tainted(vendor, driver, device, part))]
    versions = {device.fields.attributes.driver_version.version for _, device in every} - {""}
    return PoolReading(
        tuple(sorted(parts.values(), key=lambda part: (part.index, part.uuid))),
        _few(tainted),
        named,
        trouble,
        _shown(versions.pop()) if len(versions) == 1 else "",
    )


def _part(vendor: Vendor, driver: DraDriver, device: SliceDevice) -> Part | None:
    """The whole device that it is or, as one that is split (`mig`), of which it is a part."""
    known, mig = device.fields.attributes, device.fields.attributes.type.string == MIG_PART
    if known.type.string not in (WHOLE_GPU, MIG_PART):
        return None
    match = re.fullmatch(driver.part if mig else driver.whole, device.name)
    number, uuid = int(match[1]) if match else MOST, known.parent_uuid if mig else known.uuid
    if not match or match[1] != str(number) or number >= MOST or not DEVICE_UUID.fullmatch(uuid.string):
        return None
    mib = int((amount(device.fields.capacity.memory.value) or 0) / _MIB)
    size, pci = (0, "") if mig else (mib if LEAST_MIB <= mib <= MOST_MIB else 0, _shown(known.pci.string))
    return Part(vendor.resource, number, uuid.string, _shown(known.product_name.string), size, pci, mig=mig)


def _counters(device: SliceDevice) -> set[str]:
    return {each.counter_set for each in device.fields.consumes_counters if each.counter_set}


def _shown(text: str) -> str:
    return printable(text[:LONGEST_QUOTE])


def _few(tainted: list[Withheld]) -> tuple[Withheld, ...]:
    """In one entry where there are many: a ledger has room for some dozens."""
    if len(tainted) <= MOST_TAINTS:
        return tuple(tainted)
    first = tainted[0]
    devices = [device for each in tainted for device in each.devices]
    return (Withheld(first.resource, f"{first.reason}, and {len(tainted) - 1} more are", first.cure, devices),)


def _tainted(vendor: Vendor, driver: DraDriver, device: SliceDevice, part: Part) -> Withheld | None:
    keeping = (each for each in device.fields.taints if each.effect in REPELLING)
    taints = [f"{each.key}{f'={each.value}' * bool(each.value)}:{each.effect}" for each in keeping]
    if not taints:
        return None
    reason = f"{quoted(device.name)} is tainted by the DRA driver {driver.name}: {quoted(', '.join(taints))}"
    return Withheld(vendor.resource, reason, "repair the device; its driver then takes the taint away", [part.device])


# DraView: what ResourceSlices and ResourceClaims say of each node, kept up to date at each change.
# A claim's result names a driver, a pool and a device; which node that is, its pool's slices say. Where they are
# gone, as when the driver was uninstalled while pods use its devices, the node that the allocation names, and the
# pool's own name, which NVIDIA's driver and others take from the node, must do.

PoolKey = tuple[str, str]
"""Driver and pool."""

_DRIVER_CURE: Final = "see the pods of that driver on the node"
_UNREAD: Final = "ResourceClaims can't be read, and may hold any of its devices"
_READ: Final = "let deviceshare list and watch resourceclaims: apply the roles of its version (deviceshare doctor)"
_ENDED: Final = "it is free when the claim is deallocated, as when its last pod ends"


class DraView:
    """Mutable, but pure: no await, no clock, no log."""

    def __init__(self, namespace: str = "", *, holds: bool = False) -> None:
        """`namespace` is the one of our own claims, with `holds` where there are to be some (holds.py)."""
        self._namespace = namespace
        self._with_holds = holds
        self._holds: dict[str, dict[Hold, ResourceClaim]] = {}
        """Our own claims by node."""
        self._pools: dict[PoolKey, dict[str, ResourceSlice]] = {}
        self._pools_of: dict[str, dict[PoolKey, bool]] = {}
        """By node, the pools of which a slice names it."""
        self._claims: dict[PoolKey | str, dict[str, ResourceClaim]] = {}
        """By pool of what they hold, and by the nodes that the allocation may mean otherwise."""
        self._hidden: dict[str, ResourceClaim] = {}
        """The claims of which it can't be read what they hold."""

    def change_slice(self, old: ResourceSlice | None, new: ResourceSlice | None) -> set[str]:
        """Takes in a slice's change; None is for one that isn't there. Returns the nodes that it concerns."""
        nodes: set[str] = set()
        for each in filter(None, (old, new)):
            nodes |= self._nodes_at(each.pool)
            known = each is new and vendors.dra_vendor(each.spec.driver)
            put_at(self._pools, each.pool, each.metadata.name, each if known else None)
            for node in self._nodes_at(each.pool) | {each.spec.node_name}:
                named = any(one.spec.node_name == node for one in self._pools.get(each.pool, {}).values())
                put_at(self._pools_of, node, each.pool, named or None)
            nodes |= self._nodes_at(each.pool) | {each.spec.node_name}
        return nodes - {""}

    def change_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> set[str]:
        """Takes in a claim's change; returns the nodes that it concerns."""
        nodes: set[str] = set()
        for each in filter(None, (old, new)):
            key, now = each.metadata.key, each if each is new else None
            if hold := hold_of(each, self._namespace):
                nodes.add(hold.node)
                put_at(self._holds, hold.node, hold, now)
                continue
            pools: set[PoolKey | str] = {(held.driver, held.pool) for held in each.holds}
            # Where these are gone, the nodes that may be meant must do.
            for place in pools | {held.pool for held in each.holds} | (each.nodes if pools else set()):
                put_at(self._claims, place, key, now)
                nodes |= {place} if isinstance(place, str) else self._nodes_at(place)
            if each.hidden or key in self._hidden:
                nodes |= self._pools_of.keys()
            put(self._hidden, key, now if each.hidden else None)
        return nodes - {""}

    def holds(self, node: str) -> dict[Hold, ResourceClaim]:
        """Our own claims on the node's devices."""
        return dict(self._holds.get(node, {}))

    def _nodes_at(self, pool: PoolKey) -> set[str]:
        """The nodes that slices of the pool name, and the one that has its name."""
        return {each.spec.node_name for each in self._pools.get(pool, {}).values()} | {pool[1]} - {""}

    def publication(self, node: str, *, claims_known: bool = True, holders: Collection[str] = ()) -> Publication:
        """What is known of the node's devices. Without `claims_known`, who holds which of them isn't.

        `holders` are the claims of the groups in the node's ledger, as `namespace/name`: any other that has the marks
        of a group's hold is a stranger's.
        """
        every = [self._of_driver(node, v, v.dra, claims_known, holders) for v in vendors.VENDORS if v.dra]
        return Publication(
            next(filter(None, (each.driver for each in every)), ""),
            [part for each in every for part in each.devices],
            [hold for each in every for hold in each.claims],
            [withheld for each in every for withheld in each.withheld],
            None if all(each.held is None for each in every) else [uuid for each in every for uuid in each.held or ()],
        )

    def _of_driver(
        self, node: str, vendor: Vendor, driver: DraDriver, claims_known: bool, holders: Collection[str]
    ) -> Publication:
        keys = {key for key in self._pools_of.get(node, ()) if key[0] == driver.name}
        held = self._held(node, driver, keys)
        if not keys and not held:
            return NOTHING_PUBLISHED
        unread = [] if claims_known or not keys else [Withheld(vendor.resource, _UNREAD, _READ)]
        if not driver.whole:
            return Publication(withheld=[*unread, *_unmatched(vendor, driver, held)])
        pools = {name: self._pools[driver.name, name].values() for _, name in keys}
        reading = read_pools(node, vendor, driver, pools)
        hidden = sorted(self._hidden)
        withheld = [*reading.tainted, *unread]
        if reading.trouble:
            withheld.append(Withheld(vendor.resource, reading.trouble, _DRIVER_CURE))
        if hidden and keys:
            reason = f"ResourceClaim {hidden[0]} can't be read, and may hold any of its devices"
            cure = f"see what is wrong with it: {quoted(self._hidden[hidden[0]].metadata.fault)}"
            withheld.append(Withheld(vendor.resource, reason, cure))
        firm = list[str]()
        for hold, claim in self.holds(node).items():
            names = [(each.pool, each.device) for each in claim.holds if each.driver == driver.name]
            others = hold.group and hold.key not in holders
            if others or any((device := reading.named.get(name)) and device.uuid not in hold.uuids for name in names):
                # The name is another device's by now.
                held |= {name: {*held.get(name, ()), claim.metadata.key} for name in names}
            elif len(names) == len(hold.uuids) and is_firm(claim):
                firm += hold.uuids
        mine: dict[Device, set[str]] = {}
        for name, claims in held.items():
            if device := reading.named.get(name):
                mine.setdefault(device, set()).update(claims)
        holds = [ResourceHold(d.resource, d.index, d.uuid, holders_of(by)) for d, by in sorted(mine.items())]
        unknown = {name: claims for name, claims in held.items() if name not in reading.named}
        withheld += _unmatched(vendor, driver, unknown)
        by_us = sorted(firm) if self._with_holds else None
        return Publication(reading.driver, list(reading.parts), holds, withheld, by_us)

    def _held(self, node: str, driver: DraDriver, keys: set[PoolKey]) -> dict[PoolDevice, set[str]]:
        """What claims hold there: by the device's name in its pool, the claims."""
        claims: dict[str, ResourceClaim] = dict(self._claims.get(node, {}))
        for key in keys:
            claims |= self._claims.get(key, {})
        found: dict[PoolDevice, set[str]] = {}
        for name, claim in claims.items():
            for each in claim.holds:
                named = {one.spec.node_name for one in self._pools.get((each.driver, each.pool), {}).values()} - {""}
                if each.driver == driver.name and node in (named or claim.nodes or {each.pool}):
                    found.setdefault((each.pool, each.device), set()).add(name)
        return found


def _unmatched(vendor: Vendor, driver: DraDriver, held: Mapping[PoolDevice, set[str]]) -> list[Withheld]:
    """All of the vendor's devices, while it can't be said which of them claims hold."""
    if not held:
        return []
    (_, device), claims = min(held.items())
    what = f"ResourceClaim {holders_of(claims)} holds {quoted(device)} of the DRA driver {driver.name}"
    unknown = "deviceshare can't tell which device that is"
    why = "none of the node's ResourceSlices names it" if driver.whole else unknown
    return [Withheld(vendor.resource, f"{what}, and {why}", _ENDED)]
