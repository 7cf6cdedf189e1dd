"""Holds: ResourceClaims of our own on the devices of groups and shares, so that DRA gives them to nobody else.

Each device that a ledger claims is allocated by kube-scheduler to a claim of ours, too, before any pod gets it: the
hold names the device by its UUID, and a pod of ours names the hold. Once it is allocated, the ledger is entered among
those that it is reserved for, by which it stays, and the pod is deleted. deviceshare never writes an allocation, so it
can't collide with kube-scheduler; it clears one, when nobody can join by it any more (decision 26). A group whose
`spec.handover` is `claim` has one hold for all its devices, in the namespace of its pods, which name it themselves:
kube-scheduler allocates it for the first of them, and binds the others without any of us (decision 27).
"""

import hashlib
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import to_builtins

from deviceshare.domain import contract
from deviceshare.domain.objects.devices import Device
from deviceshare.domain.objects.groups import claim_name
from deviceshare.domain.objects.ledger import NodeDevices
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.vendors import vendor_of
from deviceshare.domain.wording import listed

Json = dict[str, Any]

_DEVICE: Final = "device"


class Hold(NamedTuple):
    """What a claim of ours is to hold."""

    namespace: str
    node: str
    uuids: tuple[str, ...]
    group: str = ""
    """The UID of the group that hands its devices over by it; "" for the hold of one device."""

    @property
    def name(self) -> str:
        """Of the claim, and of its pod."""
        if self.group:
            return claim_name(self.group)
        return f"{contract.HOLD_CLASS}-{digest(f'{self.node} {self.uuids[0]}')}"

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def digest(text: str) -> str:
    """What stands for a text that may be too long for a name, or as the name of a node for a label of its holds."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def hold_of(claim: ResourceClaim, namespace: str) -> Hold | None:
    """What the claim is to hold; None for a claim that isn't ours.

    In `namespace` nobody else creates any. In others their users may; nobody but us enters a ledger in its status, and
    which devices it has the allocation says.
    """
    meta = claim.metadata
    of_one = meta.name.startswith(contract.HOLD_CLASS)
    if contract.HOLD not in meta.labels or (of_one and meta.namespace != namespace):
        return None
    node, *uuids = meta.annotations.get(contract.HOLD, "").split(" ")
    group = "" if of_one else meta.name.removeprefix(f"{contract.NAME}-")
    found = Hold(meta.namespace, node, tuple(uuids), group)
    return found if uuids and found.name == meta.name else None


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


def may_claim(ledger: NodeDevices, hold: Hold, by_claim: Mapping[str, str]) -> bool:
    """Whether who needs the hold has the devices by the ledger, or may still use them: also where it can't be said.

    `by_claim` are the namespaces of the groups that hand theirs over by a hold of their own, by UID.
    """
    if ledger.hidden_claims or not ledger.filled:
        return True
    if hold.group:
        ours = hold.group in ledger.claims and by_claim.get(hold.group) == hold.namespace
        return ours and {device.uuid for device in ledger.held(ledger.claims[hold.group])} == set(hold.uuids)
    for uid, claim in ledger.claims.items():
        for device in (*claim.devices, *claim.replaced):
            names, vendor = {device.uuid, ledger.present(device).uuid} - {""}, vendor_of(device.resource)
            # Before the ledger knows the node's hardware, a claim by number may be of this device.
            if uid not in by_claim and (hold.uuids[0] in names or (not names and vendor and vendor.dra)):
                return True
    return False


def to_hold(
    ledger: NodeDevices, namespace: str, groups: Mapping[str, str], there: Iterable[Hold] = ()
) -> dict[Hold, str]:
    """The holds that there are to be, each with its devices' resource; empty where there are to be none.

    `namespace` is ours, `groups` are the namespaces of those by claim, by UID. What a group still hands over by one
    that is `there`, with our entry, isn't held twice.
    """
    published = ledger.status.published
    if published.held is None:
        return {}
    parts = {part.uuid: part.resource for part in published.devices if not part.lost}
    found, taken = dict[Hold, str](), {uuid for hold in there if hold.group for uuid in hold.uuids}
    for uid in groups.keys() & ledger.claims.keys():
        uuids = tuple(sorted(device.uuid for device in ledger.held(ledger.claims[uid])))
        taken |= set(uuids)
        if uuids and parts.keys() >= set(uuids) and not ledger.claims[uid].releasing:
            found[Hold(groups[uid], ledger.node, uuids, uid)] = parts[uuids[0]]
    for uuid in sorted({device.uuid for device in ledger.claimed()} & parts.keys() - taken):
        found[Hold(namespace, ledger.node, (uuid,))] = parts[uuid]
    return found


def _missing(ledger: NodeDevices, held: Container[str], *uids: str) -> list[Device]:
    """The holders' devices that have to be held and aren't, so that kube-scheduler might yet give them to others."""
    published = ledger.status.published
    if published.held is None:
        return []
    served = {part.uuid for part in published.devices}
    mine = {device for uid in uids if uid in ledger.claims for device in ledger.held(ledger.claims[uid])}
    return sorted(device for device in mine if device.uuid in served and device.uuid not in held)


def not_held(ledger: NodeDevices, *uids: str, by: Iterable[ResourceClaim] | None = None) -> Reason | None:
    """Why no pod joins by the claims of these holders yet, by the ledger; None also where they have none here.

    Or `by` the node's holds, read after the ledger: such a hold isn't cleared while these claims are there.
    """
    held: Container[str] = ledger.status.published.held or ()
    if by is not None:
        held = {hold.uuids[0] for each in by if is_firm(each) and (hold := hold_of(each, each.metadata.namespace))}
    if not (missing := _missing(ledger, held, *uids)):
        return None
    text = f"kube-scheduler has not allocated {listed(map(str, missing))} on node {ledger.node} to deviceshare yet"
    return Reason(ReasonKind.NOT_HELD, text, f"see kubectl get resourceclaims,pods -A -l {contract.HOLD}")


def taken_by_others(ledger: NodeDevices, uid: str) -> str:
    """Which of the holder's devices a ResourceClaim got before deviceshare did, for people; "" for none."""
    published = ledger.status.published
    claims, missing = {hold.uuid: hold.claim for hold in published.claims}, _missing(ledger, published.held or (), uid)
    return listed(f"{each} (ResourceClaim {claims[each.uuid]})" for each in missing if each.uuid in claims)


def hold_claim(hold: Hold, resource: str) -> Json:
    """The claim, as it is created."""
    vendor = vendor_of(resource)
    driver = vendor.dra.name if vendor and vendor.dra else ""
    uuid, names = f'device.attributes["{driver}"].uuid', ", ".join(f'"{each}"' for each in hold.uuids)
    exactly = {
        "deviceClassName": contract.HOLD_CLASS,
        "allocationMode": "ExactCount",
        "count": len(hold.uuids),
        "selectors": [{"cel": {"expression": f'device.driver == "{driver}" && {uuid} in [{names}]'}}],
    }
    return {
        "metadata": {
            "name": hold.name,
            "labels": {contract.HOLD: digest(hold.node)},
            "annotations": {contract.HOLD: " ".join((hold.node, *hold.uuids))},
            "finalizers": [contract.HOLD_FINALIZER],
        },
        "spec": {"devices": {"requests": [{"name": _DEVICE, "exactly": exactly}]}},
    }


def hold_pod(held: Hold, claim: ResourceClaim) -> Json:
    """The pod that has kube-scheduler allocate the claim. It runs nothing, and goes with the claim at the latest."""
    here = {"key": "metadata.name", "operator": "In", "values": [held.node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [here]}]}
    owner = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "name": claim.metadata.name,
        "uid": claim.metadata.uid,
    }
    metadata = {"name": held.name, "labels": {contract.HOLD: digest(held.node)}, "ownerReferences": [owner]}
    spec = {
        "schedulerName": contract.DEFAULT_SCHEDULER_NAME,
        "restartPolicy": "Never",
        # A group keeps its devices on a node that is cordoned or tainted meanwhile.
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        "resourceClaims": [{"name": _DEVICE, "resourceClaimName": held.name}],
    }
    return idle_pod(metadata, spec, imagePullPolicy="Never")


CONFINED: Final = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def idle_pod(metadata: Json, spec: Json, **container: object) -> Json:
    """A pod that runs nothing unless its container says so, as the Pod Security Standard `restricted` wants it."""
    common = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "never-runs", "image": "never-runs", "securityContext": CONFINED, **container}],
    }
    return {"metadata": metadata, "spec": {**common, **spec}}


def keeping(claim: ResourceClaim, ledger: NodeDevices) -> Json:
    """The status that enters the ledger, if nobody wrote the claim meanwhile."""
    mine = {"apiGroup": contract.API_GROUP, "resource": "nodedevices", "name": ledger.node, "uid": ledger.metadata.uid}
    return _written(claim) | {"status": {"reservedFor": [*to_builtins(claim.status.reserved_for), mine]}}


def giving_up(claim: ResourceClaim, when: str | None) -> Json:
    """The mark by which nobody joins any more, or with None its end, if nobody wrote the claim meanwhile."""
    return _written(claim, annotations={contract.GIVEN_UP: when})


def clearing(claim: ResourceClaim) -> Json:
    """The status that frees the device, so that pending pods are scheduled, if nobody wrote the claim meanwhile."""
    return _written(claim) | {"status": {"allocation": None, "reservedFor": None}}


def letting_go(claim: ResourceClaim) -> Json:
    """Takes our finalizer away, if nobody wrote the claim meanwhile."""
    return _written(claim, finalizers=[each for each in claim.metadata.finalizers if each != contract.HOLD_FINALIZER])


def _written(claim: ResourceClaim, **metadata: object) -> Json:
    return {"metadata": {"resourceVersion": claim.metadata.resource_version, **metadata}}
