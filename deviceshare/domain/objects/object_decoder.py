"""ObjectDecoder: API objects' JSON decoded to Structs, with null as absent, and unreadable fields recorded.

Kubernetes' servers and clients are written in Go, whose decoder treats a field that is null as absent
(https://pkg.go.dev/encoding/json#Unmarshal), so objects with nulls are stored and sent. In a list or a map null is the
zero value. msgspec refuses both; what it refuses is decoded once more, part by part, at no cost to all other objects.

A field that still doesn't match its Struct keeps its default and is recorded in `metadata.unreadable`. Such an object
exists all the same: code that decides by a field checks whether that field could be read (ObjectMeta.hides).
"""

import re
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Final, Generic, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import FieldInfo, fields, replace

# The metadata and conditions of API objects, as far as deviceshare reads them.
#
# The objects of this package are msgspec Structs with only the fields that are read: for 10,000 pods that is 15 times
# faster than dicts, in a tenth of the memory. docs/architecture.md says why nothing that is unknown can be lost.


class OwnerReference(Struct, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/concepts/overview/working-with-objects/owners-dependents/"""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    api_version: str = ""


class ObjectMeta(Struct, frozen=True, gc=False, rename="camel"):
    """https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/object-meta/"""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None  # Go writes null into an object that is not stored yet
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: list[str] = field(default_factory=list)
    owner_references: list[OwnerReference] = field(default_factory=list)
    unreadable: dict[str, str] | None = field(default=None, name="deviceshare.io/unreadable")
    """The fields, by path, that don't match the object's kind, and why; set by ObjectDecoder, under a name that no API
    server stores. Such fields have their defaults: check `hides` before deciding by one."""

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone for cluster-scoped objects."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that recreates the object, if any."""
        return next((owner for owner in self.owner_references if owner.controller), None)

    def hides(self, path: str) -> bool:
        """Whether the field at `path`, such as `spec.nodeName`, or a part of it, could not be read."""
        return any(not fault or _around(fault, path) or _around(path, fault) for fault in self.unreadable or ())

    @property
    def fault(self) -> str:
        """The first unreadable field and why, and the number of others; "" when all can be read."""
        if not self.unreadable:
            return ""
        path, why = next(iter(self.unreadable.items()))
        more = f" and {len(self.unreadable) - 1} more" if len(self.unreadable) > 1 else ""
        return f"{path or 'the object'}: {why}{more}"


class NamedObject(Struct, frozen=True, gc=False):
    """Any object, of which only the metadata are read."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)

    @property
    def name(self) -> str:
        return self.metadata.name


class Condition(Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/condition-v1/ (times are RFC 3339)"""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = ""  # GKE's load balancers write null into pods, and any patch may
    observed_generation: int = 0


def _around(path: str, inner: str) -> bool:
    return inner == path or inner.startswith((f"{path}.", f"{path}["))


# Plain JSON: what Go writes as JSON and msgspec can't read, made readable.
#
# Users write free JSON into some fields, as into a ResourceClaim's `opaque.parameters`, and the API server sends its
# bytes as they came: thousands of levels deep, and with halves of surrogate pairs, which Go reads as U+FFFD
# (https://pkg.go.dev/encoding/json#Unmarshal). msgspec refuses both, even where it only skips them, so one such object
# would hide a whole list.

DEEPEST: Final = 100
"""Levels that are kept; what Kubernetes defines has a few dozen, and Python takes some hundreds."""

_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)
"""A string that doesn't end goes on to the end, so that nothing is scanned twice."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def plain_json(data: bytes) -> bytes:
    """The JSON without halves of surrogate pairs, and with null in place of what is nested deeper than DEEPEST.

    Takes some tenths of a second for a MB, so it is for what couldn't be read. What isn't JSON stays so.
    """
    return _shallow(_ESCAPE.sub(_whole, data) if _SURROGATE.search(data) else data)


def _whole(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape["half"] else escape[0]


def _shallow(data: bytes) -> bytes:
    kept: list[bytes] = []
    depth = end = 0
    for match in _STRING_OR_BRACKET.finditer(data):
        token = match[0]
        if token in (b"[", b"{"):
            depth += 1
            if depth == DEEPEST + 1:
                kept += (data[end : match.start()], b"null")
        elif token in (b"]", b"}"):
            depth -= 1
            if depth == DEEPEST:
                end = match.end()
    # What never closes is no JSON, cut or not.
    return b"".join((*kept, data[end:])) if depth == 0 else data


T = TypeVar("T")

MOST_FAULTS: Final = 16
"""Recorded of one object; with more, all of it counts as unreadable. A Struct that nobody but us fills says how many
with `most_faults`."""
LONGEST_PATH: Final = 160
"""Characters of a field's path, as keys of a map have any length."""

_NULL: Final = b"null"
_NOTHING: Final = object()
_ZEROS: Final[dict[Any, bytes]] = {str: b'""', bytes: b'""', int: b"0", float: b"0", bool: b"false"}


class ObjectDecoder(Generic[T]):
    """Decodes one type."""

    def __init__(self, type_: type[T], trim: Callable[[T], T] | None = None) -> None:
        """`trim` leaves out what is never read of an object, before the next one is decoded."""
        self._type = type_
        self._trim = trim
        self._typed = msgspec.json.Decoder(type_)

    def decode(self, raw: bytes | Raw) -> T:
        """Raises msgspec.DecodeError, which names the position, where anything doesn't match the type."""
        found, faults = self._read(raw)
        if faults:
            raise _refusal(faults)
        return found

    def salvage(self, raw: bytes | Raw) -> T:
        """An object with its readable fields; the others are recorded in `metadata.unreadable`.

        Raises:
            msgspec.DecodeError: it isn't JSON, or has no metadata.
        """
        found, faults = self._read(raw)
        if not faults:
            return found
        metadata = getattr(found, "metadata", None)
        if not isinstance(found, Struct) or not isinstance(metadata, ObjectMeta):
            raise _refusal(faults)
        return replace(found, metadata=replace(metadata, unreadable=faults))

    def _read(self, raw: bytes | Raw) -> tuple[T, dict[str, str]]:
        try:
            found, faults = self._part_by_part(raw)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            try:
                found, faults = self._part_by_part(plain_json(bytes(raw)))
            except (RecursionError, UnicodeDecodeError) as error:
                raise msgspec.DecodeError(str(error)) from error
        return (self._trim(found) if self._trim and found is not _NOTHING else found), faults

    def _part_by_part(self, raw: bytes | Raw) -> tuple[T, dict[str, str]]:
        try:
            return self._typed.decode(raw), {}
        except msgspec.ValidationError:
            faults = _Faults(getattr(self._type, "most_faults", MOST_FAULTS))
            return _read(self._type, raw, "", faults), dict(faults)


class _Faults(dict[str, str]):
    """Why a field can't be read, by its path; no more than so many."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most


@cache
def _object_decoder(type_: Any) -> ObjectDecoder[Any]:
    return ObjectDecoder(type_, getattr(type_, "trimmed", None))


_decoder: Final[Callable[[Any], msgspec.json.Decoder[Any]]] = cache(msgspec.json.Decoder)
_fields: Final[Callable[[Any], tuple[FieldInfo, ...]]] = cache(fields)


def decoder_of(type_: type[T]) -> ObjectDecoder[T]:
    """The decoder of what the API server sends as this type, created once.

    A type whose objects others make as large as they like has a method `trimmed`.
    """
    return _object_decoder(cast("Any", type_))


def _read(type_: Any, raw: bytes | Raw, path: str, faults: _Faults) -> Any:
    """The value; _NOTHING where there is none. Unreadable parts are added to `faults` by their path."""
    try:
        return _decoder(type_).decode(raw)
    except msgspec.ValidationError as error:
        origin, arguments = get_origin(type_), get_args(type_)
        members, zero = _form(type_, origin)
        if bytes(raw) == _NULL and path:
            return _read(type_, zero, path, faults) if zero else _NOTHING
        if origin in (Union, types.UnionType):
            one, *others = [each for each in arguments if each is not types.NoneType]
            if not others:
                return _read(one, raw, path, faults)
        try:
            parts = _decoder(members).decode(raw) if members else None
        except msgspec.ValidationError:
            parts = None
        if parts is None:
            return _unreadable(path, str(error).partition(" - at `")[0], faults)
        if isinstance(parts, list):
            read = [_read(arguments[0], part, f"{path}[{number}]", faults) for number, part in enumerate(parts)]
            return [each for each in read if each is not _NOTHING]
        if origin is dict:
            items = {key: _read(arguments[1], part, f"{path}[{key}]", faults) for key, part in parts.items()}
            return {key: value for key, value in items.items() if value is not _NOTHING}
        return _struct(type_, parts, path, faults)


def _struct(type_: type[Struct], parts: dict[str, Raw], path: str, faults: _Faults) -> Any:
    values, whole, before = {}, True, f"{path}." if path else ""
    if type_.__struct_config__.forbid_unknown_fields:
        for key in sorted(parts.keys() - {each.encode_name for each in _fields(type_)}):
            _unreadable(path, f"Object contains unknown field `{key}`", faults)
    for each in _fields(type_):
        part = parts.get(each.encode_name)
        if part is None or bytes(part) == _NULL:
            if each.required:
                _unreadable(path, f"Object missing required field `{each.encode_name}`", faults)
                whole = False
            continue
        value = _read(each.type, part, before + each.encode_name, faults)
        if value is not _NOTHING:
            values[each.name] = value
        elif each.required:
            whole = False
    try:
        return type_(**values) if whole else _NOTHING
    except ValueError as error:  # of its __post_init__
        return _unreadable(path, str(error), faults)


def _form(type_: Any, origin: Any) -> tuple[Any, bytes]:
    """As what the members of a list, a map or a Struct are read, else None; and what null is of it in those, or b""."""
    if origin is list:
        return list[Raw], b"[]"
    if origin is dict or (isinstance(type_, type) and issubclass(type_, Struct)):
        return dict[str, Raw], b"{}"
    return None, _ZEROS.get(type_, b"")


def _unreadable(path: str, why: str, faults: _Faults) -> Any:
    if len(faults) < faults.most:
        faults.setdefault(path[:LONGEST_PATH], why[:LONGEST_PATH])
    else:
        faults[""] = "more of its fields can't be read"
    return _NOTHING


def _refusal(faults: dict[str, str]) -> msgspec.ValidationError:
    path, why = next(iter(faults.items()))
    return msgspec.ValidationError(f"{why} - at `$.{path}`" if path else why)
