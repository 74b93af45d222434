"""From offsets to record batches over a broker that a test scripts, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from weir.client.connection.system import REAL, SYSTEM
from weir.codec import ALIGNMENT
from weir.errors import BadBatch, Disconnected, NotLeader, OffsetOutOfRange, RangeLost, Unauthorized
from weir.model.arrow import SCHEMA
from weir.model.batch import HEADER_SIZE, stamped
from weir.model.batch_builder import encode
from weir.model.ids import Address, group_of
from weir.protocol.client import messages as m
from weir.protocol.client.messages import Fetch, Fetched, TopicInfo, Welcome
from weir.spark import blocking_client, fetcher
from weir.spark.fetcher import COMBINED_ROWS_MIN, Portion, Source, combined, record_batches
from weir.spark.planning import Range

HOSTS = (("broker", 1),)
ADDRESS = Address(0, 0, group_of(1, 0))
MOVED = Address(4, 0, group_of(1, 0))
SOURCE = Source(HOSTS, "t", ADDRESS)
SIZE = 10


def batch_at(first: int) -> bytes:
    """A batch of ten messages from offset `first` on, each the text of its offset."""
    raw = encode([b"%d" % offset for offset in range(first, first + SIZE)], group=ADDRESS.group)
    return stamped(raw, 5, first) + bytes(raw[HEADER_SIZE:])


class Broker:
    """Stands for a `BlockingClient`: one batch an answer, unless `next_faults` says otherwise."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[tuple[Address, int]] = []
        self.closed = 0
        #: What was sent ahead, and where the leader is to be reached by itself.
        self.begun: list[int] = []
        self.leader: tuple[str, int] | None = None
        self.welcome = Welcome(7, 1, 1, 0, 1 << 20, 64)
        self.next_faults: list[Exception | Callable[[bytes], bytes]] = []

    def fetch(self, address: Address, offset: int, max_bytes: int, *_: object) -> Fetched:
        self.asked.append((address, offset))
        first = offset // SIZE * SIZE
        data = batch_at(first) if first < self.end else b""
        if self.next_faults:
            fault = self.next_faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            data = fault(data)
        behind = first + SIZE if data else offset
        return Fetched(address, offset, behind, self.end, (data,) if data else ())

    def begin(self, request: Fetch) -> None:
        self.begun.append(request.offset)

    def place_of(self, address: Address) -> tuple[str, int] | None:
        return self.leader

    def describe(self, topic: str) -> TopicInfo:
        return TopicInfo(1, "default", topic, "partition", [MOVED])

    def close(self) -> None:
        self.closed += 1


@contextmanager
def on(**parts: Any) -> Iterator[None]:
    """Have some parts of the system replaced."""
    before = SYSTEM.set(msgspec.structs.replace(SYSTEM.get(), **parts))
    try:
        yield
    finally:
        SYSTEM.reset(before)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    """The broker at HOSTS; retries do not wait."""
    scripted = Broker(end=100)
    monkeypatch.setattr(blocking_client, "BlockingClient", lambda *_: scripted)
    monkeypatch.setattr(blocking_client, "_kept", {})
    with on(sleep=lambda _: None):
        yield scripted


def read(first: int, behind: int) -> pa.Table:
    return pa.Table.from_batches(
        record_batches(Portion(SOURCE, Range(0, first, behind)), 1 << 20), SCHEMA
    )


@pytest.mark.parametrize(("first", "behind"), [(0, 100), (0, 1), (7, 8), (9, 11), (13, 87)])
def test_a_range_arrives_whole_and_trimmed(broker: Broker, first: int, behind: int) -> None:
    table = read(first, behind)
    assert table["offset"].to_pylist() == [*range(first, behind)]
    assert table["value"].to_pylist() == [b"%d" % offset for offset in range(first, behind)]


def test_what_passes_is_asked_for_again(broker: Broker) -> None:
    def damage(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    broker.next_faults = [Disconnected("gone"), damage, damage, Disconnected("gone")]
    assert read(0, 30)["offset"].to_pylist() == [*range(30)]
    # A connection that broke, or brought wrong bytes, is not used again.
    assert broker.closed == 4


def test_a_moved_leader_is_found(broker: Broker) -> None:
    broker.next_faults = [NotLeader("elsewhere")]
    assert len(read(0, 20)) == 20
    assert broker.asked == [(ADDRESS, 0), (MOVED, 0), (MOVED, 10)]
    assert broker.closed == 0


def test_a_truncated_range_is_an_error_not_fewer_rows(broker: Broker) -> None:
    broker.end = 40
    with pytest.raises(RangeLost, match="messages 40 to 59 of t/0 are gone"):
        read(0, 60)
    broker.next_faults = [OffsetOutOfRange("the log starts at 5", 5)]
    with pytest.raises(RangeLost, match="the nearest is 5"):
        read(0, 10)


def test_a_hole_is_an_error(broker: Broker) -> None:
    broker.next_faults = [lambda data: data + batch_at(20)]
    with pytest.raises(RangeLost, match="messages 10 to 19 of t/0 are gone"):
        # As if the broker had sent 0 to 9, then 20 to 29, and called it 0 to 29.
        pa.Table.from_batches(_claiming(broker, 30))


def test_what_was_aborted_is_no_hole(broker: Broker) -> None:
    answer = broker.fetch

    def fetch(address: Address, offset: int, max_bytes: int, *_: object) -> Fetched:
        found = answer(address, offset, max_bytes)
        if offset in (20, 30):  # 20 to 39 are void, told at once or bit by bit
            return Fetched(address, offset, offset + 10, 60, (), voids=((offset, offset + 10),))
        if offset == 0:
            return msgspec.structs.replace(
                found, next_offset=15, batches=found.batches, voids=((10, 15),)
            )
        return found

    broker.fetch = fetch  # type: ignore[method-assign]
    table = pa.Table.from_batches(record_batches(Portion(SOURCE, Range(0, 0, 50)), 1 << 20), SCHEMA)
    assert table["offset"].to_pylist() == [*range(10), *range(15, 20), *range(40, 50)]


def _claiming(broker: Broker, behind: int) -> Iterator[pa.RecordBatch]:
    answer = broker.fetch

    def fetch(address: Address, offset: int, max_bytes: int, *_: object) -> Fetched:
        found = answer(address, offset, max_bytes)
        return Fetched(address, offset, behind, broker.end, found.batches)

    broker.fetch = fetch  # type: ignore[method-assign]
    return record_batches(Portion(SOURCE, Range(0, 0, behind)), 1 << 20)


def test_patience_ends(broker: Broker) -> None:
    broker.next_faults = [Disconnected("gone")] * 50
    with pytest.raises(Disconnected) as caught:
        blocking_client.ask(HOSTS, lambda client: client.fetch(ADDRESS, 0, 1), timeout=0.0)
    assert "continues from its checkpoint" in caught.value.__notes__[0]
    assert len(broker.asked) == 1


def test_what_does_not_pass_is_raised_at_once(broker: Broker) -> None:
    broker.next_faults = [Unauthorized("no")]
    with pytest.raises(Unauthorized):
        read(0, 10)
    assert len(broker.asked) == 1


def test_wrong_bytes_do_not_pass_for_ever(broker: Broker) -> None:
    now = iter(range(1_000))
    # These bytes belong to another group, so that asking again never helps.
    broker.next_faults = [lambda _: bytes(encode([b"x"], group=99))] * 1_000
    with on(monotonic=lambda: float(next(now))), pytest.raises(BadBatch):
        read(0, 10)
    assert len(broker.asked) < 40


def test_a_connection_belongs_to_a_process(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(
        blocking_client, "BlockingClient", lambda *given: made.append(given[3]) or broker
    )
    for _ in range(3):
        blocking_client.ask(HOSTS, lambda client: client.describe("t"))
    here = REAL.process()
    with on(process=lambda: here + 1):
        blocking_client.ask(HOSTS, lambda client: client.describe("t"))
    assert made == [f"spark-{here}", f"spark-{here + 1}"]


def test_small_batches_are_joined_and_large_ones_passed_on() -> None:
    def rows(count: int) -> pa.RecordBatch:
        return pa.record_batch({"x": pa.array(range(count), pa.int64())})

    large = rows(COMBINED_ROWS_MIN)
    assert next(iter(combined([large]))) is large
    small = [rows(100)] * 400
    counts = [batch.num_rows for batch in combined(small)]
    assert sum(counts) == 40_000
    assert min(counts[:-1]) >= COMBINED_ROWS_MIN
    assert [*combined([])] == []


@pytest.mark.parametrize("size", [0, 16, 1 << 20])
def test_a_reply_is_received_into_memory_of_its_size_that_arrow_reads_in_place(size: int) -> None:
    memory = blocking_client.memory_of(size)
    assert memory.nbytes == size
    assert not memory.readonly
    assert pa.py_buffer(memory).address % ALIGNMENT == 0


def test_the_next_portion_is_sent_for_while_spark_takes_this_one(broker: Broker) -> None:
    parts = record_batches(Portion(SOURCE, Range(0, 3, 38)), 1 << 20)
    rows = sum(batch.num_rows for batch in parts)
    assert rows == 35
    assert broker.begun == [offset for _, offset in broker.asked[1:]] == [10, 20, 30]


def test_a_partition_is_read_from_its_leader(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialled: list[tuple[str, int]] = []
    systems: list[int] = []

    def client(host: str, port: int, timeout: float, name: str, system: int, _: None) -> Broker:
        dialled.append((host, port))
        systems.append(system)
        return broker

    monkeypatch.setattr(blocking_client, "BlockingClient", client)
    broker.leader = ("leader", 7)
    assert len(read(0, 20)) == 20
    assert dialled == [("broker", 1), ("leader", 7)]
    assert systems == [0, 7], "at its place, another system would do harm"
    dialled.clear()
    forced = Portion(replace(SOURCE, read_from="url"), Range(0, 0, 20))
    assert sum(batch.num_rows for batch in record_batches(forced, 1 << 20)) == 20
    assert dialled == []
    # Where the leader cannot be reached by itself, any other host passes on what is asked.
    broker.leader = ("elsewhere", 8)

    def unreached(host: str, port: int, *more: Any) -> Broker:
        if host == "elsewhere":
            raise Disconnected(f"no connection to {host}")
        return client(host, port, *more)

    monkeypatch.setattr(blocking_client, "BlockingClient", unreached)
    dialled.clear()
    assert len(read(0, 20)) == 20
    assert dialled == [("broker", 1)]


@pytest.mark.parametrize("fault", [None, NotLeader("x"), OffsetOutOfRange("y", 5), b""])
def test_a_replica_that_cannot_serve_is_left(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, fault: object
) -> None:
    answer, replicas = broker.fetch, list[bool]()

    def fetch(
        address: Address, offset: int, max_bytes: int, wait_ms: int, replica: bool, *_: object
    ) -> Fetched:
        replicas.append(replica)
        if replica and offset >= 10:
            if isinstance(fault, Exception):
                raise fault
            if fault is not None:  # it lags
                return Fetched(address, offset, offset, offset)
        return answer(address, offset, max_bytes)

    broker.fetch = fetch  # type: ignore[method-assign]
    monkeypatch.setattr(fetcher, "nearest", lambda hosts: (("near", 1), *hosts))
    now = iter(range(1_000))
    portion = Portion(replace(SOURCE, read_from="nearest"), Range(0, 0, 30))
    with on(monotonic=lambda: float(next(now))):
        batches = [*record_batches(portion, 1 << 20)]
    table = pa.Table.from_batches(batches, SCHEMA)
    assert table["offset"].to_pylist() == [*range(30)]
    assert replicas[0]
    assert replicas[-1] == (fault is None)
    left = replicas.index(False) if False in replicas else len(replicas)
    assert True not in replicas[left:], "who was left is not asked again"


class Promoted(Broker):
    """A broker in lineage 1 of the partition, of which retention has deleted what is old."""

    def __init__(self, start: int, fork: int | None, end: int) -> None:
        super().__init__(end)
        self.start, self.fork = start, fork

    def fetch(
        self, address: Address, offset: int, max_bytes: int, *more: object, **named: object
    ) -> Fetched:
        lineage = more[3] if len(more) > 3 else -1
        assert isinstance(lineage, int)
        forks = [] if self.fork is None else [(1, self.fork)]
        ended = lineage == 0 and self.fork is not None and self.fork < offset
        if ended or offset > self.end:
            asked = m.Fetch(address, offset, max_bytes, lineage=lineage)
            raise asked.beyond(self.start, self.end, forks)
        if offset < self.start:
            raise OffsetOutOfRange("past retention", self.start)
        return msgspec.structs.replace(
            super().fetch(address, offset, max_bytes), lineage=len(forks)
        )


@pytest.fixture
def promoted(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Promoted:
    scripted = Promoted(0, 20, 60)
    monkeypatch.setattr(blocking_client, "BlockingClient", lambda *_: scripted)
    return scripted


def read_in(lineage: int, first: int, behind: int) -> list[int]:
    portion = Portion(replace(SOURCE, lineage=lineage), Range(0, first, behind))
    table = pa.Table.from_batches(record_batches(portion, 1 << 20), SCHEMA)
    found: list[int] = table["offset"].to_pylist()
    return found


@pytest.mark.parametrize("end", [20, 30, 60])
@pytest.mark.parametrize("first", [13, 20, 33])
def test_a_range_of_a_lineage_that_ended_before_its_end_is_refused(
    promoted: Promoted, first: int, end: int
) -> None:
    promoted.end = end
    with pytest.raises(OffsetOutOfRange, match="planned in lineage 0, and a later one") as caught:
        read_in(0, first, 40)
    assert caught.value.detail == 20


@pytest.mark.parametrize(("lineage", "behind"), [(0, 20), (1, 40), (-1, 40)])
def test_a_range_is_read_that_is_of_its_lineage_or_of_none(
    promoted: Promoted, lineage: int, behind: int
) -> None:
    assert read_in(lineage, 3, behind) == [*range(3, behind)]


def test_what_retention_deleted_is_told_as_such(promoted: Promoted) -> None:
    promoted.start = 10
    with pytest.raises(RangeLost) as caught:
        read_in(0, 5, 15)
    assert (caught.value.first, caught.value.behind) == (5, 10)
    promoted.start = 50
    with pytest.raises(RangeLost):
        read_in(0, 5, 15)


def test_another_system_is_no_later_lineage(promoted: Promoted) -> None:
    promoted.fork, promoted.end = None, 30
    with pytest.raises(RangeLost, match="the broker is another one"):
        read_in(0, 33, 40)
