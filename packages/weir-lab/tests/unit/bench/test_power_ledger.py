"""The verdict on a power cut, with each thing that may go wrong planted once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir_lab.bench.faults.powercut.ledger import (
    Given,
    Ledger,
    Name,
    Place,
    Verdict,
    judge,
    name_of,
    value_of,
)

COUNT = 20

Topic = dict[int, list[bytes]]
Fault = Callable[[Ledger, Topic], object]


def whole() -> tuple[Ledger, Topic]:
    """What the clients saw of two writers where nothing went wrong, and what is there."""
    ledger, topic = Ledger(2), Topic()
    for writer in range(2):
        topic[writer] = [value_of(Name(writer, serial)) for serial in range(COUNT)]
        ledger.sent[writer] = COUNT
        ledger.confirmed[writer] = list(range(COUNT))
        for offset, value in enumerate(topic[writer]):
            ledger.deliver(Place(writer, offset), value)
            ledger.ack([Place(writer, offset)])
    return ledger, topic


def test_a_value_tells_its_name_and_only_if_it_is_whole() -> None:
    for name in (Name(0, 0), Name(1, 15), Name(12, 31), Name(2, 1_000_000)):
        assert name_of(value_of(name)) == name
    value = value_of(Name(0, 15))
    assert len(value) > 4_096 * 8
    torn = value[:512] + bytes(512) + value[1_024:]
    assert [name_of(bad) for bad in (b"", b"1", torn, value[:-1], b"x 1 ")] == [None] * 5


def test_nothing_is_wrong_with_what_is_as_it_was_confirmed() -> None:
    verdict = judge(*whole())
    assert verdict == Verdict(2 * COUNT, 2 * COUNT, 2 * COUNT, 2 * COUNT, 0, 0, 0, 0, 0, 0, 0, 0)
    assert verdict.clean


def test_what_is_sent_and_not_confirmed_may_be_there_or_not() -> None:
    ledger, topic = whole()
    ledger.sent[0] += 2
    topic[0].append(value_of(Name(0, COUNT)))
    assert judge(ledger, topic).clean


def drop_the_end(_: Ledger, topic: Topic) -> None:
    del topic[1][-3:]


def move(_: Ledger, topic: Topic) -> None:
    topic[0].insert(0, topic[0].pop())


def not_delivered(ledger: Ledger, _: Topic) -> None:
    del ledger.deliveries[5]


def twice_there(_: Ledger, topic: Topic) -> None:
    topic[0].append(topic[0][-1])


def comes_again(ledger: Ledger, topic: Topic) -> None:
    ledger.deliver(Place(0, 3), topic[0][3])


def torn(_: Ledger, topic: Topic) -> None:
    topic[0][-1] = topic[0][-1][:50] + bytes(50)


def never_sent(_: Ledger, topic: Topic) -> None:
    topic[0].append(value_of(Name(0, COUNT)))


def delivered_and_gone(ledger: Ledger, _: Topic) -> None:
    ledger.deliver(Place(0, COUNT), value_of(Name(0, COUNT)))


@pytest.mark.parametrize(
    ("fault", "wrong"),
    [
        (drop_the_end, "lost"),
        (move, "lost"),
        (move, "reordered"),
        (not_delivered, "undelivered"),
        (twice_there, "repeated"),
        (comes_again, "repeated"),
        (torn, "lost"),
        (torn, "strange"),
        (never_sent, "strange"),
        (delivered_and_gone, "strange"),
    ],
)
def test_each_fault_is_seen(fault: Fault, wrong: str) -> None:
    ledger, topic = whole()
    fault(ledger, topic)
    verdict = judge(ledger, topic)
    assert getattr(verdict, wrong)
    assert not verdict.clean


def test_work_done_again_before_its_ack_is_told_apart() -> None:
    ledger, topic = whole()
    ledger.acked.discard(Place(1, 7))
    ledger.deliver(Place(1, 7), topic[1][7])
    verdict = judge(ledger, topic)
    assert (verdict.again, verdict.repeated) == (1, 0)
    assert verdict.clean
    assert "partition 1: sent 20, confirmed 20, delivered 21, acked 19" in str(ledger)


def read() -> tuple[Ledger, Topic, list[Given]]:
    """What two readers were given of `whole`, as the topic has it."""
    ledger, topic = whole()
    order = [
        (Place(writer, offset), name_of(topic[writer][offset]))
        for offset in range(COUNT)
        for writer in range(2)
    ]
    ledger.readings = [list(order), list(order)]
    return ledger, topic, order


def test_readers_that_were_given_the_order_of_the_topic_do_not_differ() -> None:
    verdict = judge(*read())
    assert (verdict.read, verdict.differing) == (4 * COUNT, 0)
    assert verdict.clean


def swap(given: list[Given]) -> None:
    given[3], given[4] = given[4], given[3]


def give_twice(given: list[Given]) -> None:
    given.insert(5, given[4])


def give_other_bytes(given: list[Given]) -> None:
    given[7] = (given[7][0], None)


def give_too_much(given: list[Given]) -> None:
    given.append((Place(0, COUNT), Name(0, COUNT)))


@pytest.mark.parametrize("fault", [swap, give_twice, give_other_bytes, give_too_much, list.pop])
def test_a_reader_that_differs_is_seen(fault: Callable[[list[Given]], object]) -> None:
    ledger, topic, order = read()
    fault(ledger.readings[1])
    verdict = judge(ledger, topic, order)
    assert verdict.differing
    assert not verdict.clean
    assert f"reader 1: {len(ledger.readings[1])}" in str(ledger)
