"""Decoding what the API server sends: every absence and null that Go would take, and what can't be read at all."""

import types
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct
from msgspec.structs import fields

from deviceshare.doctor.kinds import NodeSoftware, Rollout, RuntimeClass
from deviceshare.domain import objects
from deviceshare.domain.admission.drafts import Draft
from deviceshare.domain.device_health.containers import NodePod
from deviceshare.domain.objects.groups import Group
from deviceshare.domain.objects.ledger import Claim, NodeDevices
from deviceshare.domain.objects.nodes import Node
from deviceshare.domain.objects.object_decoder import DEEPEST, MOST_FAULTS, ObjectDecoder, decoder_of, plain_json
from deviceshare.domain.objects.pods import Pod
from deviceshare.domain.objects.resource_slices import ResourceClaim
from deviceshare.domain.objects.shares import Share
from deviceshare.kube.api import Page, Resources, Version, WatchEvent
from deviceshare.kube.connection import ApiStatus
from deviceshare.loops.kinds import Event, Lease, Secret, WebhookConfiguration
from deviceshare.web.admission import ReviewRequest
from deviceshare.web.extender import Arguments, Binding

READ: tuple[type[Struct], ...] = (
    Pod,
    NodePod,
    Node,
    Lease,
    Event,
    Secret,
    WebhookConfiguration,
    Group,
    NodeDevices,
    Draft,
    ReviewRequest,
    Arguments,
    Binding,
    Page,
    WatchEvent,
    ApiStatus,
    Version,
    Resources,
    Rollout,
    NodeSoftware,
    RuntimeClass,
)
"""All that is decoded of what others write. What these Structs demand, their schemas demand, too."""

Json = Any
_SHARE: Json = {"container": "c", "resource": "r", "index": 0}
RULED: dict[Any, list[Json]] = {
    Claim: [
        {"group": "a", "devices": [{"resource": "r", "index": 0}], "former": None, "pod": None, "shares": None},
        {"group": "a"},
        {"group": "a", "devices": None, "releasing": None, "rebound": None, "within": None},
        {"pod": "ns/p", "shares": [{**_SHARE, "percent": 1, "memoryMib": None, "role": None, "uuid": None}]},
        {"pod": "ns/p", "shares": [{**_SHARE, "memoryMib": 1}], "group": None, "devices": None, "within": "u"},
    ],
    Share: [{**_SHARE, "percent": 1}, {**_SHARE, "memoryMib": 1, "percent": 0}],
}
"""Those that have a rule of their own, and what keeps it."""

SCALARS: dict[Any, Any] = {str: "text", int: 1, float: 0.5, bool: True, bytes: "Ynl0ZXM="}


@cache
def json_of(type_: Any) -> st.SearchStrategy[Json]:
    """JSON of the type: each field that it doesn't demand is there, null or absent, at every depth."""
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return st.one_of([json_of(each) for each in arguments if each is not types.NoneType])
    if origin is list:
        return st.lists(_or_null(arguments[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["a", "b.c/d"]), _or_null(arguments[1]), max_size=2)
    if type_ in RULED:
        return st.sampled_from(RULED[type_])
    if isinstance(type_, type) and issubclass(type_, Struct):
        demanded = {f.encode_name: json_of(f.type) for f in fields(type_) if f.required}
        others = {f.encode_name: st.none() | json_of(f.type) for f in fields(type_) if not f.required}
        return st.fixed_dictionaries(demanded, optional=others)
    if type_ in (Any, Raw):
        return st.none() | st.just({"anything": [None]})
    return st.just(SCALARS[type_])


def _or_null(type_: Any) -> st.SearchStrategy[Json]:
    """An element of a list or a map; null stands for one without anything, where nothing is demanded of it."""
    return json_of(type_) if _demanding(type_) else st.none() | json_of(type_)


def _demanding(type_: Any) -> bool:
    if type_ in RULED:
        return True
    return isinstance(type_, type) and issubclass(type_, Struct) and any(f.required for f in fields(type_))


def full(type_: Any) -> Json:
    """JSON of the type with all that it may have."""
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return full(next(each for each in arguments if each is not types.NoneType))
    if origin is list:
        return [full(arguments[0])]
    if origin is dict:
        return {"a": full(arguments[1])}
    if type_ in RULED:
        return RULED[type_][0]
    if isinstance(type_, type) and issubclass(type_, Struct):
        return {field.encode_name: full(field.type) for field in fields(type_)}
    return SCALARS.get(type_, {})


def holes(type_: Any) -> Iterator[Json]:
    """The same, with one thing null or absent that may be, for each thing in it."""
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        yield from holes(next(each for each in arguments if each is not types.NoneType))
    elif origin is list:
        yield from ([each] for each in ([] if _demanding(arguments[0]) else [None]))
        yield from ([full(arguments[0]), each] for each in holes(arguments[0]))
    elif origin is dict:
        yield from ({"a": each} for each in ([] if _demanding(arguments[1]) else [None]))
        yield from ({"a": each} for each in holes(arguments[1]))
    elif type_ in RULED:
        yield from RULED[type_]
    elif isinstance(type_, type) and issubclass(type_, Struct):
        whole = full(type_)
        for field in fields(type_):
            if not field.required:
                yield {**whole, field.encode_name: None}
                yield {key: value for key, value in whole.items() if key != field.encode_name}
            yield from ({**whole, field.encode_name: each} for each in holes(field.type))


def structs_in(type_: Any) -> Iterator[type[Struct]]:
    if isinstance(type_, type) and issubclass(type_, Struct):
        yield type_
        for each in fields(type_):
            yield from structs_in(each.type)
    for argument in get_args(type_):
        yield from structs_in(argument)


@pytest.mark.parametrize("type_", READ)
def test_every_absence_and_null_that_a_schema_allows_is_read(type_: type[Struct]) -> None:
    """One by one, from the Structs themselves, so that a field added later is covered; nothing is called unreadable."""
    for document in [full(type_), *holes(type_)]:
        read_whole(type_, document)


@pytest.mark.parametrize("type_", READ)
@settings(max_examples=20)
@given(data=st.data())
def test_any_number_of_absences_and_nulls_is_read(type_: type[Struct], data: st.DataObject) -> None:
    """All at once, as in an object that is nearly empty."""
    read_whole(type_, data.draw(json_of(type_)))


def read_whole(type_: type[Struct], document: Json) -> None:
    raw = msgspec.json.encode(document)
    read = decoder_of(type_).decode(raw)
    if hasattr(read, "metadata"):
        assert decoder_of(type_).salvage(raw) == read


@pytest.mark.parametrize("type_", READ)
@settings(max_examples=20)
@given(data=st.data())
def test_a_null_field_means_what_an_absent_one_means(type_: type[Struct], data: st.DataObject) -> None:
    """Whatever there is beside it."""
    document = data.draw(json_of(type_))
    field = data.draw(st.sampled_from([f.encode_name for f in fields(type_) if not f.required] or [""]))
    absent = {key: value for key, value in document.items() if key != field}
    null = {**absent, field: None} if field else absent
    decode = decoder_of(type_).decode
    assert _comparable(decode(msgspec.json.encode(null))) == _comparable(decode(msgspec.json.encode(absent)))


def _comparable(value: Struct) -> Any:
    return msgspec.json.encode(value)  # Raw isn't equal to its equal


@settings(max_examples=20)
@given(data=st.data())
@pytest.mark.parametrize("type_", [Pod, Node, Group, NodeDevices, NodePod, Lease])
def test_whatever_an_object_holds_its_names_are_kept(type_: type[Struct], data: st.DataObject) -> None:
    """Wrong types anywhere but in its metadata: it is neither lost, nor does it lose what can be read."""
    wrong: st.SearchStrategy[Json] = st.sampled_from(
        [None, True, 3, "x", [], [3], {}, {"conditions": 3}, {"nodeName": []}, {"claims": {"u": 1}}]
    )
    document = data.draw(json_of(type_))
    metadata = {"name": "n", "namespace": "ns", "uid": "u", "labels": {"deviceshare.io/l": "v"}, "resourceVersion": "7"}
    spoilt = {key: data.draw(wrong) for key in ("spec", "status") if data.draw(st.booleans())}
    read: Any = decoder_of(type_).salvage(msgspec.json.encode({**document, **spoilt, "metadata": metadata}))
    assert (read.metadata.key, read.metadata.uid, read.metadata.labels) == ("ns/n", "u", {"deviceshare.io/l": "v"})
    assert all(read.metadata.hides(key.partition(".")[0].partition("[")[0]) for key in read.metadata.unreadable or ())


def test_null_in_a_list_or_a_map_is_the_zero_value_as_in_go() -> None:
    """https://pkg.go.dev/encoding/json#Unmarshal"""
    raw = b'{"metadata":{"annotations":{"deviceshare.io/a":null}},"spec":{"containers":[null]}'
    raw += b',"status":{"conditions":[null]}}'
    pod = decoder_of(Pod).decode(raw)
    assert pod.metadata.annotations == {"deviceshare.io/a": ""}
    assert [c.name for c in pod.spec.containers] == [""]
    assert [c.type for c in pod.status.conditions] == [""]
    assert decoder_of(Secret).decode(b'{"data": {"ca.crt": null}}').data == {"ca.crt": b""}


def test_what_cannot_be_read_is_named_and_the_rest_is_kept() -> None:
    """Deep inside: a variable's name, a claim's device."""
    odd = b'{"name":"b","env":[{"name":3}]}'
    raw = b'{"metadata":{"name":"p"},"spec":{"nodeName":"n1","containers":[{"name":"a"},' + odd + b"]}}"
    pod = decoder_of(Pod).salvage(raw)
    assert (pod.node, [c.name for c in pod.spec.containers]) == ("n1", ["a", "b"])
    assert pod.metadata.fault == "spec.containers[1].env[0].name: Expected `str`, got `int`"
    assert pod.metadata.hides("spec.containers")
    assert not pod.metadata.hides("spec.nodeName")


def test_a_field_is_hidden_by_what_is_in_it_and_by_what_it_is_in() -> None:
    """`spec` hides `spec.nodeName`, `spec.claims[u]` hides `spec.claims`; names that only begin alike hide nothing."""
    pod = decoder_of(Pod).salvage(b'{"metadata":{"annotations":{"a.b/c": 1}},"spec":[]}')
    assert pod.metadata.unreadable is not None
    assert set(pod.metadata.unreadable) == {"metadata.annotations[a.b/c]", "spec"}
    hidden = ("spec", "spec.nodeName", "metadata", "metadata.annotations")
    assert [
        path for path in (*hidden, "status", "sp", "metadata.annot", "metadata.uid") if pod.metadata.hides(path)
    ] == [*hidden]


def test_an_object_full_of_faults_costs_little_to_tell() -> None:
    """Whoever writes a thousand wrong labels with keys of a kilobyte writes no log of a megabyte."""
    labels = {f"{number}{'k' * 1000}": 3 for number in range(1000)}
    group = decoder_of(Group).salvage(msgspec.json.encode({"metadata": {"labels": labels}}))
    assert group.metadata.unreadable is not None
    assert len(group.metadata.unreadable) <= MOST_FAULTS + 1
    assert len(group.metadata.fault) < 500
    assert group.metadata.hides("status.devices"), "nobody knows what else is wrong"


def test_decode_refuses_what_salvage_names() -> None:
    """Where nobody keeps half an object, the place of the fault is named as msgspec names it."""
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$.spec.resources\[a\]`"):
        decoder_of(Group).decode(b'{"metadata": {"labels": null}, "spec": {"resources": {"a": "1"}}}')


@pytest.mark.parametrize(
    "raw", [b"3", b"null", b"{", b"\xff", b'{"a":' + b"[" * 100_000, b'{"metadata":{"name":"\xff"}}']
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    """Not JSON, not an object, nested past any bound, not UTF-8: one error for all."""
    for read in (decoder_of(Group).decode, decoder_of(Group).salvage):
        with pytest.raises(msgspec.DecodeError):
            read(raw)


def test_a_field_that_must_be_known_is_still_refused_beside_a_null() -> None:
    """Tolerance for nulls is none for slips of the pen."""

    class Strict(Struct, forbid_unknown_fields=True):
        name: str = ""

    with pytest.raises(msgspec.ValidationError, match="unknown field `nmae`"):
        ObjectDecoder(Strict).decode(b'{"nmae": "x", "name": null}')


def test_every_struct_of_an_object_can_be_taken_apart() -> None:
    """Only lists, maps and Structs are looked into: a tuple or a union of two would hide its nulls from the decoder."""
    known = (str, int, float, bool, bytes, Raw, Any, types.NoneType)
    for struct in {each for type_ in READ for each in structs_in(type_)}:
        for field in fields(struct):
            assert _parts_are_known(field.type, known), f"{struct.__name__}.{field.name}"


def _parts_are_known(type_: Any, known: tuple[Any, ...]) -> bool:
    origin, arguments = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):  # scalars, or one thing that may be taken apart
        parts = [each for each in arguments if each is not types.NoneType]
        return all(each in known for each in parts) or (len(parts) == 1 and _parts_are_known(parts[0], known))
    if origin in (list, dict):
        return all(_parts_are_known(each, known) for each in arguments)
    return type_ in known or (isinstance(type_, type) and issubclass(type_, Struct))


# What users write as free JSON, which the API server stores and sends as it came.

DEEP = b'{"a":' + b"[" * 4900 + b"]" * 4900 + b"}"
HALF = rb'{"\udead":"a \ud800 \\ud800 \ud83d\ude00"}'


@pytest.mark.parametrize("free", [DEEP, HALF], ids=["deep", "half a character"])
@pytest.mark.parametrize("access", [b"false", b"null"])
def test_free_json_of_users_hides_nothing(free: bytes, access: bytes) -> None:
    """Neither the claim that has it, nor the list or the event that has the claim."""
    result = b'{"driver":"gpu.nvidia.com","pool":"n","device":"gpu-0","adminAccess":%s}' % access
    config = b'[{"opaque":{"driver":"x.io","parameters":%s}}]' % free
    allocation = b'{"devices":{"results":[%s],"config":%s}}' % (result, config)
    rest = b'"spec":{"devices":{"config":%s}},"status":{"allocation":%s}' % (config, allocation)
    raw = b'{"metadata":{"name":"a"},%s}' % rest

    items = decoder_of(Page).decode(b'{"metadata":{},"items":[%s]}' % raw).items
    event = decoder_of(WatchEvent).decode(b'{"type":"ADDED","object":%s}' % raw).object
    for each in (raw, *(items or ()), event):
        claim = decoder_of(ResourceClaim).salvage(each)
        assert not claim.metadata.unreadable
        assert [one.device for one in claim.holds] == ["gpu-0"]


def test_what_is_read_is_changed_only_where_it_is_no_text() -> None:
    """Escaped backslashes, whole pairs and brackets in strings stay."""
    text = rb'["[[\"{", "\\ud800", "\ud83d\ude00", "\ud800\ud800\udc00", "\u00e9"]'

    assert msgspec.json.decode(plain_json(text)) == ['[["{', "\\ud800", "\U0001f600", "\ufffd\U00010000", "é"]
    assert plain_json(b"[" * DEEPEST + b"]" * DEEPEST) == b"[" * DEEPEST + b"]" * DEEPEST
    assert plain_json(b"[1," * (DEEPEST + 2) + b"2" + b"]" * (DEEPEST + 2)).count(b"null") == 1
    for broken in (b"[" * 9000, b"]" * 9000, b'{"a', b"\xff", b'"' + rb"\"" * 300_000):
        assert plain_json(broken) == broken


def test_the_garbage_collector_passes_over_what_is_mirrored() -> None:
    """All of it is frozen, and so in no cycle. Only a ledger keeps what follows from it, which msgspec has watched."""
    modules = [import_module(f"{objects.__name__}.{each.name}") for each in iter_modules(objects.__path__)]
    types_ = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    structs = [each for each in types_ if issubclass(each, Struct) and each.__module__.startswith(objects.__name__)]
    assert structs
    assert [each.__name__ for each in structs if each.__struct_config__.gc] == ["NodeDevices"]
