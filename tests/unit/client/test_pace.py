"""How many messages a consumer asks for: about a second of its work."""

from __future__ import annotations

from weir.client.pace import Pace


def test_slow_work_is_asked_for_one_by_one() -> None:
    pace = Pace(1_000, 30.0)
    assert (pace.size, pace.ahead) == (1, False)
    for _ in range(3):
        pace.took(1, 1.0, 1)
        assert (pace.size, pace.ahead) == (1, False)


def test_quick_work_grows_up_to_what_the_user_bounds() -> None:
    pace = Pace(100, 30.0)
    sizes = []
    for _ in range(5):
        pace.took(pace.size, pace.size * 0.000_01, 1)
        sizes.append(pace.size)
    assert sizes == [4, 16, 64, 100, 100]
    assert pace.ahead


def test_work_that_gets_slow_is_noticed_at_once() -> None:
    pace = Pace(1_000, 30.0)
    for _ in range(6):
        pace.took(pace.size, 0.001, 1)
    assert pace.size == 1_000
    pace.took(30, 30.0, 1)
    assert pace.size == 1


def test_a_grant_is_a_part_of_a_short_lease_and_of_many_partitions() -> None:
    for lease, partitions, size in ((30.0, 1, 100), (0.8, 1, 10), (30.0, 10, 10), (30.0, 500, 1)):
        pace = Pace(1_000, lease)
        for _ in range(6):
            pace.took(100, 1.0, partitions)
        assert pace.size == size, (lease, partitions)


def test_nothing_handed_out_says_nothing() -> None:
    pace = Pace(1_000, 30.0)
    pace.took(0, 60.0, 1)
    assert pace.size == 1
