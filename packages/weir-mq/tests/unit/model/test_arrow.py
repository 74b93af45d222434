"""Arrow columns: right, in place, and safe from columns that make no sense."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import BadBatch
from weir.model.arrow import SCHEMA, made, record_batch
from weir.model.batch import HEADER_SIZE, Batch, seal, stamped
from weir.model.batch_builder import encode
from weir.model.columns import NO_SEQUENCE, Origins

VALUES = [b"one", b"", b"three"]
COLUMNS: dict[str, Any] = {
    "keys": [b"k", None, b""],
    "tags": ["red", None, "red"],
    "times": [1_700_000_000_000_001, 2, -3],
    "headers": [{"a": b"1", "ö": b""}, {}, {"a": b"2"}],
}


def stamped_batch(values: list[bytes], **columns: Any) -> Batch:
    batch = bytes(encode(values, group=1, base_time=7, **columns))
    return Batch(stamped(batch, 77, 1000) + batch[HEADER_SIZE:]).check(1)


def rows_of(batch: Batch) -> list[tuple[Any, ...]]:
    """What `record_batch` must say, told by the readers in plain Python."""
    return [
        ("t", 3, m.offset, m.stamp, m.time, m.key, m.tag, m.value, list(m.headers.items()))
        for m in batch.messages()
    ]


def rows_in(found: pa.RecordBatch) -> list[tuple[Any, ...]]:
    plain = found.set_column(4, "time", found["time"].cast(pa.int64()))
    return list(zip(*(column.to_pylist() for column in plain.columns), strict=True))


def test_the_schema_is_fixed() -> None:
    fields = [(field.name, str(field.type)) for field in SCHEMA]
    assert fields == [
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("stamp", "int64"),
        ("time", "timestamp[us, tz=UTC]"),
        ("key", "binary"),
        ("tag", "string"),
        ("value", "binary"),
        ("headers", "map<string, binary>"),
    ]


@pytest.mark.parametrize("left_out", [None, *COLUMNS])
def test_columns_say_what_the_readers_say(left_out: str | None) -> None:
    columns = {name: column for name, column in COLUMNS.items() if name != left_out}
    batch = stamped_batch(VALUES, **columns)
    found = record_batch(batch, "t", 3)
    found.validate(full=True)
    assert found.schema.equals(SCHEMA)
    assert rows_in(found) == rows_of(batch)


@pytest.mark.parametrize("names", [(name,) for name in SCHEMA.names] + [("value", "offset", "tag")])
def test_columns_that_are_named_are_opened_alone(names: tuple[str, ...]) -> None:
    batch = stamped_batch(VALUES, **COLUMNS)
    found = record_batch(batch, "t", 3, 1, 2, names=names)
    assert found.equals(record_batch(batch, "t", 3, 1, 2).select([*names]))


def test_the_version_of_the_schema_is_a_column_where_it_is_named() -> None:
    for schema in (0, 3):
        batch = stamped_batch(VALUES, schema=schema)
        found = record_batch(batch, "t", 3, 1, 2, names=("schema", "value"))
        assert found.column("schema").to_pylist() == [schema] * 2
        assert "schema" not in record_batch(batch, "t", 3).schema.names


def test_the_origin_is_a_column_where_it_is_named() -> None:
    origins = Origins(
        [5, 2**64 - 1], [1, 2**32 - 1], [0, NO_SEQUENCE], [7, 255], [0, 2**24 - 1]
    )  # fmt: skip
    batch = stamped_batch([b"a", b"b"], origins=origins, verified=True)
    found = record_batch(batch, "t", 3, names=("origin", "value")).column("origin")
    found.validate(full=True)
    assert found.to_pylist() == [
        {"hub": 5, "sn": 7, "generation": 0, "boot": 1, "sequence": 0, "verified": True},
        {
            "hub": 2**64 - 1, "sn": 255, "generation": 2**24 - 1, "boot": 2**32 - 1,
            "sequence": None, "verified": True,
        },
    ]  # fmt: skip
    plain = Origins([5] * 9, [1] * 9, list(range(9)), [7] * 9)
    some = record_batch(stamped_batch([b"a"] * 9, origins=plain), "t", 3, 7, 2, names=("origin",))
    rows = some.column("origin").to_pylist()
    assert [(row["sequence"], row["generation"], row["verified"]) for row in rows] == [
        (7, 0, False), (8, 0, False),
    ]  # fmt: skip
    none = record_batch(stamped_batch([b"a"]), "t", 3, names=("origin",)).column("origin")
    assert none.to_pylist() == [None]
    assert "origin" not in record_batch(batch, "t", 3).schema.names


def test_columns_that_are_not_named_are_not_looked_at() -> None:
    whole = bytearray(stamped_batch(VALUES, **COLUMNS).view)
    sound = Batch(bytes(whole))
    keys = sound.key_column
    assert keys is not None
    at = pa.py_buffer(keys[1].offsets).address - pa.py_buffer(sound.view).address
    whole[at + 4 : at + 8] = b"\xff" * 4
    damaged = Batch(bytes(whole))
    with pytest.raises(BadBatch):
        record_batch(damaged, "t", 3)
    found = record_batch(damaged, "t", 3, names=("value",))
    assert found["value"].to_pylist() == [bytes(value) for value in VALUES]


def test_columns_that_are_not_there_are_null_empty_or_the_base_time() -> None:
    found = record_batch(stamped_batch(VALUES), "t", 3)
    assert found["key"].null_count == found["tag"].null_count == 3
    assert found["headers"].to_pylist() == [[], [], []]
    assert found["time"].cast(pa.int64()).to_pylist() == [7, 7, 7]
    assert found["value"].null_count == 0


@pytest.mark.parametrize("skip", range(4))
@pytest.mark.parametrize("take", [None, 0, 1, 2, 3, 99])
def test_skip_and_take_choose_rows(skip: int, take: int | None) -> None:
    batch = stamped_batch(VALUES, **COLUMNS)
    found = record_batch(batch, "t", 3, skip, take)
    assert rows_in(found) == rows_of(batch)[skip:][:take]


@pytest.mark.parametrize(("skip", "take"), [(-1, None), (4, None), (0, -1)])
def test_rows_that_do_not_exist_are_refused(skip: int, take: int | None) -> None:
    with pytest.raises(ValueError, match="do not fit a batch of 3"):
        record_batch(stamped_batch(VALUES), "t", 3, skip, take)


def buffers(array: pa.Array) -> Iterator[pa.Buffer]:
    return (buffer for buffer in array.buffers() if buffer is not None and buffer.size)


@pytest.mark.parametrize(("skip", "take"), [(0, None), (1, 1), (2, None)])
def test_the_columns_are_the_batchs_own_bytes(skip: int, take: int | None) -> None:
    batch = stamped_batch(VALUES, **COLUMNS)
    start = pa.py_buffer(batch.view).address
    found = record_batch(batch, "t", 3, skip, take)
    for name, count in (("value", 2), ("key", 3), ("time", 1), ("headers", 5)):
        held = list(buffers(found[name]))
        assert len(held) == count, name
        for buffer in held:
            assert start <= buffer.address < start + len(batch.view), name
    key, value = batch.key_column, batch.value_column
    assert key is not None
    assert [b.address for b in buffers(found["key"])] == [
        pa.py_buffer(part).address for part in (key[0], key[1].offsets, key[1].data)
    ]
    assert [b.address for b in buffers(found["value"])] == [
        pa.py_buffer(part).address for part in (value.offsets, value.data)
    ]


def test_a_batch_that_lies_askew_is_copied_once_and_only_then() -> None:
    whole = bytes(stamped_batch(VALUES, **COLUMNS).view)
    for shift in range(9):
        backing = bytes(shift) + whole
        batch = Batch(backing, shift)
        found = record_batch(batch, "t", 3)
        assert rows_in(found) == rows_of(batch)
        address = next(buffers(found["value"])).address
        start = pa.py_buffer(batch.view).address
        assert address % 8 == 0
        assert (start <= address < start + len(whole)) == (start % 8 == 0)


def test_the_bytes_live_as_long_as_the_columns() -> None:
    found = record_batch(stamped_batch([b"x" * 1_000_000]), "t", 3)
    noise = [bytes([i]) * 1_000_000 for i in range(8)]  # would take the place of bytes set free
    assert found["value"].to_pylist() == [b"x" * 1_000_000]
    assert len(noise) == 8


def resealed(batch: Batch, at: int, number: int) -> Batch:
    """Write an int32 over byte `at` and seal again, as an encoder at fault would."""
    h, whole = batch.header, bytearray(batch.view)
    struct.pack_into("<i", whole, at, number)
    seal(whole, (h.columns, h.producer, h.epoch, h.count, h.sequence, h.base_time), 1)
    return Batch(whole).check(1)


WORST = st.sampled_from([-1, -(2**31), 2**31 - 1, 1, 3, 9, 64]) | st.integers(-(2**31), 2**31 - 1)


@given(st.data())
def test_columns_that_make_no_sense_are_bad_batches(data: st.DataObject) -> None:
    batch = stamped_batch(VALUES, **COLUMNS)
    words = (len(batch.view) - HEADER_SIZE) // 4
    at = HEADER_SIZE + 4 * data.draw(st.integers(0, words - 1))
    bad = resealed(batch, at, data.draw(WORST))
    try:
        found = record_batch(bad, "t", 3)
    except BadBatch:
        with pytest.raises(BadBatch):
            list(bad.messages())
    else:
        assert rows_in(found) == rows_of(bad)


@pytest.mark.parametrize("number", [-1, 7, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("column", ["value", "tag index"])
def test_falling_offsets_and_wild_indices_are_bad(column: str, number: int) -> None:
    batch = stamped_batch(VALUES, tags=["a", None, "a"])
    tags = batch.tag_column
    assert tags is not None
    part = batch.value_column.offsets if column == "value" else tags[1]
    at = pa.py_buffer(part).address - pa.py_buffer(batch.view).address
    with pytest.raises(BadBatch, match="make no sense"):
        record_batch(resealed(batch, at + 4, number), "t", 3)


def test_the_whole_batch_is_checked_even_where_few_rows_are_taken() -> None:
    batch = stamped_batch(VALUES)
    at = pa.py_buffer(batch.value_column.offsets).address - pa.py_buffer(batch.view).address
    with pytest.raises(BadBatch):
        record_batch(resealed(batch, at + 4, 99), "t", 3, skip=2)


def test_batches_of_one_size_share_only_what_says_the_same() -> None:
    first, second = stamped_batch(VALUES), stamped_batch(VALUES)
    found = [record_batch(first, "t", 0), record_batch(second, "u", 0), record_batch(first, "t", 1)]
    assert [one["topic"].to_pylist() for one in found] == [["t"] * 3, ["u"] * 3, ["t"] * 3]
    assert [one["partition"].to_pylist() for one in found] == [[0] * 3, [0] * 3, [1] * 3]
    assert record_batch(first, "t", 0, 1)["headers"].to_pylist() == [[], []]
    assert record_batch(second, "t", 0)["headers"].to_pylist() == [[], [], []]


@given(st.lists(st.none() | st.text(max_size=9)))
def test_few_values_are_made_an_array_as_arrow_does(values: list[str | None]) -> None:
    array = made(pa.string(), [None if value is None else value.encode() for value in values])
    array.validate(full=True)
    assert array.equals(pa.array(values, pa.string()))
