"""The circuit breaker: opens when most messages fail, tries one, and forgives meanwhile."""

from __future__ import annotations

import pytest

from weir.app.core.breaker import Breaker, State
from weir.client.core.retries import Backoff

PAUSES = Backoff(first=1, most=4, factor=2, jitter=0)


def breaker(window: int = 20) -> Breaker:
    return Breaker(window, PAUSES)


def outcomes(one: Breaker, *, good: int = 0, bad: int = 0, now: float = 0.0) -> None:
    for _ in range(good):
        ticket = one.begin(now)
        assert ticket is not None
        one.succeeded(ticket)
    for _ in range(bad):
        ticket = one.begin(now)
        assert ticket is not None
        one.failed(ticket, now, "OSError: no database")


def test_it_opens_when_most_of_the_last_messages_failed() -> None:
    one = breaker()
    outcomes(one, good=10, bad=10)
    assert one.state is State.CLOSED  # half of them is not most of them
    outcomes(one, bad=1)
    assert one.state is State.OPEN
    assert "11 of the last 20 messages failed" in one.why
    assert "OSError: no database" in one.why


def test_a_few_messages_prove_nothing() -> None:
    one = breaker()
    outcomes(one, bad=9)
    assert one.state is State.CLOSED
    outcomes(one, bad=1)
    assert one.state is State.OPEN


def test_a_small_window_is_judged_when_it_is_full() -> None:
    one = breaker(window=3)
    outcomes(one, bad=2)
    assert one.state is State.CLOSED
    outcomes(one, bad=1)
    assert one.state is State.OPEN


def test_while_it_is_open_none_begins_then_one_is_tried() -> None:
    one = breaker()
    outcomes(one, bad=10, now=100.0)
    assert one.wait(100.0) == pytest.approx(1.0)
    assert one.begin(100.9) is None
    assert one.wait(101.0) == 0.0
    ticket = one.begin(101.0)
    assert ticket is not None
    assert one.state is State.TRYING
    assert one.begin(101.0) is None
    assert one.wait(101.0) is None  # until it is known what became of the one
    assert one.succeeded(ticket)
    assert one.state is State.CLOSED
    assert one.begin(101.0) is not None


def test_each_failed_try_makes_the_pause_longer_up_to_the_most() -> None:
    one, now, pauses = breaker(), 0.0, []
    outcomes(one, bad=10)
    for _ in range(4):
        wait = one.wait(now)
        assert wait is not None
        pauses.append(wait)
        now += wait
        ticket = one.begin(now)
        assert ticket is not None
        assert one.failed(ticket, now, "OSError")
    assert pauses == [1, 2, 4, 4]
    wait = one.wait(now)
    assert wait is not None
    ticket = one.begin(now + wait)
    assert ticket is not None
    one.succeeded(ticket)
    outcomes(one, bad=10, now=now)
    assert one.wait(now) == 1  # it begins anew


def test_messages_that_began_before_say_nothing_about_what_is_now() -> None:
    one = breaker()
    old = [one.begin(0.0) for _ in range(5)]
    outcomes(one, bad=10)
    assert not one.succeeded(old[0] or 0)
    assert one.state is State.OPEN
    tried = one.begin(1.0)
    assert tried is not None
    assert not one.failed(old[1] or 0, 1.0, "OSError")
    assert not one.succeeded(old[2] or 0)
    assert one.state is State.TRYING
    assert one.succeeded(tried)
    for late in (old[3], old[4]):
        one.failed(late or 0, 1.0, "OSError")
    outcomes(one, bad=9)
    assert one.state is State.CLOSED  # nine, the late ones not counted


def test_a_ticket_that_is_given_back_leaves_the_try_to_another() -> None:
    one = breaker()
    outcomes(one, bad=10)
    ticket = one.begin(1.0)
    assert ticket is not None
    one.give_up(ticket)
    assert one.begin(1.0) == ticket


def test_it_forgives_until_what_failed_meanwhile_has_come_again() -> None:
    one = breaker()
    assert not one.forgives(0.0)
    outcomes(one, bad=10)
    assert one.forgives(1_000.0)
    one.forgive_until(60.0)
    ticket = one.begin(1.0)
    assert ticket is not None
    one.succeeded(ticket)
    assert one.forgives(59.9)
    assert not one.forgives(60.0)
