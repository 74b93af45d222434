"""Sequence numbers that were received, as intervals, beside a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weir_toc.endpoint.streams import Seen


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5))), st.integers(1, 50))
def test_intervals_hold_what_a_set_holds(added: list[tuple[int, int]], span: int) -> None:
    seen, plain = Seen(), set[int]()
    for first, count in added:
        seen.add(first, count)
        plain |= set(range(first, first + count))
    assert {number for number in range(60) if number in seen} == plain
    assert seen.top == max(plain, default=-1) + 1
    assert seen.through == min(set(range(60)) - plain)
    pairs = seen.newest(60, 60)
    assert {n for first, count in pairs for n in range(first, first + count)} == plain
    told = {n for first, count in seen.newest(60, span) for n in range(first, first + count)}
    assert told == {n for n in plain if n >= seen.top - span}
    above = {n for first, count in seen.oldest(60) for n in range(first, first + count)}
    assert above == {n for n in plain if n >= seen.through}
    seen.forget(2)
    assert seen.newest(60, 60) == pairs[-2:]
