"""How much a micro-batch takes, and when there is one."""

from __future__ import annotations

import pytest

from weir.spark.admission import Admission, Gathering


@pytest.mark.parametrize(
    ("admission", "rows", "size", "most"),
    [
        (Admission(), 1_000, 1e12, None),
        (Admission(rows_max=10), 1_000, 0.0, 10),
        (Admission(bytes_max=500), 10, 500.0, None),
        (Admission(bytes_max=500), 10, 1_000.0, 5),
        (Admission(bytes_max=500), 10, 1e9, 1),
        (Admission(rows_max=3, bytes_max=500), 10, 1_000.0, 3),
        (Admission(rows_max=8, bytes_max=500), 10, 1_000.0, 5),
        (Admission(rows_max=8, bytes_max=500), 10, 400.0, 8),
    ],
)
def test_the_lower_limit_holds_and_one_message_always_comes(
    admission: Admission, rows: int, size: float, most: int | None
) -> None:
    assert admission.limit(rows, size) == most


def test_few_messages_wait_until_they_are_many_or_old() -> None:
    few, gathering = Admission(rows_min=100, delay=30.0), Gathering()
    assert gathering.admits(few, 1, 1_000.0), "after a start nothing waits"
    assert not gathering.admits(few, 99, 1_001.0)
    assert not gathering.admits(few, 99, 1_030.9)
    assert gathering.admits(few, 99, 1_031.0), "30 s after it was seen"
    assert not gathering.admits(few, 5, 1_040.0), "its time begins anew"
    assert gathering.admits(few, 100, 1_041.0)
    assert not gathering.admits(few, 1, 1_080.0)


def test_without_a_least_number_nothing_waits() -> None:
    gathering = Gathering()
    assert all(gathering.admits(Admission(rows_max=5), 1, float(now)) for now in range(3))
