"""Conditions as the leader stated them in a group's status, for answers to people who see less than the leader does."""

from deviceshare.domain.answers import group_status
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.object_decoder import Condition
from deviceshare.domain.objects.reasons import Reason, ReasonKind


def stated(group: Group) -> dict[str, str]:
    """The messages of the conditions that are of the group's present spec, by type."""
    return {each.type: each.message for each in _current(group)}


def stated_bound(group: Group) -> Reason | None:
    """The condition Bound, likewise."""
    found = next((each for each in _current(group) if each.type == group_status.IS_BOUND), None)
    return Reason(_kind(found.reason), found.message) if found else None


def _current(group: Group) -> list[Condition]:
    generation = group.metadata.generation
    return [each for each in group.status.conditions if each.message and each.observed_generation == generation]


def _kind(reason: str) -> ReasonKind:
    try:
        return ReasonKind(reason)
    except ValueError:  # of a later release
        return ReasonKind.WAITING
