"""Values as columns, in four formats: types, values that do not fit, and any bytes at all."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.schema import Schema
from weir.schema.columns import REASON_MAX, VersionedDecoder, decoder
from weir.schema.fields import BadSchema


def decoded(schema: Schema, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    rows, reasons = decoder(schema).decode(values)
    assert len(rows) == len(reasons) == len(values)
    assert [row is None for row in rows.to_pylist()] == [bool(reason) for reason in reasons]
    return rows.to_pylist(), reasons


AVRO = {
    "type": "record",
    "name": "Lock",
    "fields": [
        {"name": "hub", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {
            "name": "fee",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "codes", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "either", "type": ["int", "string", "null"]},
        {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["OPEN", "SHUT"]}},
    ],
}
LOCK = {
    "hub": 7,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "day": date(2026, 1, 2),
    "clock": time(1, 0, 0, 5),
    "fee": Decimal("1.25"),
    "id": UUID(int=1),
    "codes": [1, None],
    "tags": {"a": "b"},
    "either": "x",
    "state": "SHUT",
}


def avro(schema: Any) -> Schema:
    return Schema("avro", json.dumps(schema).encode())


def body(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def test_avro_values_become_columns() -> None:
    rows, reasons = decoded(avro(AVRO), body(AVRO, LOCK), None, b"\x02", body(AVRO, LOCK) + b"\x00")
    assert rows[0] == {
        **LOCK,
        "clock": 3_600_000_005,
        "id": str(UUID(int=1)),
        "tags": [("a", "b")],
        "either": '"x"',
    }
    assert reasons == [
        None,
        "the value is null",
        "the value ends after 1 bytes, in a field",
        "1 bytes follow the value",
    ]


def test_a_schema_that_is_no_record_has_one_column() -> None:
    assert decoded(avro("string"), body("string", "é"))[0] == [{"value": "é"}]
    assert decoder(avro(["null", "long"])).type == pa.struct([("value", pa.int64())])


def json_schema(**properties: Any) -> Schema:
    text = {"type": "object", "properties": properties, "required": ["hub"]}
    return Schema("json", json.dumps(text).encode())


LOCKS = json_schema(
    hub={"type": "integer"},
    level={"type": ["number", "null"], "maximum": 100},
    codes={"type": "array", "items": {"type": "string"}},
    tags={"type": "object", "additionalProperties": {"type": "integer"}},
    more={},
)


def test_json_values_become_columns() -> None:
    value = {"hub": 7.0, "level": 5, "codes": ["a"], "tags": {"x": 1}, "more": [1], "other": 2}
    rows, _ = decoded(LOCKS, json.dumps(value).encode(), b'{"hub": 1}')
    assert rows[0] == {"hub": 7, "level": 5.0, "codes": ["a"], "tags": [("x", 1)], "more": "[1]"}
    assert rows[1] == {"hub": 1, "level": None, "codes": None, "tags": None, "more": None}


def test_json_values_that_do_not_fit_are_told_by_their_fields() -> None:
    values = (
        b"{",
        b'{"hub": NaN}',
        b"{}",
        b'{"hub": 1, "codes": ["a", 2]}',
        b"\xff",
        b'{"hub": 1e30}',
    )
    _, reasons = decoded(LOCKS, *values)
    starts = (
        "the value is not JSON: Expecting property name",
        "NaN is not JSON",
        "the value: 'hub' is a required property",
        "codes[1]: 2 is not of type 'string'",
        "the value is not JSON: ",
        "",
    )
    assert [
        str(reason).startswith(start) for reason, start in zip(reasons, starts, strict=True)
    ] == [True] * 6
    assert all(reason is not None and len(reason) <= REASON_MAX for reason in reasons)


def test_one_number_that_is_too_large_takes_no_neighbour_with_it() -> None:
    rows, reasons = decoded(LOCKS, b'{"hub": 1}', b'{"hub": 9223372036854775808}', b'{"hub": 2}')
    assert [row and row["hub"] for row in rows] == [1, None, 2]
    assert reasons[1]


def files() -> FileDescriptorSet:
    made = FileDescriptorSet()
    file = made.file.add(name="m.proto", package="lock", syntax="proto3")
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    message.field.add(name="hub", number=1, type=4, label=1)
    message.field.add(name="codes", number=2, type=9, label=3)
    message.field.add(name="state", number=3, type=14, type_name=".lock.State", label=1)
    message.field.add(name="tags", number=4, type=11, type_name=".lock.M.TagsEntry", label=3)
    message.field.add(name="level", number=5, type=2, label=1, proto3_optional=True, oneof_index=0)
    message.oneof_decl.add(name="_level")
    return made


PROTO = Schema("protobuf", files().SerializeToString())


def message(**fields: Any) -> bytes:
    pool = DescriptorPool()
    pool.Add(files().file[0])
    made = GetMessageClass(pool.FindMessageTypeByName("lock.M"))(**fields)
    return bytes(made.SerializeToString())


def test_protobuf_values_become_columns() -> None:
    value = message(hub=2**64 - 1, codes=["a", "b"], state=3, tags={"x": 1}, level=0.5)
    rows, reasons = decoded(PROTO, value, message(), b"\xff")
    assert rows[0] == {
        "hub": Decimal(2**64 - 1),
        "codes": ["a", "b"],
        "state": "3",
        "tags": [{"key": "x", "value": 1}],
        "level": 0.5,
    }
    assert rows[1] == {"hub": 0, "codes": [], "state": "OPEN", "tags": [], "level": None}
    assert str(reasons[2]).startswith("the value is no lock.M: ")


def test_a_message_that_lacks_what_is_required_is_told_by_its_field() -> None:
    made = files()
    made.file[0].syntax = "proto2"
    field = made.file[0].message_type[0].field[0]
    field.label = FieldDescriptorProto.LABEL_REQUIRED
    del made.file[0].message_type[0].field[4], made.file[0].message_type[0].oneof_decl[:]
    _, reasons = decoded(Schema("protobuf", made.SerializeToString()), b"")
    assert reasons == ["hub: it is required, and absent"]


ARROW = pa.schema(
    [
        pa.field("hub", pa.uint64(), nullable=False),
        pa.field("at", pa.timestamp("ns", tz="Europe/Berlin")),
        pa.field("codes", pa.large_list(pa.uint8())),
        pa.field("hash", pa.binary(2)),
    ]
)
ARROWS = Schema("arrow", ARROW.serialize().to_pybytes())


def batch(*rows: dict[str, Any]) -> bytes:
    return bytes(pa.RecordBatch.from_pylist(list(rows), ARROW).serialize().to_pybytes())


def test_arrow_values_become_columns() -> None:
    at = pa.scalar(1, pa.timestamp("ns", tz="Europe/Berlin"))
    row = {"hub": 2**64 - 1, "at": at, "codes": [255], "hash": b"ab"}
    rows, _ = decoded(ARROWS, batch(row))
    whole = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows == [{"hub": Decimal(2**64 - 1), "at": whole, "codes": [255], "hash": b"ab"}]


def test_arrow_values_that_do_not_fit_are_told() -> None:
    row = {"hub": 1, "at": None, "codes": None, "hash": None}
    _, reasons = decoded(ARROWS, batch(), batch(row, row), batch({**row, "hub": None}), b"x", None)
    assert reasons[:3] == [
        "the record batch has 0 rows, and a value is one",
        "the record batch has 2 rows, and a value is one",
        "hub: it is null, and may not be",
    ]
    assert reasons[3]
    assert reasons[4] == "the value is null"


@pytest.mark.parametrize(
    ("type", "words"),
    [
        (pa.dictionary(pa.int8(), pa.string()), "a: a value alone carries no dictionary"),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), "a: a value alone carries no dictionary"),
        (pa.month_day_nano_interval(), "a: Spark has no column for"),
    ],
)
def test_types_without_a_column_are_refused(type: pa.DataType, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        decoder(Schema("arrow", pa.schema([("a", type)]).serialize().to_pybytes()))


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "F", "size": 0},
        {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_an_array_whose_items_take_no_bytes_is_refused(items: Any) -> None:
    """A few bytes would claim 2^60 of them."""
    inner = {"type": "array", "items": items}
    fields = [{"name": "a", "type": {"type": "map", "values": inner}}]
    with pytest.raises(BadSchema, match=r"a.*\[\]: an item takes no bytes"):
        decoder(avro({"type": "record", "name": "R", "fields": fields}))


def test_no_values_are_no_rows() -> None:
    for schema in (avro(AVRO), LOCKS, PROTO, ARROWS):
        assert decoded(schema) == ([], [])


Damage = tuple[Schema, bytes]
SOUND: dict[str, Damage] = {
    "avro": (avro(AVRO), body(AVRO, LOCK)),
    "json": (LOCKS, b'{"hub": 1, "level": 5, "codes": ["a"], "tags": {"x": 1}}'),
    "protobuf": (PROTO, message(hub=1, codes=["a"], tags={"x": 1}, level=0.5)),
    "arrow": (ARROWS, batch({"hub": 1, "at": None, "codes": [1, 2], "hash": b"ab"})),
}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([*SOUND]), st.data())
def test_damaged_values_are_rows_or_have_reasons(format: str, data: st.DataObject) -> None:
    schema, sound = SOUND[format]
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    rows, reasons = decoded(schema, cut, sound)
    assert rows[1] is not None
    assert reasons[1] is None


def written(schema: dict[str, Any], value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
    return file.getvalue()


def lock(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Lock", "fields": [*fields]}


OLD = lock({"name": "hub", "type": "int"}, {"name": "gone", "type": "string"})
NEW = lock({"name": "hub", "type": "long"}, {"name": "level", "type": "double", "default": 1.5})


def test_avro_of_an_older_version_is_read_as_the_newest_has_it() -> None:
    versions = {1: avro(OLD), 2: avro(NEW)}
    old, new = written(OLD, {"hub": 7, "gone": "x"}), written(NEW, {"hub": 8, "level": 0.5})
    decode = VersionedDecoder(versions).decode
    rows, reasons = decode([new, old, None, b"\xff", new, old], [2, 1, 1, 1, 0, 3])
    assert rows.to_pylist() == [
        {"hub": 8, "level": 0.5}, {"hub": 7, "level": 1.5}, None, None, {"hub": 8, "level": 0.5},
        None,
    ]  # fmt: skip
    assert [bool(one) for one in reasons] == [False, False, True, True, False, True]
    assert "version 3" in str(reasons[5])
    assert "look the versions up again" in str(reasons[5])
    rows, reasons = decode([old], [1])
    assert (rows.to_pylist(), reasons) == ([{"hub": 7, "level": 1.5}], [None])
    rows, reasons = decode([], [])
    assert (len(rows), rows.type, reasons) == (0, VersionedDecoder(versions).type, [])


def test_arrow_of_an_older_version_gets_nulls_where_a_column_is_new() -> None:
    def schema(*fields: pa.Field) -> Schema:
        return Schema("arrow", pa.schema(fields).serialize().to_pybytes())

    hub, level = pa.field("hub", pa.int32()), pa.field("level", pa.float64())
    need = pa.field("need", pa.int8(), nullable=False)
    value = pa.record_batch({"hub": pa.array([7], pa.int32())}).serialize().to_pybytes()
    wide = VersionedDecoder({1: schema(hub), 2: schema(level, pa.field("hub", pa.int64()))})
    rows, reasons = wide.decode([value, value], [1, None])
    assert rows.to_pylist() == [{"level": None, "hub": 7}, None]
    assert reasons[0] is None
    assert reasons[1] is not None, "what names no version is taken for the newest"
    rows, reasons = VersionedDecoder({1: schema(hub), 2: schema(hub, need)}).decode([value], [1])
    assert (rows.to_pylist(), reasons) == ([None], ["need: it is null, and may not be"])
