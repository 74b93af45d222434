"""Batches made of Arrow columns against those made of lists: the same bytes, whatever is sliced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from weir.model.arrow import Rows
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.model.topic import partition_for

KINDS = {
    "value": pa.binary(),
    "key": pa.binary(),
    "tag": pa.string(),
    "time": pa.int64(),
    "headers": pa.map_(pa.string(), pa.binary()),
}
ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "value": st.binary(max_size=40),
    "key": st.none() | st.binary(max_size=9),
    "tag": st.none() | st.sampled_from(["a", "bö", "c" * 255]),
    "time": st.integers(-(2**63), 2**63 - 1),
    "headers": st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3),
}
#: What else a user may have: types that cast.
OTHERS = {
    "value": [pa.large_binary()],
    "key": [pa.large_binary(), pa.dictionary(pa.int32(), pa.binary())],
    "tag": [pa.large_string(), pa.dictionary(pa.int8(), pa.string())],
    "time": [pa.timestamp("us"), pa.timestamp("us", tz="Europe/Berlin")],
    "headers": [],
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.RecordBatch, dict[str, list[Any]]]:
    n = draw(st.integers(1, 20))
    before, behind = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    columns: dict[str, list[Any]] = {}
    arrays = {}
    for name, kind in KINDS.items():
        if name != "value" and draw(st.booleans()):
            continue
        size = before + n + behind
        items = draw(st.lists(ITEMS[name], min_size=size, max_size=size))
        columns[name] = items[before : before + n]
        given_items = [list(x.items()) for x in items] if name == "headers" else items
        array = pa.array(given_items, kind)
        arrays[name] = array.cast(draw(st.sampled_from([kind, *OTHERS[name]])))
    return pa.RecordBatch.from_pydict(arrays).slice(before, n), columns


def expected(columns: dict[str, list[Any]], **more: Any) -> bytearray:
    pairs: list[Mapping[str, bytes]] | None = columns.get("headers")
    return encode(
        columns["value"],
        keys=columns.get("key"),
        tags=columns.get("tag"),
        times=columns.get("time"),
        headers=pairs,
        **more,
    )


@given(tables(), st.integers(0, 2))
def test_both_ways_make_the_same_bytes(
    table: tuple[pa.RecordBatch, dict[str, list[Any]]], compression: int
) -> None:
    batch, columns = table
    more = {
        "group": 9, "producer": 7, "epoch": 1, "sequence": 3, "base_time": 5,
        "compression": compression,
    }  # fmt: skip
    made = Rows.of(batch).encode(**more)
    assert bytes(made) == bytes(expected(columns, **more))
    Batch(made).check(9).check_columns()


@given(tables(), st.integers(1, 400))
def test_cuts_cover_all_rows_in_order(
    table: tuple[pa.RecordBatch, dict[str, list[Any]]], batch_bytes: int
) -> None:
    batch, columns = table
    rows, values, at = Rows.of(batch), list[bytes](), 0
    for first, last, size in rows.cuts(batch_bytes):
        assert first == at < last
        assert last == first + 1 or size <= batch_bytes
        values += Batch(rows.slice(first, last).encode(group=1)).values()
        at = last
    assert at == len(rows)
    assert values == columns["value"]


@given(tables(), st.integers(1, 5), st.integers(0, 4))
def test_rows_go_where_their_keys_belong(
    table: tuple[pa.RecordBatch, dict[str, list[Any]]], partitions: int, turn: int
) -> None:
    batch, columns = table
    turn %= partitions
    keys = columns.get("key") or [None] * batch.num_rows
    wanted: dict[int, list[tuple[bytes, bytes | None]]] = {}
    for key, value in zip(keys, columns["value"], strict=True):
        place = turn if key is None else partition_for(key, partitions)
        wanted.setdefault(place, []).append((value, key))
    found = {}
    for partition, rows in Rows.of(batch).by_partition(partitions, turn):
        made = Batch(rows.encode(group=1))
        found[partition] = list(zip(made.values(), made.keys(), strict=True))
    assert found == wanted
