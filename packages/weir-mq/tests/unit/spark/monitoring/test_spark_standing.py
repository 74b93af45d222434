"""What Spark reports of queries, added up: positions, rows, bad values, starts and ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weir.model.topic import check_name
from weir.order.clock import stamp_at
from weir.spark.monitoring import standing
from weir.spark.monitoring.standing import Standings, name_of
from weir.spark.planning import Cut

ID = "5f0e7a0c-8f6b-4f1c-9d8d-3f0d0c5f0e7a"


class Row:
    """A row as an observation reports it."""

    def __init__(self, **columns: int | None) -> None:
        self._columns = columns

    def asDict(self) -> dict[str, int | None]:
        return self._columns


def source(end: object, latest: object = None, rows: int = 0) -> dict[str, Any]:
    return {
        "startOffset": None,
        "endOffset": json.dumps(end),
        "latestOffset": "null" if latest is None else json.dumps(latest),
        "numInputRows": rows,
    }


def progress(batch: int, *sources: dict[str, Any], run: str = "r1", **more: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "runId": run,
        "name": "delays",
        "batchId": batch,
        "durationMs": {"triggerExecution": 1_500},
        "observedMetrics": {},
        "stateOperators": [],
        "sources": [*sources],
        **more,
    }


def cut(*positions: int, topic: int = 7, stamp: int = 0) -> dict[str, object]:
    return Cut(topic, dict(enumerate(positions)), stamp=stamp).to_json()


def only(standings: Standings) -> standing.Standing:
    (found,) = standings.all()
    return found


def test_rows_and_batches_add_up_and_positions_are_the_last() -> None:
    standings = Standings()
    standings.start(ID, "delays")
    standings.report(progress(0, source(cut(5, 0), cut(9, 4), 5)), now=100.0)
    standings.report(progress(1, source(cut(8, 1), cut(9, 4), 4)), now=200.0)
    found = only(standings)
    position = found.positions[7]
    assert (found.name, found.batches, found.batch_seconds) == ("spark.delays", 2, 1.5)
    assert found.reported == 200.0
    assert found.rows == 9
    assert position.cut.positions == {0: 8, 1: 1}
    assert position.lag == 1 + 3


def test_a_report_of_the_same_batch_is_no_other_batch_but_one_of_another_run_is() -> None:
    standings = Standings()
    standings.report(progress(3, source(cut(5), rows=5)), now=1.0)
    standings.report(progress(3, source(cut(5), rows=0)), now=2.0)
    assert only(standings).batches == 1
    standings.report(progress(3, source(cut(5), rows=5), run="r2"), now=3.0)
    assert only(standings).batches == 2
    assert only(standings).rows == 10


def test_a_partition_that_the_query_does_not_know_yet_counts_from_its_beginning() -> None:
    standings = Standings()
    standings.report(progress(0, source(cut(5), cut(5, 3))), now=1.0)
    assert only(standings).positions[7].lag == 3


def test_without_a_committed_end_nobody_says_how_far_behind_it_is() -> None:
    standings = Standings()
    standings.report(progress(0, source(cut(5))), now=1.0)
    assert only(standings).positions[7].lag is None
    # The end of a topic that was made again under the old name is another topic's.
    standings.report(progress(1, source(cut(5), cut(9, topic=8))), now=2.0)
    assert only(standings).positions[7].lag is None


def test_the_age_of_a_barrier_is_that_of_its_stamp() -> None:
    standings = Standings()
    standings.report(progress(0, source(cut(5, stamp=stamp_at(60_000)))), now=1.0)
    position = only(standings).positions[7]
    assert position.barrier_age(now_ms=62_500) == 2.5
    assert position.barrier_age(now_ms=59_000) == 0.0
    standings.report(progress(1, source(cut(5))), now=1.0)
    assert only(standings).positions[7].barrier_age(now_ms=62_500) is None


def test_other_sources_are_left_out_and_a_topic_read_twice_is_one() -> None:
    standings = Standings()
    others = [
        source({"rate": 1}), source(12), {"endOffset": None, "latestOffset": None,
                                          "numInputRows": 3},
        {"endOffset": "not JSON", "latestOffset": "", "numInputRows": 3},
    ]  # fmt: skip
    ours = [
        source(cut(5, 2, stamp=40), rows=7),
        source(cut(3, 4, stamp=30), rows=7),
        source(cut(1, topic=9), rows=1),
    ]
    standings.report(progress(0, *others, *ours), now=1.0)
    found = only(standings).positions
    assert found.keys() == {7, 9}
    assert only(standings).rows == 15
    # A query is done with what all of its reads of a topic have passed.
    assert found[7].cut == Cut(7, {0: 3, 1: 2}, stamp=30)


def test_a_query_of_several_topics_has_a_position_in_each() -> None:
    parts = {"a": cut(5, 1, topic=7), "b": cut(3, topic=8), "odd": 4, "odder": {"e": "x"}}
    ends = {"a": cut(9, 1, topic=7), "b": cut(3, topic=8)}
    standings = Standings()
    ours = source({"t": parts, "s": stamp_at(60_000)}, {"t": ends}, rows=9)
    standings.report(progress(0, ours), now=1.0)
    found = only(standings).positions
    assert {topic: position.lag for topic, position in found.items()} == {7: 4, 8: 0}
    assert found[8].barrier_age(now_ms=61_000) == 1.0
    assert only(standings).rows == 9


def test_gaps_are_counted_once_a_batch() -> None:
    begins, lost = {"00000": 20, "00001": 8, "00002": 50}, {"00000": 12, "00001": 7}
    gap = {**cut(30, 9), "b": begins, "g": lost}
    standings = Standings()
    standings.report(progress(4, source(gap, rows=10)), now=1.0)
    standings.report(progress(4, source(gap, rows=0)), now=2.0)
    assert only(standings).lost == 8 + 1
    both = {"t": {"a": gap, "b": cut(5, topic=8)}}
    standings.report(progress(5, source(both)), now=3.0)
    assert only(standings).lost == 18
    assert only(standings).times_out_of_range is None
    # The rows know also what went after the micro-batch was planned.
    observed = {"weir_lost": Row(lost=11, gaps=3, times_out_of_range=2)}
    standings.report(progress(6, source(gap), observedMetrics=observed), now=4.0)
    assert (only(standings).lost, only(standings).times_out_of_range) == (29, 2)
    # A query without the column lost counts times alone.
    observed = {"weir_lost": Row(times_out_of_range=1)}
    standings.report(progress(7, source(gap), observedMetrics=observed), now=5.0)
    assert (only(standings).lost, only(standings).times_out_of_range) == (38, 3)


def test_bad_values_are_counted_where_the_query_counts_them() -> None:
    standings = Standings()
    standings.report(progress(0), now=1.0)
    assert only(standings).bad is None
    for number, counted in enumerate([Row(bad=2), Row(bad=None), Row(bad=3)], 1):
        observed = {"weir": counted, "other": Row(bad=100)}
        standings.report(progress(number, observedMetrics=observed), now=1.0)
    assert only(standings).bad == 5


def test_a_query_that_ends_and_starts_again_goes_on() -> None:
    standings = Standings()
    standings.start(ID, "delays")
    standings.report(progress(0, source(cut(5), rows=5)), now=1.0)
    standings.end(ID, failed=True)
    assert (only(standings).running, only(standings).failures) == (False, 1)
    standings.start(ID, "delays")
    standings.end(ID, failed=False)
    standings.start(ID, "delays")
    found = only(standings)
    assert (found.running, found.failures, found.rows) == (True, 1, 5)
    standings.end("of another session", failed=True)
    assert len(standings.all()) == 1


def test_of_many_queries_those_that_ended_are_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(standing, "QUERIES_MAX", 3)
    standings = Standings()
    for number in range(3):
        standings.start(f"q{number}", None)
    standings.end("q1", failed=False)
    standings.start("q3", None)
    assert [one.id for one in standings.all()] == ["q0", "q2", "q3"]
    standings.start("q4", None)
    assert [one.id for one in standings.all()] == ["q2", "q3", "q4"]
    standings.end("q4", failed=False)
    standings.end("q2", failed=False)
    standings.start("q5", None)  # of two that ended, the one that did so first is forgotten
    assert [one.id for one in standings.all()] == ["q3", "q2", "q5"]


def test_no_two_queries_have_one_name() -> None:
    standings = Standings()
    standings.start("11111111-a", "a/b")
    standings.start("22222222-a", "a b")
    assert [one.name for one in standings.all()] == ["spark.a-b", "spark.22222222-a-b"]
    # A query with a new checkpoint takes the place of the one before.
    standings.end("11111111-a", failed=False)
    standings.start("33333333-a", "a/b")
    assert [one.id for one in standings.all()] == ["22222222-a", "33333333-a"]
    assert [one.name for one in standings.all()] == ["spark.22222222-a-b", "spark.a-b"]


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("delays", "spark.delays"),
        (None, "spark.5f0e7a0c"),
        ("", "spark.5f0e7a0c"),
        ("späte Flüge/2", "spark.sp-te-Fl-ge-2"),
        ("x" * 300, "spark." + "x" * 122),
    ],
)
def test_names_are_such_that_the_broker_takes_them(name: str | None, called: str) -> None:
    assert name_of(ID, name) == called
    assert check_name(called, "cluster") == called


def test_late_rows_are_those_of_lakes_and_of_sparks_state() -> None:
    def lake(begin: object, end: object) -> dict[str, Any]:
        return {**source(end), "startOffset": None if begin is None else json.dumps(begin)}

    standings = Standings()
    standings.report(progress(0, lake(None, {"n": 3, "s": 5})), now=1.0)
    assert only(standings).late is None
    first = lake(None, {"n": 3, "s": 5, "w": 7, "l": 2}), lake(None, {"n": 3, "s": 5, "l": 1})
    standings.report(progress(1, *first), now=1.0)
    standings.report(progress(1, *first), now=2.0)
    assert only(standings).late == 3
    again = lake({"n": 3, "s": 5, "w": 7, "l": 2}, {"n": 9, "s": 8, "w": 9, "l": 6})
    state = [{"numRowsDroppedByWatermark": 4}]
    standings.report(progress(2, again, stateOperators=state), now=3.0)
    assert only(standings).late == 3 + 4 + 4
