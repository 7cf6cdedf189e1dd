"""An index of groups by the node that they are bound to."""

from deviceshare.domain.objects.groups import Group
from deviceshare.loops.ports import ObjectChange


class Residents:
    """Kept up to date by `change`, which is a Watcher of the mirror of groups."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, Group]] = {}

    def change(self, change: ObjectChange[Group]) -> None:
        """Applies a change of one group."""
        key, old, new = change
        if old and (before := self._on.get(old.node)):
            before.pop(key, None)
            if not before:
                del self._on[old.node]
        if new and new.node:
            self._on.setdefault(new.node, {})[key] = new

    def __getitem__(self, node: str) -> list[Group]:
        return list(self._on.get(node, {}).values())
