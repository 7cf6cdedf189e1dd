"""A rebind: which devices replace a group's unhealthy ones, and the annotations that name them to its pods.

Containers read other devices when they restart. Until a pod has ended, any of its containers may use those that it had
before; so what is replaced stays in the claim as `former`, and in the annotations of the pods that had it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from deviceshare.domain import contract, vendors
from deviceshare.domain.objects.devices import Device, Devices, identities, selected, visible
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices, Patch, as_json, claims_patch
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.placement import topology
from deviceshare.domain.placement.device_state import DeviceState
from deviceshare.domain.placement.device_states import device_states, doubted, free_devices
from deviceshare.domain.placement.handover import as_claimed, is_kind, mute, unspeakable

_NO_CLAIMS: Final[Mapping[str, Claim]] = {}


class Replacement(NamedTuple):
    """What a rebind would do to a claim: nothing when no device is broken, or when there is an obstacle."""

    broken: Devices
    """The claim's devices that the group can't count on, as the claim names them."""
    replacements: Devices
    devices: Devices
    """What the claim would hold."""
    obstacle: str
    """Why the broken devices can't be replaced, or ""."""
    claims: Mapping[str, Claim] = _NO_CLAIMS
    """By UID, what becomes of the claims with parts of the broken devices (share_replacement.py)."""


def awaits(group: Group, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the group's request waits for an answer, and can have one: not before the node's devices are known."""
    return group.rebind not in ("", claim.rebound) and not claim.releasing and bool(ledger.status.devices)


def broken(ledger: NodeDevices, states: Iterable[DeviceState], claim: Claim) -> Devices:
    """The claim's devices that the group can't count on, as the claim names them."""
    dependable = identities(state.device for state in states if state.dependable)
    return tuple(sorted(each for each in claim.devices if ledger.present(each).identity not in dependable))


def judge(ledger: NodeDevices, claim: Claim, opaque: Collection[str] = ()) -> Replacement:
    """What a rebind of the claim would do now: all broken devices are replaced, or none.

    `opaque` names resources of which a device plugin allocated devices, unknown which. Whether the parts that pods have
    of broken devices fit on others is share_replacement.py's.
    """
    states, handover = device_states(ledger), ledger.status.handover
    gone = broken(ledger, states, claim)
    kept = tuple(sorted(ledger.present(device) for device in claim.devices if device not in gone))
    free, found = free_devices(states), list[Device]()
    for resource, count in sorted(Counter(device.resource for device in gone).items()):
        candidates = [device for device in free if device.resource == resource]
        obstacle = ""
        if resource in opaque:
            obstacle = f"pods on node {ledger.node} hold {resource} through the device plugin, unknown which devices"
        elif mute(gone, handover) and (why := handover_fault(ledger, claim)):
            obstacle = f"can't be given other devices of node {ledger.node}: {why}"
        elif doubt := doubted(states).get(resource):
            obstacle = f"can't be given other devices of node {ledger.node}: {doubt.text}"
        elif len(candidates) < count:
            needs = f"{count} healthy {resource} to replace {selected(gone)[resource]}"
            obstacle = f"needs {needs}, but node {ledger.node} has {len(candidates)} free"
        if obstacle:
            return Replacement(gone, (), tuple(sorted(claim.devices)), obstacle)
        near = tuple(device for device in kept if device.resource == resource)
        found += topology.closest(candidates, count, ledger.hardware.links, near)
    return Replacement(gone, as_claimed(found, handover), as_claimed((*kept, *found), handover), "")


def rebind_patch(ledger: NodeDevices, uid: str, token: str, verdict: Replacement) -> Patch:
    """Carries the verdict out and answers the request `token`, if nobody wrote the ledger meanwhile."""
    claim = verdict.claims.get(uid, ledger.claims[uid])
    if verdict.replacements and claim.group:
        # With the UUID where it is known by now: the number may be another's after a reboot.
        gone = [replace(device, uuid=device.uuid or ledger.present(device).uuid) for device in verdict.broken]
        former = [*claim.former, *as_claimed(gone, ledger.status.handover)]
        claim = replace(claim, whole=list(verdict.devices), former=former)
    return claims_patch(ledger, {**verdict.claims, uid: replace(claim, rebound=token)})


def annotations_of(devices: Iterable[Device], handover: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a pod with these devices: what each vendor's runtime reads, and the numbers for people.

    `handover` is that of the node's ledger (`devices.visible`).
    """
    chosen = tuple(devices)
    return {**visible(chosen, handover), contract.SELECTED_DEVICES: msgspec.json.encode(selected(chosen)).decode()}


def handover_fault(ledger: NodeDevices, claim: Claim) -> Reason | None:
    """Why the claim's devices can't be handed over to any further pod."""
    if silent := mute(claim.devices, ledger.status.handover):
        here = ledger.present(silent[0])
        why = next((w for w in ledger.status.withheld if here in map(ledger.present, w.devices)), None)
        text = why.reason if why else f"{silent[0]} can't be handed over to containers"
        return Reason(ReasonKind.NOT_HANDED_OVER, text, why.cure if why else "")
    if numbered := unspeakable(claim.devices, ledger.status.handover):
        text = f"{numbered[0]} was claimed before its UUID was known, and the node's runtime takes UUIDs only"
        cure = f"delete the group's pods and the group (kubectl delete sdg {claim.holder_name}), and recreate both"
        cure = "delete and recreate the pod" if claim.pod else cure
        return Reason(ReasonKind.NOT_HANDED_OVER, text, cure)
    return None


def by_cdi(ledger: NodeDevices, devices: Iterable[Device]) -> bool:
    """Whether any of these devices is injected by CDI here: pods then keep what they were bound with."""
    those = vendors.vendors_of(device.resource for device in devices)
    return any(is_kind(ledger.status.handover.get(vendor.name, "")) for vendor in those)


def is_current(pod: Pod, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the pod's containers see the claim's devices when they start."""
    if pod.sealed:
        return _same_all(pod.devices, claim.devices)
    annotations, wanted = pod.metadata.annotations, annotations_of(claim.devices, ledger.status.handover)
    return all(annotations.get(key) == wanted.get(key) for key in _keys())


def is_settled(pod: Pod, ledger: NodeDevices, claim: Claim) -> bool:
    """Whether the annotations are final: they name the claim's devices, or record those that a sealed pod keeps."""
    return is_current(pod, ledger, claim) or (pod.sealed and _replaced(pod, claim) <= set(pod.former))


def annotation_changes(pod: Pod, ledger: NodeDevices, claim: Claim) -> dict[str, str | None]:
    """The change after which the pod's annotations name the claim's devices, and record those that it had before.

    A sealed pod keeps its devices for as long as it lives, so for it only the record is written. That write is needed,
    too: it makes the one of an old leader fail, and says which devices are the newer ones should the ledger be lost.

    Empty when nothing changes, or when the pod has devices that the claim doesn't reserve: those are others', and
    nobody knows how the pod came by them (coverage.py reports it).
    """
    hidden = pod.metadata.hides("metadata.annotations")
    if hidden or is_current(pod, ledger, claim) or not covers(ledger, claim, pod.received):
        return {}
    before = _replaced(pod, claim)
    former = {contract.FORMER_DEVICES: msgspec.json.encode(as_json(before)).decode() if before else None}
    if pod.sealed:
        return {} if is_settled(pod, ledger, claim) else former
    wanted = annotations_of(claim.devices, ledger.status.handover)
    return {key: wanted.get(key) for key in _keys()} | former


def still_held(claim: Claim, pods: Iterable[Pod]) -> Devices:
    """Those of the claim's former devices that one of the pods received.

    A pod that is told a device's UUID by now doesn't hold the number that it was told before (steady_numbers.by_uuid).
    """
    told = {device.uuid for device in claim.devices if device.uuid}
    every = {device for pod in pods for device in ([s.device for s in pod.shares] if claim.pod else pod.received)}
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


def _replaced(pod: Pod, claim: Claim) -> set[Device]:
    """All that the pod ever received and the claim doesn't hold any more."""
    return {device for device in pod.received if not any(same(device, now) for now in claim.devices)}


def _same_all(some: Iterable[Device], others: Iterable[Device]) -> bool:
    one, other = sorted(some), sorted(others)
    return len(one) == len(other) and all(map(same, one, other))


def _keys() -> list[str]:
    """The annotations that name a pod's devices."""
    own = (name for vendor in vendors.VENDORS for name in (vendor.annotation, vendor.cdi_annotation) if name)
    return [*own, contract.SELECTED_DEVICES]
