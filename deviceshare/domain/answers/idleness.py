"""Idleness: since when a bound group has no pods, when that has lasted long enough, and what is then said of it."""

from datetime import datetime

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.quantities import spelled
from deviceshare.domain.objects.reasons import Reason, ReasonKind


def idle_since(group: Group, now: str, *, used: bool) -> str:
    """`status.idleSince` as it should be; "" where pods use the group, and where it isn't bound.

    What is unreadable or in the future starts again: clocks may have been set back, and anybody with the right may have
    written it.
    """
    if used or not group.node:
        return ""
    known, moment = idle_seconds(group.status.idle_since, now), group.status.idle_since
    return moment if known is not None and known >= 0 else now


def idle_seconds(since: str, now: str) -> float | None:
    """The seconds between two times in RFC 3339; None where one can't be read."""
    begin, end = _moment(since), _moment(now)
    return (end - begin).total_seconds() if begin and end else None


def release_reason(seconds: int) -> Reason:
    """Why a group has no node any more that had no pods for so long."""
    return Reason(ReasonKind.RELEASED, f"released after {spelled(seconds)} without pods; its next pod binds it again")


def released_before(group: Group) -> Reason | None:
    """The same, as its status says it: nobody asked for the group since."""
    found = (each.message for each in group.status.conditions if each.reason == ReasonKind.RELEASED)
    return next((Reason(ReasonKind.RELEASED, message) for message in found), None)


def _moment(written: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        return None
    return moment if moment.tzinfo else None  # not in UTC: there its year may be 0 or 10000
