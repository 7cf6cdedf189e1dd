"""A group's `spec.allowedNamespaces`: the namespaces whose pods may join, in the form that Gateway API's routes have.

https://gateway-api.sigs.k8s.io/reference/spec/#routenamespaces
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from deviceshare.domain.objects.label_selector import LabelSelector
from deviceshare.domain.objects.printable import printable, quoted
from deviceshare.domain.wording import listed

ALL, SELECTOR = "All", "Selector"
PATH: Final = "spec.allowedNamespaces"
_SHOWN: Final = 5
_LONGEST: Final = 256
"""Characters of the owner's message, as in the CRD's schema."""


class AllowedNamespaces(Struct, frozen=True, gc=False):
    """Without it in a group's spec, the pods of all namespaces may join."""

    from_: str = field(default=ALL, name="from")
    selector: LabelSelector | None = None
    names: list[str] = field(default_factory=list)
    message: str = ""
    """What the group's owner says to those whose pods are refused: strangers write and strangers read it."""

    def admits(self, name: str, labels: Mapping[str, str] | None) -> bool | None:
        """Whether pods of the namespace may join; None where that takes its `labels` and they aren't known."""
        if self.from_ == ALL or name in self.names:
            return True
        if self.selector is None:
            return False
        return None if labels is None else self.selector.matches(labels)

    @property
    def described(self) -> str:
        """Whose pods the group takes: the object of a sentence."""
        if self.from_ == ALL:
            return "those of every namespace"
        parts, names = [], listed(map(printable, self.names), most=_SHOWN)
        if names:
            parts.append(f"those of {'namespace' if len(self.names) == 1 else 'namespaces'} {names}")
        if self.selector is not None:
            labels = str(self.selector)
            parts.append(f"those of namespaces with the labels {labels}" if labels else "those of every namespace")
        return listed(parts) or "those of no namespace, since neither selector nor names says which"

    @property
    def said(self) -> str:
        """The owner's message in one line, or ""."""
        return printable(self.message[:_LONGEST]).strip()

    def faults(self) -> list[str]:
        """What makes it impossible to say who may join, each naming the field and what to do."""
        if self.from_ not in (ALL, SELECTOR):
            return [f"{PATH}.from: {quoted(self.from_)} is neither {ALL} nor {SELECTOR}"]
        if self.from_ == ALL and (self.names or self.selector is not None):
            return [
                f"{PATH}: from is {ALL}, so selector and names would not count: set from: {SELECTOR}, or leave them out"
            ]
        return self.selector.faults(f"{PATH}.selector") if self.selector else []
