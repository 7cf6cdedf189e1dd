"""An explorer of finite models: breadth first over all that can happen, with the shortest way to what must not.

A model is a first state, the actions that may happen in a state, and what must hold. States are hashable values; two
that are equal are one. It is no stand-in for the code: `tests/unit/loops/test_protocol.py` drives that.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")
TOO_MANY = 20_000_000


class Happening(NamedTuple, Generic[S]):
    """One thing that may happen: what it is, whether the protocol itself does it, and the state after it."""

    name: str
    by_protocol: bool
    after: S


class Exploration(NamedTuple):
    """All reachable states were seen, unless something broke: then `broken` says what, and `steps` how."""

    states: int
    happenings: int
    broken: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join([f"{self.states} states: {self.broken or 'holds'}", *self.steps])


def explore(
    first: S,
    happenings: Callable[[S], Iterable[Happening[S]]],
    broken: Callable[[S], str],
    settled: Callable[[S], bool] | None = None,
) -> Exploration:
    """Looks at every state that can be reached.

    Args:
        broken: what is wrong with a state, or "".
        settled: where the protocol, left alone, must be able to come from every state: it must not only do no harm.
    """
    numbers: dict[S, int] = {first: 0}
    ways: list[tuple[int, str]] = [(-1, "")]
    before: list[list[int]] = [[]]
    ends: list[int] = []
    queue, count = deque([first]), 0
    while queue:
        state = queue.popleft()
        number = numbers[state]
        if fault := broken(state):
            return Exploration(len(numbers), count, fault, _way(ways, number))
        if settled and settled(state):
            ends.append(number)
        for name, by_protocol, after in happenings(state):
            count += 1
            found = numbers.get(after)
            if found is None:
                found = numbers[after] = len(ways)
                ways.append((number, name))
                before.append([])
                queue.append(after)
                assert found < TOO_MANY, "the bounds are too large"
            if by_protocol and settled:
                before[found].append(number)
    if settled and (lost := _first_lost(before, ends)) is not None:
        return Exploration(len(numbers), count, "it can't settle any more", _way(ways, lost))
    return Exploration(len(numbers), count, "", ())


def _first_lost(before: list[list[int]], ends: Iterable[int]) -> int | None:
    """The first state from which no end can be reached."""
    reached = bytearray(len(before))
    stack = list(ends)
    for number in stack:
        reached[number] = 1
    while stack:
        for number in before[stack.pop()]:
            if not reached[number]:
                reached[number] = 1
                stack.append(number)
    lost = reached.find(0)
    return None if lost < 0 else lost


def _way(ways: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    def back() -> Iterator[str]:
        at = number
        while at:
            at, name = ways[at]
            yield name

    return tuple(reversed(list(back())))
