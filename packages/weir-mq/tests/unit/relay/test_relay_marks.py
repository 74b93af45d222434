"""What a relay tells readers of the order: never more than is true, whatever they were told."""

from __future__ import annotations

import random

from weir.relay.marks import OrderFact, TopicMarks


class Order:
    """The one order of a topic, as the core has it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.stamp = 0
        #: By partition, the stamps of its messages.
        self.partitions: list[list[int]] = [[], []]

    def grow(self) -> None:
        for _ in range(self.rng.randrange(4)):
            self.stamp += self.rng.randint(1, 3)
            self.rng.choice(self.partitions).append(self.stamp)
        if self.rng.random() < 0.05 and len(self.partitions) < 5:
            self.partitions.append([])

    def mark(self, above: int) -> OrderFact:
        """Return a mark, as a shard tells it: it leaves out what has nothing above, if it knows."""
        stamp = self.rng.randint(0, self.stamp)
        throughs = [
            (number, sum(one <= stamp for one in stamps))
            for number, stamps in enumerate(self.partitions)
            if any(above < one <= stamp for one in stamps) or self.rng.random() < 0.2
        ]
        return OrderFact(stamp, len(self.partitions), throughs)

    def check(self, above: int, fact: OrderFact) -> None:
        """Check what a reader is told that knows all up to a stamp of the same set."""
        throughs = dict(fact.throughs)
        for number, stamps in enumerate(self.partitions[: fact.partitions]):
            counted = [at for at, one in enumerate(stamps) if above < one <= fact.stamp]
            assert max(counted, default=-1) < throughs.get(number, 0), (number, above, fact)
        assert set(throughs) <= set(range(fact.partitions))


def test_a_reader_is_told_of_all_that_a_mark_counts_on() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        order, marks, known = Order(rng), TopicMarks(), {0: 0}
        asked: list[tuple[int, OrderFact]] = []
        for _ in range(40):
            order.grow()
            above = marks.stamp
            asked.append((above, order.mark(above)))
            if rng.random() < 0.7:  # answers overtake each other
                before = marks.since(0)
                marks.take(*asked.pop(rng.randrange(len(asked))), is_awaited=rng.random() < 0.5)
                after = marks.since(0)
                assert after.stamp >= before.stamp or after.partitions != before.partitions
            stamps = [stamp for stamp, size in known.items() if size in (0, marks.since(0)[1])]
            since = rng.choice(stamps)
            told = marks.since(since)
            if told.stamp > since:
                order.check(since, told)
                known[told.stamp] = told.partitions


def test_a_larger_set_begins_anew_and_a_smaller_one_says_nothing() -> None:
    marks = TopicMarks()
    assert marks.take(0, OrderFact(10, 2, [(0, 4)]), is_awaited=True)
    assert not marks.take(10, OrderFact(20, 3, [(2, 1)]), is_awaited=True)
    assert (marks.stamp, marks.since(0)) == (0, OrderFact(0, 0, []))
    assert not marks.reached(0, 0)
    assert marks.take(0, OrderFact(15, 3, [(0, 5), (2, 1)]), is_awaited=True)
    assert not marks.take(0, OrderFact(30, 2, [(0, 9)]), is_awaited=True)
    assert marks.since(12) == OrderFact(15, 3, [(0, 5), (2, 1)])


def test_only_partitions_that_changed_are_told() -> None:
    marks = TopicMarks()
    marks.take(0, OrderFact(10, 2, [(0, 4), (1, 7)]), is_awaited=True)
    marks.take(10, OrderFact(20, 2, [(1, 8)], 1), is_awaited=True)
    assert marks.since(10) == OrderFact(20, 2, [(1, 8)], 1)
    assert marks.since(9) == OrderFact(20, 2, [(0, 4), (1, 8)], 1)


def test_a_mark_that_nobody_waited_for_ends_no_wait_for_the_next_one() -> None:
    marks = TopicMarks()
    marks.take(0, OrderFact(10, 1, []), is_awaited=False)
    assert not marks.reached(0, 0), "it came at the end of its time"
    assert marks.reached(0, 10)
    assert not marks.reached(10, 10), "it was used before"
    marks.take(0, OrderFact(8, 1, []), is_awaited=True)
    assert marks.reached(7, 0)
    assert not marks.reached(8, 0)
    assert not marks.reached(0, 11)
