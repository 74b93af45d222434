"""The ledgers of a chaos run: whatever is wrong between what was confirmed and what is read."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weir_lab.bench.faults.chaos.ledger import NOWHERE, Read, Sent, Taken, Verdict, judge
from weir_lab.bench.faults.chaos.rounds import differing
from weir_lab.bench.harness.payload import Block

SIZE = 32
MS = 1_000_000


def sent(count: int, *, confirmed: int | None = None, offset: int = 0) -> Sent:
    """Return the ledger of `count` messages, whose confirmed ones lie from `offset` on."""
    ledger = Sent()
    ledger.sent = count
    ledger.confirm(count if confirmed is None else confirmed, offset, 0)
    return ledger


def read(*numbers: int, producer: int = 0, size: int = SIZE) -> Read:
    """Return what a reader notes that gets these messages of a producer, one batch each."""
    found, block = Read(size), Block(SIZE, 1)
    for place, number in enumerate(numbers):
        value = block.values_of(producer, number, 1)[0]
        take(found, place, value)
    return found


def take(found: Read, place: int, *values: bytes) -> None:
    """Hand values to a reader's notes as a value column that begins somewhere in its data."""
    ends = itertools.accumulate(map(len, values), initial=3)
    found.take(
        place, memoryview(np.array([*ends], np.int32)), memoryview(b"xyz" + b"".join(values))
    )


@pytest.mark.parametrize(
    ("ledger", "numbers", "verdict"),
    [
        (sent(3), (0, 1, 2), Verdict()),
        (sent(3), (0, 1), Verdict(lost=1)),
        (sent(3), (0, 1, 2, 2), Verdict(repeated=1)),
        (sent(3), (0, 2, 1), Verdict(reordered=1, misplaced=2)),
        (sent(3, offset=1), (0, 1, 2), Verdict(misplaced=3)),
        (sent(3), (0, 1, 2, 3), Verdict(strange=1)),
        # What is not confirmed may be there or not.
        (sent(3, confirmed=1), (0, 1), Verdict()),
        (sent(3, confirmed=1), (0,), Verdict()),
        # A confirm need not say where.
        (sent(2, offset=NOWHERE), (0, 1), Verdict()),
        (sent(2, offset=NOWHERE), (1,), Verdict(lost=1)),
        (sent(0), (), Verdict()),
    ],
)
def test_what_is_wrong_is_counted(
    ledger: Sent, numbers: tuple[int, ...], verdict: Verdict
) -> None:  # fmt: skip
    found = judge({0: ledger}, read(*numbers))
    assert found == verdict
    assert found.clean == (verdict == Verdict())


def test_each_producer_has_its_own_numbers_and_nobody_else_sends() -> None:
    block, found = Block(SIZE, 2), Read(SIZE)
    take(found, 0, *block.values_of(0, 0, 2))
    take(found, 2, *block.values_of(1, 0, 2))
    assert judge({0: sent(2), 1: sent(2, offset=2)}, found).clean
    assert judge({0: sent(2)}, found) == Verdict(strange=2)


def test_bytes_that_nobody_sent_are_strange() -> None:
    block, found = Block(SIZE, 1), Read(SIZE)
    (value,) = block.values_of(0, 0, 1)
    take(found, 0, value[:-1] + bytes([value[-1] ^ 1]))
    take(found, 1, value[:-1])
    assert judge({0: sent(1)}, found) == Verdict(lost=1, strange=2)


def test_the_gap_is_the_longest_time_without_a_confirm() -> None:
    ledger = Sent()
    ledger.sent = 5
    for at in (10, 20, 70, 80, 85):
        ledger.confirm(1, ledger.confirmed, at * MS)
    assert ledger.gap_ms(30 * MS, 90 * MS) == 50.0  # it began before
    assert ledger.gap_ms(75 * MS, 90 * MS) == 10.0
    assert ledger.gap_ms(75 * MS, 200 * MS) == 115.0  # it goes on
    assert ledger.a_slot(0, 20 * MS, 5) == [1, 1, 0, 1, 2]


def test_what_two_readers_found_otherwise_is_seen() -> None:
    whole = read(0, 1, 2)
    assert differing(read(0, 1), whole) == 0
    assert differing(read(0, 2), whole) == 1
    assert differing(read(0, 1, 2, 3), whole) == 1


def test_a_readers_lag_is_the_longest_time_from_a_confirm_to_its_message() -> None:
    sent, taken = Sent(), Taken()
    sent.confirm(2, 0, 1_000_000)
    sent.confirm(1, 2, 5_000_000)
    sent.confirm(1, 3, 20_000_000)
    taken.note(1, 2_000_000)
    taken.note(3, 9_000_000)
    assert sent.lag_ms(taken, 0, 10_000_000) == 8.0
    assert sent.lag_ms(taken, 2_000_000, 10_000_000) == 4.0
    assert sent.lag_ms(taken, 0, 30_000_000) == 10.0, "what was not read is late until the end"
    assert sent.lag_ms(taken, 40_000_000, 50_000_000) == 0.0


def test_a_message_that_is_read_before_its_confirm_is_not_late() -> None:
    sent, taken = Sent(), Taken()
    taken.note(1, 1_000_000)
    sent.confirm(1, 0, 3_000_000)
    assert sent.lag_ms(taken, 0, 10_000_000) == 0.0


def _confirmed_at(*ms: int) -> Sent:
    ledger = Sent()
    for number, at in enumerate(ms):
        ledger.sent += 1
        ledger.confirm(1, number, at * MS)
    return ledger


@pytest.mark.parametrize(
    ("kills", "gaps"),
    [
        ([], (900.0, 0.0)),
        # It lies in the gap, or the last confirms were on their way still.
        ([(150, 160)], (300.0, 900.0)),
        ([(20, 30)], (300.0, 900.0)),
        # What comes more than half a second later is something else.
        ([(1_010, 1_020)], (900.0, 300.0)),
        # A kill explains one gap, not all around it.
        ([(990, 1_200)], (300.0, 900.0)),
        ([(990, 1_200), (1_010, 1_200)], (90.0, 900.0)),
        # Outside of what is looked at it explains nothing.
        ([(5_000, 5_001)], (900.0, 0.0)),
    ],
)
def test_gaps_that_kills_explain_are_told_apart(
    kills: list[tuple[int, int]], gaps: tuple[float, float]
) -> None:
    ledger = _confirmed_at(10, 100, 1_000, 1_300, 1_310)
    spans = [(began * MS, ended * MS) for began, ended in kills]
    assert ledger.gaps_ms(10 * MS, ledger.last_ns, spans) == gaps
    assert ledger.last_ns == 1_310 * MS
