"""Protocol buffer messages from a table of their fields, without a code generator, for a handful of them.

Fields that the table doesn't name are skipped by protobuf, as by every reader of an older schema.
"""

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClassesForFiles

STRING: Final = "string"

_REPEATED: Final = "repeated "

Fields = Mapping[int, tuple[str, str]]
"""For each number the field's type and name, as they stand in the .proto: `{1: ("repeated string", "device_ids")}`."""


def messages(package: str, schema: Mapping[str, Fields]) -> dict[str, type[Message]]:
    """The message classes of a proto3 package, by name. A type other than string is another message of the schema.

    They are in a pool of their own: names as plain as the kubelet's `v1` may be taken in the process-wide one.
    """
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for number, (type_, field) in fields.items():
            message.field.append(_field(package, number, type_, field))
    pool = DescriptorPool()
    pool.Add(file)
    return {
        full_name.removeprefix(f"{package}."): kind
        for full_name, kind in GetMessageClassesForFiles([file.name], pool).items()
    }


def _field(package: str, number: int, type_: str, name: str) -> FieldDescriptorProto:
    label = FieldDescriptorProto.LABEL_REPEATED if type_.startswith(_REPEATED) else FieldDescriptorProto.LABEL_OPTIONAL
    plain = type_.removeprefix(_REPEATED)
    if plain == STRING:
        return FieldDescriptorProto(name=name, number=number, label=label, type=FieldDescriptorProto.TYPE_STRING)
    return FieldDescriptorProto(
        name=name,
        number=number,
        label=label,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{package}.{plain}",
    )
