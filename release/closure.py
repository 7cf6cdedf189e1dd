"""The dependency closure of an installed distribution: what pip installs with it, and nothing of its extras."""

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement


def closure(*names: str) -> list[Distribution]:
    """The distributions of these names and all that they require here, sorted by name.

    Versions are those of this environment, which constraints.txt decides.

    Raises:
        PackageNotFoundError: one of them isn't installed.
    """
    found: dict[str, Distribution] = {}
    todo = [(name, frozenset[str]()) for name in names]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        found[normal(name)] = here = distribution(name)
        fresh = {(normal(each.name), frozenset(each.extras)) for each in _required(here, extras)} - seen
        seen |= fresh
        todo += fresh
    return [found[name] for name in sorted(found)]


def required(here: Distribution) -> list[str]:
    """The normalized names of what it requires directly, without extras."""
    return sorted({normal(each.name) for each in _required(here, frozenset())})


def normal(name: str) -> str:
    """A name as package indices compare it (https://packaging.python.org/en/latest/specifications/name-normalization/)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(here: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for each in map(Requirement, here.requires or ()):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield each
