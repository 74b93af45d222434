"""What is counted of the company, and what cannot be run."""

from __future__ import annotations

from typing import Any

import pytest

from weir_lab.company.nodes import CompanyFailed
from weir_lab.company.office import Confirm, Reply, Row, Value, packed
from weir_lab.company.run import Settings, Times, Topic, times

TAGS = "tianjin", "hangzhou", "all", "tianjin"


def value(number: int) -> str:
    return packed(Value(TAGS[number], "beijing-office", number, 10 + number), 0).decode()


def topic() -> Topic:
    """A topic of four messages, two readers, and nothing wrong."""
    found = Topic()
    confirms = [Confirm(value(at), 10 + at, 20 + at) for at in range(4)]
    found.confirmed({"beijing-office": Reply(confirms[:2]), "other": Reply(confirms[2:])})
    found.truth = [(0, at, 5 + at, value(at).encode()) for at in range(4)]
    rows = [Row(0, at, 5 + at, value(at), 30 + at) for at in range(4)]
    found.given = {"tianjin": {"a": [rows[0], rows[2], rows[3]]}, "hangzhou": {"b": rows[1:3]}}
    return found


def wrong(found: Topic) -> list[tuple[int, int, int, int]]:
    readings, _ = found.judged()
    return [(one.lost, one.repeated, one.out_of_order, one.differing) for one in readings]


def test_readers_of_a_city_want_what_is_for_it_and_for_everybody() -> None:
    found = topic()
    assert (found.wanted("tianjin"), found.wanted("hangzhou"), found.wanted("shenzhen")) == (
        3,
        2,
        1,
    )
    assert wrong(found) == [(0, 0, 0, 0)] * 3
    readings, examples = found.judged()
    assert [one.reader for one in readings] == ["core", "tianjin at a", "hangzhou at b"]
    assert examples == []


def test_each_kind_of_wrong_is_counted_where_it_is() -> None:
    found = topic()
    rows = found.given["tianjin"]["a"]
    found.given["tianjin"]["a"] = [rows[1], rows[0], rows[0]]
    del found.truth[1]
    assert wrong(found) == [(1, 0, 0, 0), (1, 1, 1, 0), (0, 0, 0, 1)]


def test_times_are_a_median_a_percentile_and_the_worst() -> None:
    assert times([float(at) for at in range(200, 0, -1)]) == Times(200, 101, 199, 200)
    with pytest.raises(CompanyFailed, match="nothing was measured"):
        times([])


@pytest.mark.parametrize(
    "wrong",
    [{"brokers": 0}, {"readers": 0}, {"size": 10}, {"rate": 1}, {"seconds": 0}, {"down_s": 0},
     {"cuts": ("atlantis",)}],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(wrong: dict[str, Any]) -> None:
    Settings().check()
    with pytest.raises(ValueError, match=r"=|must be|takes|no data centre 'atlantis'"):
        Settings(**wrong).check()
