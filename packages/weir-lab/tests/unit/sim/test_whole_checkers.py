"""What the checker of readers finds, in histories written by hand."""

from __future__ import annotations

from weir_lab.sim.checkers.whole import ReadWhole
from weir_lab.sim.history import Confirmed, History, Publish, Reading, Record
from weir_lab.sim.observations import Row

VALUES = (b"a", b"b", b"c")


def history(*readings: Reading) -> History:
    found = History(readings=list(readings))
    found.drained[0] = [Record(offset, (value,), 100 + offset, ()) for offset, value in
                        enumerate(VALUES)]  # fmt: skip
    for offset, value in enumerate(VALUES):
        publish = Publish(0, ("p",), offset, (value,), 0)
        publish.confirms.append(Confirmed(10 * (offset + 1), offset, 100 + offset))
        found.publishes.append(publish)
    return found


def rows(*offsets: int) -> list[Row]:
    return [Row(100 + offset, 0, offset, VALUES[offset]) for offset in offsets]


def check(found: History) -> list[str]:
    return list(ReadWhole().check(found))


def test_a_reader_that_got_all_from_where_it_began_keeps_the_promise() -> None:
    live = Reading("live", {0: 1}, rows(1), partition=0)
    cut = Reading("cut", {0: 0}, rows(0, 1, 2), partition=0, cut=31)
    total = Reading("total", {}, rows(0, 1), cut=25)
    assert check(history(live, cut, total)) == []


def test_a_message_that_was_passed_over_is_found() -> None:
    (text,) = check(history(Reading("r", {0: 0}, rows(0, 2), partition=0)))
    assert "number 1, where 1 belongs" in text


def test_what_retention_took_may_be_passed_over() -> None:
    found = history(Reading("r", {0: 0}, rows(2), partition=0))
    found.starts[0] = 2
    assert check(found) == []


def test_what_had_been_confirmed_and_is_left_out_of_a_cut_is_found() -> None:
    for partition in (-1, 0):
        (text,) = check(history(Reading("r", {0: 0}, rows(0), partition=partition, cut=25)))
        assert "left out 1 of 0" in text
