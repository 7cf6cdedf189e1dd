"""CEL with the functions that API servers add to it, as far as our policies use them.

https://kubernetes.io/docs/reference/using-api/cel/ lists them. The library is Google's C++ implementation; what it
takes for more than it should (lists of mixed types) is left to tests/controlplane/test_policies.py.
"""

import functools
from fractions import Fraction
from typing import Any, Final

from cel_expr_python import cel
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, struct_pb2

from deviceshare.domain.objects.quantities import amount

_LIBRARIES: Final = ("two-var-comprehensions", "lists", "strings", "optional")
_VARIABLES: Final = ("object", "oldObject", "request", "variables", "namespaceObject")
_STRING, _INT, _BOOL, _MAP, _LIST = cel.Type.STRING, cel.Type.INT, cel.Type.BOOL, cel.Type.MAP, cel.Type.LIST


def evaluate(expression: str, data: dict[str, Any]) -> Any:
    """The value of an expression as JSON; a patch as a list of operations. Raises ValueError where there is none."""
    found = _compiled(expression).eval(data={name: data.get(name) for name in _VARIABLES})
    if found.type() == cel.Type.ERROR:
        raise ValueError(f"{found.plain_value()}: {expression}")
    return _json(found.plain_value())


def _json(value: Any) -> Any:
    if isinstance(value, list):
        return [_json(each) for each in value]
    return json_format.MessageToDict(value) if hasattr(value, "DESCRIPTOR") else value


@functools.cache
def _compiled(expression: str) -> cel.Expression:
    return _environment().compile(expression)


@functools.cache
def _environment() -> cel.Env:
    libraries = "".join(f"- name: {name}\n" for name in _LIBRARIES)
    return cel.NewEnv(
        descriptor_pool=_messages(),
        config=cel.NewEnvConfigFromYaml(f"name: kubernetes\nextensions:\n{libraries}"),
        variables=dict.fromkeys(_VARIABLES, cel.Type.DYN),
        functions=[
            _function("jsonpatch.escapeKey", _STRING, _STRING, lambda key: key.replace("~", "~0").replace("/", "~1")),
            _function("quantity", _MAP, _STRING, lambda text: {"quantity": text}),
            _function("sign", _INT, _MAP, lambda each: (_size(each) > 0) - (_size(each) < 0)),
            _function("isInteger", _BOOL, _MAP, lambda each: _size(each).denominator == 1, member=True),
            _function("asInteger", _INT, _MAP, lambda each: int(_size(each)), member=True),
            _function("asApproximateFloat", cel.Type.DOUBLE, _MAP, lambda each: float(_size(each)), member=True),
            _function("sum", _INT, _LIST, sum, member=True),
            _function("max", _INT, _LIST, max, member=True),
        ],
    )


def _function(name: str, result: Any, of: Any, does: Any, *, member: bool = False) -> cel.FunctionDecl:
    identity = f"{name.replace('.', '_')}_{of.name()}"
    return cel.FunctionDecl(name, [cel.Overload(identity, result, [of], is_member=member, impl=does)])


def _size(quantity: dict[str, str]) -> Fraction:
    size = amount(quantity["quantity"])
    assert size is not None
    return size


def _messages() -> descriptor_pool.DescriptorPool:
    """The type JSONPatch of mutations."""
    file = descriptor_pb2.FileDescriptorProto(
        name="jsonpatch.proto", syntax="proto3", dependency=["google/protobuf/struct.proto"]
    )
    message = file.message_type.add(name="JSONPatch")
    for number, name in enumerate(("op", "path", "from"), 1):
        message.field.add(name=name, number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")
    value = "TYPE_MESSAGE"
    message.field.add(name="value", number=4, type=value, label="LABEL_OPTIONAL", type_name=".google.protobuf.Value")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool
