"""Holds: ResourceClaims of our own, one for each device of groups and shares, so that DRA gives it to nobody else.

Where a DRA driver publishes devices, kube-scheduler allocates them by ResourceClaims alone. So each device that a
ledger claims is allocated by kube-scheduler to a claim of ours, too, before any pod gets it: the claim names the device
by its UUID, and a pod of ours names the claim. Once it is allocated, the ledger is entered among those that it is
reserved for, by which it stays, and the pod is deleted. deviceshare never writes an allocation, so it can't collide
with kube-scheduler; it clears one, when by the ledger nobody can join by it any more.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

import hashlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.hardware import Part
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.vendors import vendor_of
from deviceshare.domain.wording import listed

Json = dict[str, Any]

_DEVICE: Final = "device"
_NEVER_RUNS: Final = "never-runs"


class HeldDevice(NamedTuple):
    """What a hold is of."""

    node: str
    uuid: str

    @property
    def name(self) -> str:
        """Of the claim, and of its pod."""
        return f"{contract.HOLD_CLASS}-{_digest(f'{self.node} {self.uuid}')}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def label_of(node: str) -> str:
    """The value of the label of the node's holds, whose name may be too long for one."""
    return _digest(node)


def held_device(claim: ResourceClaim, namespace: str) -> HeldDevice | None:
    """What the claim is to hold; None for a claim that isn't ours. In `namespace` nobody else creates any."""
    meta = claim.metadata
    if not namespace or meta.namespace != namespace or contract.HOLD not in meta.labels:
        return None
    node, _, uuid = meta.annotations.get(contract.HOLD, "").partition(" ")
    found = HeldDevice(node, uuid)
    return found if found.name == meta.name else None


def is_allocated(claim: ResourceClaim) -> bool:
    """Whether kube-scheduler allocated it."""
    return claim.status.allocation is not None


def is_kept(claim: ResourceClaim) -> bool:
    """Whether the ledger is entered, so that the claim stays allocated without a pod."""
    return any(each.api_group == contract.API_GROUP for each in claim.status.reserved_for)


def is_given_up(claim: ResourceClaim) -> bool:
    """Whether it is about to be cleared."""
    return contract.GIVEN_UP in claim.metadata.annotations


def has_pod(claim: ResourceClaim) -> bool:
    """Whether the pod is entered by which kube-scheduler allocated it."""
    return any(each.resource == "pods" for each in claim.status.reserved_for)


def is_firm(claim: ResourceClaim) -> bool:
    """Whether pods may join by it: nothing but a write of ours to it, which comes first, ends that."""
    return is_allocated(claim) and is_kept(claim) and not is_given_up(claim)


def may_claim(ledger: NodeDevices, uuid: str) -> bool:
    """Whether groups or shares have the device by the ledger, or may still use it: also where it can't be said."""
    if ledger.hidden_claims or not ledger.filled:
        return True
    for claim in ledger.claims.values():
        for device in (*claim.devices, *claim.replaced):
            names, vendor = {device.uuid, ledger.present(device).uuid} - {""}, vendor_of(device.resource)
            # Before the ledger knows the node's hardware, a claim by number may be of this device.
            if uuid in names or (not names and vendor and vendor.dra):
                return True
    return False


def to_hold(ledger: NodeDevices) -> dict[str, Part]:
    """By UUID, the devices among them that a DRA driver publishes; empty where there are to be no holds."""
    published, claimed = ledger.status.published, {device.uuid for device in ledger.claimed()} - {""}
    if published.held is None:
        return {}
    return {part.uuid: part for part in published.devices if part.uuid in claimed and not part.lost}


def _served(ledger: NodeDevices, uid: str) -> list[Device]:
    """The devices of the holder that have to be held."""
    published, claim = ledger.status.published, ledger.claims.get(uid)
    if published.held is None or claim is None:
        return []
    served = {part.uuid for part in published.devices}
    return [device for device in ledger.held(claim) if device.uuid in served]


def _missing(ledger: NodeDevices, uid: str) -> list[Device]:
    """Those that, by the ledger, kube-scheduler might yet give to others."""
    return [device for device in _served(ledger, uid) if device.uuid not in (ledger.status.published.held or ())]


def not_held(ledger: NodeDevices, *uids: str) -> Reason | None:
    """Why no pod joins by the claims of these holders yet, by the ledger; None also where they have none here."""
    return _not_yet(ledger, [device for uid in uids for device in _missing(ledger, uid)])


def unheld(ledger: NodeDevices, claims: Iterable[ResourceClaim], *uids: str) -> Reason | None:
    """Likewise by the node's holds, read after the ledger: such a hold isn't cleared while these claims are there."""
    firm = {found.uuid for each in claims if is_firm(each) and (found := held_device(each, each.metadata.namespace))}
    return _not_yet(ledger, [device for uid in uids for device in _served(ledger, uid) if device.uuid not in firm])


def _not_yet(ledger: NodeDevices, missing: Iterable[Device]) -> Reason | None:
    if not (which := sorted(set(missing))):
        return None
    text = f"kube-scheduler has not allocated {listed(map(str, which))} on node {ledger.node} to deviceshare yet"
    return Reason(ReasonKind.NOT_HELD, text, f"see kubectl get resourceclaims,pods -A -l {contract.HOLD}")


def taken_by_others(ledger: NodeDevices, uid: str) -> str:
    """Which of the holder's devices a ResourceClaim got before deviceshare did, for people; "" for none."""
    claims = {hold.uuid: hold.claim for hold in ledger.status.published.claims}
    taken = [f"{each} (ResourceClaim {claims[each.uuid]})" for each in _missing(ledger, uid) if each.uuid in claims]
    return listed(taken)


def hold_claim(held: HeldDevice, part: Part) -> Json:
    """The claim, as it is created."""
    vendor = vendor_of(part.resource)
    driver = vendor.dra.name if vendor and vendor.dra else ""
    names_it = f'device.driver == "{driver}" && device.attributes["{driver}"].uuid == "{held.uuid}"'
    exactly = {
        "deviceClassName": contract.HOLD_CLASS,
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": names_it}}],
    }
    return {
        "metadata": {
            "name": held.name,
            "labels": {contract.HOLD: label_of(held.node)},
            "annotations": {contract.HOLD: " ".join(held)},
            "finalizers": [contract.HOLD_FINALIZER],
        },
        "spec": {"devices": {"requests": [{"name": _DEVICE, "exactly": exactly}]}},
    }


def hold_pod(held: HeldDevice, claim: ResourceClaim) -> Json:
    """The pod that has kube-scheduler allocate the claim. It runs nothing, and goes with the claim at the latest."""
    here = {"key": "metadata.name", "operator": "In", "values": [held.node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    owner = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
    }
    container = {
        "name": _NEVER_RUNS,
        "image": _NEVER_RUNS,
        "imagePullPolicy": "Never",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {"name": held.name, "labels": {contract.HOLD: label_of(held.node)}, "ownerReferences": [owner]},
        "spec": {
            "schedulerName": contract.DEFAULT_SCHEDULER_NAME,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            # A group keeps its devices on a node that is cordoned or tainted meanwhile.
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
            "resourceClaims": [{"name": _DEVICE, "resourceClaimName": held.name}],
            "containers": [container],
        },
    }


def keeping(claim: ResourceClaim, ledger: NodeDevices) -> Json:
    """The status that enters the ledger, if nobody wrote the claim meanwhile."""
    entries = [
        {"apiGroup": each.api_group, "resource": each.resource, "name": each.name, "uid": each.uid}
        for each in claim.status.reserved_for
    ]
    mine = {"apiGroup": contract.API_GROUP, "resource": "nodedevices", "name": ledger.node, "uid": ledger.metadata.uid}
    return _written(claim) | {"status": {"reservedFor": [*entries, mine]}}


def giving_up(claim: ResourceClaim, when: str | None) -> Json:
    """The mark by which nobody joins any more, or with None its end, if nobody wrote the claim meanwhile."""
    body = _written(claim)
    body["metadata"]["annotations"] = {contract.GIVEN_UP: when}
    return body


def clearing(claim: ResourceClaim) -> Json:
    """The status that frees the device, so that pending pods are scheduled, if nobody wrote the claim meanwhile."""
    return _written(claim) | {"status": {"allocation": None, "reservedFor": None}}


def letting_go(claim: ResourceClaim) -> Json:
    """Takes our finalizer away, if nobody wrote the claim meanwhile."""
    body = _written(claim)
    body["metadata"]["finalizers"] = _others(claim.metadata.finalizers)
    return body


def _others(finalizers: Iterable[str]) -> list[str]:
    return [each for each in finalizers if each != contract.HOLD_FINALIZER]


def _written(claim: ResourceClaim) -> Json:
    return {"metadata": {"resourceVersion": claim.metadata.resource_version}}
