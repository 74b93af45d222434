"""Applications that read in total order are tested against a node in memory like all others."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from weir import sync, testing
from weir.client.connection import metadata

PARTITIONS = 3


@pytest.fixture
def node() -> Iterator[testing.Node]:
    with testing.node() as node:
        yield node


def publish(w: sync.Client, first: int, behind: int, partitions: int = PARTITIONS) -> list[bytes]:
    dice = random.Random(first)
    values = [b"%d" % number for number in range(first, behind)]
    for value in values:
        w.publish("t", value, partition=dice.randrange(partitions))
    return values


def test_live_and_replayed_through_crashes_it_is_one_sequence(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        assert w.create_topic("t", PARTITIONS, order="total").order == "total"
        with w.reader("t") as live:
            values = publish(w, 0, 30)
            found = [next(live).value for _ in range(20)]
            node.restart()
            values += publish(w, 30, 60)
            found += [next(live).value for _ in range(40)]
        assert found == values
        assert [message.value for message in w.reader("t", follow=False)] == values
        middle = w.reader("t", start="latest")
        with middle:
            values = publish(w, 60, 70)
            assert [next(middle).value for _ in range(10)] == values
            assert middle.order == "total"


def test_a_topic_may_grow_while_it_is_read(
    node: testing.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ASK_EVERY", 3_600.0)  # partition 0 tells in time
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, order="total")
        with w.reader("t") as live:
            values = publish(w, 0, 20)
            w.alter_topic("t", partitions=PARTITIONS + 2)
        # Producers take new partitions up when they are made.
        with sync.connect(node.url) as later, w.reader("t", start=live.positions) as live:
            values += publish(later, 20, 60, PARTITIONS + 2)
            later.alter_topic("t", partitions=PARTITIONS + 3)
            with sync.connect(node.url) as last:
                values += publish(last, 60, 100, PARTITIONS + 3)
            assert [next(live).value for _ in range(100)] == values
        assert [message.value for message in w.reader("t", follow=False)] == values


def test_any_topic_can_be_read_in_total_order(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS)
        values = publish(w, 0, 30)
        assert [x.value for x in w.reader("t", order="total", follow=False)] == values
        assert [x.value for x in w.reader("t", order="total", read_from="any", follow=False)] == (
            values
        )
        by_partition = [x.value for x in w.reader("t", follow=False)]
        assert sorted(by_partition) == sorted(values)


def test_a_large_value_comes_in_its_turn(node: testing.Node) -> None:
    with sync.connect(node.url) as w:
        w.create_topic("t", PARTITIONS, order="total")
        values = publish(w, 0, 5)
        values.append(bytes(9 << 20))
        w.publish("t", values[-1], partition=1)
        values += publish(w, 6, 10)
        assert [x.value for x in w.reader("t", follow=False)] == values
        sizes = [
            len(x.value) if x.loaded else x.size
            for x in w.reader("t", follow=False, value_bytes_max=1)
        ]
        assert sizes == [len(value) for value in values]
