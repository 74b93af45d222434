"""The checkers of turns: silent about an honest history, and each finds what is planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.testing.simulator.world import MS
from weir_lab.sim.checkers.in_turn import OneCursor
from weir_lab.sim.checkers.judge import CHECKERS
from weir_lab.sim.history import History, Move, Record, SeekAll, TurnTaken, Work
from weir_lab.sim.observations import Row

OURS = [one for one in CHECKERS if type(one).__module__ == OneCursor.__module__]
ROWS = [Row(5, 0, 0, b"a"), Row(5, 0, 1, b"b"), Row(6, 1, 0, b"y"), Row(7, 0, 2, b"c")]


def violations(history: History) -> set[str]:
    return {checker.name for checker in OURS for _ in checker.check(history)}


def turn(fence: int, at: int, who: str, attempts: int, *offsets: int) -> TurnTaken:
    """One that was asked for at once, and lasts for 100 ms."""
    return TurnTaken("crew", fence, offsets, attempts, at, at + MS, 100, holder=who)


def move(fence: int, at: int, *offsets: int, ends: bool = False, stale: bool = False) -> Move:
    found = Move("crew", fence, offsets, at, 0 if ends else 100, ends)
    found.confirmed, found.stale = (-1, at + MS) if stale else (at + MS, -1)
    return found


def work(fence: int, at: int, *rows: Row, done: bool = True) -> Work:
    return Work("crew", fence, rows, at, done)


def in_turn() -> History:
    """Three turns: one that lasts too long for its lease and comes late, one that fails, and one
    that goes on with what failed.
    """
    history = History()
    history.drained = {
        0: [Record(0, (b"a", b"b"), 5, ()), Record(2, (b"c",), 7, ())],
        1: [Record(0, (b"y",), 6, ())],
    }
    history.turns = [
        turn(3, 0, "x", 1),
        turn(9, 300 * MS, "y", 1, 2),
        turn(11, 340 * MS, "x", 2, 2),
    ]
    history.works = [
        work(3, 2 * MS, ROWS[0], ROWS[1]),
        work(3, 30 * MS, ROWS[2]),
        work(9, 305 * MS, ROWS[2], done=False),
        work(11, 345 * MS, ROWS[2]),
        work(11, 350 * MS, ROWS[3]),
    ]
    history.moves = [
        move(3, 20 * MS, 2),
        move(3, 320 * MS, 2, 1, stale=True),
        move(9, 330 * MS, 2, ends=True),
        move(11, 360 * MS, 3, 1),
    ]
    return history


def sought() -> History:
    """The last turn ends by a seek to the beginning, and another does all anew."""
    history = in_turn()
    history.sought = [SeekAll("crew", (), 370 * MS, 371 * MS, done=True)]
    history.turns.append(turn(15, 380 * MS, "y", 1))
    history.works += [work(15, 385 * MS, *ROWS[:2]), work(15, 386 * MS, ROWS[2]),
                      work(15, 387 * MS, ROWS[3])]  # fmt: skip
    history.moves.append(move(15, 390 * MS, 3, 1))
    return history


def begins_where_it_was_before(history: History) -> None:
    history.turns[1].offsets = ()


def begins_where_nobody_was(history: History) -> None:
    history.turns[1].offsets = 3, 0


def falls_and_nothing_was_confirmed(history: History) -> None:
    history.moves[0].confirmed = -1
    history.turns[2].offsets = ()


def a_late_move_counts(history: History) -> None:
    history.moves[1].confirmed = 321 * MS


def a_move_counts_that_was_given_back(history: History) -> None:
    history.moves.append(move(9, 335 * MS, 2))


def done_in_another_order(history: History) -> None:
    one, other = history.works[-2:]
    one.rows, other.rows = other.rows, one.rows


def nobody_did_it(history: History) -> None:
    history.works[-1].done = False


def two_have_one_turn(history: History) -> None:
    for one in (history.turns[1], history.works[2], history.moves[2]):
        one.fence = 3


def given_while_another_lasts(history: History) -> None:
    history.turns[1].arrived = 119 * MS


def not_counted(history: History) -> None:
    history.turns[2].attempts = 1


def works_on_in_a_turn_that_was_over(history: History) -> None:
    history.works.append(work(3, 322 * MS, ROWS[2], done=False))


def a_move_of_before_a_seek_counts(history: History) -> None:
    history.moves.append(move(11, 375 * MS, 3, 1))


def goes_on_as_if_nobody_had_sought(history: History) -> None:
    history.sought[0].offsets = 2, 1
    history.turns[3].offsets = (2,)


Make = Callable[[], History]
Plant = Callable[[History], None]
PLANTED: list[tuple[str, Make, Plant]] = [
    ("OneCursor", in_turn, begins_where_it_was_before),
    ("OneCursor", in_turn, begins_where_nobody_was),
    ("OneCursor", in_turn, falls_and_nothing_was_confirmed),
    ("OneCursor", in_turn, a_late_move_counts),
    ("OneCursor", in_turn, a_move_counts_that_was_given_back),
    ("OneCursor", in_turn, done_in_another_order),
    ("OneCursor", in_turn, nobody_did_it),
    ("OneTurn", in_turn, two_have_one_turn),
    ("OneTurn", in_turn, given_while_another_lasts),
    ("OneTurn", in_turn, not_counted),
    ("OneTurn", in_turn, works_on_in_a_turn_that_was_over),
    ("OneCursor", sought, a_move_of_before_a_seek_counts),
    ("OneCursor", sought, goes_on_as_if_nobody_had_sought),
    ("OneCursor", sought, nobody_did_it),
]


@pytest.mark.parametrize("make", [in_turn, sought])
def test_turns_break_no_promise(make: Make) -> None:
    assert not violations(make())


@pytest.mark.parametrize(
    ("promise", "make", "plant"), PLANTED, ids=[f"{p[2].__name__}-{p[1].__name__}" for p in PLANTED]
)
def test_what_breaks_turns_is_found(promise: str, make: Make, plant: Plant) -> None:
    history = make()
    plant(history)
    assert promise in violations(history)


def test_every_checker_of_turns_has_a_planted_violation() -> None:
    assert {checker.name for checker in OURS} == {promise for promise, _, _ in PLANTED}


def its_connection_broke(history: History) -> None:
    history.turns[0].gone = 118 * MS


def it_was_given_back(history: History) -> None:
    history.moves.insert(1, move(3, 118 * MS, 2, ends=True))


def a_clock_was_wrong(history: History) -> None:
    history.skewed = True


def nobody_knows_how_long_it_lasts(history: History) -> None:
    history.turns[0].lease_ms = 0


@pytest.mark.parametrize(
    "excuse",
    [its_connection_broke, it_was_given_back, a_clock_was_wrong, nobody_knows_how_long_it_lasts],
)
def test_what_ends_a_turn_breaks_no_promise(excuse: Plant) -> None:
    history = in_turn()
    given_while_another_lasts(history)
    excuse(history)
    assert "OneTurn" not in violations(history)


def test_what_was_given_back_untried_does_not_count() -> None:
    history = in_turn()
    not_counted(history)
    history.moves[2].untried = True
    assert "OneTurn" not in violations(history)
