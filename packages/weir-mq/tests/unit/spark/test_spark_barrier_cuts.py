"""Cuts at barriers hold all that was stamped up to them, and no more, whatever the limit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from weir.errors import BadOption
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.spark import blocking_client
from weir.spark.options import Options
from weir.spark.planning import Cut
from weir.spark.source import Offset, StreamReader, Task, WeirDataSource
from weir.spark.topics import OneTopic

ALL = ReadAllAvailable()
PER_BATCH = 3


class Broker:
    """Partitions of stamped batches; `arriving` come while barriers are asked for."""

    def __init__(self, partitions: int, order: str = "total") -> None:
        self.order = order
        self.logs: list[list[int]] = [[] for _ in range(partitions)]
        self.arriving: list[tuple[int, int] | None] = []
        self.barrier = 0
        self.asked: list[int] = []

    def describe(self, topic: str) -> m.TopicInfo:
        places = [Address(0, 0, group_of(1, p)) for p in range(len(self.logs))]
        return m.TopicInfo(1, "default", topic, self.order, places)

    def barriers(self, topic: int, stamp: int, wait_ms: int) -> m.Barriers:
        """As one clock gives all stamps, what is there is complete up to it."""
        self.asked.append(stamp)
        self.barrier = max(self.barrier, stamp, *map(self._last, range(len(self.logs))))
        told = [(p, self.barrier, PER_BATCH * len(log)) for p, log in enumerate(self.logs)]
        if self.arriving and (new := self.arriving.pop()) is not None:
            self.publish(new[0], self.barrier + new[1])
        return m.Barriers(topic, told, (), True)

    def positions(self, topic: str, stamp: int = 0) -> tuple[m.TopicInfo, list[m.PositionsReply]]:
        found = []
        for log in self.logs:
            at = sum(one < stamp for one in log)
            entry = at - at % 2  # two batches an entry: the broker tells entries
            found.append(m.PositionsReply(0, PER_BATCH * len(log), PER_BATCH * entry))
        return self.describe(topic), found

    def fetch(self, address: Address, offset: int, max_bytes: int) -> m.Fetched:
        log, number = self.logs[address.group & 0xFFFF], offset // PER_BATCH
        raw = encode([b"v"] * PER_BATCH, group=address.group)
        first = PER_BATCH * number
        data = stamped(raw, log[number], first) + bytes(raw[HEADER_SIZE:])
        return m.Fetched(address, offset, first + PER_BATCH, PER_BATCH * len(log), (data,))

    def publish(self, partition: int, stamp: int) -> None:
        self.logs[partition].append(max(stamp, self._last(partition) + 1))

    def _last(self, partition: int) -> int:
        return max(self.logs[partition], default=0)

    def below(self, stamp: int) -> dict[int, int]:
        return {p: PER_BATCH * sum(s <= stamp for s in log) for p, log in enumerate(self.logs)}

    def resolve_cut(self, request: object) -> None:
        """As a broker of a release that does not resolve them."""

    def close(self) -> None:
        pass


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patched:
        yield patched


def use(patch: pytest.MonkeyPatch, broker: Broker) -> Broker:
    patch.setattr(blocking_client, "BlockingClient", lambda *_: broker)
    patch.setattr(blocking_client, "_kept", {})
    return broker


def reader(**options: object) -> StreamReader:
    source = WeirDataSource({"topic": "t"} | {name: str(v) for name, v in options.items()})
    made: Any = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def cut_of(offset: Offset) -> Cut:
    return Cut.from_json(offset)


@given(st.integers(0, 1 << 32), st.integers(1, 4), st.integers(1, 30))
def test_every_cut_holds_what_was_stamped_up_to_it(seed: int, count: int, limit: int) -> None:
    dice = random.Random(seed)
    broker = Broker(count)
    for stamp in range(10, 10 + dice.randint(0, 60)):
        broker.publish(dice.randrange(count), stamp)
    broker.arriving = [(dice.randrange(count), dice.randint(1, 4)) for _ in range(4)]
    with pytest.MonkeyPatch.context() as patched:
        use(patched, broker)
        for options, most in (({}, ALL), ({}, ReadMaxRows(limit))):
            made = reader(**options)
            at = made.initialOffset()
            for _ in range(100):
                end = made.latestOffset(at, most)
                if end is at:
                    break
                cut, before = cut_of(end), cut_of(at)
                assert dict(cut.positions) == broker.below(cut.stamp)
                rows = [len(one.range) for task in made.partitions(at, end)
                        if isinstance(task, Task) for one in task.portions]  # fmt: skip
                if most is not ALL:
                    # More than the limit only if no barrier lies between.
                    stamps = {s for log in broker.logs for s in log}
                    inside = [s for s in stamps if before.stamp < s <= cut.stamp]
                    assert sum(rows) <= limit or len(inside) == 1
                at = end
            assert dict(cut_of(at).positions) == broker.below(1 << 60)


def test_what_is_committed_behind_the_barrier_waits_for_the_next_one(
    patch: pytest.MonkeyPatch,
) -> None:
    broker = use(patch, Broker(2))
    broker.publish(0, 10)
    broker.publish(1, 20)
    made = reader()
    begin = made.initialOffset()
    # While the second question is answered: stamped 25, above the barrier that it asks for.
    broker.arriving = [(0, 5), None]
    end = made.latestOffset(begin, ALL)
    begins = {"00000": 0, "00001": 0}
    assert end == {"e": 1, "p": {"00000": 3, "00001": 3}, "b": begins, "s": 20}
    later = made.latestOffset(end, ALL)
    assert later == {"e": 1, "p": {"00000": 6, "00001": 3}, "s": 25}
    asked = len(broker.asked)
    assert made.latestOffset(later, ALL) is later
    # Nothing is new: nobody has to promise anything.
    assert broker.asked[asked:] == []


def test_an_end_by_stamp_or_offset_and_the_latest(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker(2))
    for stamp in range(10, 30):
        broker.publish(stamp % 2, stamp)
    made = reader(endingBarrier=19)
    end = made.latestOffset(made.initialOffset(), ALL)
    assert (cut_of(end).positions, cut_of(end).stamp) == (broker.below(19), 19)
    assert made.latestOffset(end, ALL) is end
    made = reader(endingOffsets='{"0": 4}')
    end = made.latestOffset(made.initialOffset(), ALL)
    assert cut_of(end).positions == {0: 4, 1: 30}
    latest = reader(startingOffsets="latest")
    assert cut_of(latest.initialOffset()) == Cut(1, broker.below(29), {}, 29)
    begun = reader(startingBarrier=15).initialOffset()
    assert cut_of(begun) == Cut(1, broker.below(15), {}, 15)


def test_below_a_stamp_is_what_has_it_and_no_more(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker(2))
    for stamp in range(10, 30):
        broker.publish(stamp % 2, stamp)
    one = OneTopic(Options.parse({"topic": "t"}))
    for stamp in range(9, 31):
        assert one.below(stamp) == Cut(1, broker.below(stamp), {0: 0, 1: 0}, stamp)
        assert broker.barrier >= stamp, "nothing comes there any more"


def test_a_pinned_end_is_reached_in_steps_and_not_passed(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker(2))
    for stamp in range(10, 20):
        broker.publish(stamp % 2, stamp)
    made = reader()
    made.prepareForTriggerAvailableNow()
    broker.publish(0, 50)
    at, steps = made.initialOffset(), 0
    while (end := made.latestOffset(at, ReadMaxRows(7))) is not at:
        at, steps = end, steps + 1
    assert (cut_of(at).positions, steps) == (broker.below(19), 5)


def test_an_option_decides_against_the_topic(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker(1, order="partition"))
    broker.publish(0, 10)
    made = reader(order="TOTAL")
    assert cut_of(made.latestOffset(made.initialOffset(), ALL)).stamp == 10
    made = reader()
    assert cut_of(made.latestOffset(made.initialOffset(), ALL)) == Cut(1, {0: 3}, {0: 0})
    shorter = made.latestOffset(made.initialOffset(), ReadMaxRows(2))
    assert cut_of(shorter) == Cut(1, {0: 2}, {0: 0})
    with pytest.raises(BadOption, match="option order='causal': give 'partition'"):
        reader(order="causal")


def test_only_selected_partitions_are_in_a_cut(patch: pytest.MonkeyPatch) -> None:
    broker = use(patch, Broker(3))
    for stamp in range(10, 22):
        broker.publish(stamp % 3, stamp)
    wanted = {p: at for p, at in broker.below(1 << 60).items() if p != 1}
    for limit in (ALL, ReadMaxRows(5)):
        made = reader(partitions="[0, 2]")
        at, read = made.initialOffset(), set()
        while (end := made.latestOffset(at, limit)) is not at:
            tasks = [task for task in made.partitions(at, end) if isinstance(task, Task)]
            read |= {one.range.partition for task in tasks for one in task.portions}
            at = end
        assert cut_of(at).positions == wanted
        assert read == {0, 2}
        broker.publish(1, 90)
        assert made.latestOffset(at, limit) is at, "the partition that moved is not read"
