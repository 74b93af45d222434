"""What Arrow input refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from weir.errors import BadRequest, TooLarge
from weir.model.arrow import Rows, record_batch
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.limits import BATCH_BYTES_MAX, KEY_BYTES_MAX


def table(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"v"], **columns})


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"value": [None]}, "column 'value' has 1 nulls: fill them"),
        ({"value": [7]}, "column 'value' is int64: cast it"),
        ({"key": [1.5]}, "column 'key' is double"),
        ({"tag": [b"\xff"]}, "column 'tag' is not UTF-8"),
        ({"tag": [3]}, "column 'tag' is int64"),
        ({"time": ["now"]}, "column 'time' is string: give timestamps"),
        ({"time": pa.array([None], pa.int64())}, "column 'time' has 1 nulls"),
        ({"headers": ["a=b"]}, "column 'headers' is string: give map"),
        (
            {"headers": pa.array([[("a", None)]], pa.map_(pa.string(), pa.binary()))},
            "pairs without a value",
        ),
        ({"colour": ["red"]}, r"columns \['colour'\] mean nothing here"),
    ],
)
def test_columns_that_make_no_messages_are_refused(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        Rows.of(table(**columns))


def test_without_values_there_are_no_messages() -> None:
    with pytest.raises(BadRequest, match="no column 'value' among"):
        Rows.of(pa.RecordBatch.from_pydict({"payload": [b"v"]}))


def test_limits_hold_before_bytes_are_joined() -> None:
    with pytest.raises(TooLarge, match="a key has"):
        Rows.of(table(key=[b"k" * (KEY_BYTES_MAX + 1)]))
    with pytest.raises(TooLarge, match="a tag has 256 bytes"):
        Rows.of(table(tag=["t" * 256]))
    rows = Rows.of(table(value=[b"v" * (BATCH_BYTES_MAX + 1)]))
    with pytest.raises(TooLarge, match="send fewer"):
        rows.encode(group=1)


def test_what_was_read_can_be_published_again() -> None:
    read = record_batch(Batch(encode([b"a", b"b"], group=1, tags=["x", None])), "t", 0)
    again = Batch(Rows.of(read).encode(group=2))
    assert (again.values(), again.tags()) == ([b"a", b"b"], ["x", None])
    assert again.keys() == [None, None]


def test_seconds_become_microseconds() -> None:
    rows = Rows.of(table(time=pa.array([7], pa.timestamp("s"))))
    assert Batch(rows.encode(group=1)).times() == [7_000_000]


def test_columns_of_nulls_alone_are_keys_and_tags_that_nobody_has() -> None:
    batch = Batch(Rows.of(table(key=[None], tag=[None])).encode(group=1))
    assert (batch.keys(), batch.tags()) == ([None], [None])


def test_batches_are_cut_where_one_would_have_too_many_tags() -> None:
    tags = [f"t{number}" for number in range(10_000)]
    rows = Rows.of(pa.RecordBatch.from_pydict({"value": [b"v"] * 10_000, "tag": tags}))
    found = []
    for first, behind, _ in rows.cuts(BATCH_BYTES_MAX):
        found += Batch(rows.slice(first, behind).encode(group=1)).tags()
    assert found == tags
