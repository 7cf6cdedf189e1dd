"""Kubeconfig files: their contexts, and the cluster and the user of one.

Files are separated as in KUBECONFIG. The first that names a current context counts, and so does the first with an entry
of a name. A file that can't be read has no entries.
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/#merging-kubeconfig-files
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

DEFAULT: Final = "default"
"""The namespace where a context names none."""
_KINDS: Final = {"contexts": "context", "clusters": "cluster", "users": "user"}


class Entry(NamedTuple):
    """A context, a cluster or a user."""

    body: dict[str, Any]
    folder: Path
    """Of its file, to which its relative paths refer."""


class Kubeconfig(NamedTuple):
    current: str
    """The name of the current context; "" where there is none."""
    contexts: dict[str, Entry]
    clusters: dict[str, Entry]
    users: dict[str, Entry]

    def context(self, name: str | None) -> dict[str, Any]:
        """The context of that name, or the current one; raises KeyError."""
        return self.contexts[name or self.current].body

    def namespace(self, context: str | None) -> str:
        """That of the context, or of the current one."""
        entry = self.contexts.get(context or self.current)
        named = entry.body.get("namespace") if entry else None
        return named if isinstance(named, str) and named else DEFAULT


def load(files: str) -> Kubeconfig:
    """What stands in the files that can be read."""
    documents = [*_documents(files)]
    current = next((name for _, each in documents if (name := each.get("current-context"))), "")
    found: dict[str, dict[str, Entry]] = {section: {} for section in _KINDS}
    for path, document in documents:
        for section, kind in _KINDS.items():
            listed = document.get(section)
            for each in listed if isinstance(listed, list) else ():
                if isinstance(each, dict) and isinstance(each.get(kind), dict) and isinstance(each.get("name"), str):
                    found[section].setdefault(each["name"], Entry(each[kind], path.parent))
    return Kubeconfig(str(current), **found)


def _documents(files: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    import yaml  # noqa: PLC0415 - help doesn't need it

    for path in (Path(file).expanduser() for file in files.split(os.pathsep) if file):
        with suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            if isinstance(document, dict):
                yield path, document
