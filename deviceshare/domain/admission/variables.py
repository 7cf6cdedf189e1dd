"""The variables of an injected container: references to annotations that the Binding writes, and plain settings.

References come first, so that later variables may refer to them as `$(NVIDIA_VISIBLE_DEVICES)`. The plain ones, which
are only set where their author set none, stay where they are once they are there: so a second injection changes
nothing.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from deviceshare.domain import contract
from deviceshare.domain.admission.drafts import Json
from deviceshare.domain.objects.shares import container_annotation, field_path


class Reference(NamedTuple):
    """A variable whose value is an annotation of the pod, by the downward API."""

    name: str
    path: str
    """The field of the pod."""
    kind: str = ""
    """How the annotation's name begins: a reference to another container's, in a copied pod, is replaced, too."""
    owned: bool = True
    """Whether it replaces what the container's author wrote."""
    gives_way_to: tuple[str, ...] = ()
    """Other variables of the author's, beside which it isn't set."""
    withheld: bool = False
    """Whether it isn't set at all, and taken away where an earlier injection set it."""

    @property
    def json(self) -> Json:
        """As the API server stores it."""
        return {"name": self.name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": self.path}}}

    def equals(self, variable: Json) -> bool:
        """Whether it is the same, with or without what the API server defaults."""
        return variable in (self.json, {"name": self.name, "valueFrom": {"fieldRef": {"fieldPath": self.path}}})

    def is_ours(self, variable: Json) -> bool:
        """Whether deviceshare may have written it."""
        path = _path(variable)
        return self._replace(path=path).equals(variable) and (
            path == self.path or bool(self.kind and path.startswith(f"metadata.annotations['{self.kind}"))
        )


class Setting(NamedTuple):
    """A variable with a plain value, set unless the container has one of that name."""

    name: str
    value: str

    @property
    def json(self) -> Json:
        """As the API server stores it."""
        return {"name": self.name, "value": self.value}


def late(name: str, kind: str, container: str, *, owned: bool = False, gives_way_to: tuple[str, ...] = ()) -> Reference:
    """The variable with what the Binding says of one container (shares.py)."""
    path = field_path(container_annotation(kind, container))
    return Reference(name, path, f"{contract.PREFIX}{kind}.", owned, gives_way_to)


def with_variables(
    env: list[Json], references: Collection[Reference], settings: Iterable[Setting]
) -> tuple[list[Json], list[str]]:
    """The container's variables with these, and the names of its author's that were replaced."""
    first: list[Json] = []
    overridden: list[str] = []
    by_name = {each.name: each for each in references}
    rest = [each for each in env if not _is_replaced(each, by_name)]
    for reference in references:
        mine = [each for each in env if each.get("name") == reference.name]
        if reference.owned and not all(map(reference.is_ours, mine)):
            overridden.append(reference.name)
        names = (reference.name, *reference.gives_way_to)
        if not reference.withheld and all(each.get("name") not in names for each in rest):
            first.append(next(filter(reference.equals, mine), reference.json))
    lacking = [each.json for each in settings if all(other.get("name") != each.name for other in env)]
    return [*first, *lacking, *rest], overridden


def _is_replaced(variable: Json, references: dict[str, Reference]) -> bool:
    name = variable.get("name")
    reference = references.get(name) if isinstance(name, str) else None  # a name may be any JSON, even unhashable
    return reference is not None and (reference.owned or reference.is_ours(variable))


def _path(variable: Json) -> str:
    found: Any = variable
    for key in ("valueFrom", "fieldRef", "fieldPath"):
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, str) else ""
