"""Labels of other systems by which a node is shared, where a setting names them: `gpushare=true`.

Such a node is seen as if it had our own label, so that nothing else needs to know of theirs. Our own label wins: by
another value of it an owner keeps a node out.
"""

import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from deviceshare.domain import contract
from deviceshare.domain.objects.object_meta import ObjectMeta

T = TypeVar("T", bound=Struct)

_WORD: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL: Final = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_WORD}=({_WORD})?")
"""https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set"""


def is_label(text: str) -> bool:
    """Whether this is a label with its value."""
    return _LABEL.fullmatch(text) is not None and not text.startswith(f"{contract.MODE_LABEL}=")


class SharingLabels:
    """Calling it with a node returns the node as it is seen."""

    def __init__(self, labels: Iterable[str] = ()) -> None:
        """`labels` are written `key=value`."""
        self.pairs = frozenset((key, value) for key, _, value in (label.partition("=") for label in labels))

    @classmethod
    def written(cls, text: str) -> "SharingLabels":
        """As a flag has them: `key=value`, several with commas."""
        return cls(filter(None, text.split(",")))

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __call__(self, node: T) -> T:
        """`node` is of any type that has a node's metadata."""
        meta: ObjectMeta = node.metadata  # type: ignore[attr-defined]
        if contract.MODE_LABEL in meta.labels or self.pairs.isdisjoint(meta.labels.items()):
            return node
        change: Any = {"metadata": replace(meta, labels={**meta.labels, contract.MODE_LABEL: contract.MODE_SHARED})}
        return replace(node, **change)


def may_be_shared(node: Any) -> bool:
    """Whether a node as it is seen takes part, or can't be read well enough to tell."""
    meta: ObjectMeta = node.metadata
    return meta.labels.get(contract.MODE_LABEL) == contract.MODE_SHARED or meta.hides("metadata.labels")
