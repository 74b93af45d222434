"""Messages gathered into columns, cut by bytes and count."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.client.core.batcher import (
    BATCH_BYTES,
    MESSAGE_OVERHEAD,
    Batcher,
    Gathered,
    cuts,
    size_of,
)
from weir.errors import TooLarge
from weir.model.batch import Batch
from weir.model.limits import BATCH_BYTES_MAX, TAG_RUN_BYTES

GROUP = 1 << 16


def opened(gathered: Gathered[str]) -> Batch:
    return Batch(gathered.encode(GROUP, 7, 2, 40)).check(GROUP)


def add(batcher: Batcher[str], value: bytes, **columns: object) -> int:
    """Add as a lane does: begin a batch where the message does not fit."""
    size = size_of(value, columns.get("key"), columns.get("tag"), columns.get("headers"))  # type: ignore[arg-type]
    if not batcher.fits(size, columns.get("tag")):  # type: ignore[arg-type]
        batcher.begin("owner", 1_000)
    return batcher.add(size, value, **columns)  # type: ignore[arg-type]


def taken(batcher: Batcher[str]) -> Gathered[str]:
    batcher.cut()
    gathered = batcher.take()
    assert gathered is not None
    return gathered


def test_a_batch_ends_where_the_tag_changes_once_it_is_large_enough() -> None:
    batcher: Batcher[str] = Batcher()
    value = b"v" * (TAG_RUN_BYTES // 4)
    for tag in ("a", "b", "a", "a", "a", "b", None, "b"):
        add(batcher, value, tag=tag)
    found = [opened(batcher.ready.popleft()).tags() for _ in range(batcher.waiting)]
    found.append(opened(taken(batcher)).tags())
    assert found == [["a", "b", "a", "a", "a"], ["b", None, "b"]]


def test_a_batch_without_tags_is_as_large_as_before() -> None:
    batcher: Batcher[str] = Batcher()
    for _ in range(8):
        add(batcher, b"v" * (TAG_RUN_BYTES // 4))
    assert not batcher.waiting


def test_many_messages_are_cut_where_the_tag_changes() -> None:
    values = [b"v" * (TAG_RUN_BYTES // 4)] * 12
    tags = ["a"] * 3 + ["b"] * 3 + ["a"] * 6
    found = [(first, last) for first, last, _ in cuts(values, BATCH_BYTES, tags=tags)]
    assert found == [(0, 6), (6, 12)]
    assert [one[:2] for one in cuts(values, BATCH_BYTES * 2, tags=["a"] * 12)] == [(0, 12)]
    short = [b"v"] * 100
    assert [one[:2] for one in cuts(short, BATCH_BYTES, tags=["a", "b"] * 50)] == [(0, 100)]


def test_plain_values_make_a_batch_with_one_column() -> None:
    batcher: Batcher[str] = Batcher()
    assert [add(batcher, b"a"), add(batcher, b"bb")] == [0, 1]
    batch = opened(taken(batcher))
    assert batch.values() == [b"a", b"bb"]
    assert batch.key_column is None
    assert batch.tag_column is None
    assert batch.headers_column is None
    assert batch.times() == [1_000, 1_000]
    header = batch.header
    assert (header.producer, header.epoch, header.sequence) == (7, 2, 40)


def test_a_column_begins_with_the_first_message_that_has_it() -> None:
    batcher: Batcher[str] = Batcher()
    add(batcher, b"a")
    add(batcher, b"b", key=b"k")
    add(batcher, b"c", tag="t", time=5)
    add(batcher, b"d", headers={"h": b"x"})
    batch = opened(taken(batcher))
    assert batch.keys() == [None, b"k", None, None]
    assert batch.tags() == [None, None, "t", None]
    assert batch.times() == [1_000, 1_000, 5, 1_000]
    assert batch.headers() == [{}, {}, {}, {"h": b"x"}]


def test_a_batch_is_cut_when_it_is_full_by_bytes() -> None:
    batcher: Batcher[str] = Batcher(batch_bytes=3 * (10 + MESSAGE_OVERHEAD))
    for _ in range(3):
        assert batcher.waiting == 0
        add(batcher, bytes(10))
    assert batcher.waiting == 1
    assert batcher.gathering is None


def test_a_message_that_does_not_fit_begins_the_next_batch() -> None:
    batcher: Batcher[str] = Batcher(batch_bytes=100)
    add(batcher, bytes(60))
    add(batcher, bytes(60))
    assert batcher.waiting == 1
    assert len(taken(batcher)) == 1
    assert len(taken(batcher)) == 1


def test_a_batch_is_cut_by_count() -> None:
    batcher: Batcher[str] = Batcher(batch_messages=2)
    for _ in range(5):
        add(batcher, b"")
    assert batcher.waiting == 2
    assert batcher.gathering is not None


def test_a_whole_batch_comes_behind_what_was_gathered() -> None:
    batcher: Batcher[str] = Batcher()
    add(batcher, b"first")
    batcher.put(Gathered("other", 0, [b"second"]))
    assert taken(batcher).values == [b"first"]
    assert taken(batcher).values == [b"second"]
    assert batcher.take() is None


def test_a_value_over_the_hard_limit_is_refused_alone() -> None:
    batcher: Batcher[str] = Batcher()
    add(batcher, b"small")
    add(batcher, bytes(8 * 1024 * 1024))
    assert taken(batcher).values == [b"small"]
    with pytest.raises(TooLarge):
        taken(batcher).encode(GROUP, 0, 0, 0)


@given(
    st.lists(st.integers(0, 50), max_size=60),
    st.integers(1, 200),
    st.integers(1, 10),
)
def test_cuts_cover_all_values_in_order_and_keep_both_limits(
    sizes: list[int], batch_bytes: int, batch_messages: int
) -> None:
    values = [bytes(size) for size in sizes]
    found = cuts(values, batch_bytes, batch_messages)
    assert [i for first, last, _ in found for i in range(first, last)] == [*range(len(values))]
    for first, last, size in found:
        assert size == sum(sizes[first:last]) + (last - first) * MESSAGE_OVERHEAD
        assert 1 <= last - first <= batch_messages
        assert size <= batch_bytes or last - first == 1
    for (first, last, size), (_, after, _) in itertools.pairwise(found):
        one_more = size + sizes[last] + MESSAGE_OVERHEAD
        assert one_more > batch_bytes or last - first == batch_messages, (first, after)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 99)), max_size=60),
    st.integers(1, 900),
    st.booleans(),
    st.booleans(),
)
def test_cuts_count_every_column(
    rows: list[tuple[int, int | None]], batch_bytes: int, with_tags: bool, with_times: bool
) -> None:
    values = [bytes(size) for size, _ in rows]
    keys = [None if size is None else bytes(size) for _, size in rows]
    tags = [f"{size}" for size, _ in rows] if with_tags else None
    times = [*range(len(rows))] if with_times else None
    found = cuts(values, batch_bytes, keys=keys, tags=tags, times=times)
    assert [i for first, last, _ in found for i in range(first, last)] == [*range(len(values))]
    for first, last, size in found:
        columns = [None if c is None else c[first:last] for c in (keys, tags, times)]
        made = Gathered("owner", 0, values[first:last], *columns).encode(GROUP, 7, 2, 40)  # type: ignore[arg-type]
        assert len(made) <= size + 200  # header, padding
        assert size <= batch_bytes or last - first == 1


def test_long_keys_make_no_batch_too_large() -> None:
    n = 40_000
    values, keys = [b""] * n, [b"%0300d" % i for i in range(n)]
    found = cuts(values, BATCH_BYTES, keys=keys)
    assert len(found) > 40
    for first, last, _ in found:
        gathered = Gathered("owner", 0, values[first:last], keys[first:last])
        assert len(gathered.encode(GROUP, 7, 2, 40)) <= BATCH_BYTES


def test_the_largest_batches_leave_room_for_the_columns_of_one_message() -> None:
    batcher: Batcher[str] = Batcher(batch_bytes=BATCH_BYTES_MAX)
    for i in range(260_000):
        last = {"key": b"k", "tag": "t", "time": i, "headers": {}} if i == 259_999 else {}
        add(batcher, b"%08d" % i, **last)
    batcher.cut()
    while (gathered := batcher.take()) is not None:
        assert len(gathered.encode(GROUP, 7, 2, 40)) <= BATCH_BYTES_MAX


def test_more_tags_than_a_batch_takes_make_more_batches() -> None:
    tags = [f"{i}" for i in range(9_000)]
    found = cuts([b""] * len(tags), BATCH_BYTES, tags=tags)
    assert sum(last - first for first, last, _ in found) == len(tags)
    for first, last, _ in found:
        Gathered("owner", 0, [b""] * (last - first), None, tags[first:last]).encode(GROUP, 7, 2, 0)
    batcher: Batcher[str] = Batcher()
    for tag in tags:
        add(batcher, b"", tag=tag)
    assert batcher.waiting == 2
    while (gathered := batcher.take()) is not None:
        gathered.encode(GROUP, 7, 2, 40)
