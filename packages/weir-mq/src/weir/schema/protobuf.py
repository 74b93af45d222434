"""Parses a Protobuf message of a FileDescriptorSet into fields."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from weir.schema.fields import ARRAY, RECORD, BadSchema, Field, Path

SCALARS = {
    FieldDescriptorProto.TYPE_DOUBLE: "double",
    FieldDescriptorProto.TYPE_FLOAT: "float",
    FieldDescriptorProto.TYPE_INT64: "int64",
    FieldDescriptorProto.TYPE_UINT64: "uint64",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_FIXED64: "fixed64",
    FieldDescriptorProto.TYPE_FIXED32: "fixed32",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
    FieldDescriptorProto.TYPE_UINT32: "uint32",
    FieldDescriptorProto.TYPE_SFIXED32: "sfixed32",
    FieldDescriptorProto.TYPE_SFIXED64: "sfixed64",
    FieldDescriptorProto.TYPE_SINT32: "sint32",
    FieldDescriptorProto.TYPE_SINT64: "sint64",
}


def parse(data: bytes, message: str = "") -> Field:
    """Return the fields of `message`, or of the last file's only one. Raises `BadSchema`."""
    try:
        files = FileDescriptorSet.FromString(data)
        pool = DescriptorPool()
        for file in files.file:
            pool.Add(file)
        for file in files.file:
            pool.FindFileByName(file.name)
    except (DecodeError, TypeError, KeyError) as error:
        raise BadSchema(
            f"this is not a whole FileDescriptorSet ({error}): make it with "
            "`protoc --include_imports --descriptor_set_out=FILE`"
        ) from None
    return _Parser(files).message(message.removeprefix(".") or _only_message(files))


def _only_message(files: FileDescriptorSet) -> str:
    if not files.file:
        raise BadSchema("the FileDescriptorSet is empty")
    last = files.file[-1]
    names = [_full(last.package, one.name) for one in last.message_type]
    if len(names) != 1:
        found = ", ".join(names[:10]) or "none"
        raise BadSchema(f"name the message: {last.name} has {len(names)} ({found})")
    return names[0]


def _full(scope: str, name: str) -> str:
    return f"{scope}.{name}" if scope else name


class _Parser:
    def __init__(self, files: FileDescriptorSet) -> None:
        self._messages: dict[str, DescriptorProto] = {}
        self._enums: dict[str, tuple[EnumDescriptorProto, bool]] = {}
        self._path = Path()
        #: Messages that are being read, to find one that contains itself.
        self._open: list[str] = []
        for file in files.file:
            self._index(file, file.package, file.message_type, file.enum_type)

    def _index(self, file: FileDescriptorProto, scope: str, messages, enums) -> None:  # type: ignore[no-untyped-def]
        for enum in enums:
            self._enums[_full(scope, enum.name)] = (enum, file.syntax in ("", "proto2"))
        for message in messages:
            name = _full(scope, message.name)
            self._messages[name] = message
            self._index(file, name, message.nested_type, message.enum_type)

    def message(self, name: str) -> Field:
        if name not in self._messages:
            known = ", ".join(sorted(self._messages)[:10])
            raise BadSchema(f"there is no message {name}; there are {known}")
        return Field("", RECORD, fields=self._fields(name), type_name=name)

    def _fields(self, name: str) -> tuple[Field, ...]:
        if name in self._open:
            raise BadSchema(f"{self._path}: {name} contains itself: a value needs an end")
        self._open.append(name)
        message = self._messages[name]
        fields = tuple(self._field(message, field) for field in message.field)
        self._open.pop()
        return tuple(sorted(fields, key=lambda field: field.number))

    def _field(self, message: DescriptorProto, field: FieldDescriptorProto) -> Field:
        self._path.enter(field.name)
        oneof = ""
        if field.HasField("oneof_index") and not field.proto3_optional:
            oneof = message.oneof_decl[field.oneof_index].name
        optional = field.label != FieldDescriptorProto.LABEL_REQUIRED
        found = self._typed(field, field.name, optional, oneof)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            self._path.enter("[]")
            item = self._typed(field, "", True, "", numbered=False)
            found = Field(field.name, ARRAY, True, (item,), number=field.number)
            self._path.leave()
        self._path.leave()
        return found

    def _typed(
        self,
        field: FieldDescriptorProto,
        name: str,
        optional: bool,
        oneof: str,
        numbered: bool = True,
    ) -> Field:
        number = field.number if numbered else 0
        type_name = field.type_name.removeprefix(".")
        if field.type == FieldDescriptorProto.TYPE_MESSAGE:
            fields = self._fields(type_name)
            return Field(name, RECORD, optional, fields, number, type_name, detail=oneof)
        if field.type == FieldDescriptorProto.TYPE_ENUM:
            enum, closed = self._enums[type_name]
            symbols = tuple(f"{value.name}={value.number}" for value in enum.value)
            return Field(
                name, "enum", optional, (), number, type_name, oneof, symbols, closed=closed
            )
        if field.type not in SCALARS:
            raise BadSchema(f"{self._path}: groups are not supported: make it a message")
        return Field(name, SCALARS[field.type], optional, number=number, detail=oneof)
