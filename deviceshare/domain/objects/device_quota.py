"""A DeviceQuota: how many devices the groups that it selects may hold together, and who holds or reserves how many."""

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import Struct, field, to_builtins

from deviceshare.domain import vendors
from deviceshare.domain.objects.groups import Group, LabelSelector
from deviceshare.domain.objects.ledger import Patch
from deviceshare.domain.objects.object_decoder import NamedObject
from deviceshare.domain.objects.reasons import Reason, ReasonKind
from deviceshare.domain.wording import listed, quoted

_SHOWN: Final = 5


class Reservation(Struct, frozen=True, gc=False, rename="camel"):
    """What one group holds, or is about to claim (claims.md, Quotas)."""

    name: str = ""
    """The group's; its UID is the key."""
    devices: dict[str, int] = field(default_factory=dict)
    """Device resource → number, as in the group's spec."""
    group_version: str = ""
    """The resourceVersion of the group that whoever reserved had read: each bind writes another one."""


class DeviceQuotaSpec(Struct, frozen=True, gc=False, rename="camel"):
    """What the administrator writes."""

    group_selector: LabelSelector = field(default_factory=LabelSelector)
    hard: dict[str, int] = field(default_factory=dict)


class DeviceQuotaStatus(Struct, frozen=True, gc=False, rename="camel"):
    """`reservations` decide, once they are complete; the rest is for people."""

    reservations: dict[str, Reservation] = field(default_factory=dict)
    observed_generation: int = 0
    """Of the spec by which the leader has counted what was bound before: until then `reservations` may lack some."""
    used: dict[str, int] = field(default_factory=dict)
    summary: str = ""
    groups: int = 0


class DeviceQuota(NamedObject, frozen=True, gc=False):
    """Cluster-scoped, as groups are."""

    spec: DeviceQuotaSpec = field(default_factory=DeviceQuotaSpec)
    status: DeviceQuotaStatus = field(default_factory=DeviceQuotaStatus)

    @property
    def faults(self) -> list[str]:
        """What keeps it from counting what it should; Kubernetes' schema can't express that."""
        unknown = sorted(resource for resource in self.spec.hard if vendors.vendor_of(resource) is None)
        return self.spec.group_selector.faults("spec.groupSelector") + [
            f"spec.hard: unknown resource {quoted(resource)}; known are {listed(vendors.known_resources())}"
            for resource in unknown
        ]

    @property
    def fault(self) -> str:
        """Why it can't be applied as it is, or "". Then it lets no group be bound that it counts."""
        return self.metadata.fault or next(iter(self.faults), "")

    @property
    def counts_all(self) -> bool:
        """Whether it counts every group, since which ones it selects can't be read or evaluated."""
        return bool(self.metadata.unreadable or self.spec.group_selector.faults(""))

    @property
    def observed(self) -> bool:
        """Whether all that was bound before the spec was written is among the reservations."""
        return self.status.observed_generation == self.metadata.generation

    def used(self, resource: str) -> int:
        """How many devices of the resource are reserved."""
        return sum(each.devices.get(resource, 0) for each in self.status.reservations.values())

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it counts a group with these labels; one whose selector can't be read or evaluated counts all."""
        return self.counts_all or self.spec.group_selector.matches(labels)

    def obstacle(self, uid: str, name: str, wanted: Mapping[str, int], *, alone: bool = False) -> Reason | None:
        """Why the group with this UID and name, which wants these devices, can't be bound; None where it can.

        With `alone` why no group that wants these devices could ever be bound, whoever else holds any.
        """
        cure = f"change the quota (kubectl edit dq {self.name})"
        if fault := self.fault:
            which = "group" if self.counts_all else "group that it counts"
            why = f"quota {self.name} can't be applied ({fault}), and until it can no {which} is bound"
            return None if alone else Reason(ReasonKind.QUOTA, why, cure)
        for resource, hard in sorted(self.spec.hard.items()):
            asked = wanted.get(resource, 0)
            if asked > hard:
                text = f"quota {self.name} allows {hard} {resource} in all; group {name} wants {asked}"
                return Reason(ReasonKind.QUOTA, text, f"request fewer, or {cure}")
            if alone or not asked:
                continue
            if not self.observed:
                text = f"quota {self.name} has not been counted since it was created or changed"
                return Reason(ReasonKind.QUOTA, f"{text}: until the leader does, it lets no group have {resource}")
            # By UID: a group that was recreated has the name of the one before, which may still hold devices.
            others = [
                (each.name, each.devices[resource])
                for other, each in self.status.reservations.items()
                if other != uid and each.devices.get(resource)
            ]
            held_by_others = sum(number for _, number in others)
            if held_by_others + asked > hard:
                names = sorted({other for other, _ in others})
                who = f"group{'s' * (len(names) > 1)} {listed(names, most=_SHOWN)}"
                held = f"quota {self.name}: {held_by_others} of {hard} {resource} are held by {who}"
                return Reason(
                    ReasonKind.QUOTA, f"{held}; group {name} wants {asked}", f"delete one that is not needed, or {cure}"
                )
        return None

    def holds(self, group: Group) -> bool:
        """Whether what the group wants is reserved, whenever that was."""
        reservation = self.status.reservations.get(group.uid)
        return reservation is not None and reservation.devices == group.spec.resources


def reservation_of(group: Group) -> Reservation:
    """The reservation that a bind writes which read the group so."""
    return Reservation(group.name, dict(group.spec.resources), group.metadata.resource_version)


def counted(
    quota: DeviceQuota, reservations: Mapping[str, Reservation], *, complete: bool = False
) -> DeviceQuotaStatus:
    """The status with these reservations; `complete`: they are all that there should be by the quota's spec."""
    used = {
        resource: sum(each.devices.get(resource, 0) for each in reservations.values()) for resource in quota.spec.hard
    }
    summary = ", ".join(f"{resource}: {used[resource]}/{hard}" for resource, hard in sorted(quota.spec.hard.items()))
    wrong = f"invalid, so no group is bound: {quota.faults[0]}" if quota.faults else ""
    observed = quota.metadata.generation if complete else quota.status.observed_generation
    return DeviceQuotaStatus(dict(reservations), observed, used, wrong or summary, len(reservations))


def quota_patch(
    quota: DeviceQuota, *, add: Mapping[str, Reservation], drop: Collection[str] = (), complete: bool = False
) -> Patch:
    """The compare-and-swap that adds and drops reservations, by the groups' UIDs; empty where it changes nothing."""
    before = quota.status
    after = {uid: each for uid, each in before.reservations.items() if uid not in drop} | dict(add)
    now = counted(quota, after, complete=complete)
    if now == before:
        return {}
    changed: dict[str, Any] = dict.fromkeys(before.reservations.keys() - after.keys())
    for uid, each in after.items():
        old = before.reservations.get(uid)
        if each != old:
            devices = dict.fromkeys(old.devices if old else ()) | each.devices
            changed[uid] = to_builtins(each) | {"devices": devices}
    status = to_builtins(now) | {"reservations": changed, "used": dict.fromkeys(before.used) | now.used}
    return {"metadata": {"resourceVersion": quota.metadata.resource_version}, "status": status}
