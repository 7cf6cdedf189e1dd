"""Recreations: when the next uninjected pod may be deleted, so that an admission that stays away causes no storm.

Pods of one controller that were seen before the first of them was deleted belong to one round and go one after the
other. Pods that come uninjected after that belong to the next round, which begins later each time, and after some
rounds never: whatever kept admission from them still does. Over all controllers of a namespace, some deletions in a row
after which no injected pod came are taken as a sign that admission is still away; from then on one pod at a time is a
trial. Each namespace by itself: whoever may write pods in one can make any number of them look uninjected.
"""

import math
from typing import Final, NamedTuple

GRACE_SECONDS: Final = 5.0
"""Between a pod's creation and its deletion: admission that was away for a moment is back then."""
APART_SECONDS: Final = (30.0, 120.0, 600.0)
"""Between the end of one controller's round and the beginning of the next. After the last there is none."""
MOST_ROUNDS: Final = len(APART_SECONDS) + 1
UNPROVEN: Final = 5
"""Deletions in a row, of one namespace, after which no injected pod came."""
TRIAL_SECONDS: Final = 300.0
"""Between deletions from then on."""
FORGOTTEN_SECONDS: Final = 3600.0
"""After so long without a deletion a controller starts again, and a namespace."""


class _Rounds(NamedTuple):
    number: int
    began: float
    last: float


class _Unproven(NamedTuple):
    number: int
    last: float


class Recreations:
    """Times are seconds of the caller's clock; owners are the UIDs of controllers."""

    def __init__(self) -> None:
        self._owners: dict[str, _Rounds] = {}
        self._unproven: dict[str, _Unproven] = {}
        """By namespace, the deletions since an injected pod came."""

    @property
    def unproven(self) -> bool:
        """Whether a pod was deleted since an injected one came."""
        return bool(self._unproven)

    def prove(self, owner: str) -> None:
        """An injected pod came, of this controller if it has one: admission is there."""
        self._unproven.clear()
        self._owners.pop(owner, None)

    def due(self, namespace: str, owner: str, seen: float, now: float) -> float:
        """When a pod that was first seen then may be deleted; infinite after the controller's last round."""
        unproven = self._unproven.get(namespace)
        trial = unproven.last + TRIAL_SECONDS if unproven and unproven.number >= UNPROVEN else 0.0
        rounds = self._rounds(owner, now)
        if rounds is None:
            return max(seen + GRACE_SECONDS, trial)
        if seen <= rounds.began:
            return max(rounds.began, trial)
        if rounds.number >= MOST_ROUNDS:
            return math.inf
        return max(seen + GRACE_SECONDS, rounds.last + APART_SECONDS[rounds.number - 1], trial)

    def delete(self, namespace: str, owner: str, seen: float, now: float) -> None:
        """Counts the deletion of such a pod."""
        rounds = self._rounds(owner, now)
        if rounds is None:
            rounds = _Rounds(1, now, now)
        elif seen > rounds.began:
            rounds = _Rounds(rounds.number + 1, now, now)
        lately = {who: each for who, each in self._owners.items() if now - each.last <= FORGOTTEN_SECONDS}
        self._owners = {**lately, owner: rounds._replace(last=now)}
        others = {where: each for where, each in self._unproven.items() if now - each.last <= FORGOTTEN_SECONDS}
        number = others[namespace].number if namespace in others else 0
        self._unproven = {**others, namespace: _Unproven(number + 1, now)}

    def _rounds(self, owner: str, now: float) -> _Rounds | None:
        rounds = self._owners.get(owner)
        return rounds if rounds and now - rounds.last <= FORGOTTEN_SECONDS else None
