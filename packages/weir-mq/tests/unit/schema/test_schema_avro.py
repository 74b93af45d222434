"""Avro schemas: what is read, what is refused, and that the rules say what the library does."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from weir.schema import parse
from weir.schema.compatibility import problems
from weir.schema.fields import ARRAY, MAP, RECORD, UNION, BadSchema, Field


def avro(schema: object) -> Field:
    return parse("avro", json.dumps(schema).encode())


def record(*fields: Mapping[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def test_every_type_is_read() -> None:
    schema = record(
        {"name": "id", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 16}},
        {"name": "again", "type": ["null", "Hash"], "default": None, "aliases": ["old"]},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "string"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["A", "B"]}},
        namespace="lock",
    )
    hash_ = {"type_name": "lock.Hash", "bounds": (("size", 16),)}
    assert avro(schema) == Field(
        "",
        RECORD,
        type_name="lock.R",
        fields=(
            Field("id", "long", detail="timestamp-micros"),
            Field("price", "bytes", detail="decimal(9,0)"),
            Field("hash", "fixed", **hash_),
            Field(
                "again",
                UNION,
                True,
                (Field("", "null"), Field("", "fixed", **hash_)),
                aliases=("old",),
            ),
            Field("list", ARRAY, fields=(Field("", "int"),)),
            Field("map", MAP, fields=(Field("", "string"),)),
            Field("state", "enum", type_name="lock.State", symbols=("A", "B"), closed=True),
        ),
    )


def test_a_schema_may_be_one_type() -> None:
    assert avro("string") == Field("", "string")
    assert avro({"type": "int"}) == Field("", "int")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "not JSON"),
        (b'{"type": "record"}', "not valid"),
        (b'"no.such.Type"', "not valid: no.such.Type"),
        (b"[]", "a union needs a branch"),
        (b"17", "not valid"),
        (b"null", "not valid"),
        (b"[" * 60_000, "nested too deeply|not JSON"),
    ],
)
def test_what_is_no_schema_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        parse("avro", text)


def test_a_type_that_contains_itself_is_refused_by_name() -> None:
    node = record({"name": "next", "type": ["null", "Node"]}, name="Node")
    with pytest.raises(BadSchema, match=r"next\(2\): Node contains itself"):
        avro(node)


def test_a_named_type_may_be_used_twice() -> None:
    inner = record({"name": "n", "type": "int"}, name="Inner")
    made = avro(record({"name": "a", "type": inner}, {"name": "b", "type": "Inner"}))
    assert made.fields[0].fields == made.fields[1].fields


def test_named_types_that_grow_exponentially_end_at_the_limit() -> None:
    schema: Any = "int"
    for n in range(20):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"T{n - 1}" if n else "int"}]
        schema = record(*fields, name=f"T{n}")
    with pytest.raises(BadSchema, match="more than 4,096 fields"):
        avro(schema)


def reads(reader: object, writer: object) -> list[str]:
    return [str(one) for one in problems("avro", reader=avro(reader), writer=avro(writer))]


def test_a_new_field_needs_a_default() -> None:
    old, new = record(), record({"name": "a", "type": "int"})
    assert reads(new, old) == ["a: it was never written and has no default: give it one (backward)"]
    assert reads(old, new) == []
    assert reads(record({"name": "a", "type": "int", "default": 0}), old) == []


def test_an_alias_finds_a_field_by_its_former_name() -> None:
    old = record({"name": "a", "type": "int"})
    assert reads(record({"name": "b", "type": "long", "aliases": ["a"]}), old) == []
    assert reads(record({"name": "b", "type": "string", "aliases": ["a"]}), old) == [
        "b: int cannot be read as string (backward)"
    ]


def test_a_lost_symbol_needs_a_default() -> None:
    def state(*symbols: str, **more: str) -> dict[str, Any]:
        return {"type": "enum", "name": "S", "symbols": list(symbols), **more}

    assert reads(state("A", "B"), state("A")) == []
    assert reads(state("A"), state("A", "B")) == [
        "the value: the symbol B is not in the reader's, which has no default (backward)"
    ]
    assert reads(state("A", default="A"), state("A", "B")) == []


def test_units_of_time_are_not_mixed() -> None:
    def time(unit: str) -> dict[str, str]:
        return {"type": "long", "logicalType": f"timestamp-{unit}"}

    assert reads(time("micros"), time("millis")) == [
        "the value: timestamp-millis cannot be read as timestamp-micros (backward)"
    ]
    assert reads("long", time("millis")) == []


SAMPLES: Mapping[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "int": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1],
    "float": [0.5],
    "double": [1e300],
    "bytes": [b"a"],
    "string": ["a"],
}
Shape = tuple[Callable[[Any], Any], Callable[[Any], Any]]
SHAPES: Mapping[str, Shape] = {
    "plain": (lambda kind: kind, lambda value: value),
    "item": (lambda kind: {"type": "array", "items": kind}, lambda value: [value]),
    "value": (lambda kind: {"type": "map", "values": kind}, lambda value: {"k": value}),
    "field": (lambda kind: record({"name": "a", "type": kind}), lambda value: {"a": value}),
    "union": (lambda kind: [kind, {"type": "array", "items": "null"}], lambda value: value),
}


def library_reads(reader: Any, writer: Any, value: Any) -> bool:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(writer), value)
    file.seek(0)
    try:
        fastavro.schemaless_reader(
            file, fastavro.parse_schema(writer), fastavro.parse_schema(reader)
        )
    except (SchemaResolutionError, EOFError, ValueError, TypeError):
        return False
    return True


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("writer", SAMPLES)
@pytest.mark.parametrize("reader", SAMPLES)
def test_types_are_promoted_as_the_library_promotes_them(
    reader: str, writer: str, shape: str
) -> None:
    schema, wrap = SHAPES[shape]
    admitted = not reads(schema(reader), schema(writer))
    for value in SAMPLES[writer]:
        assert library_reads(schema(reader), schema(writer), wrap(value)) == admitted


NAMES = st.sampled_from("abc")
SCALARS = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])


def enums(name: str) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda symbols, default: {
            "type": "enum",
            "name": f"E{name}",
            "symbols": sorted(symbols),
            **({"default": min(symbols)} if default else {}),
        },
        st.sets(st.sampled_from("XYZ"), min_size=1),
        st.booleans(),
    )


DEFAULTS = {"boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "string": ""}


def fields(types: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def make(chosen: dict[str, tuple[Any, bool]], path: str) -> dict[str, Any]:
        made = []
        for name, (kind, default) in sorted(chosen.items()):
            field = {"name": name, "type": kind}
            if default and isinstance(kind, str) and kind in DEFAULTS:
                field["default"] = DEFAULTS[kind]
            made.append(field)
        return record(*made, name=path)

    some = st.dictionaries(NAMES, st.tuples(types, st.booleans()), max_size=3)
    return st.builds(make, some, st.just("R"))


UNIONS = st.lists(SCALARS, min_size=1, max_size=3, unique=True)
INNER = st.one_of(
    SCALARS,
    UNIONS,
    SCALARS.map(lambda item: {"type": "array", "items": item}),
    SCALARS.map(lambda value: {"type": "map", "values": value}),
)
SCHEMAS = st.one_of(SCALARS, UNIONS, enums("1"), fields(INNER))


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Return values of a schema as the library takes them; a union's with its branch."""
    if isinstance(schema, list):
        return st.one_of([values(one).map(lambda v, one=one: (one, v)) for one in schema])
    if isinstance(schema, dict) and schema["type"] == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
    if isinstance(schema, dict) and schema["type"] == "array":
        return st.lists(values(schema["items"]), min_size=1, max_size=2)
    if isinstance(schema, dict) and schema["type"] == "map":
        return st.dictionaries(st.text("k"), values(schema["values"]), min_size=1, max_size=2)
    if isinstance(schema, dict):
        return st.sampled_from(schema["symbols"])
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bytes": st.text(max_size=3).map(str.encode),
        "string": st.text(max_size=3),
    }[schema]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), SCHEMAS, SCHEMAS)
def test_the_library_reads_what_the_rules_admit(
    data: st.DataObject, reader: Any, writer: Any
) -> None:
    assume(not problems("avro", reader=avro(reader), writer=avro(writer)))
    written, read = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    value = data.draw(values(writer))
    file = io.BytesIO()
    fastavro.schemaless_writer(file, written, value)
    file.seek(0)
    fastavro.schemaless_reader(file, written, read)
