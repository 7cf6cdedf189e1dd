"""NodeDevices, the ledger of one node: which devices it has, and who holds which.

Ownership is decided here alone. A claim is written, marked, unmarked and dropped by a merge patch with the
resourceVersion that was read, so that of two writers one loses. A patch names one claim and leaves the rest unchanged.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Final

from msgspec import Struct, convert, field, json, to_builtins
from msgspec.structs import fields, force_setattr, replace

from deviceshare.domain import contract
from deviceshare.domain.objects import shares
from deviceshare.domain.objects.devices import Device, Devices, as_json
from deviceshare.domain.objects.hardware import ENFORCING, INTERCEPT, Hardware, Publication, Withheld
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.shares import GROUP, POD, Holder, Share

Patch = dict[str, Any]
"""A JSON merge patch (RFC 7386)."""
_CLAIM = "spec.claims["
"""How the path of a claim begins that can't be read (object_decoder.py)."""


_NO_LIMITS: Final = (
    "no agent sets memory limits: set agent.enabled=true and shares.memoryLimits=agent in the chart's values"
)
ENFORCED, INTERCEPTED, COUNTED = "enforced", "intercepted", "counted"
LISTED: Final = 2
"""As many shares of a claim are stored as objects, which older versions read, too; more are packed."""


class Claim(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What one holder has, named as in its pods' annotations: by UUID where an agent reported UUIDs at that time.

    A group has whole devices; a pod has shares, of devices that are nobody's, or `within` those of a group's claim.

    `releasing` is a collector's mark: the devices may still be in use, but no pod may join. `former` are devices that
    were replaced and that pods may use until they end; of shares, each says so of itself. `rebound` names the request
    that was answered last.
    """

    group: str = ""
    whole: list[Device] = field(default_factory=list, name="devices")
    releasing: str = ""
    former: list[Device] = field(default_factory=list)
    rebound: str = ""
    pod: str = ""
    """`namespace/name`. Versions before shares can't read a claim without a group, and so allocate nothing beside it.
    """
    shares: list[Share] = field(default_factory=list)
    within: str = ""
    """The UID of the group that has the devices; "" where nobody has them as a whole."""
    token: str = ""
    """Which of the claims that the group has had here it is; a bound group's status names it (claims.md, bind, 2)."""

    parts: list[str] = field(default_factory=list)
    """The shares as stored where they are more than LISTED (shares.packed); read into `shares`, and empty then."""

    def __post_init__(self) -> None:
        if self.parts:
            force_setattr(self, "shares", [*self.shares, *shares.unpacked(self.parts)])
            force_setattr(self, "parts", [])
        if bool(self.group) == bool(self.pod) or bool(self.pod) != bool(self.shares):
            raise ValueError("a claim names a group and its devices, or a pod and its shares")

    @property
    def devices(self) -> list[Device]:
        """The devices that it holds, whole or in part; former ones not among them."""
        return sorted({share.device for share in shares.current(self.shares)}) if self.shares else self.whole

    @property
    def replaced(self) -> list[Device]:
        """The former devices, whole or in part."""
        return sorted({*self.former, *(share.device for share in self.shares if share.former)})

    @property
    def names(self) -> tuple[Device | Share, ...]:
        """All that names a device in it."""
        return (*self.whole, *self.former, *self.shares)

    @property
    def holder_name(self) -> str:
        return self.group or self.pod

    def holder(self, uid: str) -> Holder:
        """The holder, whose UID is the claim's key in the ledger."""
        return Holder(uid, GROUP, self.group) if self.group else Holder(uid, POD, self.pod)


class Summary(Struct, frozen=True, gc=False):
    """What `kubectl get ndev` prints: one line each, for people alone. Whoever writes claims writes it with them."""

    total: str = ""
    free: str = ""
    held: str = ""
    reasons: str = ""
    """Why devices are withheld."""


class LedgerSpec(Struct, frozen=True, gc=False, rename="camel"):
    claims: dict[str, Claim] = field(default_factory=dict)
    summary: Summary = Summary()


class LedgerStatus(Struct, frozen=True, gc=False, rename="camel"):
    """Written by the leader, but for `hardware`, which the node's agent writes, and `recovered`.

    `devices` are for groups; a UUID in them identifies a device, whatever its number. `withheld` are not for groups.
    """

    devices: list[Device] = field(default_factory=list)
    withheld: list[Withheld] = field(default_factory=list)
    handover: dict[str, str] = field(default_factory=dict)
    """By vendor, the words that the node's runtime takes (handover.py), as far as they are known."""
    memory_mib: dict[str, int] = field(default_factory=dict)
    """By resource, the memory of each of its devices, where labels say so; an agent's report takes precedence."""
    for_shares: list[Device] = field(default_factory=list)
    """The devices that serve shares only, by the node's annotation; likewise `for_groups`. Others serve either."""
    for_groups: list[Device] = field(default_factory=list)
    published: Publication = Publication()
    """By DRA drivers, and held by ResourceClaims."""
    reasons: str = ""
    total: str = ""
    """Where versions before `spec.summary` wrote that; as the next two it is only cleared."""
    free: str = ""
    held: str = ""
    hardware: Hardware = Hardware()
    recovered: list[str] = field(default_factory=list)
    """What people reported as repaired, who may not write the annotation contract.RECOVERED; its words."""

    @property
    def former_summary(self) -> dict[str, str]:
        """The lines that a version before `spec.summary` left, by their names."""
        lines = {"total": self.total, "free": self.free, "held": self.held, "reasons": self.reasons}
        return {name: line for name, line in lines.items() if line}


class NodeDevices(NamedObject, frozen=True, gc=True, dict=True, rename="camel"):
    """`spec.claims` maps the UID of a holder to its claim. What follows from its fields is computed once."""

    most_faults: ClassVar[int] = 8192
    """More than claims fit: where a CRD of an older release pruned them, each is named."""

    spec: LedgerSpec = field(default_factory=LedgerSpec)
    status: LedgerStatus = field(default_factory=LedgerStatus)

    @property
    def node(self) -> str:
        return self.metadata.name

    @property
    def claims(self) -> dict[str, Claim]:
        return self.spec.claims

    @property
    def filled(self) -> bool:
        """Whether it has the claims of all who live on the node: only then devices may be written."""
        return bool(self.status.devices) or self.metadata.annotations.get(contract.FILLED) == self.metadata.uid

    @property
    def lasting(self) -> bool:
        """Whether it is lost by force only, and says that it is filled; those of older releases were their nodes'."""
        meta = self.metadata
        marked = meta.deletion_timestamp or contract.CLAIMS_FINALIZER in meta.finalizers
        return bool(marked) and not meta.owner_references and meta.annotations.get(contract.FILLED) == meta.uid

    @cached_property
    def hidden_claims(self) -> frozenset[str]:
        """The UIDs of claims that can't be read, where all else can; a part of one may be in `claims`.

        Any device may be theirs, so nobody gets one that it doesn't hold. Who holds devices by another claim keeps
        them, and its pods join.
        """
        faults = self.metadata.unreadable or {}
        if not all(path.startswith(_CLAIM) for path in faults):
            return frozenset()
        return frozenset(path.removeprefix(_CLAIM).partition("]")[0] for path in faults)

    @cached_property
    def hardware(self) -> Hardware:
        """What the node's agent reports, or where it reports no devices, what DRA drivers publish; else empty."""
        return self.status.published.behind(self.status.hardware)

    @cached_property
    def claimable(self) -> frozenset[str]:
        """The resources all of whose devices a DRA driver publishes and is kept from, as hand-over by claim needs."""
        published = self.status.published
        if published.held is None:
            return frozenset()
        uuids = {part.uuid for part in published.devices}
        bare = {device.resource for device in self.devices if device.uuid not in uuids}
        return frozenset(device.resource for device in self.devices) - bare

    @cached_property
    def devices(self) -> Devices:
        """The node's devices for groups, in its present numbering, without those that its agent doesn't see."""
        parts = {(part.resource, part.index): part.device for part in self.hardware.devices if not part.lost}
        seen = {part.resource for part in self.hardware.devices}
        named = set(parts.values())
        numbers = [(d.resource, d.index) for d in self.status.devices if not d.uuid]
        here = (parts.get(number, Device(*number)) for number in numbers if number in parts or number[0] not in seen)
        by_uuid = (self.present(device) for device in self.status.devices if device.uuid)
        return tuple(sorted({*here, *(device for device in by_uuid if device in named)}))

    @cached_property
    def kept_out(self) -> dict[Device, str]:
        """The devices that the node has, but not for groups, in its present numbering, and why."""
        return {self.present(d): each.text for each in self.status.withheld for d in each.devices}

    def with_claims(self, claims: dict[str, Claim]) -> "NodeDevices":
        """The ledger as it would be with these claims."""
        return replace(self, spec=replace(self.spec, claims=claims))

    def unknown(self, resource: str) -> Withheld | None:
        """The entry for a resource of which it is unknown which devices are there."""
        return next((w for w in self.status.withheld if w.resource == resource and not w.devices), None)

    def present(self, device: Device) -> Device:
        """The device in the node's present numbering: found by its UUID, or by its index where it has none.

        One that isn't there stays as it is, and so equals none that is. Where no agent reports, as in a ledger that was
        just recreated, UUIDs are unknown, and the index must do.
        """
        part = self.hardware.named(device.uuid) if device.uuid else self.hardware.part(device.resource, device.index)
        if part and not part.lost:
            return part.device
        if device.uuid and all(part.resource != device.resource for part in self.hardware.devices):
            return Device(device.resource, device.index)
        return device

    def memory_of(self, device: Device) -> int:
        """MiB of a device in the node's present numbering; 0 where that is unknown."""
        part = self.hardware.named(device.uuid) if device.uuid else self.hardware.part(device.resource, device.index)
        return max((part.memory_mib if part else 0) or self.status.memory_mib.get(device.resource, 0), 0)

    @property
    def counts_only(self) -> str:
        """Why limits of device memory aren't enforced on the node, with the cure; "" where they are."""
        hardware = self.status.hardware
        return "" if hardware.memory_limits in ENFORCING else hardware.counts_only or _NO_LIMITS

    def limits_of(self, uid: str) -> str:
        """Whether the share of a pod is ENFORCED, INTERCEPTED, or COUNTED, also where its limit is missing now."""
        hardware = self.status.hardware
        if any(each.uid == uid and each.missing for each in hardware.limits):
            return COUNTED
        return INTERCEPTED if hardware.memory_limits == INTERCEPT else COUNTED if self.counts_only else ENFORCED

    def held(self, claim: Claim) -> Devices:
        """What the claim holds, in the node's present numbering; former devices not among them."""
        return tuple(sorted(map(self.present, claim.devices)))

    def claimed(self) -> set[Device]:
        """Every device in a claim, marked or not, and every former one, in the node's present numbering."""
        return {device for claim in self.claims.values() for device in self.reserved(claim)}

    def reserved(self, claim: Claim) -> set[Device]:
        """The claim's devices and its former ones, which no other holder may have; likewise."""
        return {self.present(device) for device in (*claim.devices, *claim.replaced)}


def claim_of(holder: Holder, devices: Iterable[Device], former: Iterable[Device] = (), token: str = "") -> Claim:
    """A new claim of the holder."""
    return Claim(holder.name, list(devices), former=list(former), token=token)


def share_claim_of(holder: Holder, shares: Iterable[Share], within: str = "") -> Claim:
    """A new claim of a pod."""
    return Claim(pod=holder.name, shares=list(shares), within=within)


def claims_patch(ledger: NodeDevices, claims: Mapping[str, Claim]) -> Patch:
    """Writes claims by their holders' UIDs, if nobody wrote the ledger meanwhile."""
    return _patch(ledger, {uid: _claim_json(claim, uid in ledger.claims) for uid, claim in claims.items()})


def restoring_patch(ledger: NodeDevices, claims: Mapping[str, Claim | None]) -> Patch:
    """Writes claims in the place of ones that can't be read, or drops these, if nobody wrote the ledger meanwhile."""
    nothing = dict.fromkeys(each.encode_name for each in fields(Claim))
    return _patch(ledger, {uid: nothing | _claim_json(claim) if claim else None for uid, claim in claims.items()})


def former_patch(ledger: NodeDevices, uid: str, former: Iterable[Device]) -> Patch:
    """Sets the claim's former devices."""
    return _patch(ledger, {uid: {"former": as_json(former) or None}})


def mark_patch(ledger: NodeDevices, uid: str, mark: str, token: str = "") -> Patch:
    """Marks a claim as releasing. `mark`, an RFC 3339 time, differs each time: equal marks would be the same write.

    With a `token` the claim bears that, too. A claim of many shares is written in the short form with it, so that a
    ledger becomes smaller that older versions let grow until not even a mark fitted.
    """
    claim = ledger.claims.get(uid)
    short = _parts_json(claim) if claim and len(claim.shares) > LISTED else {}
    return _patch(ledger, {uid: {"releasing": mark} | ({"token": token} if token else {}) | short})


def unmark_patch(ledger: NodeDevices, uid: str) -> Patch:
    """Removes a claim's mark."""
    return _patch(ledger, {uid: {"releasing": None}})


def drop_patch(ledger: NodeDevices, uid: str) -> Patch:
    """Removes a claim, so that its devices are free."""
    return _patch(ledger, {uid: None})


def patched(ledger: NodeDevices, patch: Patch) -> NodeDevices:
    """The ledger with the claims as a patch of claims leaves them."""
    claims = dict(ledger.claims)
    for uid, change in patch["spec"]["claims"].items():
        before = to_builtins(claims.pop(uid, None)) or {}
        if change is not None:
            fields = {key: value for key, value in {**before, **change}.items() if value is not None}
            claims[uid] = convert(fields, Claim)
    return ledger.with_claims(claims)


def filled_patch(ledger: NodeDevices, claims: Mapping[str, Claim]) -> Patch:
    """Adds the claims, says that none is missing, and makes the ledger one that is lost by force only."""
    patch = claims_patch(ledger, claims)
    kept = [name for name in ledger.metadata.finalizers if name != contract.CLAIMS_FINALIZER]
    patch["metadata"] |= {"annotations": {contract.FILLED: ledger.metadata.uid}, "ownerReferences": None}
    if not ledger.metadata.deletion_timestamp:  # The API server refuses new finalizers from then on.
        patch["metadata"]["finalizers"] = [*kept, contract.CLAIMS_FINALIZER]
    return patch


def let_go_patch(ledger: NodeDevices) -> Patch:
    """Takes the finalizer away, if nobody claimed since the ledger was read."""
    kept = [name for name in ledger.metadata.finalizers if name != contract.CLAIMS_FINALIZER]
    return {"metadata": {"resourceVersion": ledger.metadata.resource_version, "finalizers": kept}}


def _patch(ledger: NodeDevices, claims: Mapping[str, Mapping[str, Any] | None]) -> Patch:
    return {"metadata": {"resourceVersion": ledger.metadata.resource_version}, "spec": {"claims": claims}}


def new_ledger(node: str) -> dict[str, Any]:
    """A NodeDevices to create: without claims, and without an owner, with which it would be lost."""
    return {
        "apiVersion": f"{contract.API_GROUP}/{contract.API_VERSION}",
        "kind": contract.NODE_DEVICES_KIND,
        "metadata": {"name": node, "finalizers": [contract.CLAIMS_FINALIZER]},
        "spec": {"claims": {}},
    }


def claim_bytes(uid: str, claim: Claim) -> int:
    """What the claim takes of the ledger's JSON, as the API server stores it."""
    return len(json.encode({uid: _claim_json(claim)})) - len("{}") + len(",")


def _claim_json(claim: Claim, again: bool = False) -> dict[str, Any]:
    """As stored; where there is one already, which a merge patch changes, without what that has in another form."""
    optional = {"former": as_json(claim.former), "rebound": claim.rebound, "within": claim.within}
    optional |= {"releasing": claim.releasing, "token": claim.token}
    what: dict[str, Any] = {"group": claim.group, "devices": as_json(claim.whole)}
    if claim.pod:
        what = {"pod": claim.pod, **_parts_json(claim)}
        what = what if again else {key: value for key, value in what.items() if value is not None}
    return what | {k: v for k, v in optional.items() if v}


def _parts_json(claim: Claim) -> dict[str, Any]:
    once = shares.stored_once(claim.shares)
    if len(once) > LISTED:
        return {"shares": None, "parts": shares.packed(once)}
    return {"shares": as_json(once), "parts": None}
