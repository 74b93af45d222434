"""Failures make others wait, longer each time and in one line; a minute later all is forgotten."""

from __future__ import annotations

import pytest

from weir.access.failures import (
    FORGET_SECONDS,
    FREE_FAILURES,
    LINE_SECONDS_MAX,
    ROWS_MAX,
    WAIT_SECONDS,
    WAIT_SECONDS_MAX,
    Failures,
    origin_of,
)


def failed(times: int, key: str = "a", now: float = 0.0) -> Failures:
    failures = Failures()
    for _ in range(times):
        failures.failed(key, now)
    return failures


def test_the_first_failures_slow_nobody() -> None:
    assert Failures().seconds("a", 0.0) == 0.0
    assert failed(FREE_FAILURES).seconds("a", 0.0) == 0.0
    assert failed(FREE_FAILURES + 1).seconds("a", 0.0) == WAIT_SECONDS


def test_each_failure_doubles_the_wait_up_to_a_limit() -> None:
    waits = [failed(FREE_FAILURES + more).seconds("a", 0.0) for more in range(1, 40)]
    assert waits[:3] == [WAIT_SECONDS, 2 * WAIT_SECONDS, 4 * WAIT_SECONDS]
    assert waits[-1] == WAIT_SECONDS_MAX
    assert waits == sorted(waits)


def test_attempts_that_come_together_stand_in_one_line() -> None:
    failures = failed(100)
    told = [failures.seconds("a", 0.0) for _ in range(8)]
    assert told == [2.0, 4.0, 6.0, 8.0, LINE_SECONDS_MAX, None, None, None]
    assert failures.seconds("a", 2.0) == LINE_SECONDS_MAX, "the first one went on"
    assert failures.seconds("b", 0.0) == 0.0, "others wait for nobody"


def test_who_did_not_fail_stands_in_a_line_of_its_own_and_waits_for_no_other() -> None:
    failures = failed(100)
    assert [failures.seconds("a", 0.0, 2.0) for _ in range(6)][-1] is None
    assert [failures.seconds("b", 0.0, 2.0) for _ in range(6)] == [2.0, 4.0, 6.0, 8.0, 10.0, None]
    assert failures.seconds("c", 0.0, 2.0) == 2.0
    assert failures.seconds("c", 0.0) == 0.0, "and it did not fail"
    assert failures.seconds("", 0.0, 2.0) == failures.seconds("", 0.0, 2.0) == 2.0


def test_a_minute_without_failures_forgets_them() -> None:
    failures = failed(100, now=5.0)
    assert failures.seconds("a", 5.0 + FORGET_SECONDS) == WAIT_SECONDS_MAX
    later = 5.0 + 3 * FORGET_SECONDS
    assert failures.seconds("a", later) == 0.0
    assert len(failures) == 0
    failures.failed("a", later)
    assert failures.seconds("a", later) == 0.0, "it begins anew"


def test_so_many_are_remembered_and_the_newest_stay() -> None:
    failures = failed(FREE_FAILURES + 1)
    for number in range(ROWS_MAX - 1):
        failures.failed(f"n{number}", 1.0)
    failures.failed("a", 1.0)  # it failed again, so another one is the oldest
    failures.failed("new", 1.0)
    assert len(failures) == ROWS_MAX
    assert failures.seconds("a", 1.0) != 0.0
    assert failures.all == FREE_FAILURES + 1 + ROWS_MAX - 1 + 2


def test_nobody_has_no_failures() -> None:
    failures = failed(100, key="")
    assert (len(failures), failures.all) == (0, 100)
    assert failures.seconds("", 0.0) == 0.0


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"), ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::", "2001:db8:1:3::/64"), ("fe80::1%eth0", "fe80::/64"),
        ("", ""), ("no address", ""),
    ],
)  # fmt: skip
def test_whose_failures_an_address_shares(address: str, origin: str) -> None:
    assert origin_of(address) == origin
