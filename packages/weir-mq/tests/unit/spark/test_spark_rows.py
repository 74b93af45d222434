"""Rows for Spark: times that it has a timestamp for, and gaps that are told of."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from weir.client.connection.system import SYSTEM
from weir.errors import OffsetOutOfRange, RangeLost
from weir.model.arrow import SCHEMA
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of
from weir.protocol.client.messages import Fetched
from weir.spark import blocking_client
from weir.spark.fetcher import Portion, Source
from weir.spark.options import Options
from weir.spark.planning import Range
from weir.spark.rows import TIME_MAX, TIME_MIN, columns_of, read_rows, timed

ADDRESS = Address(0, 0, group_of(1, 0))
SIZE = 10
FAIL = Options.parse({"topic": "t"})
EARLIEST = Options.parse({"topic": "t", "onDataLoss": "Earliest"})


class Broker:
    """Stands for a `BlockingClient`: batches of ten messages, of which retention deletes."""

    def __init__(self, end: int) -> None:
        self.start, self.end = 0, end
        #: By the offset that is asked for: what is deleted just before.
        self.deleted: dict[int, int] = {}

    def fetch(self, address: Address, offset: int, max_bytes: int, *_: object) -> Fetched:
        self.start = max(self.start, self.deleted.pop(offset, 0))
        if not self.start <= offset <= self.end:
            nearest = min(max(offset, self.start), self.end)
            raise OffsetOutOfRange("gone", nearest)
        first = offset // SIZE * SIZE
        raw = encode([b"%d" % at for at in range(first, first + SIZE)], group=ADDRESS.group)
        data = stamped(raw, 5, first) + bytes(raw[HEADER_SIZE:])
        return Fetched(address, offset, first + SIZE, self.end, (data,))

    def begin(self, request: object) -> None:
        pass

    def place_of(self, address: object) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    scripted = Broker(100)
    monkeypatch.setattr(blocking_client, "BlockingClient", lambda *_: scripted)
    monkeypatch.setattr(blocking_client, "_kept", {})
    before = SYSTEM.set(replace(SYSTEM.get(), sleep=lambda _: None))
    try:
        yield scripted
    finally:
        SYSTEM.reset(before)


def portion(first: int, behind: int, lost: bool = False) -> Portion:
    return Portion(Source((("broker", 1),), "t", ADDRESS), Range(0, first, behind), lost)


def rows(part: Portion, options: Options = EARLIEST) -> list[dict[str, Any]]:
    return pa.Table.from_batches(read_rows(part, options), columns_of(options)).to_pylist()


def brief(found: list[dict[str, Any]]) -> list[int | tuple[int, int]]:
    """Offsets of messages, and (offset, lost) of gaps."""
    return [one["offset"] if one["lost"] is None else (one["offset"], one["lost"]) for one in found]


def test_a_gap_has_a_row_and_what_is_there_comes(broker: Broker) -> None:
    broker.start = 23
    found = rows(portion(5, 30))
    assert brief(found) == [(5, 18), *range(23, 30)]
    gap = {"topic": "t", "partition": 0, "offset": 5, "lost": 18}
    assert found[0] == dict.fromkeys(SCHEMA.names) | gap
    assert all(one["value"] == b"%d" % one["offset"] for one in found[1:])


def test_what_was_fetched_before_a_gap_comes_before_it(broker: Broker) -> None:
    broker.deleted = {20: 47, 60: 63}
    assert brief(rows(portion(3, 80))) == [
        *range(3, 20), (20, 27), *range(47, 60), (60, 3), *range(63, 80),
    ]  # fmt: skip


@pytest.mark.parametrize("start", [30, 90])
def test_a_range_that_is_gone_whole_is_one_gap(broker: Broker, start: int) -> None:
    broker.start = start
    assert brief(rows(portion(5, 30))) == [(5, 25)]


def test_a_gap_that_the_plan_knows_is_not_read(broker: Broker) -> None:
    assert brief(rows(portion(5, 12, lost=True))) == [(5, 7)]
    with pytest.raises(RangeLost, match=r"messages 5 to 11 of t/0 .*'earliest'\) again"):
        list(read_rows(portion(5, 12, lost=True), FAIL))


def test_columns_of_a_gap_are_those_of_the_query(broker: Broker) -> None:
    broker.start = 8
    few = Options.parse({"topic": "t", "onDataLoss": "earliest", "columns": '["value"]'})
    assert rows(portion(5, 10), few) == [
        {"value": None, "lost": 3}, {"value": b"8", "lost": None}, {"value": b"9", "lost": None},
    ]  # fmt: skip


def test_a_query_that_is_to_fail_names_the_option(broker: Broker) -> None:
    broker.start = 8
    with pytest.raises(RangeLost, match=r"messages 5 to 9 of t/0 are gone .*onDataLoss") as caught:
        list(read_rows(portion(5, 10), FAIL))
    assert (caught.value.first, caught.value.behind) == (5, 8)


def test_a_broker_that_lost_its_end_always_ends_the_query(broker: Broker) -> None:
    broker.end = 40
    with pytest.raises(RangeLost):
        rows(portion(50, 60))


def times(*microseconds: int) -> pa.RecordBatch:
    schema = pa.schema([("offset", pa.int64()), SCHEMA.field("time")])
    column = pa.array(microseconds, pa.int64()).view(SCHEMA.field("time").type)
    return pa.record_batch([pa.array(range(len(microseconds))), column], schema=schema)


def test_times_that_spark_has_no_timestamp_for_are_null() -> None:
    fine = times(TIME_MIN, 0, TIME_MAX)
    assert timed(fine) is fine
    assert fine.column("time").to_pylist() == [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ]
    for bad in (TIME_MIN - 1, TIME_MAX + 1, -(1 << 63), (1 << 63) - 1):
        found = timed(times(0, bad, 1))
        assert found.schema.equals(fine.schema)
        assert found.column("time").is_null().to_pylist() == [False, True, False]
        assert found.column("offset").to_pylist() == [0, 1, 2]
    assert timed(times()).num_rows == 0
