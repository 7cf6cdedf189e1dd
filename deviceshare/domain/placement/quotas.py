"""The DeviceQuotas as the mirror shows them, and which of them keeps a group from being bound."""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from deviceshare.domain.objects.device_quota import DeviceQuota, Reservation, counted, reservation_of
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.requests import GROUP, Request


class Quotas:
    """Mutable, but pure. It proposes: a bind writes each matching quota, by the version it saw (claims.md, Quotas)."""

    def __init__(self) -> None:
        self._quotas: dict[str, DeviceQuota] = {}

    def put(self, name: str, quota: DeviceQuota | None) -> None:
        """Takes in a quota's newest state; None when it is gone."""
        if quota is None:
            self._quotas.pop(name, None)
        else:
            self._quotas[name] = quota

    def apply(self, quota: DeviceQuota, groups: Iterable[Group]) -> None:
        """Takes in a manifest of a quota, for plans: the known quota's reservations stay, and bound groups count."""
        known = self._quotas.get(quota.name, quota).status.reservations
        bound = {each.uid: reservation_of(each) for each in groups if each.node and quota.matches(each.metadata.labels)}
        self.put(quota.name, replace(quota, status=counted(quota, known | bound, complete=True)))

    def matching(self, labels: Mapping[str, str]) -> list[str]:
        """The names of the quotas that count a group with these labels, sorted."""
        return sorted(name for name, quota in self._quotas.items() if quota.matches(labels))

    def obstacle(self, request: Request) -> Reason | None:
        """Why the group can't be bound now, or None."""
        if not self._quotas or request.holder.kind != GROUP:
            return None
        uid, _, group = request.holder
        found = (self._quotas[name].obstacle(uid, group, request.resources) for name in self.matching(request.labels))
        return next(filter(None, found), None)

    def refusal(self, group: Group) -> Reason | None:
        """Why the group could never be bound, whoever else holds devices, or None."""
        names = self.matching(group.metadata.labels)
        found = (self._quotas[name].alone_too_large(group.name, group.spec.resources) for name in names)
        return next(filter(None, found), None)

    def reserve(self, request: Request) -> None:
        """Counts the group as bound, in memory alone: for plans."""
        for name in self.matching(request.labels):
            quota = self._quotas[name]
            mine = {request.holder.uid: Reservation(request.holder.name, dict(request.resources))}
            self._quotas[name] = replace(quota, status=counted(quota, quota.status.reservations | mine))
