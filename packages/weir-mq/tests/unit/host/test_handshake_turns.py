"""Handshakes take their part of a turn, in order, and no more."""

from __future__ import annotations

from weir.host.strangers import TURN_SECONDS, HandshakeTurns


def test_a_turn_takes_some_and_the_others_wait_in_order() -> None:
    turns: HandshakeTurns[int] = HandshakeTurns()
    step = TURN_SECONDS * 0.4
    done, came = [], iter(range(10))
    for one in came:
        if turns.may_step(one):
            turns.stepped(step)
            done.append(one)
    assert done == [0, 1, 2]
    assert turns.waiting == 7
    rounds = 0
    while turns.waiting:
        turns.begin()
        rounds += 1
        while (one_more := turns.next()) is not None:
            turns.stepped(step)
            done.append(one_more)
    assert done == list(range(10))
    assert rounds == 3


def test_nobody_overtakes_who_waits() -> None:
    turns: HandshakeTurns[str] = HandshakeTurns()
    turns.stepped(TURN_SECONDS)
    assert not turns.may_step("first")
    turns.begin()
    assert not turns.may_step("second"), "one waits before it"
    assert [turns.next(), turns.next(), turns.next()] == ["first", "second", None]
    assert turns.may_step("third")
