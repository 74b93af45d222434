"""Runs of offsets, and what of a grant is to be handled."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.client.core.delivered_batches import Delivered, Picked
from weir.client.core.grants import Grant, Run, covers, joined, merged, sorted_out, within, without
from weir.model.batch import HEADER_SIZE, Batch, stamped
from weir.model.batch_builder import encode
from weir.model.columns import Origins

sets = st.sets(st.integers(0, 40))


def flat(runs: list[Run]) -> list[int]:
    return [offset for first, behind in runs for offset in range(first, behind)]


@given(sets, sets, st.integers(0, 40), st.integers(0, 40))
def test_runs_are_sets(some: set[int], others: set[int], first: int, behind: int) -> None:
    runs, holes = joined(some), joined([*others, *others])
    assert flat(runs) == sorted(some)
    assert all(a[1] < b[0] for a, b in pairwise(runs))
    assert flat(without(runs, holes)) == sorted(some - others)
    assert flat([*within(runs, first, behind)]) == [x for x in sorted(some) if first <= x < behind]
    assert flat(merged([*holes, *runs])) == sorted(some | others)
    assert covers(runs, first) == (first in some)


def delivered(first: int, values: list[bytes], expires: list[int] | None = None) -> Delivered:
    whole = encode(values, group=1, expires=expires)
    batch = Batch(stamped(whole, 5, first) + bytes(whole[HEADER_SIZE:]))
    return Delivered("t", 0, batch, first, first + len(values))


def test_a_grant_of_all_is_left_as_it_is() -> None:
    parts = [delivered(10, [b"a", b"b"]), delivered(12, [b"c"])]
    assert sorted_out(parts, (), 99) == (parts, [])
    assert sorted_out(parts, [(10, 13)], 99) == (parts, [])


def test_what_is_not_in_the_runs_is_left_out() -> None:
    parts = [delivered(10, [b"%d" % i for i in range(10, 20)]), delivered(20, [b"20", b"21"])]
    left, expired = sorted_out(parts, [(11, 13), (16, 17), (21, 22)], 99)
    assert [message.value for one in left for message in one.messages()] == [
        b"11", b"12", b"16", b"21",
    ]  # fmt: skip
    assert expired == []
    assert isinstance(left[0], Picked)
    (whole,), _ = sorted_out(parts, [(14, 18)], 99)
    assert not isinstance(whole, Picked), "one run is a slice"
    assert (whole.offset, whole.next_offset, whole.values()) == (
        14,
        18,
        [b"14", b"15", b"16", b"17"],
    )


@given(st.sets(st.integers(0, 59), min_size=1))
def test_picked_messages_are_those_of_their_rows(rows: set[int]) -> None:
    values = [b"%d" % i for i in range(60)]
    part = delivered(100, values)
    picked = Picked("t", 0, part.batch, 100, 160, tuple(sorted(rows)))
    assert picked.values() == [values[row] for row in sorted(rows)]
    whole = [*part.messages()]
    assert [*picked.messages()] == [whole[row] for row in sorted(rows)]


ALIKE = {
    "values": {},
    "keys": {"keys": [b"k%d" % (i % 3) for i in range(60)]},
    "tags": {"tags": ["ab"[i % 2] for i in range(60)]},
    "origins": {"origins": Origins([5] * 60, [1] * 60, [*range(60)], [7] * 60)},
}


@pytest.mark.parametrize("step", [1, 2, 10])
@pytest.mark.parametrize("columns", ALIKE.values(), ids=ALIKE)
def test_picked_messages_are_as_the_whole_batch_has_them(step: int, columns: Any) -> None:
    """With their origin and their schema, whether many or few of a batch are picked."""
    rows = (*range(0, 20, step), *range(30, 50, step))
    whole = encode([b"%d" % i for i in range(60)], group=1, schema=3, **columns)
    batch = Batch(stamped(whole, 5, 100) + bytes(whole[HEADER_SIZE:]))
    messages = [*Delivered("t", 0, batch, 100, 160).messages()]
    picked = Picked("t", 0, batch, 100, 160, rows)
    assert [*picked.messages()] == [messages[row] for row in rows]
    assert messages[0].schema == 3


def test_what_has_expired_is_left_out_and_told() -> None:
    part = delivered(10, [b"a", b"b", b"c", b"d", b"e"], [0, 50, 100, 99, 40])
    left, expired = sorted_out([part], (), 99)
    assert [message.value for one in left for message in one.messages()] == [b"a", b"c"]
    assert expired == [(11, 12), (13, 15)]
    left, expired = sorted_out([part], [(11, 12), (14, 15)], 99)
    assert (left, expired) == ([], [(11, 12), (14, 15)])


def test_a_grant_knows_what_is_leased() -> None:
    grant = Grant("t", 0, 7, 0, 10, 20, 1, ())
    assert grant.leased == ((10, 20),)
    assert Grant("t", 0, 7, 0, 10, 20, 1, (), runs=((10, 12), (15, 20))).leased == (
        (10, 12),
        (15, 20),
    )
