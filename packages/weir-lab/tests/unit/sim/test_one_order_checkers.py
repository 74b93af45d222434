"""The checkers of the one order: silent about an honest history, and each finds what is planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir_lab.sim.checkers.judge import CHECKERS, violations
from weir_lab.sim.checkers.one_order import OneOrder
from weir_lab.sim.history import Confirmed, History, Publish, Reading, Record, Scattering, Seen
from weir_lab.sim.observations import Row

P = ("producer", 7, 0)


def record(offset: int, stamp: int, sequence: int, *values: bytes) -> Record:
    rows = tuple((P, sequence + i) for i in range(len(values)))
    return Record(offset, values, stamp, rows)


def in_order() -> History:
    """Two partitions, two readers in total order, and what they were told of barriers."""
    history = History()
    history.publishes = [
        Publish(0, P, 0, (b"a", b"b"), 10, confirms=[Confirmed(20, 0, 5)]),
        Publish(0, P, 2, (b"c",), 30, confirms=[Confirmed(40, 2, 6)]),
    ]
    history.drained = {0: [record(0, 5, 0, b"a", b"b"), record(2, 6, 2, b"c")]}
    history.publishes.append(Publish(1, P, 0, (b"y",), 45, after=6))
    history.publishes[-1].confirms.append(Confirmed(55, 0, 7))
    history.publishes[-1].visible = True
    history.publishes.append(Publish(0, P, 3, (b"z",), 56))
    history.drained[0].append(record(3, 8, 3, b"z"))
    history.drained[1] = [record(0, 7, 0, b"y")]
    history.barriers = {(0, 2): 5, (0, 3): 7, (1, 0): 6, (1, 1): 9}
    history.complete = {frozenset({0}): 6, frozenset({0, 1}): 8}
    rows = [Row(5, 0, 0, b"a"), Row(5, 0, 1, b"b"), Row(6, 0, 2, b"c"), Row(7, 1, 0, b"y")]
    history.readings = [
        Reading("live", {0: 0}, [*rows, Row(8, 0, 3, b"z")]),
        Reading("replayed", {0: 1, 1: 0}, rows[1:]),
        Reading("latest", {}, rows[2:], after=5),
    ]
    history.scatterings = [Scattering(((0, b"no"), (1, b"ne")))]
    return history


def stamped_below_a_barrier(history: History) -> None:
    history.barriers[0, 3] = 8


def joined_below_a_barrier(history: History) -> None:
    history.complete[frozenset({0})] = 7


def complete_through_what_is_gone(history: History) -> None:
    history.barriers[0, 5] = 8


def sent_after_it_was_visible(history: History) -> None:
    history.publishes[-2].confirms[0] = Confirmed(55, 0, 8)


def missed_behind_a_cut(history: History) -> None:
    del history.readings[2].rows[0]


def given_in_another_order(history: History) -> None:
    rows = history.readings[1].rows
    rows[1], rows[2] = rows[2], rows[1]


def left_out_by_a_reader(history: History) -> None:
    del history.readings[0].rows[3]


def given_twice(history: History) -> None:
    history.readings[1].rows.append(history.readings[1].rows[-1])


def stamped_below_what_was_seen(history: History) -> None:
    history.publishes[-2].after = 7


def scattered() -> History:
    """A scattering of two parts, at one stamp."""
    history = in_order()
    history.scatterings = [Scattering(((0, b"z"), (1, b"y")), stamp=8)]
    history.publishes[-1].sent = 40
    history.drained[1] = [record(0, 8, 0, b"y")]
    for reading in history.readings:
        reading.rows[-2:] = []
    history.publishes[-2].confirms[0] = Confirmed(55, 0, 8)
    return history


def half_of_it(history: History) -> None:
    history.drained[1].clear()


def at_two_stamps(history: History) -> None:
    history.drained[1] = [record(0, 7, 0, b"y")]


def confirmed_at_another_stamp(history: History) -> None:
    history.scatterings[0].stamp = 9


Make = Callable[[], History]
Plant = Callable[[History], None]
PLANTED: list[tuple[str, Make, Plant]] = [
    ("BarrierHolds", in_order, stamped_below_a_barrier),
    ("BarrierHolds", in_order, joined_below_a_barrier),
    ("BarrierHolds", in_order, complete_through_what_is_gone),
    ("BarrierHolds", in_order, sent_after_it_was_visible),
    ("OneOrder", in_order, given_in_another_order),
    ("OneOrder", in_order, missed_behind_a_cut),
    ("OneOrder", in_order, left_out_by_a_reader),
    ("OneOrder", in_order, given_twice),
    ("Causal", in_order, stamped_below_what_was_seen),
    ("AllOrNone", scattered, half_of_it),
    ("AllOrNone", scattered, at_two_stamps),
    ("AllOrNone", scattered, confirmed_at_another_stamp),
]


@pytest.mark.parametrize("make", [in_order, scattered])
def test_one_order_breaks_no_promise(make: Make) -> None:
    assert violations(make()) == []


@pytest.mark.parametrize(
    ("promise", "make", "plant"), PLANTED, ids=[p[2].__name__ for p in PLANTED]
)
def test_what_breaks_the_one_order_is_found(promise: str, make: Make, plant: Plant) -> None:
    history = make()
    plant(history)
    assert promise in {name for name, _ in violations(history)}


def test_every_checker_of_the_one_order_has_a_planted_violation() -> None:
    ours = {checker.name for checker in CHECKERS if type(checker).__module__ == OneOrder.__module__}
    assert ours == {promise for promise, _, _ in PLANTED}


def test_what_is_past_retention_was_ordered_as_it_was_seen() -> None:
    history = in_order()
    history.starts = {0: 2}
    del history.drained[0][0]
    assert [*OneOrder().check(history)], "nobody saw a and b"
    history.seen = [Seen(0, 0, (b"a", b"b"), 5)]
    assert not [*OneOrder().check(history)]
