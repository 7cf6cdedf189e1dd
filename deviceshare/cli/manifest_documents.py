"""The documents of manifest files: YAML or JSON, one object after the other, lists unpacked.

An error names the file, the document and the field: nobody finds `Expected int` in 40 documents.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click
import msgspec
import yaml

from deviceshare.cli.manifest_nesting import check_nesting
from deviceshare.domain.objects.object_decoder import decoder_of

T = TypeVar("T")

MOST_PODS: Final = 10_000
"""In one plan: each is placed by itself."""


class UnreadableManifest(click.ClickException):
    """A file can't be read as what it should be. Shown as `Error: …`, exit status 2."""

    exit_code = 2


class Document(NamedTuple):
    """One object of a file."""

    where: str
    """The file and the document, for people."""
    body: Any

    def __str__(self) -> str:
        return f"{self.where} ({self.title})" if self.kind else self.where

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))

    @property
    def title(self) -> str:
        """Its kind and name."""
        return f"{self.kind} {self.name}"

    @property
    def name(self) -> str:
        metadata = self.body.get("metadata")
        return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""

    def few(self, count: int) -> int:
        """The number of pods, if so many can be planned."""
        if count > MOST_PODS:
            raise UnreadableManifest(f"{self}: {count} pods are more than the {MOST_PODS} that a plan takes")
        return count

    def named(self, type_: type[T]) -> T:
        """What it is read as, which must have a name."""
        found = self.read(type_)
        if not self.name:
            raise UnreadableManifest(f"{self}, metadata.name: it is missing")
        return found

    def read(self, type_: type[T]) -> T:
        try:
            return decoder_of(type_).decode(msgspec.json.encode(self.body))
        except (msgspec.MsgspecError, TypeError) as error:
            what, _, path = str(error).partition(" - at `$")
            raise UnreadableManifest(
                f"{self}, {path.strip('.`') or 'as a whole'}: {what[:1].lower()}{what[1:]}"
            ) from error


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # chosen at run time
    """Leaves timestamps as they are written, as Kubernetes does."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def documents(files: Iterable[Path]) -> Iterable[Document]:
    for file in files:
        name = "standard input" if str(file) == "-" else str(file)
        try:
            with click.open_file(str(file), encoding="utf-8") as stream:
                text = stream.read()
            check_nesting(text, _Loader)
            bodies = list(yaml.load_all(text, Loader=_Loader))
        except (OSError, UnicodeDecodeError) as error:
            raise UnreadableManifest(f"{name}: {getattr(error, 'strerror', None) or error}") from error
        except yaml.YAMLError as error:
            raise UnreadableManifest(f"{name} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
        for number, body in enumerate(bodies, 1):
            yield from _unpacked(f"{name}, document {number}", body)


def _unpacked(where: str, body: Any) -> Iterable[Document]:
    if body is None:
        return
    if isinstance(body, dict) and isinstance(body.get("items"), list) and str(body.get("kind", "")).endswith("List"):
        body = body["items"]
    if isinstance(body, list):
        for number, item in enumerate(body, 1):
            yield from _unpacked(f"{where}, item {number}", item)
        return
    if not isinstance(body, dict):
        raise UnreadableManifest(
            f"{where}: an object with apiVersion, kind and metadata was expected, not {body!r:.40}"
        )
    yield Document(where, body)
