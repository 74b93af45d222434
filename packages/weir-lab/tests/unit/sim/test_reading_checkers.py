"""What the checkers of queries and of commands find, in histories written by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir_lab.sim.checkers.applications import HandedOver, WorkDone
from weir_lab.sim.checkers.queries import Streamed
from weir_lab.sim.history import Confirmed, History, Publish, Record
from weir_lab.sim.observations import Errands, Gap, MicroBatch, Printed, Query, Row, Taken

ROWS = [Row(10 + offset, 0, offset, b"%d" % offset) for offset in range(4)]


def read() -> tuple[History, Query]:
    """Two micro-batches of two rows each, at barriers, of which the first was run twice."""
    history = History()
    history.drained[0] = [Record(row.offset, (row.value,), row.stamp, ()) for row in ROWS]
    for row in ROWS:
        publish = Publish(0, (), row.offset, (row.value,), 0)
        publish.confirms.append(Confirmed(1, row.offset, row.stamp))
        history.publishes.append(publish)
    first = MicroBatch({0: 2}, 11, [ROWS[:2], ROWS[:2]], committed=True)
    second = MicroBatch({0: 4}, 13, [ROWS[2:]], committed=True)
    query = Query("q", {0: 0}, True, [first, second], cut=5)
    history.queries.append(query)
    return history, query


def a_replay_differs(history: History, query: Query) -> None:
    query.batches[0].runs[1] = ROWS[:1]


def a_row_comes_twice(history: History, query: Query) -> None:
    query.batches[1].runs[0] = ROWS[1:]


def a_row_is_left_out(history: History, query: Query) -> None:
    query.batches[1].runs[0] = ROWS[3:]


def a_query_begins_late(history: History, query: Query) -> None:
    query.begin = {0: 1}
    query.batches[0].runs = [ROWS[1:2]]


def a_query_ends_early(history: History, query: Query) -> None:
    query.batches.pop()


def a_cut_leaves_out(history: History, query: Query) -> None:
    query.batches[0].stamp = 12


def a_gap_is_where_messages_are(history: History, query: Query) -> None:
    query.batches[1].gaps = [[Gap(0, 2, 3)]]
    query.batches[1].runs[0] = ROWS[3:]


def a_replay_leaves_out_what_is_not_gone(history: History, query: Query) -> None:
    history.starts[0] = 1
    query.batches[0].gaps = [[], [Gap(0, 0, 1)]]
    query.batches[0].runs[1] = []


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (a_gap_is_where_messages_are, "told of Gap(partition=0, first=2, behind=3), and what is"),
        (a_replay_leaves_out_what_is_not_gone, "micro-batch 0 had 2 rows"),
        (a_replay_differs, "micro-batch 0 had 2 rows from (0, 0) to (0, 1), then 1 rows"),
        (a_row_comes_twice, "is row 2 of partition 0, where"),
        (a_row_is_left_out, "is row 2 of partition 0, where"),
        (a_query_begins_late, "it was to begin at the earliest message, and began 0 at 1"),
        (a_query_ends_early, "left out 2 of 0"),
        (a_cut_leaves_out, "micro-batch 0 is cut at 12, without 2 of 0"),
    ],
)
def test_queries_are_judged(plant: Callable[[History, Query], None], words: str) -> None:
    history, query = read()
    assert not list(Streamed().check(history))
    plant(history, query)
    assert words in "\n".join(Streamed().check(history))


def test_a_query_may_go_on_over_what_retention_took() -> None:
    history, query = read()
    first, second = query.batches
    history.starts[0] = 3
    first.runs, first.gaps = [ROWS[:2], ROWS[:1]], [[], [Gap(0, 1, 2)]]
    second.runs, second.gaps = [ROWS[3:]], [[Gap(0, 2, 3)]]
    assert not list(Streamed().check(history))
    second.gaps = [[]]
    assert "is row 2 of partition 0, where" in "".join(Streamed().check(history))


def taken() -> tuple[History, Printed]:
    history, _ = read()
    first = Taken("a", 2, [(0, 0), (0, 1)], [10, 20], ended_at=25, calm=True)
    last = Taken("b", 0, [(0, 2), (0, 3)], [30, 40])
    history.printed = Printed([first, last], drained=True)
    return history, history.printed


def test_what_is_taken_is_judged() -> None:
    history, printed = taken()
    assert not list(HandedOver().check(history))
    printed.runs[1].places = [(0, 1), (0, 2)]
    found = list(HandedOver().check(history))
    assert found == [
        "a ended well with (0, 1), and b printed it again",
        "nobody printed 3 of partition 0",
    ]
    history, printed = taken()
    printed.runs[0].count = 1
    assert "a was to print 1, and printed 2" in list(HandedOver().check(history))
    printed.runs[0].count = 3
    assert "a ended well with 2 of 3" in list(HandedOver().check(history))


def test_what_was_printed_before_another_run_ended_is_not_printed_again() -> None:
    history, printed = taken()
    # It began later, and was told to end before it had acked: the first run took that message.
    began_later = Taken("c", 0, [(0, 1)], [15])
    printed.runs.append(began_later)
    assert not list(HandedOver().check(history))
    began_later.times = [26]
    assert list(HandedOver().check(history)) == ["a ended well with (0, 1), and c printed it again"]


def test_a_run_that_began_earlier_prints_nothing_again_either() -> None:
    history, printed = taken()
    printed.runs.insert(0, Taken("c", 0, [(0, 0)], [26]))
    assert list(HandedOver().check(history)) == ["a ended well with (0, 0), and c printed it again"]
    printed.runs[0].times = [24]
    assert not list(HandedOver().check(history))


def test_errands_are_judged() -> None:
    errands = Errands({b"a", b"b"}, {b"a"}, drained=True)
    errands.done[b"a"] = 2
    assert not list(WorkDone().check(History(errands=errands)))
    errands.done[b"c"] = 1
    del errands.done[b"a"]
    assert list(WorkDone().check(History(errands=errands))) == [
        "b'c' was done, and sent by nobody",
        "b'a' was confirmed, and is not done",
    ]
