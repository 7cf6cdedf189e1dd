"""NodeDevices: which devices a node has and who holds which. The one place where ownership is decided.

A claim is made, marked, unmarked and dropped by a merge patch that carries the resourceVersion that was read, so that
of two writers one loses, whoever they are. The patches name one claim each and leave the rest of the object alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from deviceshare.domain import contract
from deviceshare.domain.devices import Device, Devices, selected
from deviceshare.domain.meta import ObjectMeta
from deviceshare.domain.nodes import Node

Patch = dict[str, Any]
"""A JSON merge patch (RFC 7386)."""


class Claim(Struct, frozen=True, rename="camel"):
    """What one holder has. `releasing` is a collector's mark: devices still in use, but nobody may join any more."""

    group: str
    devices: list[Device] = field(default_factory=list)
    releasing: str = ""


class LedgerSpec(Struct, frozen=True, rename="camel"):
    claims: dict[str, Claim] = field(default_factory=dict)


class LedgerStatus(Struct, frozen=True, rename="camel"):
    devices: list[Device] = field(default_factory=list)
    total: str = ""
    free: str = ""
    held: str = ""


class NodeDevices(Struct, frozen=True, rename="camel"):
    """The ledger of one node; `spec.claims` maps the UID of a holder to its claim."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: LedgerSpec = field(default_factory=LedgerSpec)
    status: LedgerStatus = field(default_factory=LedgerStatus)

    @property
    def node(self) -> str:
        return self.metadata.name

    @property
    def claims(self) -> dict[str, Claim]:
        return self.spec.claims

    @property
    def devices(self) -> list[Device]:
        return self.status.devices

    def claimed(self) -> set[Device]:
        """Every device in a claim, marked or not."""
        return {device for claim in self.spec.claims.values() for device in claim.devices}

    def free(self) -> Devices:
        """The devices that the node has and nobody holds, sorted."""
        claimed = self.claimed()
        return tuple(sorted(device for device in self.status.devices if device not in claimed))


def claim_patch(ledger: NodeDevices, uid: str, group: str, devices: Iterable[Device]) -> Patch:
    """Takes devices for a holder, if nobody wrote the ledger meanwhile."""
    return _patch(ledger, uid, {"group": group, "devices": as_json(devices)})


def mark_patch(ledger: NodeDevices, uid: str, mark: str) -> Patch:
    """Marks a claim as releasing. `mark`, an RFC 3339 time, is new each time: equal marks are one same write."""
    return _patch(ledger, uid, {"releasing": mark})


def unmark_patch(ledger: NodeDevices, uid: str) -> Patch:
    """Takes the mark of a claim away."""
    return _patch(ledger, uid, {"releasing": None})


def drop_patch(ledger: NodeDevices, uid: str) -> Patch:
    """Gives the devices of a claim back."""
    return _patch(ledger, uid, None)


def devices_patch(ledger: NodeDevices, devices: Iterable[Device]) -> Patch:
    """Writes what the node has, with the summaries that follow from it; for the status subresource."""
    have = sorted(devices)
    return {
        "metadata": {"resourceVersion": ledger.metadata.resource_version},
        "status": {"devices": as_json(have), **summary(ledger, have)},
    }


def _patch(ledger: NodeDevices, uid: str, claim: Mapping[str, Any] | None) -> Patch:
    return {
        "metadata": {"resourceVersion": ledger.metadata.resource_version},
        "spec": {"claims": {uid: claim}},
    }


def new_ledger(node: Node, claims: Mapping[str, tuple[str, Iterable[Device]]]) -> dict[str, Any]:
    """A NodeDevices to create, owned by its node, with claims of holder UID → (group, devices)."""
    return {
        "apiVersion": f"{contract.API_GROUP}/{contract.API_VERSION}",
        "kind": contract.NODE_DEVICES_KIND,
        "metadata": {
            "name": node.metadata.name,
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node.metadata.name, "uid": node.metadata.uid}
            ],
        },
        "spec": {
            "claims": {uid: {"group": name, "devices": as_json(devices)} for uid, (name, devices) in claims.items()}
        },
    }


def as_json(devices: Iterable[Device]) -> list[dict[str, Any]]:
    """Devices as the API server stores them."""
    return [{"resource": device.resource, "index": device.index} for device in sorted(devices)]


def summary(ledger: NodeDevices, devices: Iterable[Device]) -> dict[str, str]:
    """The one-line texts of `kubectl get nodedevices`: total, free and held."""
    have = list(devices)
    claimed = ledger.claimed()
    return {
        "total": _counts(have),
        "free": _counts([device for device in have if device not in claimed], of=have),
        "held": "; ".join(
            f"{claim.group}{' (releasing)' if claim.releasing else ''}: {_listed(claim.devices)}"
            for claim in sorted(ledger.claims.values(), key=lambda claim: claim.group)
        ),
    }


def _counts(devices: list[Device], of: list[Device] | None = None) -> str:
    resources = sorted({device.resource for device in (of or devices)})
    return ", ".join(f"{r}={sum(device.resource == r for device in devices)}" for r in resources)


def _listed(devices: Iterable[Device]) -> str:
    return " ".join(f"{resource}={indices}" for resource, indices in selected(devices).items())
