"""A rate limit over all keys of a queue."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class RateLimit(Generic[K]):
    """A key that asks gets a time and keeps it until its turn is over. No key waits while few ask."""

    def __init__(self, a_second: float) -> None:
        self._apart = 1 / a_second
        self._next = 0.0
        self._times: dict[K, float] = {}

    def at(self, key: K, now: float) -> float:
        """When the key's turn comes, in seconds of the clock of `now`."""
        if key not in self._times:
            # Keys that gave up their turns leave no gap: nobody waits for longer than those that are there take.
            longest = now + (len(self._times) + 1) * self._apart
            self._times[key] = max(min(self._next, longest), now)
            self._next = self._times[key] + self._apart
        return self._times[key]

    def over(self, key: K) -> None:
        """The key had its turn, or needs none any more."""
        self._times.pop(key, None)
