"""How a turn ends, and when: by what several want of it."""

from __future__ import annotations

from weir.client.core.grants import Ending, Vector


def test_whoever_works_has_time_until_some_fail() -> None:
    ending = Ending()
    assert ending.due(False) is None
    ending.want(0, untried=True, waits=True)
    assert ending.due(True) is None
    assert ending.due(False) == (0, True)
    ending.want(10, untried=True)  # what was not begun goes back
    assert ending.due(True) is None
    ending.want(5, untried=False)
    assert ending.due(True) == (10, False)
    ending.clear()
    assert ending.due(False) is None


def test_what_goes_back_by_itself_waits_for_nobody() -> None:
    ending = Ending()
    ending.want(0, untried=True)
    ending.want(0, untried=True, waits=True)
    assert ending.due(True) == (0, True)


def test_what_went_back_is_neither_worked_on_nor_done() -> None:
    vector = Vector([5, 0])
    vector.hand_out(0, 5, 9)
    vector.back(0, 7, 9)
    assert vector.has_open
    vector.done(0, 5, 6)
    assert (vector.has_open, vector.offsets) == (True, (6, 0))
    vector.back(0, 6, 7)
    assert (vector.has_open, vector.offsets) == (False, (6, 0))
