"""Protobuf messages: what is read and refused; the rules admit what the library reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from weir.schema import parse
from weir.schema.compatibility import problems
from weir.schema.fields import ARRAY, RECORD, BadSchema, Field
from weir.schema.protobuf import SCALARS

TYPES = {name: number for number, name in SCALARS.items()}


def files(*fields: Mapping[str, Any], syntax: str = "proto3") -> FileDescriptorSet:
    """Return a file with a message M of these fields, a message Sub and an enum State."""
    made = FileDescriptorSet()
    file = made.file.add(name="m.proto", package="lock", syntax=syntax)
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("OPEN", "SHUT")):
        state.value.add(name=name, number=number)
    message = file.message_type.add(name="M")
    sub = message.nested_type.add(name="Sub")
    sub.field.add(name="n", number=1, type=TYPES["int32"], label=1)
    for number, field in enumerate(fields, 1):
        message.field.add(**{"number": number, "label": 1, **field})
    return made


def proto(*fields: Mapping[str, Any], **more: str) -> Field:
    return parse("protobuf", files(*fields, **more).SerializeToString())


ENUM = {"type": FieldDescriptorProto.TYPE_ENUM, "type_name": ".lock.State"}
SUB = {"type": FieldDescriptorProto.TYPE_MESSAGE, "type_name": ".lock.M.Sub"}


def test_every_type_is_read() -> None:
    made = proto(
        {"name": "hub", "type": TYPES["fixed32"]},
        {"name": "codes", "type": TYPES["string"], "label": 3},
        {"name": "state", **ENUM},
        {"name": "sub", **SUB},
    )
    assert made == Field(
        "",
        RECORD,
        type_name="lock.M",
        fields=(
            Field("hub", "fixed32", True, number=1),
            Field("codes", ARRAY, True, (Field("", "string", True),), number=2),
            Field("state", "enum", True, (), 3, "lock.State", symbols=("OPEN=0", "SHUT=1")),
            Field("sub", RECORD, True, (Field("n", "int32", True, number=1),), 4, "lock.M.Sub"),
        ),
    )


def test_a_message_is_chosen_by_name() -> None:
    data = files({"name": "a", "type": TYPES["int32"]}).SerializeToString()
    assert parse("protobuf", data, ".lock.M.Sub").type_name == "lock.M.Sub"
    with pytest.raises(
        BadSchema, match=r"there is no message lock\.N; there are lock\.M, lock\.M\.Sub"
    ):
        parse("protobuf", data, "lock.N")


def test_one_of_several_messages_is_named() -> None:
    made = files()
    made.file[0].message_type.add(name="N")
    with pytest.raises(BadSchema, match=r"name the message: m.proto has 2 \(lock.M, lock.N\)"):
        parse("protobuf", made.SerializeToString())


def test_bytes_that_are_no_set_of_files_are_refused() -> None:
    with pytest.raises(BadSchema, match="not a whole FileDescriptorSet"):
        parse("protobuf", b"\xff\xff")
    with pytest.raises(BadSchema, match="empty"):
        parse("protobuf", b"")
    made = files()
    made.file[0].dependency.append("other.proto")
    with pytest.raises(BadSchema, match="--include_imports"):
        parse("protobuf", made.SerializeToString())


def test_a_message_that_contains_itself_is_refused_by_name() -> None:
    made = files({"name": "next", "type": SUB["type"], "type_name": ".lock.M"})
    with pytest.raises(BadSchema, match=r"next: lock.M contains itself"):
        parse("protobuf", made.SerializeToString())


def test_a_group_is_refused() -> None:
    group = {"name": "sub", "type": FieldDescriptorProto.TYPE_GROUP, "type_name": ".lock.M.Sub"}
    made = files(group, syntax="proto2")
    with pytest.raises(BadSchema, match="sub: groups are not supported"):
        parse("protobuf", made.SerializeToString())


def reads(reader: Field, writer: Field) -> list[str]:
    return [str(one) for one in problems("protobuf", reader=reader, writer=writer)]


def test_a_field_may_be_renamed_and_left_out_and_added() -> None:
    one, other = {"name": "a", "type": TYPES["int32"]}, {"name": "b", "type": TYPES["int32"]}
    assert reads(proto(one), proto(other)) == []
    assert reads(proto(), proto(one)) == reads(proto(one), proto()) == []


def test_a_number_with_another_type_is_told_by_its_field() -> None:
    assert reads(
        proto({"name": "a", "type": TYPES["string"]}), proto({"name": "b", "type": TYPES["int32"]})
    ) == ["a: int32 cannot be read as string (backward)"]


def test_what_is_required_must_have_been_written() -> None:
    need = {"name": "a", "type": TYPES["int32"], "label": 2}
    required = proto(need, syntax="proto2")
    assert reads(required, proto(syntax="proto2")) == [
        "a: it is required, and was never written: make it optional (backward)"
    ]
    assert reads(required, proto({**need, "label": 1}, syntax="proto2")) == [
        "a: it is required, and may be absent in written values (backward)"
    ]
    assert reads(required, required) == []


def test_fields_join_a_oneof_only_if_they_were_apart() -> None:
    def of(*oneofs: int | None) -> Field:
        made = files(*({"name": f"f{n}", "type": TYPES["int32"]} for n in range(len(oneofs))))
        message = made.file[0].message_type[0]
        for name in sorted({one for one in oneofs if one is not None}):
            message.oneof_decl.add(name=f"o{name}")
        for field, one in zip(message.field, oneofs, strict=True):
            if one is not None:
                field.oneof_index = one
        return parse("protobuf", made.SerializeToString())

    words = "o0: fields of oneof o0 could be set together in written values (backward)"
    assert reads(of(0, 0), of(None, None)) == [words]
    assert reads(of(0, 0), of(0, 1)) == [words]
    assert reads(of(0, 0), of(0, 0)) == []
    assert reads(of(0, None), of(None, None)) == []
    assert reads(of(None, None), of(0, 0)) == []


def test_an_optional_field_of_proto3_is_in_no_oneof() -> None:
    made = files({"name": "a", "type": TYPES["int32"], "proto3_optional": True, "oneof_index": 0})
    made.file[0].message_type[0].oneof_decl.add(name="_a")
    assert parse("protobuf", made.SerializeToString()).fields[0].detail == ""


def test_a_closed_enum_needs_every_number() -> None:
    def state(*names: str) -> Field:
        made = files({"name": "s", **ENUM}, syntax="proto2")
        del made.file[0].enum_type[0].value[:]
        for number, name in enumerate(names):
            made.file[0].enum_type[0].value.add(name=name, number=number)
        return parse("protobuf", made.SerializeToString())

    assert reads(state("A"), state("A", "B")) == [
        "s: the symbol B=1 has a number that the reader's closed enum lacks (backward)"
    ]
    assert reads(state("A", "B"), state("A")) == []


SAMPLES: Mapping[str, list[Any]] = {
    "double": [1e300, -0.5],
    "float": [0.5],
    "int64": [-(2**63), 2**63 - 1],
    "uint64": [2**64 - 1],
    "int32": [-(2**31), 2**31 - 1],
    "fixed64": [2**64 - 1],
    "fixed32": [2**32 - 1],
    "bool": [True],
    "string": ["é"],
    "bytes": [b"\xff"],
    "uint32": [2**32 - 1],
    "sfixed32": [-(2**31)],
    "sfixed64": [-(2**63)],
    "sint32": [-(2**31), 2**31 - 1],
    "sint64": [-(2**63)],
    "enum": [7, -1],
    "sub": [-7],
}


def single(kind: str, label: int = 1) -> FileDescriptorSet:
    typed = {"enum": ENUM, "sub": SUB}.get(kind) or {"type": TYPES[kind]}
    return files({"name": "a", "label": label, **typed})


def message_class(made: FileDescriptorSet) -> Any:
    pool = DescriptorPool()
    pool.Add(made.file[0])
    return GetMessageClass(pool.FindMessageTypeByName("lock.M"))


def library_reads(reader: FileDescriptorSet, writer: FileDescriptorSet, value: Any) -> bool:
    """Return whether the library's reader finds the value that was written, whole."""
    written = message_class(writer)()
    if writer.file[0].message_type[0].field[0].type == SUB["type"]:
        written.a.n = value
        value = written.a.SerializeToString()
    else:
        written.a = value
    try:
        read = message_class(reader).FromString(written.SerializeToString()).a
    except DecodeError:
        return False
    if hasattr(read, "n"):
        read = read.SerializeToString()
    if not isinstance(read, int | float | str | bytes):
        read = read[0] if len(read) else None
    if isinstance(read, bytes) and isinstance(value, str):
        read = read.decode()
    return bool(read == value)


@pytest.mark.parametrize("label", [1, 3])
@pytest.mark.parametrize("writer", SAMPLES)
@pytest.mark.parametrize("reader", SAMPLES)
def test_types_are_read_as_the_library_reads_them(reader: str, writer: str, label: int) -> None:
    # A list of messages is compared by its first item's bytes elsewhere.
    if label == 3 and "sub" in (reader, writer):
        return
    one, other = single(reader, label), single(writer)
    admitted = not reads(
        parse("protobuf", one.SerializeToString()), parse("protobuf", other.SerializeToString())
    )
    found = [library_reads(one, other, value) for value in SAMPLES[writer]]
    if admitted:
        assert all(found)
    else:
        assert not all(found)


def test_a_list_is_not_read_as_one_value() -> None:
    for kind in ("int32", "string"):
        assert reads(
            parse("protobuf", single(kind).SerializeToString()),
            parse("protobuf", single(kind, 3).SerializeToString()),
        ) == [f"a: array cannot be read as {kind} (backward)"]
