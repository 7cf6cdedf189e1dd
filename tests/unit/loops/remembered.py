"""What a part of deviceshare remembers of names: how many of them each of its containers mentions."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from msgspec import Struct

_OURS = "deviceshare."


def remembered(roots: Iterable[object], ours: Callable[[str], bool]) -> Counter[str]:
    """By the attributes that lead there from a root, how many strings are kept of which `ours` says yes."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[Any, str]] = [(root, type(root).__name__) for root in roots]
    while left:
        obj, path = left.pop()
        if isinstance(obj, str):
            found[path] += ours(obj)
        elif id(obj) not in seen:
            seen.add(id(obj))
            left += _parts(obj, path)
    return +found


def _parts(obj: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(obj, dict):
        yield from ((part, path) for pair in obj.items() for part in pair)
    elif isinstance(obj, list | tuple | set | frozenset | deque):
        yield from ((part, path) for part in obj)
    elif isinstance(obj, partial):
        yield from ((part, path) for part in (obj.func, obj.args, obj.keywords))
    elif callable(obj) and hasattr(obj, "__self__"):
        yield obj.__self__, path
    elif type(obj).__module__.startswith(_OURS) or isinstance(obj, Struct):
        names = [*getattr(obj, "__dict__", ()), *_slots(type(obj))]
        yield from ((getattr(obj, name), f"{path}.{name}") for name in names if hasattr(obj, name))


def _slots(kind: type) -> list[str]:
    """`getattr` of these runs no code, as that of a property would."""
    return [name for each in kind.__mro__ for name in _listed(vars(each).get("__slots__", ())) if name[:2] != "__"]


def _listed(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots
