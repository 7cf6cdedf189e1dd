"""The namespace of a kubeconfig's context, which commands take as kubectl does where none is named.

Read without the Kubernetes client, whose import takes longer than shell completion may.
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

DEFAULT: Final = "default"
_POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
"""Where a pod finds its own: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""


def namespace_of(files: str | None, context: str | None) -> str:
    """The namespace of `context`, or of the current one; `default` where it names none or can't be read.

    `files` are separated as in KUBECONFIG: the first that names a current context, or this context, counts. None is a
    pod without a kubeconfig, which has a namespace of its own.
    """
    if files is None:
        return _text(_POD).strip() or DEFAULT
    documents = _documents(files)
    wanted = context or next((name for each in documents if (name := each.get("current-context"))), None)
    found = (body for each in documents for name, body in _contexts(each) if name == wanted)
    namespace = next(found, {}).get("namespace")
    return namespace if isinstance(namespace, str) and namespace else DEFAULT


def contexts_of(files: str | None) -> list[str]:
    """The names of all contexts in these files."""
    found = (name for each in _documents(files or "") for name, _ in _contexts(each))
    return sorted({name for name in found if isinstance(name, str)})


def _documents(files: str) -> list[dict[str, Any]]:
    return [each for file in files.split(os.pathsep) if file and isinstance(each := _read(Path(file)), dict)]


def _contexts(document: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    listed = document.get("contexts")
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and isinstance(each.get("context"), dict):
            yield each.get("name"), each["context"]


def _read(file: Path) -> Any:
    try:
        return yaml.safe_load(_text(file))
    except yaml.YAMLError:
        return None


def _text(file: Path) -> str:
    try:
        return file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
