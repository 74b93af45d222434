"""JSON schemas: what is read and refused; the rules admit a reader of every value written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from weir.schema import parse
from weir.schema.compatibility import problems
from weir.schema.fields import ARRAY, MAP, RECORD, UNION, BadSchema, Field

LOCAL = "https://json-schema.org/draft/2020-12/schema"


def schema(text: object) -> Field:
    return parse("json", json.dumps(text).encode())


def test_every_type_is_read() -> None:
    made = schema(
        {
            "$schema": LOCAL,
            "type": "object",
            "required": ["hub"],
            "additionalProperties": False,
            "$defs": {"code": {"type": "string", "maxLength": 8, "format": "uuid"}},
            "properties": {
                "hub": {"type": "integer", "minimum": 0, "description": "a lock"},
                "codes": {"type": "array", "items": {"$ref": "#/$defs/code"}},
                "state": {"type": ["string", "null"], "enum": ["OPEN", None]},
                "tags": {"type": "object", "additionalProperties": {"type": "number"}},
                "any": {},
            },
        }
    )
    symbols = ('"OPEN"', "null")
    assert made == Field(
        "",
        RECORD,
        closed=True,
        fields=(
            Field("hub", "integer", bounds=(("minimum", 0.0),)),
            Field(
                "codes",
                ARRAY,
                True,
                (Field("", "string", detail="uuid", bounds=(("maxLength", 8.0),)),),
            ),
            Field(
                "state",
                UNION,
                True,
                (Field("", "string", symbols=symbols), Field("", "null", symbols=symbols)),
            ),
            Field("tags", MAP, True, (Field("", "number"),)),
            Field("any", "any", True),
        ),
    )


def object_of(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ([], "a JSON schema is an object"),
        ({"type": "strin"}, "type: 'strin' is not valid"),
        ({"$schema": "http://example.org/mine"}, "is not a known draft"),
        (object_of(a={"pattern": "^a*$", "type": "string"}), "a: pattern is not supported"),
        (object_of(a={"allOf": []}), "a"),
        (object_of(a={"$ref": "http://example.org/a.json"}), "a: .ref .* is not in this schema"),
        (object_of(a={"$ref": "#/$defs/none"}), "a: .ref '#/.defs/none' leads nowhere"),
        (object_of(a={"$ref": "#/type"}), "a: .ref '#/type' leads to what is no schema"),
        (object_of(a={"$ref": "#"}), "a.a: # contains itself"),
        (object_of(a={"properties": {}}), 'a: add "type": "object"'),
        (object_of(a={"additionalProperties": False}), 'a: add "type": "object"'),
        (object_of(a={"items": {}}), 'a: add "type": "array"'),
        (object_of(a=False), "a: false admits no value"),
        (object_of(a={"$ref": "#", "minimum": 1}), "a: minimum beside .ref"),
        (object_of(a={"anyOf": [{}], "type": "string"}), "a: type beside anyOf"),
        ({"type": "object", "required": ["a"]}, "'a' is required and is no property"),
        ({**object_of(a={}), "additionalProperties": {"type": "null"}}, "not both"),
    ],
)
def test_what_is_no_schema_or_not_supported_is_refused(text: object, words: str) -> None:
    with pytest.raises(BadSchema, match=words):
        schema(text)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadSchema, match="not JSON"):
        parse("json", b"{")
    with pytest.raises(BadSchema, match=r"not JSON|nested too deeply"):
        parse("json", b'{"a":' * 10_000)


def test_a_reference_is_followed_by_its_pointer() -> None:
    made = schema({**object_of(a={"$ref": "#/$defs/x~1y~0"}, b={"$ref": "#/$defs/x~1y~0"}),
                   "$defs": {"x/y~": {"type": "null"}}})  # fmt: skip
    assert [field.kind for field in made.fields] == ["null", "null"]


def test_definitions_that_grow_exponentially_end_at_the_limit() -> None:
    defs: dict[str, Any] = {"t0": {"type": "string"}}
    for n in range(1, 20):
        below = {"$ref": f"#/$defs/t{n - 1}"}
        defs[f"t{n}"] = object_of(a=below, b=below)
    with pytest.raises(BadSchema, match="more than 4,096 fields"):
        schema({**object_of(root={"$ref": "#/$defs/t19"}), "$defs": defs})


def reads(reader: object, writer: object) -> list[str]:
    return [str(one) for one in problems("json", reader=schema(reader), writer=schema(writer))]


def test_problems_name_the_field_and_what_to_do() -> None:
    old = object_of(a={"type": "number"}, b={"type": "array", "items": {"type": "string"}})
    new = {
        **object_of(
            a={"type": "integer"},
            b={"type": "array", "items": {"type": "string", "maxLength": 5}},
            c={"type": "string"},
        ),
        "required": ["c"],
        "additionalProperties": False,
    }
    assert reads(new, old) == [
        "a: number cannot be read as integer (backward)",
        "b[]: maxLength 5 is narrower than the writer's (backward)",
        "c: it is required, and was never written: make it optional (backward)",
    ]
    assert reads({**old, "additionalProperties": False}, new) == [
        "c: it was written, and the reader admits no other fields (backward)"
    ]


SMALL = [None, True, 0, 1, 2, 1.5, "", "a", "bc", [], [0], [0, 1], {}, {"a": 0}, {"a": "a", "b": 1}]
LEAF = st.one_of(
    st.sampled_from(["null", "boolean", "integer", "number", "string"]).map(lambda t: {"type": t}),
    st.builds(lambda n: {"type": "integer", "minimum": n}, st.integers(0, 2)),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 2)),
    st.builds(lambda n: {"type": "number", "exclusiveMaximum": n}, st.integers(0, 2)),
    st.builds(
        lambda v: {"enum": v}, st.lists(st.sampled_from([0, 1, "a"]), min_size=1, unique=True)
    ),
    st.lists(st.sampled_from(["null", "integer", "string"]), min_size=1, unique=True).map(
        lambda kinds: {"type": kinds}
    ),
    st.just({}),
)
OBJECT = st.builds(
    lambda properties, required, closed: {
        "type": "object",
        "properties": properties,
        "required": sorted(required & properties.keys()),
        **({"additionalProperties": False} if closed else {}),
    },
    st.dictionaries(st.sampled_from("ab"), LEAF, max_size=2),
    st.sets(st.sampled_from("ab")),
    st.booleans(),
)
SCHEMAS = st.one_of(
    LEAF,
    OBJECT,
    LEAF.map(lambda item: {"type": "array", "items": item}),
    LEAF.map(lambda value: {"type": "object", "additionalProperties": value}),
    st.lists(LEAF, min_size=1, max_size=2).map(lambda some: {"anyOf": some}),
)


def declared(text: dict[str, Any], value: Any) -> bool:
    """Return whether a value holds only fields that the writer's schema names."""
    if not isinstance(value, dict) or "properties" not in text:
        return True
    return value.keys() <= text["properties"].keys()


@settings(max_examples=200, deadline=None)
@given(SCHEMAS, SCHEMAS)
def test_a_reader_that_is_admitted_finds_every_written_value_valid(
    reader: dict[str, Any], writer: dict[str, Any]
) -> None:
    if reads(reader, writer):
        return
    written, read = Draft202012Validator(writer), Draft202012Validator(reader)
    for value in SMALL:
        if written.is_valid(value) and declared(writer, value):
            assert read.is_valid(value), value


@pytest.mark.parametrize("writer", ["null", "boolean", "integer", "number", "string"])
@pytest.mark.parametrize("reader", ["null", "boolean", "integer", "number", "string"])
def test_only_what_fails_is_refused(reader: str, writer: str) -> None:
    written = [v for v in SMALL if Draft202012Validator({"type": writer}).is_valid(v)]
    valid = [Draft202012Validator({"type": reader}).is_valid(v) for v in written]
    assert (not reads({"type": reader}, {"type": writer})) == all(valid)
