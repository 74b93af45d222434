"""The checkers of order and delay: each finds what breaks its promise, and nothing else."""

from __future__ import annotations

import pytest

from weir.model.topic import Mode
from weir.order.clock import stamp_at
from weir.testing.simulator.world import EPOCH_MS, MS
from weir_lab.sim.checkers.order import KeyOrder, NotBeforeDue, OrderedOnce
from weir_lab.sim.history import Ack, Grant, History, Return, Seen

PLACE = (1, "c")


def history(mode: Mode) -> History:
    """Four messages; those of even offsets have key a, the others b."""
    found = History()
    values = (b"0", b"1", b"2", b"3")
    found.modes[PLACE] = mode
    found.seen.append(Seen(1, 0, values, 7))
    found.keys = {value: b"ab"[n % 2 : n % 2 + 1] for n, value in enumerate(values)}
    return found


def grant(
    fence: int, first: int, behind: int, arrived: int, holder: str = "x", stamp: int = 0
) -> Grant:
    return Grant(*PLACE, fence, first, behind, 1, arrived - 1, arrived, stamp=stamp, holder=holder)


def ack(fence: int, first: int, behind: int, sent: int, confirmed: int = -1) -> Ack:
    return Ack(*PLACE, fence, first, behind, sent, confirmed)


def test_a_key_goes_on_when_what_was_before_it_is_acked() -> None:
    found = history(Mode.KEYED)
    found.grants = [grant(1, 0, 1, 10), grant(2, 1, 2, 11), grant(3, 2, 3, 20), grant(3, 3, 4, 20)]
    found.acks = [ack(1, 0, 1, 15), ack(2, 1, 2, 16)]
    assert not [*KeyOrder().check(found)]
    found.acks.pop()
    assert len([*KeyOrder().check(found)]) == 1, "1 is not done, and 3 is of its key"
    found.starts[1] = 2
    assert not [*KeyOrder().check(found)], "1 is past retention"


def test_one_grant_may_hold_several_of_a_key() -> None:
    found = history(Mode.KEYED)
    found.grants = [grant(1, 0, 1, 10), grant(1, 2, 3, 10)]
    assert not [*KeyOrder().check(found)]
    found.modes[PLACE] = Mode.SHARED
    found.grants = [grant(2, 2, 3, 10)]
    assert not [*KeyOrder().check(found)], "nothing is promised there"


def test_who_is_active_may_hold_what_is_not_done_and_nobody_else_goes_past_it() -> None:
    found = history(Mode.ORDERED)
    found.grants = [grant(1, 0, 2, 10), grant(2, 2, 4, 11)]
    assert not [*OrderedOnce().check(found)]
    found.grants[1].holder = "y"
    assert [*OrderedOnce().check(found)]
    found.acks = [ack(1, 0, 2, 11)]
    assert not [*OrderedOnce().check(found)]


@pytest.mark.parametrize("confirmed", [-1, 13])
def test_a_late_ack_behind_what_is_not_done_must_be_refused(confirmed: int) -> None:
    found = history(Mode.ORDERED)
    found.grants = [grant(1, 0, 2, 10), grant(2, 2, 4, 11)]
    found.acks = [ack(2, 2, 4, 12, confirmed)]
    assert bool([*OrderedOnce().check(found)]) == (confirmed >= 0)


def test_the_stamp_of_a_grant_lies_at_or_behind_the_time_that_is_due() -> None:
    found = history(Mode.SHARED)
    found.dues = {b"2": 500}
    found.grants = [grant(1, 0, 4, 10, stamp=stamp_at(500))]
    assert not [*NotBeforeDue().check(found)]
    found.grants = [grant(1, 0, 4, 10, stamp=stamp_at(499))]
    assert len([*NotBeforeDue().check(found)]) == 1


@pytest.mark.parametrize(("arrived_ms", "skewed"), [(499, False), (499, True), (500, False)])
def test_a_grant_comes_at_or_behind_the_time_that_is_due(arrived_ms: int, skewed: bool) -> None:
    found = history(Mode.SHARED)
    found.skewed = skewed
    found.dues = {b"2": EPOCH_MS + 500}
    found.grants = [grant(1, 0, 4, arrived_ms * MS, stamp=stamp_at(EPOCH_MS + 900))]
    early = arrived_ms < 500 and not skewed
    assert [*NotBeforeDue().check(found)] == ["2 of 1 was granted 1 ms before it was due"] * early


def test_the_client_hands_out_nothing_behind_what_it_has_given_back() -> None:
    found = history(Mode.ORDERED)
    found.grants = [grant(1, 0, 2, 10), grant(2, 2, 4, 15)]
    found.returns = [Return(*PLACE, 1, 0, 2, 0, False, 11, 12)]
    for one in found.grants:
        one.tells = True
    assert [*OrderedOnce().check(found)]
    # It came before that was known to have gone back.
    found.returns[0].confirmed = 16
    assert not [*OrderedOnce().check(found)]
    # It was told that this came too late, or who asks by himself may have asked before.
    found.returns[0].confirmed = -1
    assert not [*OrderedOnce().check(found)]
    found.returns[0].confirmed, found.grants[1].tells = 12, False
    assert not [*OrderedOnce().check(found)]
    # It came again before.
    found.grants[1:] = [grant(2, 0, 2, 15), grant(3, 2, 4, 16)]
    for one in found.grants:
        one.tells = True
    assert not [*OrderedOnce().check(found)]
