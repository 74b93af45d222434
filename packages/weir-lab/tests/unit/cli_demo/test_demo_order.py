"""Whether readers agree about each plane: from columns made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from weir_lab.demo.flights import ORIGINS, TOPIC
from weir_lab.demo.ledger import Columns, Sent
from weir_lab.demo.order import Orders, Runs, settle
from weir_lab.demo.tasks import APART

#: Of each airport two flights; "A" left from all of them, "B" and "C" from one.
PLANES = ["A", "B", "C", "A", "A", None]
IN_TURN = [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
MIXED = [(0, 0, 1), (2, 0, 1), (1, 0, 2), (0, 1, 1), (2, 1, 1)]


def sent() -> dict[str, Sent]:
    """Of EWR the second flight got the first offset."""
    ledgers = {}
    for origin, offsets in zip(ORIGINS, ([1, 0], [0, 1], [0, 1]), strict=True):
        ledgers[origin] = Sent.blank(2)
        ledgers[origin].offsets = np.array(offsets, np.int64)
    return ledgers


def noted(*readers: list[tuple[int, int, int]]) -> list[Runs]:
    runs = []
    for reader in readers:
        runs.append(Runs())
        for run in reader:
            runs[-1].note(*run)
    return runs


def settled(total: list[Runs], apart: list[Runs]) -> Orders:
    ledger: Columns = {
        f"{topic}.{n}": runs.column()
        for topic, readers in ((TOPIC, total), (APART, apart))
        for n, runs in enumerate(readers)
    }
    return settle(sent(), ledger, PLANES)


def test_readers_who_agree_saw_one_order() -> None:
    orders = settled(noted(MIXED, MIXED, MIXED), noted(IN_TURN, IN_TURN, IN_TURN))
    assert orders.kept
    assert (orders.total.planes, orders.total.differing, orders.apart.differing) == (1, 0, 0)
    assert orders.total.example is not None
    assert orders.total.example.plane == "A"
    # EWR's first flight lies at offset 1, behind all others of the mixed order.
    assert orders.total.example.flights == [(2, 0, 0), (1, 1, 1), (0, 2, 2)]


def test_readers_who_differ_are_counted_where_order_is_promised_and_where_not() -> None:
    orders = settled(noted(MIXED, MIXED, MIXED), noted(IN_TURN, MIXED, IN_TURN))
    assert orders.kept
    assert orders.apart.complete
    assert orders.apart.differing == 1
    assert orders.apart.example is not None
    assert [airport for airport, _, _ in orders.apart.example.flights] == [0, 1, 2]
    assert [place for _, _, place in orders.apart.example.flights] == [2, 1, 0]
    orders = settled(noted(MIXED, IN_TURN, MIXED), noted(IN_TURN, IN_TURN, IN_TURN))
    assert not orders.kept
    assert orders.total.differing == 1


@pytest.mark.parametrize("wrong", [IN_TURN[:2], [*IN_TURN, (0, 1, 1)], [(0, 0, 1), *IN_TURN[1:]]])
def test_a_reader_that_lacks_or_repeats_messages_is_no_proof(
    wrong: list[tuple[int, int, int]],
) -> None:
    orders = settled(noted(IN_TURN, wrong, IN_TURN), noted(IN_TURN, IN_TURN, IN_TURN))
    assert not orders.kept
    assert not orders.total.complete
    orders = settled(noted(IN_TURN, IN_TURN, IN_TURN), noted(IN_TURN, IN_TURN, wrong))
    assert not orders.kept


def test_readers_of_nothing_agree() -> None:
    nothing = noted([], [], [])
    ledger = {f"{topic}.{n}": nothing[n].column() for topic in (TOPIC, APART) for n in range(3)}
    orders = settle({origin: Sent.blank(0) for origin in ORIGINS}, ledger, [])
    assert orders.kept
    assert orders.total.example is None
