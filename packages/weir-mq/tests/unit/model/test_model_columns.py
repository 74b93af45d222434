"""Columns in place, and columns that an encoder at fault has made."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.codec import Buffer
from weir.errors import BadBatch, TooLarge
from weir.model import columns as col
from weir.model.columns import BytesColumn, Cursor
from weir.model.limits import BATCH_BYTES_MAX, TAGS_PER_BATCH_MAX


def put(values: list[bytes]) -> bytes:
    parts: list[Buffer] = []
    col.put_bytes(parts, values)
    return b"".join(parts)


def column(offsets: list[int], data: bytes) -> BytesColumn:
    packed = struct.pack(f"<{len(offsets)}i", *offsets)
    return BytesColumn(memoryview(packed).cast("i"), memoryview(data))


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"", b""],
        [b"a"],
        [b"abc"] * 4_096,  # the longest whose offsets are kept
        [b"abc"] * 4_097,
        [b""] * 5_000,
        [b"ab", b"cd", b""],  # the first width says nothing about the rest
        [b"", b"ab"],
        [b"a", b"bcd", b"ef"],  # whose mean width is the second's neighbour
    ],
    ids=lambda values: f"{len(values)} of {len(b''.join(values))}",
)
def test_a_bytes_column_comes_back(values: list[bytes]) -> None:
    view = put(values)
    assert len(view) % 8 == 0
    cursor = Cursor(memoryview(view), 0)
    found = cursor.bytes(len(values))
    assert found.to_list() == values
    assert [found.at(i) for i in range(len(values))] == values
    assert cursor.at == len(view)


@pytest.mark.parametrize(
    "offsets",
    [[0, 5, 2, 6], [0, -1, 2, 6], [0, 99, 2, 6], [0, 2**31 - 1, -(2**31), 6], [0, 3, 2, 6]],
)
def test_falling_offsets_are_bad_and_never_nonsense(offsets: list[int]) -> None:
    bad = column(offsets, b"abcdef")
    with pytest.raises(BadBatch, match="fall"):
        bad.to_list()
    with pytest.raises(BadBatch, match="lies from"):
        [bad.at(i) for i in range(3)]


def test_uniform_ends_around_falling_offsets_do_not_hide_them() -> None:
    with pytest.raises(BadBatch, match="fall"):
        column([0, 2, 5, 4, 8], b"abcdefgh").to_list()


@pytest.mark.parametrize(("first", "last"), [(1, 4), (-1, 4), (0, -1), (0, 9), (0, 2**31 - 1)])
def test_a_column_must_lie_in_the_batch(first: int, last: int) -> None:
    view = struct.pack("<2i", first, last) + bytes(8)
    with pytest.raises(BadBatch):
        Cursor(memoryview(view), 0).bytes(1)


def test_a_cursor_does_not_leave_its_view() -> None:
    cursor = Cursor(memoryview(bytes(12)), 0)
    assert len(cursor.take(12)) == 12
    for size in (0, 1, -1):  # the padding of the last column was not there
        with pytest.raises(BadBatch, match="leaves the batch"):
            cursor.take(size)


@pytest.mark.parametrize(("code", "size"), [("i", 4), ("I", 4), ("q", 8), ("Q", 8), ("B", 1)])
def test_numbers_come_back(code: col.Code, size: int) -> None:
    parts: list[Buffer] = []
    col.put_fixed(parts, code, [1, 2, 3])
    view = b"".join(parts)
    assert len(view) == (3 * size + 7) // 8 * 8
    assert list(Cursor(memoryview(view), 0).numbers(code, 3)) == [1, 2, 3]


def test_a_column_over_the_cap_is_refused_before_it_is_joined() -> None:
    parts: list[Buffer] = []
    for values in ([bytes(1024)] * 8_193, [bytes(1024)] * 8_192 + [b"x"]):
        with pytest.raises(TooLarge) as caught:
            col.put_bytes(parts, values)
        assert caught.value.detail == BATCH_BYTES_MAX
    assert parts == []


def test_a_tag_list_over_the_cap_is_refused_before_it_is_read() -> None:
    view = struct.pack("<II", TAGS_PER_BATCH_MAX + 1, 0)
    with pytest.raises(BadBatch, match="tags in a batch"):
        Cursor(memoryview(view), 0).tag_list()


def test_a_tag_that_is_no_text_is_bad() -> None:
    view = struct.pack("<II", 1, 0) + put([b"\xff\xfe"])
    with pytest.raises(BadBatch, match="not UTF-8"):
        Cursor(memoryview(view), 0).tag_list()


@pytest.mark.parametrize("pairs", [-1, 2**20 + 1, 2**31 - 1])
def test_more_headers_than_allowed_are_refused(pairs: int) -> None:
    view = struct.pack("<2i", 0, pairs) + bytes(64)
    with pytest.raises(BadBatch, match="headers in a batch"):
        Cursor(memoryview(view), 0).headers(1)


def test_key_hashes_are_the_lower_half_of_xxh3() -> None:
    assert col.key_hash(b"") == 0x38D394C2


def refusal(call: Callable[..., object], *args: object) -> bool:
    """Whether a call raises `BadBatch`."""
    try:
        call(*args)
    except BadBatch:
        return True
    return False


#: On both sides of where the numbers that are compared at once end.
@pytest.mark.parametrize("n", [1, 2, 4_096, 4_097, 4_098, 9_000])
@pytest.mark.parametrize("at", [0, 1, 4_094, 4_095, 4_096, 4_097, 8_999])
@pytest.mark.parametrize("number", [-(1 << 31), -1, 0, 1 << 30, (1 << 31) - 1])
def test_offsets_are_checked_as_they_are_split(n: int, at: int, number: int) -> None:
    numbers = [3 * i for i in range(n + 1)]
    assert not refusal(col.check_rising, memoryview(array("i", numbers)))
    numbers[min(at, n)] = number
    offsets = memoryview(array("i", numbers))
    wrong = numbers != sorted(numbers) or numbers[0] < 0
    assert refusal(col.check_rising, offsets) == wrong


@given(st.lists(st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-2, 5), min_size=1))
def test_a_few_offsets_and_indices_are_checked_as_they_are_split(numbers: list[int]) -> None:
    view = memoryview(array("i", numbers))
    for tags in (1, 4, 4_096):
        assert refusal(col.check_tag_indices, view, tags) == refusal(col.tag_indices, view, tags)
    offsets = memoryview(array("i", [0, *numbers, (1 << 31) - 1]))
    assert refusal(col.check_rising, offsets) == refusal(col.rising, offsets)


@pytest.mark.parametrize("at", [0, 4_095, 4_096, 4_999])
def test_a_tag_index_is_found_wherever_it_is_wrong(at: int) -> None:
    indices = array("i", [6]) * 5_000
    col.check_tag_indices(memoryview(indices), 7)
    for wrong in (7, -1):
        indices[at] = wrong
        with pytest.raises(BadBatch, match="tag index"):
            col.check_tag_indices(memoryview(indices), 7)


@given(st.lists(st.text(max_size=3).map(str.encode) | st.binary(max_size=2), max_size=6))
def test_names_are_checked_as_they_are_split(names: list[bytes]) -> None:
    cursor = Cursor(memoryview(put(names)), 0)
    found = cursor.bytes(len(names))
    wrong = any(refusal(col.text, name) for name in names)
    assert refusal(col.check_names, found) == wrong
