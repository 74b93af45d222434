"""What the checker of turns finds in what consumers observed, in histories written by hand."""

from __future__ import annotations

from weir_lab.sim.checkers.handled import HandledOnce, OneHolder
from weir_lab.sim.history import Handled, History, Record
from weir_lab.sim.observations import Row

VALUES = (b"a", b"b", b"c")


def rows(*offsets: int) -> tuple[Row, ...]:
    return tuple(Row(100 + offset, 0, offset, VALUES[offset]) for offset in offsets)


def check(*handled: Handled) -> list[str]:
    history = History(handled=list(handled))
    history.drained[0] = [
        Record(offset, (value,), 100 + offset, ()) for offset, value in enumerate(VALUES)
    ]
    return list(HandledOnce().check(history))


def test_one_turn_after_the_other_keeps_the_promise() -> None:
    assert not check(
        Handled("c", 5, rows(0), 10, acked=20),
        Handled("c", 5, rows(1), 21),
        Handled("c", 9, rows(1), 30, acked=40),
        Handled("c", 9, rows(2), 41, back=True),
        Handled("c", 12, rows(2), 50, acked=60),
    )


def test_what_was_acked_and_comes_again_in_a_later_turn_is_found() -> None:
    said = check(
        Handled("c", 5, rows(0, 1), 10, acked=20),
        Handled("c", 9, rows(1, 2), 30, acked=40),
    )
    assert any("was acked in turn 5, and handed out in turn 9" in text for text in said)


def test_what_is_done_out_of_the_one_order_is_found() -> None:
    (text,) = check(
        Handled("c", 5, rows(1), 10, acked=20),
        Handled("c", 5, rows(0), 30, acked=40),
        Handled("c", 5, rows(2), 50, acked=60),
    )
    assert "was done behind" in text


def test_what_nobody_did_is_found() -> None:
    (text,) = check(
        Handled("c", 5, rows(0, 1), 10, acked=20),
        Handled("c", 5, rows(2), 30, back=True),
    )
    assert "nobody did 2 of partition 0" in text


def test_a_turn_that_two_have_is_found() -> None:
    history = History()
    history.handled = [Handled("c", fence, rows(0), 10, holder) for fence, holder in
                       ((5, "one"), (5, "one"), (6, "other"))]  # fmt: skip
    assert not list(OneHolder().check(history))
    history.handled.append(Handled("c", 6, rows(1), 20, "one"))
    (text,) = OneHolder().check(history)
    assert "other and one have turn 6" in text
