"""Arrow schemas: what is read and refused; the rules admit casts that keep every value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from weir.schema import parse
from weir.schema.compatibility import problems
from weir.schema.fields import ARRAY, RECORD, BadSchema, Field


def arrow(*fields: pa.Field) -> Field:
    return parse("arrow", pa.schema(fields).serialize().to_pybytes())


def test_every_type_is_read() -> None:
    made = arrow(
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("day", pa.date32()),
        pa.field("hash", pa.binary(16)),
        pa.field("state", pa.dictionary(pa.int8(), pa.string())),
        pa.field("codes", pa.list_(pa.int32())),
        pa.field("pair", pa.list_(pa.int32(), 2)),
        pa.field("at", pa.struct([pa.field("x", pa.float64())])),
        pa.field("tags", pa.map_(pa.string(), pa.int64())),
    )
    pair = (Field("key", "string"), Field("value", "int64", True))
    assert made == Field(
        "",
        RECORD,
        fields=(
            Field("time", "timestamp", detail="us, tz=UTC"),
            Field("price", "decimal128", True, detail="10, 2"),
            Field("day", "date32", True, detail="day"),
            Field("hash", "fixed_size_binary", True, detail="16"),
            Field("state", "string", True),
            Field("codes", ARRAY, True, (Field("", "int32", True),)),
            Field("pair", ARRAY, True, (Field("", "int32", True),), detail="of 2"),
            Field("at", RECORD, True, (Field("x", "double", True),)),
            Field("tags", ARRAY, True, (Field("", RECORD, fields=pair),)),
        ),
    )


def test_what_is_no_schema_or_not_supported_is_refused() -> None:
    with pytest.raises(BadSchema, match="not an Arrow schema"):
        parse("arrow", b"schema")
    with pytest.raises(BadSchema, match="a: two columns have this name"):
        arrow(pa.field("a", pa.int8()), pa.field("a", pa.int8()))
    with pytest.raises(BadSchema, match="s: two fields of the struct"):
        arrow(pa.field("s", pa.struct([("a", pa.int8()), ("a", pa.int8())])))
    union = pa.sparse_union([pa.field("a", pa.int8())])
    with pytest.raises(BadSchema, match=r"u: .* is not supported"):
        arrow(pa.field("u", union))


def reads(reader: pa.Field, writer: pa.Field) -> list[str]:
    return [str(one) for one in problems("arrow", reader=arrow(reader), writer=arrow(writer))]


def test_a_column_is_new_only_if_it_may_be_null() -> None:
    old = arrow()
    for nullable, words in (
        (True, []),
        (False, ["a: it is required, and was never written: make it optional (backward)"]),
    ):
        new = arrow(pa.field("a", pa.int8(), nullable=nullable))
        assert [str(one) for one in problems("arrow", reader=new, writer=old)] == words


def test_what_may_be_null_is_not_read_as_what_may_not() -> None:
    may, must = pa.field("a", pa.int8()), pa.field("a", pa.int8(), nullable=False)
    assert reads(may, must) == []
    assert reads(must, may) == ["a: it is required, and may be absent in written values (backward)"]
    items, needed = (pa.field("a", pa.list_(pa.field("i", pa.int8(), nullable=n))) for n in (1, 0))
    assert reads(needed, items) == ["a[]: it may be null in written values (backward)"]


def test_units_and_sizes_are_not_mixed() -> None:
    assert reads(pa.field("t", pa.timestamp("us")), pa.field("t", pa.timestamp("ms"))) == [
        "t: ms cannot be read as us (backward)"
    ]
    two, any_ = pa.field("l", pa.list_(pa.int8(), 2)), pa.field("l", pa.list_(pa.int8()))
    assert reads(any_, two) == []
    assert reads(two, any_) == ["l: plain cannot be read as of 2 (backward)"]


def extremes(bits: int, signed: bool) -> list[int]:
    return [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if signed else [0, 2**bits - 1]


SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{getattr(pa, f"int{bits}")(): extremes(bits, True) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): extremes(bits, False) for bits in (8, 16, 32, 64)},
    pa.float16(): [0.5, 65_504.0],
    pa.float32(): [0.1, 3e38],
    pa.float64(): [0.1, 1e300],
    pa.string(): ["a"],
    pa.large_string(): ["a"],
    pa.binary(): [b"\xff"],
    pa.large_binary(): [b"\xff"],
    pa.date32(): [1],
}


def keeps(reader: pa.DataType, writer: pa.DataType) -> bool:
    """Return whether a cast and back gives every value as it was."""
    values = pa.array(SAMPLES[writer], pa.int32()).cast(writer) if writer == pa.date32() else None
    if values is None:
        values = pa.array(SAMPLES[writer], writer)
    try:
        return bool(values.cast(reader, safe=True).cast(writer, safe=True).equals(values))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False


@pytest.mark.parametrize("writer", SAMPLES, ids=str)
@pytest.mark.parametrize("reader", SAMPLES, ids=str)
def test_no_type_is_admitted_whose_cast_loses_values(
    reader: pa.DataType, writer: pa.DataType
) -> None:
    if not reads(pa.field("a", reader), pa.field("a", writer)):
        assert keeps(reader, writer)
    numbers = pa.types.is_integer(reader) and pa.types.is_integer(writer)
    if numbers and keeps(reader, writer):
        assert not reads(pa.field("a", reader), pa.field("a", writer))


def test_a_map_is_two_types_deep() -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(15):
        kind = pa.map_(pa.string(), kind)
    arrow(pa.field("m", kind))
    with pytest.raises(BadSchema, match="nested deeper than 32 types"):
        arrow(pa.field("m", pa.map_(pa.string(), pa.map_(pa.string(), kind))))
