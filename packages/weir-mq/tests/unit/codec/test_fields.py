"""Alignment and buffers."""

from __future__ import annotations

import pytest

from weir.codec import compact, joined, padded, padding, total


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 8), (7, 8), (8, 8), (9, 16), (88, 88)])
def test_sizes_are_padded_to_eights(size: int, expected: int) -> None:
    assert padded(size) == expected
    assert padding(size) == bytes(expected - size)


def test_total_counts_every_buffer() -> None:
    assert total([b"ab", bytearray(3), memoryview(b"cdef")]) == 9
    assert total([]) == 0


def test_joined_copies_only_where_it_must() -> None:
    lone = bytearray(b"ab")
    assert joined([lone]) is lone
    assert joined([lone, memoryview(b"cd")]) == b"abcd"
    assert joined([]) == b""


def test_compact_frees_a_large_backing_from_a_small_view() -> None:
    backing = bytes(100)
    large, small = memoryview(backing)[:25], memoryview(backing)[:24]
    assert compact(large, 100) is large
    copied = compact(small, 100)
    assert copied == small
    assert copied.obj is not backing
