"""The check must see everything that can go wrong with a message, and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_lab.bench.harness.payload import SIZE_MIN, Block, Checker

SIZE = 21


def column(values: Sequence[bytes]) -> tuple[memoryview, memoryview]:
    ends = accumulate(map(len, values), initial=0)
    offsets = struct.pack(f"<{len(values) + 1}i", *ends)
    return memoryview(offsets).cast("i"), memoryview(b"".join(values))


def made(producer: int, first: int, count: int, size: int = SIZE) -> list[bytes]:
    return Block(size, max(count, 1)).values_of(producer, first, count)


def verdict(checker: Checker) -> tuple[int, int, int, int]:
    return checker.lost, checker.repeated, checker.reordered, checker.corrupt


def check(counts: Sequence[int], *batches: Sequence[bytes]) -> tuple[int, int, int, int]:
    checker = Checker(counts, SIZE)
    for batch in batches:
        checker.take(*column(batch))
    assert checker.received == sum(map(len, batches))
    return verdict(checker)


def test_a_message_holds_its_sequence_and_its_producer() -> None:
    values = made(7, 1 << 33, 3)
    assert [struct.unpack_from("<QI", value) for value in values] == [
        ((1 << 33) + n, 7) for n in range(3)
    ]
    assert {len(value) for value in values} == {SIZE}
    assert len({value[12:] for value in values}) == 1


def test_a_block_is_made_anew_for_each_producer() -> None:
    block = Block(SIZE, 4)
    assert block.values_of(1, 0, 4) == made(1, 0, 4)
    assert block.values_of(2, 9, 2) == made(2, 9, 2)
    assert block.values_of(1, 4, 4) == made(1, 4, 4)


@pytest.mark.parametrize("size", [SIZE_MIN, 17, 100])
def test_what_was_made_passes_the_check(size: int) -> None:
    checker = Checker([5_000, 3], size)
    checker.take(*column(made(0, 0, 4_999, size)))  # more than is compared at once
    checker.take(*column(made(1, 0, 3, size)))
    checker.take(*column(made(0, 4_999, 1, size)))
    assert verdict(checker) == (0, 0, 0, 0)
    assert checker.received == 5_003


def test_a_size_without_room_for_the_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Block(SIZE_MIN - 1, 1)


def test_a_batch_that_begins_within_the_column_is_checked_from_there() -> None:
    checker = Checker([10], SIZE)
    checker.take(*column(made(0, 0, 4)))
    offsets, data = column(made(0, 0, 10))
    checker.take(offsets[4:], data)
    assert verdict(checker) == (0, 0, 0, 0)


def test_a_missing_batch_is_lost() -> None:
    assert check([30], made(0, 0, 10), made(0, 20, 10)) == (10, 0, 0, 0)


def test_a_missing_end_is_lost() -> None:
    assert check([10, 10], made(0, 0, 10)) == (10, 0, 0, 0)


def test_a_message_missing_within_a_batch_is_lost() -> None:
    values = made(0, 0, 10)
    assert check([10], values[:4] + values[5:]) == (1, 0, 0, 0)


def test_a_batch_that_comes_twice_is_repeated() -> None:
    assert check([20], made(0, 0, 10), made(0, 0, 10), made(0, 10, 10)) == (0, 10, 0, 0)


def test_a_batch_that_comes_late_is_reordered_and_not_lost() -> None:
    assert check([30], made(0, 0, 10), made(0, 20, 10), made(0, 10, 10)) == (0, 0, 10, 0)


def test_two_messages_that_change_places_are_one_reordering() -> None:
    values = made(0, 0, 10)
    values[3], values[4] = values[4], values[3]
    assert check([10], values) == (0, 0, 1, 0)


@pytest.mark.parametrize("at", [12, SIZE - 1])
def test_a_changed_byte_of_filler_is_corrupt(at: int) -> None:
    values = made(0, 0, 10)
    changed = bytearray(values[5])
    changed[at] ^= 1
    values[5] = bytes(changed)
    assert check([10], values) == (1, 0, 0, 1)


def test_a_message_that_nobody_sent_is_corrupt() -> None:
    assert check([10], made(1, 0, 1), made(0, 10, 1), made(0, 0, 10)) == (0, 0, 0, 2)


def test_a_message_of_another_size_is_corrupt() -> None:
    values = made(0, 0, 3)
    assert check([3], [values[0], values[1] + b"x", values[2]]) == (1, 0, 0, 1)
    # The same bytes in all, cut elsewhere.
    assert check([3], [values[0], values[1] + values[2][:1], values[2][1:]]) == (2, 0, 0, 2)


def test_all_is_well_again_behind_what_was_wrong() -> None:
    assert check([50], made(0, 0, 10), made(0, 20, 10), made(0, 30, 20)) == (10, 0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=30), st.data())
def test_any_arrival_is_judged_as_by_a_naive_twin(
    arrivals: list[tuple[int, int]], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(arrivals)), max_size=4)))
    values = [made(producer, sequence, 1)[0] for producer, sequence in arrivals]
    edges = [0, *cuts, len(values)]
    batches = [values[a:b] for a, b in pairwise(edges) if a < b]
    seen: set[tuple[int, int]] = set()
    repeated = reordered = 0
    for producer, sequence in arrivals:
        if (producer, sequence) in seen:
            repeated += 1
        elif any(p == producer and s > sequence for p, s in seen):
            reordered += 1
        seen.add((producer, sequence))
    assert check([10, 10], *batches) == (20 - len(seen), repeated, reordered, 0)


def test_messages_of_many_producers_in_one_column_are_checked_at_once() -> None:
    mixed = [value for n in range(5) for p in (2, 0, 1) for value in made(p, n, 1)]
    assert check([5, 5, 5], mixed) == (0, 0, 0, 0)
    assert check([5, 5, 5], mixed[:-1]) == (1, 0, 0, 0)
    swapped = [*mixed[:3], mixed[6], mixed[4], mixed[5], mixed[3], *mixed[7:]]
    assert check([5, 5, 5], swapped) == (0, 0, 1, 0)
    assert check([5, 5], mixed) == (0, 0, 0, 5)


def test_counts_that_are_known_in_the_end_only_are_expected_then() -> None:
    checker = Checker([1 << 30, 1 << 30], SIZE)
    for producer, count in ((0, 7), (1, 3)):
        checker.take(*column(made(producer, 0, count)))
    checker.expect([8, 3])
    assert verdict(checker) == (1, 0, 0, 0)
    checker.expect([7, 2])
    assert verdict(checker) == (0, 0, 0, 1)


def test_framed_messages_hold_the_same_bytes_between_their_frames() -> None:
    framed = Block(SIZE, 4, b"<<", b">")
    rows = bytes(framed.bytes_of(3, 5, 2))
    assert rows == b"".join(b"<<" + value + b">" for value in made(3, 5, 2))
