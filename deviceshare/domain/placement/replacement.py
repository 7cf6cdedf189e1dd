"""Replacement: other devices for those that failed, of groups and of shares."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices, as_json, identities, selected
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch, claim_bytes, claims_patch
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.shares import Share, current, need_of, share_of, stored_once
from deviceshare.domain.placement import allocation, handover, ledger_budget
from deviceshare.domain.placement.device_states import DeviceState, device_states, doubted, free_devices
from deviceshare.domain.placement.rooms import Room, capacity, units, used
from deviceshare.domain.wording import listed

# A rebind: which devices replace a group's unhealthy ones, and the annotations that name them to its pods.


class Replacement(NamedTuple):
    """What a rebind would do to a claim: nothing when no device is broken, or when there is an obstacle."""

    broken: Devices
    """The claim's devices that its holder can't count on, as the claim names them."""
    replacements: Devices = ()
    claims: Mapping[str, Claim] = {}
    """By UID, what becomes of the claim, and of those with parts of a group's broken devices."""
    obstacle: str = ""
    """Why the broken devices can't be replaced, or ""."""


class _Irreplaceable(Exception):
    """Why the broken devices can't be replaced: the end of a sentence about their holder."""


def awaits(asked: Group | Pod, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the holder of the claim waits for other devices, and can have an answer now: these are known.

    A pod can while its annotations equal its claim: so it was told each device that its claim ever named. One without a
    node can't: its bind may have read the claim, and chooses again when it has failed.
    """
    if asked.rebind in ("", claim.rebound) or claim.releasing or not ledger.status.devices:
        return False
    here = asked.node == ledger.node
    if isinstance(asked, Pod):
        return bool(claim.pod) and here and asked.lives and not asked.impostor and _is_told(asked, claim)
    return here


def broken(ledger: NodeDevices, states: Iterable[DeviceState], claim: Claim) -> Devices:
    """The claim's devices that its holder can't count on, as the claim names them."""
    dependable = identities(state.device for state in states if state.dependable)
    return tuple(sorted(each for each in claim.devices if ledger.present(each).identity not in dependable))


def judge(ledger: NodeDevices, asked: Group | Pod, opaque: Collection[str] = ()) -> Replacement:
    """What a rebind of the group, or of the pod's share, would do now: all of it that is broken is replaced, or none.

    `opaque` names resources of which a device plugin allocated devices, unknown which.
    """
    states, claim = device_states(ledger), ledger.claims[asked.metadata.uid]
    gone, group, parts = broken(ledger, states, claim), ledger.claims.get(claim.within), list[Share]()
    if isinstance(asked, Pod):
        theirs = identities(ledger.held(group)) if group else None  # what it doesn't hold any more is replaced, too
        parts = [
            share
            for share in current(claim.shares)
            if share.device in gone or (theirs is not None and ledger.present(share.device).identity not in theirs)
        ]
        gone = _devices(parts)
    if not gone:
        return Replacement(())
    try:
        if isinstance(asked, Pod):
            return _other_parts(ledger, asked, _Mover(asked.metadata.uid, claim, parts), opaque)
        return _other_devices(ledger, asked.uid, gone, opaque)
    except _Irreplaceable as why:
        return Replacement(gone, obstacle=str(why))


def _other_devices(ledger: NodeDevices, uid: str, gone: Devices, opaque: Collection[str]) -> Replacement:
    """For a group: the closest to those that it keeps; and the parts that its pods have move along."""
    states, claim, words = device_states(ledger), ledger.claims[uid], ledger.status.handover
    kept = tuple(sorted(ledger.present(device) for device in claim.devices if device not in gone))
    free, doubts, found = free_devices(states), doubted(states), list[Device]()
    for resource, count in sorted(Counter(device.resource for device in gone).items()):
        candidates = [device for device in free if device.resource == resource]
        _check_known(ledger, claim, gone, resource, opaque)
        if doubt := doubts.get(resource):
            raise _Irreplaceable(f"can't be given other devices of node {ledger.node}: {doubt.text}")
        if len(candidates) < count:
            needs = f"{count} healthy {resource} to replace {selected(gone)[resource]}"
            raise _Irreplaceable(f"needs {needs}, but node {ledger.node} has {len(candidates)} free")
        near = tuple(device for device in kept if device.resource == resource)
        found += allocation.closest(candidates, count, ledger.hardware.links, near)
    # With the UUID where it is known by now: the number may be another's after a reboot.
    before = [replace(device, uuid=device.uuid or ledger.present(device).uuid) for device in gone]
    former = [*claim.former, *handover.as_claimed(before, words)]
    after = replace(claim, whole=list(handover.as_claimed((*kept, *found), words)), former=former)
    moved = _take_along(ledger, uid, gone, found, (*kept, *found))
    return Replacement(gone, handover.as_claimed(found, words), {**moved, uid: after})


def _check_known(
    ledger: NodeDevices, claim: Claim, gone: Iterable[Device], resource: str, opaque: Collection[str]
) -> None:
    """Raises where nothing can replace these devices of the claim, whatever is free."""
    if resource in opaque:
        unknown = f"pods on node {ledger.node} hold {resource} through the device plugin, unknown which devices"
        raise _Irreplaceable(unknown)
    if handover.mute(gone, ledger.status.handover) and (why := handover.handover_fault(ledger, claim)):
        raise _Irreplaceable(f"can't be given other devices of node {ledger.node}: {why}")


def rebind_patch(ledger: NodeDevices, uid: str, token: str, verdict: Replacement) -> Patch:
    """Carries the verdict out and answers the request `token`, if nobody wrote the ledger meanwhile."""
    claim = verdict.claims.get(uid, ledger.claims[uid])
    return claims_patch(ledger, {**verdict.claims, uid: replace(claim, rebound=token)})


def by_cdi(ledger: NodeDevices, devices: Iterable[Device]) -> bool:
    """Whether any of these devices is injected by CDI here: pods then keep what they were bound with."""
    those = vendors.vendors_of(device.resource for device in devices)
    return any(handover.is_kind(ledger.status.handover.get(vendor.name, "")) for vendor in those)


def is_current(pod: Pod, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the pod's containers see the claim's devices when they start."""
    if pod.sealed:
        one, other = sorted(pod.devices), sorted(claim.devices)
        return len(one) == len(other) and all(map(same, one, other))
    annotations, wanted = pod.metadata.annotations, handover.annotations_of(claim.devices, ledger.status.handover)
    return all(annotations.get(key) == wanted.get(key) for key in _keys())


def still_held(claim: Claim, pods: Iterable[Pod]) -> Devices:
    """The claim's former devices that one of the pods received.

    A pod that is told a device's UUID by now doesn't hold the number that it was told before (handover.by_uuid).
    """
    told = {device.uuid for device in claim.devices if device.uuid}
    every = {device for pod in pods for device in _received(pod, claim)}
    received = [device for device in every if device.uuid not in told]
    return tuple(sorted(f for f in claim.former if any(same(f, device) for device in received)))


def covers(ledger: NodeDevices, claim: Claim, devices: Iterable[Device]) -> bool:
    """Whether the claim reserves these devices, as some pod's annotations name them."""
    reserved = identities(ledger.reserved(claim))
    own = (*claim.devices, *claim.replaced)
    return all(
        ledger.present(device).identity in reserved or any(same(device, each) for each in own) for device in devices
    )


def same(a: Device, b: Device) -> bool:
    """Whether two names, written at different times, mean one device. Where one lacks the UUID the number must do."""
    if a.uuid and b.uuid:
        return a.uuid == b.uuid
    return Device(a.resource, a.index).identity == Device(b.resource, b.index).identity


def _received(pod: Pod, claim: Claim) -> Iterable[Device]:
    """What the pod ever received by the claim, its own or its group's."""
    return [share.device for share in pod.shares] if claim.pod else pod.received


def _replaced(pod: Pod, claim: Claim) -> set[Device]:
    """All that the pod ever received and the claim doesn't hold any more."""
    return {device for device in pod.received if not any(same(device, now) for now in claim.devices)}


def _keys() -> list[str]:
    return [*handover.device_annotations(), contract.SELECTED_DEVICES]


# A rebind of shares: which devices replace the unhealthy ones of which pods have parts, and what these pods are told.
# A part keeps its amount: as many MiB, or as many hundredths of the device that it is of now (claims.md, Rebind).

_STEPS: Final = 10_000
"""Situations looked at for all pods of a group together; see `Effort`."""


class _Mover(NamedTuple):
    """A pod with parts of devices that are replaced."""

    uid: str
    claim: Claim
    gone: Sequence[Share]
    """These parts."""


def _other_parts(ledger: NodeDevices, pod: Pod, mover: _Mover, opaque: Collection[str]) -> Replacement:
    """For a pod's share: on devices of its group, or on nobody's."""
    if pod.sealed:
        raise _Irreplaceable("keeps its devices until it is recreated, since they are injected by CDI")
    states, claim, gone = device_states(ledger), mover.claim, _devices(mover.gone)
    resource = gone[0].resource  # All parts of a pod are of one.
    _check_known(ledger, claim, gone, resource, () if claim.within else opaque)
    sound = {state.device for state in states if state.dependable}
    fit = [each for each in allocation.rooms(states, claim.within) if each[0].resource == resource and each[0] in sound]
    # What the pod keeps of a device counts apart, so an init container's may count twice.
    rooms = _never_had(ledger, mover, fit)
    parts = allocation.meet(map(need_of, mover.gone), pod.strategy, [room for _, room in rooms])
    if parts is None:
        raise _Irreplaceable(_shortage(ledger, mover, rooms))
    found = [share_of(part.need, rooms[part.place][0]) for part in parts]
    return Replacement(gone, _devices(found), {mover.uid: _moved(ledger, mover, found)})


def _take_along(
    ledger: NodeDevices, uid: str, gone: Devices, found: Iterable[Device], devices: Iterable[Device]
) -> dict[str, Claim]:
    """The claims of the group's pods with parts of what is gone: they move to what was found, or any of its devices."""
    away = identities(map(ledger.present, gone))
    movers = [
        _Mover(each, claim, [s for s in current(claim.shares) if ledger.present(s.device).identity in away])
        for each, claim in sorted(ledger.claims.items(), key=lambda each: (each[1].pod, each[0]))
        if claim.within == uid and not claim.releasing
    ]
    movers = [mover for mover in movers if mover.gone]
    moves = _in_pairs(ledger, movers, gone, found) or _anywhere(ledger, uid, movers, devices)
    return {m.uid: _moved(ledger, m, moves[m.uid], f"has pod {m.claim.pod}, which ") for m in movers}


def pod_changes(pod: Pod, ledger: NodeDevices, claim: Claim) -> Mapping[str, str | None]:
    """The change after which the pod's annotations name what its claim holds, be it a group's or of shares.

    All in one write, with a record of what it had before. A sealed pod keeps its devices for as long as it lives, so
    for it only the record is written. That write is needed, too: it makes the one of an old leader fail, and says which
    devices are the newer ones should the ledger be lost.

    Empty when nothing changes, or when the pod has devices that the claim doesn't reserve: those are others', and
    nobody knows how the pod came by them (the leader reports it).
    """
    if pod.metadata.hides("metadata.annotations") or is_settled(pod, ledger, claim):
        return {}
    if not covers(ledger, claim, _received(pod, claim)):
        return {}
    if not claim.pod:
        before = _replaced(pod, claim)
        former = {contract.FORMER_DEVICES: msgspec.json.encode(as_json(before)).decode() if before else None}
        wanted = handover.annotations_of(claim.devices, ledger.status.handover)
        return former if pod.sealed else {key: wanted.get(key) for key in _keys()} | former
    if not pod.shares:
        return {}
    told = handover.share_annotations(pod, ledger, claim.shares)
    if pod.sealed:
        return {contract.SHARES: told[contract.SHARES]}
    names = handover.container_annotations(share.container for share in pod.shares)
    return {**dict.fromkeys(sorted(names & pod.metadata.annotations.keys())), **told}


def is_settled(pod: Pod, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the pod's annotations are final: they say what its claim does, or record what a sealed pod keeps."""
    if claim.pod:
        return _is_told(pod, claim)
    return is_current(pod, ledger, claim) or (pod.sealed and _replaced(pod, claim) <= set(pod.former))


def _is_told(pod: Pod, claim: Claim) -> bool:
    return stored_once(pod.shares) == stored_once(claim.shares)


def _never_had(ledger: NodeDevices, mover: _Mover, rooms: Iterable[tuple[Device, Room]]) -> list[tuple[Device, Room]]:
    """The devices that may replace its parts': each part of a container is of another one."""
    containers = {share.container for share in mover.gone}
    beside = _devices(share for share in current(mover.claim.shares) if share.container in containers)
    had = identities(map(ledger.present, (*mover.claim.replaced, *beside)))
    return [(device, room) for device, room in rooms if device.identity not in had]


def _shortage(ledger: NodeDevices, mover: _Mover, rooms: Sequence[tuple[Device, Room]]) -> str:
    group = ledger.claims.get(mover.claim.within)
    where = f"group {group.group}" if group else f"node {ledger.node}"
    largest = max((room for _, room in rooms), key=lambda room: room.free, default=None)
    free = f"at most {largest} of a healthy one free" if largest else "no other healthy one for shares"
    return f"needs {_wanted(mover.gone)} in place of {listed(map(str, _devices(mover.gone)))}, but {where} has {free}"


def _wanted(gone: Iterable[Share]) -> str:
    """`8 GiB and 2 x 30% of nvidia.com/gpu`."""
    counted = Counter((str(share), share.resource) for share in gone)
    [resource] = {resource for _, resource in counted}
    return f"{listed(f'{n} x {text}' if n > 1 else text for (text, _), n in counted.items())} of {resource}"


def _in_pairs(
    ledger: NodeDevices, movers: Iterable[_Mover], gone: Devices, found: Iterable[Device]
) -> dict[str, list[Share]] | None:
    """All parts of a device go to the one that takes its place, the largest's to the largest; None if one won't fit."""

    def by_size(devices: Iterable[Device]) -> list[Device]:
        return sorted(map(ledger.present, devices), key=lambda d: (d.resource, -ledger.memory_of(d), d.index))

    pairs = zip(by_size(gone), by_size(found), strict=True)
    target = {old.identity: new for old, new in pairs}
    taken = Counter[Device]()
    for mover in movers:
        mine: dict[Device, list[Share]] = {}
        for share in mover.gone:
            mine.setdefault(target[ledger.present(share.device).identity], []).append(share)
        for device, shares in mine.items():
            size = ledger.memory_of(device)
            taken[device] += used(shares, size)
            if taken[device] > capacity(size) or any(units(share, size) is None for share in shares):
                return None
    return {m.uid: [share_of(need_of(s), target[ledger.present(s.device).identity]) for s in m.gone] for m in movers}


def _anywhere(
    ledger: NodeDevices, uid: str, movers: Iterable[_Mover], devices: Iterable[Device]
) -> dict[str, list[Share]]:
    """The parts go where the group will have room, the largest first."""
    will_have = identities(devices)
    states = [state for state in device_states(ledger) if state.device.identity in will_have]
    left = {state.device: state.room_within(uid) for state in states}
    effort, moves = allocation.Effort(_STEPS), dict[str, list[Share]]()
    for mover in sorted(movers, key=lambda m: max((s.percent, s.memory_mib) for s in m.gone), reverse=True):
        rooms = _never_had(ledger, mover, left.items())
        rooms = [(device, room) for device, room in rooms if device.resource == mover.gone[0].resource]
        parts = allocation.meet(map(need_of, mover.gone), "", [room for _, room in rooms], effort)
        if parts is None:
            which = f"{_wanted(mover.gone)}, which fits on none of the devices that it would have"
            raise _Irreplaceable(f"has pod {mover.claim.pod} with {which}")
        found = moves[mover.uid] = [share_of(part.need, rooms[part.place][0]) for part in parts]
        for device in _devices(found):
            mine = [share for share in found if share.device == device]
            left[device] = left[device].less(used(mine, left[device].size))
    return moves


def _moved(ledger: NodeDevices, mover: _Mover, found: Iterable[Share], whose: str = "") -> Claim:
    """The claim with these parts; those that they replace are former ones. Its names are as the node hands over now.

    `whose` begins the sentence of why it can't be written.
    """
    kept = [(s, ledger.present(s.device)) for s in current(mover.claim.shares) if s not in mover.gone]
    now = [_named(ledger, share, device) for share, device in (*kept, *((s, s.device) for s in found))]
    before = [share for share in mover.claim.shares if share.former]
    for share in mover.gone:
        # With the UUID where it is known by now: the number may be another's after a reboot.
        device = replace(share.device, uuid=share.uuid or ledger.present(share.device).uuid)
        before.append(_named(ledger, replace(share, former=True), device))
    if container := handover.too_long_for_cdi(ledger, now):
        long = f"has a container {container} whose name is too long for the hand-over by CDI on node {ledger.node}"
        raise _Irreplaceable(f"{whose}{long}")
    moved = replace(mover.claim, shares=sorted((*now, *before)))
    if claim_bytes(mover.uid, moved) > ledger_budget.MAX_CLAIM:
        raise _Irreplaceable(f"{whose}has too many former parts: recreate it")
    return moved


def _named(ledger: NodeDevices, share: Share, device: Device) -> Share:
    [named] = handover.as_claimed([device], ledger.status.handover)
    return replace(share, index=named.index, uuid=named.uuid)


def _devices(shares: Iterable[Share]) -> tuple[Device, ...]:
    return tuple(sorted({share.device for share in shares}))
