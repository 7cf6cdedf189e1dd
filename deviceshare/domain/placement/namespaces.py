"""The labels of namespaces as the mirror shows them, and whether a group takes pods of one."""

from collections.abc import Mapping

from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.printable import printable
from deviceshare.domain.objects.reasons import Reason, ReasonKind


class Namespaces:
    """Mutable, but pure. A namespace that isn't in it is new, gone, or may not be read."""

    def __init__(self) -> None:
        self._labels: dict[str, Mapping[str, str]] = {}
        self.hidden = False
        """Whether the person who asks may read none: then labels are no obstacle, and commands say so. deviceshare
        itself never decides like that."""

    def set_labels(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Takes in a namespace's labels; None when it is gone, or they can't be read."""
        if labels is None:
            self._labels.pop(name, None)
        else:
            self._labels[name] = labels

    def knows(self, name: str) -> bool:
        """Whether the namespace's labels are known."""
        return name in self._labels

    def obstacle(self, group: Group, namespace: str) -> Reason | None:
        """Why no pod of the namespace may join the group, or None."""
        if (allowed := group.spec.allowed_namespaces) is None:
            return None
        admitted = allowed.admits(namespace, self._labels.get(namespace))
        if admitted or (admitted is None and self.hidden):
            return None
        shown = printable(namespace)
        if admitted is None:
            text = f"group {group.name} takes pods by their namespace's labels, and those of {shown} are not known yet"
            return Reason(ReasonKind.NAMESPACE_UNKNOWN, text, "if this stays, deviceshare doctor")
        text = f"group {group.name} takes no pods of namespace {shown}, only {allowed.described}"
        if allowed.said:
            return Reason(ReasonKind.NAMESPACE_NOT_ALLOWED, f"{text}; its owner says: {allowed.said}")
        return Reason(ReasonKind.NAMESPACE_NOT_ALLOWED, text, "ask whoever may change its spec.allowedNamespaces")

    def refusal(self, group: Group, namespace: str) -> Reason | None:
        """Likewise, but None where it isn't known: filter and bind decide that."""
        reason = self.obstacle(group, namespace)
        return reason if reason and reason.kind is ReasonKind.NAMESPACE_NOT_ALLOWED else None
