"""The stream reader as Spark calls it, over a broker that a test scripts; no Spark runs."""

from __future__ import annotations

import json
import pickle
import pkgutil
import subprocess
import sys

import pytest
from msgspec.structs import replace
from pyspark.sql.datasource import DataSource
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)

from weir.client.connection.system import SYSTEM
from weir.errors import BadOption, CheckpointMismatch, RangeLost, UnknownTopic
from weir.model.ids import Address
from weir.protocol.client.admin import AskStats, PartitionStats
from weir.protocol.client.messages import PositionsReply, TopicInfo
from weir.server.interpreter import environment
from weir.spark import blocking_client
from weir.spark.planning import Range
from weir.spark.source import Offset, StreamReader, Task, WeirDataSource

ALL = ReadAllAvailable()


class Broker:
    """Stands for a `BlockingClient`; a test moves `ends` and `id`."""

    def __init__(self) -> None:
        self.id = 1
        self.starts = [0, 2]
        self.ends = [10, 4]
        self.asked = 0
        self.sizes = [100, 1_000]
        #: Of how many partitions it has not heard yet.
        self.unheard = 0

    def describe(self, topic: str) -> TopicInfo:
        if topic != "t":
            raise UnknownTopic(f"no topic {topic!r}")
        places = [Address(0, 0, self.id << 16 | p) for p in range(len(self.ends) - self.unheard)]
        return TopicInfo(self.id, "default", topic, "partition", places)

    def positions(self, topic: str, stamp: int = 0) -> tuple[TopicInfo, list[PositionsReply]]:
        self.asked += 1
        starts = [*self.starts, *[0] * (len(self.ends) - len(self.starts))]
        places = [PositionsReply(s, e, s) for s, e in zip(starts, self.ends, strict=True)]
        return self.describe(topic), places[: len(places) - self.unheard]

    def await_partitions(self, topic: str, info: TopicInfo, count: int) -> TopicInfo:
        """All that there are: `BlockingClient` asks until the node has heard of them."""
        self.unheard = 0
        return self.describe(topic)

    def resolve_cut(self, request: object) -> None:
        """As a broker of a release that does not resolve them."""

    def requests(self, asked: list[AskStats]) -> list[PartitionStats]:
        """As if each message had as many bytes as `sizes` says."""
        numbers = [one.address.group & 0xFFFF for one in asked]
        held = [(p, self.starts[p], self.ends[p]) for p in numbers]
        return [
            PartitionStats(first, end, end - first, (end - first) * self.sizes[p])
            for p, first, end in held
        ]

    def close(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    scripted = Broker()
    monkeypatch.setattr(blocking_client, "BlockingClient", lambda *_: scripted)
    monkeypatch.setattr(blocking_client, "_kept", {})
    return scripted


def reader(**options: object) -> StreamReader:
    given = {"topic": "t"} | {name: str(value) for name, value in options.items()}
    source = WeirDataSource(given)
    made = source.streamReader(source.schema())
    # Spark makes it in one process and uses it in another.
    copy: StreamReader = pickle.loads(pickle.dumps(made))
    return copy


def offset(*positions: int, epoch: int = 1) -> Offset:
    return {"e": epoch, "p": {f"{p:05}": position for p, position in enumerate(positions)}}


def test_making_a_reader_asks_no_broker() -> None:
    # There is none: a connection would be refused.
    made = reader(port=1, maxRowsPerBatch=7)
    assert made.getDefaultReadLimit() == ReadMaxRows(7)
    assert reader().getDefaultReadLimit() == ALL


def test_spark_finds_the_source_by_itself() -> None:
    # The rule of Spark: importable modules whose names begin so, and their DefaultSource.
    assert "pyspark_weir" in {module.name for module in pkgutil.iter_modules()}
    from pyspark_weir import DefaultSource

    assert issubclass(DefaultSource, DataSource)
    assert DefaultSource is WeirDataSource
    assert DefaultSource.name() == "weir"


@pytest.mark.parametrize(
    ("starting", "expected"),
    [("earliest", (0, 2)), ("latest", (10, 4)), ('{"0": 7}', (7, 2)), ('{"1": 4}', (0, 4))],
)
def test_a_query_begins_where_it_is_told(
    broker: Broker, starting: str, expected: tuple[int, ...]
) -> None:
    made = reader(startingOffsets=starting)
    assert made.initialOffset() == offset(*expected)
    broker.ends = [11, 12]
    # Spark asks twice; "latest" must not move between.
    assert made.initialOffset() == offset(*expected)


@pytest.mark.parametrize(
    ("starting", "text"),
    [('{"2": 0}', "has partitions 0 to 1"), ('{"0": 11}', "0 to 10"), ('{"1": 1}', "2 to 4")],
)
def test_a_start_that_is_not_there_is_refused(broker: Broker, starting: str, text: str) -> None:
    with pytest.raises(BadOption, match=text):
        reader(startingOffsets=starting).initialOffset()


def test_the_end_moves_only_with_the_data(broker: Broker) -> None:
    made = reader()
    end = made.latestOffset(offset(0, 2), ALL)
    assert end == offset(10, 4)
    assert made.latestOffset(end, ALL) is end
    # A partition was added: it shows once there is something in it, so that no batch is empty.
    broker.ends = [10, 4, 0]
    assert made.latestOffset(end, ALL) is end
    broker.ends = [10, 4, 3]
    grown = made.latestOffset(end, ALL)
    assert grown == offset(10, 4, 3)
    assert [one.range for task in made.partitions(end, grown) for one in task.portions] == [
        Range(2, 0, 3)
    ]
    asked = broker.asked
    made.latestOffset(grown, ALL)
    assert broker.asked == asked + 1


def test_a_new_partition_begins_where_retention_has_left_it(broker: Broker) -> None:
    made = reader()
    end = made.latestOffset(offset(0, 2), ALL)
    broker.starts, broker.ends = [0, 2, 5, 7], [10, 4, 9, 7]
    grown = made.latestOffset(end, ReadMaxRows(3))
    assert grown == {**offset(10, 4, 8, 7), "b": {"00002": 5, "00003": 7}}
    for text in (grown, json.loads(json.dumps(grown))):
        assert [one.range for task in reader().partitions(end, text) for one in task.portions] == [
            Range(2, 5, 8)
        ]
    broker.ends = [10, 4, 9, 8]
    last = made.latestOffset(grown, ALL)
    assert last == offset(10, 4, 9, 8)
    ranges = [one.range for task in made.partitions(grown, last) for one in task.portions]
    assert ranges == [Range(2, 8, 9), Range(3, 7, 8)]
    assert made.reportLatestOffset() == last
    assert reader(startingOffsets="latest").initialOffset() == last


def test_a_limit_shares_and_always_moves(broker: Broker) -> None:
    made = reader()
    assert made.latestOffset(offset(0, 2), ReadMaxRows(4)) == offset(2, 4)
    assert made.latestOffset(offset(9, 4), ReadMaxRows(0)) == offset(10, 4)
    with pytest.raises(BadOption, match="maxRowsPerBatch"):
        made.latestOffset(offset(0, 2), ReadMaxFiles(5))


def test_spark_is_told_one_limit_and_all_of_them_hold(broker: Broker) -> None:
    for options, limit in (
        ({"maxRowsPerBatch": 7, "maxBytesPerBatch": 9, "minRowsPerBatch": 2}, ReadMaxRows(7)),
        ({"maxBytesPerBatch": 9, "minRowsPerBatch": 2}, ReadMaxBytes(9)),
        ({"minRowsPerBatch": 2}, ReadMinRows(2)),
    ):
        assert reader(**options).getDefaultReadLimit() == limit
    # 10 messages of 100 bytes and 2 of 1,000 have 3,000 together: 250 for each of the 12.
    for options, expected in (
        ({"maxBytesPerBatch": 1_500}, offset(4, 4)),
        ({"maxBytesPerBatch": 1_500, "maxRowsPerBatch": 4}, offset(2, 4)),
        ({"maxBytesPerBatch": 1_000, "maxRowsPerBatch": 9}, offset(2, 4)),
        ({"maxBytesPerBatch": 3_000}, offset(10, 4)),
        ({"maxBytesPerBatch": 1}, offset(1, 2)),
    ):
        made = reader(**options)
        assert made.latestOffset(offset(0, 2), made.getDefaultReadLimit()) == expected
        assert made.latestOffset(offset(0, 2), ALL) == offset(10, 4), "once takes all"


def test_a_micro_batch_waits_for_its_least_rows(broker: Broker) -> None:
    now = 50.0
    before = SYSTEM.set(replace(SYSTEM.get(), monotonic=lambda: now))
    try:
        made = reader(minRowsPerBatch=5, maxTriggerDelay="30s")
        limit: ReadLimit = made.getDefaultReadLimit()
        at = made.latestOffset(offset(9, 4), limit)
        assert at == offset(10, 4), "the first waits for nothing"
        broker.ends = [14, 4]
        assert made.latestOffset(at, limit) is at
        assert made.latestOffset(at, ALL) == offset(14, 4), "once waits for nothing"
        now += 1
        assert made.latestOffset(at, limit) is at
        now += 30
        at = made.latestOffset(at, limit)
        assert at == offset(14, 4)
        broker.ends = [16, 7]
        assert made.latestOffset(at, limit) == offset(16, 7)
        made.prepareForTriggerAvailableNow()
        assert made.latestOffset(offset(16, 6), limit) == offset(16, 7), "as many as there will be"
    finally:
        SYSTEM.reset(before)


def test_a_query_goes_on_behind_what_retention_deleted(broker: Broker) -> None:
    made = reader(onDataLoss="earliest")
    end = made.latestOffset(made.initialOffset(), ALL)
    assert "g" not in end
    broker.starts, broker.ends = [13, 2, 5], [20, 4, 6]
    later = made.latestOffset(end, ReadMaxRows(4))
    assert later == {
        **offset(16, 4, 6), "b": {"00000": 13, "00002": 5}, "g": {"00000": 10},
    }  # fmt: skip
    for text in (later, json.loads(json.dumps(later))):
        parts = [
            one
            for task in reader(onDataLoss="earliest").partitions(end, text)
            for one in task.portions
        ]
        assert [(part.range, part.lost) for part in parts] == [
            (Range(0, 10, 13), True), (Range(0, 13, 16), False), (Range(2, 5, 6), False),
        ]  # fmt: skip
    last = made.latestOffset(later, ALL)
    assert last == offset(20, 4, 6), "a gap is told once"
    # One that would rather fail finds out where it reads.
    strict = reader()
    assert strict.latestOffset(end, ALL) == {**offset(20, 4, 6), "b": {"00002": 5}}


def test_what_goes_before_the_first_micro_batch_is_no_plan(broker: Broker) -> None:
    """Of where it began there is no record: a replay would find another gap, or none."""
    made = reader(onDataLoss="earliest")
    start = made.initialOffset()
    broker.starts = [5, 4]
    end = made.latestOffset(start, ALL)
    assert end == {**offset(10, 4), "b": {"00000": 0, "00001": 2}}


def test_a_gap_ends_where_the_query_does(broker: Broker) -> None:
    made = reader(onDataLoss="earliest", endingOffsets='{"0": 8}')
    broker.starts = [9, 2]
    end = made.latestOffset(offset(3, 4), ALL)
    assert end == {**offset(8, 4), "b": {"00000": 8}, "g": {"00000": 3}}
    assert made.latestOffset(end, ALL) is end
    ahead = offset(9, 4)
    made.prepareForTriggerAvailableNow()
    assert made.latestOffset(ahead, ALL) is ahead


def test_a_gap_with_nothing_behind_it_is_told(broker: Broker) -> None:
    made = reader(onDataLoss="earliest", minRowsPerBatch=100)
    made.latestOffset(offset(9, 4), made.getDefaultReadLimit())
    broker.starts, broker.ends = [15, 2], [15, 4]
    later = made.latestOffset(offset(10, 4), made.getDefaultReadLimit())
    assert later == {**offset(15, 4), "b": {"00000": 15}, "g": {"00000": 10}}
    parts = [one for task in made.partitions(offset(10, 4), later) for one in task.portions]
    assert [(part.range, part.lost) for part in parts] == [(Range(0, 10, 15), True)]
    assert made.latestOffset(later, ALL) is later


def test_what_the_checkpoint_does_not_fit_is_refused(broker: Broker) -> None:
    made = reader()
    with pytest.raises(RangeLost, match="t/0 ends at 10"):
        made.latestOffset(offset(11, 4), ALL)
    with pytest.raises(CheckpointMismatch, match="no partition 2 any more"):
        made.latestOffset(offset(0, 0, 5), ALL)
    for call in (made.latestOffset, made.partitions):
        with pytest.raises(CheckpointMismatch, match="deleted and made again"):
            call(offset(0, 2, epoch=9), offset(10, 4, epoch=9) if call == made.partitions else ALL)
    # A replay comes before anything else is asked.
    with pytest.raises(CheckpointMismatch, match="no partition 2 any more"):
        reader().partitions(offset(0, 0, 0), offset(0, 0, 5))
    with pytest.raises(UnknownTopic, match=r"127\.0\.0\.1:6800 has no topic 'other'"):
        reader(topic="other").initialOffset()


def test_a_node_that_has_not_heard_of_a_partition_ends_no_query(broker: Broker) -> None:
    made = reader()
    broker.unheard = 1
    assert made.latestOffset(offset(4, 2), ALL) == offset(10, 4)
    broker.unheard = 1
    ranges = [
        one.range
        for task in reader().partitions(offset(4, 2), offset(10, 4))
        for one in task.portions
    ]
    assert ranges == [Range(0, 4, 10), Range(1, 2, 4)]
    broker.unheard = 1
    first = reader(startingOffsets='{"1": 3}').initialOffset()
    assert first == offset(0, 3)
    broker.unheard = 1
    assert set(reader(partitions="[1]").initialOffset()["p"]) == {"00001"}


def test_available_now_ends_at_the_pinned_target(broker: Broker) -> None:
    made = reader(startingOffsets="latest")
    made.prepareForTriggerAvailableNow()
    broker.ends = [12, 4, 9]
    start = made.initialOffset()
    assert start == offset(10, 4)
    assert made.latestOffset(start, ALL) is start
    assert made.latestOffset(offset(3, 4), ALL) == offset(10, 4)
    # The checkpoint may be past the target by then; nothing is read twice.
    ahead = offset(11, 4)
    assert made.latestOffset(ahead, ALL) is ahead
    with pytest.raises(CheckpointMismatch, match="deleted and made again"):
        made.latestOffset(offset(10, 4, epoch=9), ALL)
    assert made.reportLatestOffset() == offset(12, 4, 9)


def test_tasks_are_the_same_on_a_replay(broker: Broker) -> None:
    first = reader(minPartitions=3).partitions(offset(0, 2), offset(10, 4))
    again = reader(minPartitions=3).partitions(offset(0, 2), json.loads(json.dumps(offset(10, 4))))
    assert first == again
    assert len(first) >= 3
    assert all(isinstance(task, Task) for task in first)
    assert pickle.loads(pickle.dumps(first)) == first
    assert reader().partitions(offset(10, 4), offset(10, 4)) == []
    assert [*reader().read(None)] == []


def test_a_partition_that_joined_before_the_first_batch_is_replayed_whole(broker: Broker) -> None:
    """Asked again, the query begins at the end of that partition as well (drawn worlds, 500112)."""
    made = reader(startingOffsets="latest")
    start = made.initialOffset()
    broker.starts, broker.ends = [*broker.starts, 0], [20, 9, 2]
    end = json.loads(json.dumps(made.latestOffset(start, ALL)))
    first = [one.range for task in made.partitions(start, end) for one in task.portions]
    assert Range(2, 0, 2) in first
    again = reader(startingOffsets="latest")
    assert again.initialOffset()["p"]["00002"] == 2
    replayed = again.partitions(again.initialOffset(), end)
    assert [one.range for task in replayed for one in task.portions] == first


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_the_first_batch_is_replayed_from_where_it_began(broker: Broker, starting: str) -> None:
    """Of the first batch Spark stores the end alone, and after a kill asks where to begin."""
    made = reader(startingOffsets=starting)
    start = made.initialOffset()
    broker.ends = [20, 9]
    end = json.loads(json.dumps(made.latestOffset(start, ALL)))
    first = [one.range for task in made.partitions(start, end) for one in task.portions]
    # Meanwhile more is published, and retention goes on.
    broker.starts, broker.ends = [3, 4], [30, 30]
    again = reader(startingOffsets=starting)
    replayed = [
        one.range for task in again.partitions(again.initialOffset(), end) for one in task.portions
    ]
    assert replayed == first
    # The next one begins where the first ended.
    behind = again.latestOffset(end, ALL)
    ranges = [one.range for task in again.partitions(end, behind) for one in task.portions]
    assert ranges == [Range(0, 20, 30), Range(1, 9, 30)]
    assert "b" not in behind


def test_a_selection_belongs_to_the_checkpoint(broker: Broker) -> None:
    keyed = reader(keys='["a"]')
    start = keyed.initialOffset()
    end = keyed.latestOffset(start, ALL)
    assert keyed.latestOffset(end, ALL) == end
    assert {k: v for k, v in end.items() if k not in "bf"} == offset(10, 4)
    assert reader(keys='[{"hex": "61"}]').partitions(start, end)
    plain = reader()
    assert "f" not in plain.initialOffset(), "what is not filtered is stored as it always was"
    for other in (plain, reader(keys='["b"]'), reader(keys='["a"]', tags='["t"]')):
        with pytest.raises(CheckpointMismatch, match="other options keys, tags or partitions"):
            other.latestOffset(end, ALL)
        with pytest.raises(CheckpointMismatch):
            other.partitions(start, end)
    with pytest.raises(CheckpointMismatch):
        keyed.latestOffset(offset(10, 4), ALL)


def test_only_selected_partitions_are_planned(broker: Broker) -> None:
    one = reader(partitions="[1]")
    start = one.initialOffset()
    assert start["p"] == {"00001": 2}
    end = one.latestOffset(start, ReadMaxRows(1))
    assert end["p"] == {"00001": 3}, "what is not read uses nothing of the limit"
    tasks = one.partitions(start, one.latestOffset(start, ALL))
    assert [one.range for task in tasks if isinstance(task, Task) for one in task.portions] == [
        Range(1, 2, 4)
    ]
    # Other partitions that move are no news.
    behind = one.latestOffset(start, ALL)
    broker.ends[0] = 90
    assert one.latestOffset(behind, ALL) == behind
    with pytest.raises(BadOption, match="option partitions names partition 7; t has partitions 0"):
        reader(partitions="[1, 7]").initialOffset()
    with pytest.raises(BadOption, match="names partition 0, which the option partitions leaves"):
        reader(partitions="[1]", startingOffsets='{"0": 1}').initialOffset()


READ = """
import sys
from weir.model.arrow import EVERY, record_batch
from weir.model.batch import Batch
from weir.model.batch_builder import encode
from weir.spark import source
from weir.spark.fetcher import combined
from weir.spark.rows import timed
from weir.spark.selection import Selection

told = encode(
    [b"a", b"b"], group=1, keys=[b"k", None], tags=["t", None], headers=[{}, {"h": b"1"}]
)
names = tuple(EVERY.names)
both = (told, encode([b"c"], group=1))
(all,) = combined(record_batch(Batch(bytes(one)), "t", 3, names=names) for one in both)
found = Selection(keys=frozenset([b"k", None]), tags=frozenset(["t", ""])).filter(timed(all))
heavy = {"pandas", "weir.spark.sink.writer", "weir.client.client"} & sys.modules.keys()
print(found.num_rows, *sorted(heavy))
"""


def test_a_process_that_reads_imports_neither_pandas_nor_what_writes() -> None:
    told = subprocess.run(
        [sys.executable, "-c", READ], env=environment(), capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip
    assert told.stdout.split() == ["3"]
