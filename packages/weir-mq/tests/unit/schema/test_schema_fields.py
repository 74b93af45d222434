"""The tree of fields: golden bytes, limits, and what is no tree."""

from __future__ import annotations

import pytest

from weir.schema.fields import (
    ARRAY,
    DEPTH_MAX,
    FIELDS_MAX,
    RECORD,
    TREE_BYTES_MAX,
    UNION,
    BadSchema,
    Field,
    Path,
    check_size,
    decode,
    encode,
)

LOCK = Field(
    "",
    RECORD,
    fields=(
        Field("hub", "int", number=1),
        Field("codes", ARRAY, True, (Field("", "string"),)),
        Field("state", "enum", symbols=("OPEN", "SHUT"), closed=True, type_name="lock.State"),
        Field("level", "integer", bounds=(("maximum", 100.0),), aliases=("charge",)),
    ),
    type_name="lock.Event",
)

GOLDEN = (
    b'["","record",false,['
    b'["hub","int",false,[],1,"","",[],[],[],false],'
    b'["codes","array",true,[["","string",false,[],0,"","",[],[],[],false]],0,"","",[],[],[],false],'
    b'["state","enum",false,[],0,"lock.State","",["OPEN","SHUT"],[],[],true],'
    b'["level","integer",false,[],0,"","",[],["charge"],[["maximum",100.0]],false]'
    b'],0,"lock.Event","",[],[],[],false]'
)


def test_a_tree_has_these_bytes() -> None:
    assert encode(LOCK) == GOLDEN
    assert decode(GOLDEN) == LOCK


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'["a"]', b'["a",1]', b"[" * 100_000, b'["","record",false,{}]']
)
def test_other_bytes_are_no_tree(data: bytes) -> None:
    with pytest.raises(BadSchema, match="not the fields of a schema"):
        decode(data)


def nested(depth: int) -> Field:
    field = Field("leaf", "int")
    for _ in range(depth):
        field = Field("box", RECORD, fields=(field,))
    return field


def test_a_tree_may_be_so_deep_and_no_deeper() -> None:
    assert decode(encode(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(BadSchema, match='"leaf" is nested deeper than 32 types'):
        encode(nested(DEPTH_MAX + 1))


def test_a_tree_may_have_so_many_fields_and_no_more() -> None:
    wide = tuple(Field(f"f{n}", "int") for n in range(FIELDS_MAX - 1))
    check_size(Field("", RECORD, fields=wide))
    with pytest.raises(BadSchema, match="more than 4,096 fields"):
        check_size(Field("", RECORD, fields=(*wide, Field("", UNION))))


def test_a_tree_may_take_so_many_bytes_and_no_more() -> None:
    long = Field("n" * TREE_BYTES_MAX, "int")
    with pytest.raises(BadSchema, match="at most 524,288"):
        encode(long)
    with pytest.raises(BadSchema, match="at most 524,288"):
        decode(b'["' + b"n" * TREE_BYTES_MAX + b'","int"]')


def test_a_path_reads_as_one_would_write_it() -> None:
    path = Path()
    assert str(path) == "the value"
    for name in ("order", "items", "[]", "price", "|2", "tags", "{}"):
        path.enter(name)
    assert str(path) == "order.items[].price(2).tags{}"
    path.leave()
    assert str(path) == "order.items[].price(2).tags"


def test_a_path_ends_where_the_limits_are() -> None:
    deep, wide = Path(), Path()
    for _ in range(DEPTH_MAX):
        deep.enter("a")
    with pytest.raises(BadSchema, match="deeper than 32"):
        deep.enter("a")
    for _ in range(FIELDS_MAX - 1):
        wide.enter("a")
        wide.leave()
    with pytest.raises(BadSchema, match="more than 4,096"):
        wide.enter("a")
