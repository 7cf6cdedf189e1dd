"""What groups wait for, reasoned once for all that want the same, and again when a node changed that matters to it.

A thousand groups may wait for what five thousand nodes don't have. They want few different things.
"""

from typing import Final, NamedTuple

from deviceshare.domain.answers.waiting import MetNowhere, met_nowhere, why_a_holder_waits
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.reasons import Reason
from deviceshare.domain.objects.requests import Request
from deviceshare.domain.placement.fleet import Fleet
from deviceshare.domain.placement.situations import Stamp

KEPT: Final = 4096
"""Reasons, of a few hundred bytes each."""

_Pairs = frozenset[tuple[str, object]]


class _Kept(NamedTuple):
    found: MetNowhere
    stamp: Stamp


class WaitingReasons:
    """Of one fleet. Mutable, but pure."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._kept: dict[tuple[_Pairs, _Pairs], _Kept] = {}

    def of(self, group: Group) -> Reason:
        """As `why_a_group_waits` says; the same object as before where nothing that matters to it changed."""
        request = group.request
        if self._fleet.home(request) or self._fleet.quotas.obstacle(request):
            return why_a_holder_waits(self._fleet, request)
        return self._met_nowhere(request).reason

    def may_fit(self, group: Group) -> bool:
        """Whether some node may have what an unbound group wants, for one of its pods that asks for no share."""
        request = group.request
        return bool(self._fleet.home(request)) or self._met_nowhere(request).fits

    def _met_nowhere(self, request: Request) -> MetNowhere:
        situations, selector = self._fleet.situations, request.node_selector
        wanted = frozenset(request.resources.items()), frozenset(selector.items())
        kept = self._kept.get(wanted)
        if kept is None or kept.stamp != situations.stamp(selector, kept.found.shown):
            found = met_nowhere(self._fleet, request)
            if len(self._kept) >= KEPT:
                self._kept.clear()
            kept = self._kept[wanted] = _Kept(found, situations.stamp(selector, found.shown))
        return kept.found
