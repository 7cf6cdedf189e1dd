"""An index of pods of groups and pods with shares, by holder and by node: no reconciler goes through all of them."""

from collections.abc import Callable

from deviceshare.domain.objects.pods import SHARE_LINE, Pod
from deviceshare.loops.ports import ObjectChange

WAITING_GROUPS = ""
"""The key that stands for every group that pods wait for; no object has this name."""

GATED = "gated"


class _Index:
    """Pods by a property; a pod without it ("") is in no bucket."""

    def __init__(self, bucket: Callable[[Pod], str]) -> None:
        self._bucket = bucket
        self._pods: dict[str, dict[str, Pod]] = {}

    def change(self, change: ObjectChange[Pod]) -> None:
        key, old, new = change
        if old and (before := self._pods.get(self._bucket(old))):
            before.pop(key, None)
            if not before:
                del self._pods[self._bucket(old)]
        if new and (bucket := self._bucket(new)):
            self._pods.setdefault(bucket, {})[key] = new

    def buckets(self) -> list[str]:
        return list(self._pods)

    def __getitem__(self, bucket: str) -> list[Pod]:
        return list(self._pods.get(bucket, {}).values())


class Members:
    """Kept up to date by `change`, which is a Watcher of the mirror of the groups' pods."""

    def __init__(self) -> None:
        self._named = _Index(lambda pod: pod.group)
        self._pending = _Index(lambda pod: pod.line if pod.pending else "")
        self._gated = _Index(lambda pod: GATED if pod.awaits_placement and pod.wants_devices else "")
        self._holding = _Index(lambda pod: pod.node if pod.lives and pod.holder_uid and not pod.impostor else "")

    def change(self, change: ObjectChange[Pod]) -> None:
        """Applies a change of one pod."""
        for index in (self._named, self._pending, self._gated, self._holding):
            index.change(change)

    def named(self, group: str) -> list[Pod]:
        """Every pod that names the group."""
        return self._named[group]

    def pending(self, line: str) -> list[Pod]:
        """The pods that may yet be bound and name the group, or ask for the share, that this `Pod.line` says."""
        return self._pending[line]

    def gated(self) -> list[Pod]:
        """The pods that only deviceshare's scheduling gate holds back."""
        return self._gated[GATED]

    def holding(self, node: str) -> list[Pod]:
        """The pods that live on the node with devices of a group, or with shares, by right."""
        return self._holding[node]

    def lines(self) -> list[str]:
        """Every `Pod.line` in which pods wait."""
        return self._pending.buckets()

    def waiting(self) -> list[str]:
        """The names of groups, existing or not, that pods wait for."""
        return [line for line in self.lines() if not line.startswith(SHARE_LINE)]
