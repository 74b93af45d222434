"""Whatever bytes are given, a parser returns fields within the limits or says what is wrong."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.errors import BadRequest, MissingLibrary
from weir.schema import parse
from weir.schema.fields import (
    SCHEMA_BYTES_MAX,
    BadSchema,
    Field,
    Format,
    check_size,
    decode,
    encode,
)


def outcome(format: Format, data: bytes) -> Field | None:
    try:
        root = parse(format, data)
    except BadSchema:
        return None
    check_size(root)
    assert decode(encode(root)) == root
    return root


WORDS = st.sampled_from(
    [
        "type",
        "record",
        "fields",
        "name",
        "items",
        "array",
        "map",
        "values",
        "enum",
        "symbols",
        "union",
        "fixed",
        "size",
        "string",
        "int",
        "null",
        "default",
        "aliases",
        "properties",
        "object",
        "$ref",
        "#",
        "required",
        "additionalProperties",
        "anyOf",
        "const",
        "minimum",
        "logicalType",
        "decimal",
        "precision",
        "namespace",
        "$defs",
        "#/$defs/a",
        "a",
    ]
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 20), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=25,
)


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_any_json_is_an_avro_schema_or_refused(text: Any) -> None:
    outcome("avro", json.dumps(text).encode())


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_any_json_is_a_json_schema_or_refused(text: Any) -> None:
    outcome("json", json.dumps(text).encode())


def sound_files() -> bytes:
    made = FileDescriptorSet()
    message = made.file.add(name="m.proto", syntax="proto3").message_type.add(name="M")
    for number, kind in enumerate((5, 9, 12), 1):
        message.field.add(name=f"f{number}", number=number, type=kind, label=1)
    return bytes(made.SerializeToString())


SOUND: dict[Format, bytes] = {
    "protobuf": sound_files(),
    "arrow": pa.schema([("a", pa.int8()), ("b", pa.list_(pa.string()))]).serialize().to_pybytes(),
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["protobuf", "arrow"]), st.data())
def test_damaged_bytes_are_a_schema_or_refused(format: Format, data: st.DataObject) -> None:
    damaged = bytearray(SOUND[format])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    outcome(format, bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))


def test_sound_schemas_are_read() -> None:
    for format, data in SOUND.items():
        assert outcome(format, data) is not None


def test_what_does_not_fit_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadSchema, match="65,537 bytes, at most 65,536"):
        parse("json", b" " * (SCHEMA_BYTES_MAX + 1))
    with pytest.raises(BadRequest, match="format='xml': give json, avro, protobuf or arrow"):
        parse("xml", b"")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="message='M': only a Protobuf schema"):
        parse("json", b"{}", "M")


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "weir.schema.avro", raising=False)
    monkeypatch.setitem(sys.modules, "fastavro.schema", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'weir-mq\[schema\]'"):
        parse("avro", b'"int"')
