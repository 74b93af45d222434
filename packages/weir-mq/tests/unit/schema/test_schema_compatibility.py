"""The rules between two trees: each rule alone, its limits, and what a problem tells."""

from __future__ import annotations

import pytest

from weir.schema.compatibility import PROBLEMS_MAX, Problem, Rule, check, problems
from weir.schema.fields import ARRAY, RECORD, UNION, BadSchema, Field, Format


def texts(format: Format, reader: Field, writer: Field) -> list[str]:
    return [one.text for one in problems(format, reader=reader, writer=writer)]


def test_a_rule_says_who_must_read_whom() -> None:
    new, old = Field("", "long"), Field("", "int")
    wrong = [Problem("the value", "long cannot be read as int", "forward")]
    expected: dict[Rule, list[Problem]] = {
        "none": [],
        "backward": [],
        "forward": wrong,
        "full": wrong,
    }
    for rule, found in expected.items():
        assert check(rule, "avro", new, old) == found
    assert str(wrong[0]) == "the value: long cannot be read as int (forward)"


def test_a_multiple_must_be_the_same() -> None:
    two, three = (Field("", "integer", bounds=(("multipleOf", n),)) for n in (2.0, 3.0))
    assert texts("json", two, two) == []
    assert texts("json", two, three) == ["multipleOf 2 is narrower than the writer's"]
    assert texts("json", two, Field("", "integer")) != []
    assert texts("json", Field("", "integer"), two) == []


def test_a_format_must_have_been_written() -> None:
    text, uuid = Field("", "string"), Field("", "string", detail="uuid")
    assert texts("json", text, uuid) == []
    assert texts("json", uuid, text) == ["it was not written as uuid"]


def test_a_list_of_values_holds_all_that_were_written() -> None:
    one, two = (Field("", "any", symbols=values) for values in (("1",), ("1", "2")))
    assert texts("json", two, one) == []
    assert texts("json", one, two) == ["the value 2 is not in the reader's list"]
    assert texts("json", Field("", "any"), one) == []
    assert texts("json", one, Field("", "any")) == [
        "it may hold any value in written values, and the reader lists its values"
    ]


def test_a_fixed_type_keeps_its_size() -> None:
    short, long = (Field("", "fixed", bounds=(("size", n),), type_name="H") for n in (8.0, 16.0))
    assert texts("avro", short, long) == ["16 bytes cannot be read as 8"]
    assert texts("avro", long, long) == []


def test_avro_always_writes_a_field_that_has_a_default() -> None:
    may = Field("", RECORD, fields=(Field("a", "int", optional=True),))
    must = Field("", RECORD, fields=(Field("a", "int"),))
    assert texts("avro", must, may) == []
    assert texts("json", must, may) == ["it is required, and may be absent in written values"]


def test_the_branch_of_the_same_kind_tells_what_is_wrong() -> None:
    def of(kind: str) -> Field:
        return Field("", RECORD, fields=(Field("a", kind),), type_name="R")

    branches = (Field("", "null"), of("int"))
    assert problems("avro", reader=Field("", UNION, fields=branches), writer=of("string")) == [
        Problem("a", "string cannot be read as int")
    ]
    assert texts("avro", Field("", UNION, fields=branches), Field("", "bytes")) == [
        "bytes is none of null, record"
    ]


def test_so_many_problems_are_told() -> None:
    new = Field("", RECORD, fields=tuple(Field(f"f{n}", "int") for n in range(100)))
    assert len(problems("avro", reader=new, writer=Field("", RECORD))) == PROBLEMS_MAX


def test_unions_of_unions_are_compared_for_so_long() -> None:
    """Each level tries every pair of branches, so the pairs are a power of the depth."""
    reader, writer = Field("", "int"), Field("", "string")
    for _ in range(12):
        reader, writer = (
            Field("", ARRAY, fields=(Field("", UNION, fields=(one, one, one)),))
            for one in (reader, writer)
        )
    with pytest.raises(BadSchema, match="too many unions to compare"):
        problems("avro", reader=reader, writer=writer)
