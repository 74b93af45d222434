"""What a relay answers to fetches, of a log whose entries are cut and filtered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from weir.codec import Buffer
from weir.errors import BadRequest, DamagedRange, OffsetOutOfRange, Unavailable
from weir.model.batch import HEADER_SIZE, split, stamped
from weir.model.batch_builder import encode
from weir.model.columns import References
from weir.model.ids import Address
from weir.model.topic import Presence
from weir.protocol.client import messages as m
from weir.relay.entries import (
    AnyRecord,
    ChunkStored,
    FilterSet,
    Forked,
    GapTold,
    Relayed,
    StartMoved,
    encode_entry,
)
from weir.relay.messages import Mark
from weir.relay.rows import Row
from weir.relay.state import RelayState
from weir.relay_node import reads

GROUP = 3 << 16
ADDRESS = Address(0, 0, GROUP, 9)
CORE = "weir://core:6800"


def batch(first: int, tags: Sequence[str | None], stamp: int) -> bytes:
    data = encode([b"%d" % (first + at) for at in range(len(tags))], group=GROUP, tags=tags)
    return stamped(data, stamp, first) + bytes(data[HEADER_SIZE:])


class Log:
    """A log of a partition, entry by entry."""

    def __init__(self, *records: AnyRecord) -> None:
        self.state = RelayState()
        self.entries: dict[int, Buffer] = {}
        self.partitions, self.log_start = 3, 0
        for record in records:
            self.add(record)

    def add(self, record: AnyRecord, *data: Buffer) -> None:
        payload = b"".join(encode_entry(record, *data))
        self.entries[self.state.apply(record, len(payload))] = payload

    def relay(self, rows: Sequence[Row], *data: bytes) -> None:
        first = self.state.end
        filter_ = self.state.filter_at(first)
        assert filter_ is not None
        end = first + sum(row.count for row in rows)
        self.add(Relayed(self.state.lineage, first, end, filter_.version, 1, tuple(rows)), *data)

    def end(self, head: int) -> int:
        return max(head, self.state.end)

    def fetch(
        self, offset: int, *tags: str, mark: Mark | None = None, head: int = 0, lineage: int = -1
    ) -> m.Fetched:
        asked = m.Fetch(ADDRESS, offset, 1 << 20, tags=tags, lineage=lineage)
        reads.check_fetch(self.state, asked, "t", CORE, self.log_start)
        plan = reads.plan_of(self.state, asked)
        if plan is None:
            return reads.nothing_for(
                asked, self.end(head), mark, self.partitions, self.state.lineage
            )
        portion = reads.read_portion(plan, self.entries, self.state)
        assert portion is not None
        return reads.fetched_of(
            asked, portion, self.end(head), mark, self.partitions, self.state.lineage
        )


@pytest.fixture
def log() -> Log:
    log = Log(StartMoved(10), FilterSet(1, None, 10))
    one, two = batch(10, ["a", "b"], 5), batch(14, ["b"], 6)
    log.relay([Row(1, 2, 5, len(one)), Row(4, 2), Row(2, 1, 6, len(two))], one, two)
    three = batch(15, ["a"], 6)
    log.relay([Row(1, 1, 6, len(three))], three)
    return log


def test_messages_come_at_their_offsets_with_what_is_void(log: Log) -> None:
    found = log.fetch(10, head=40, mark=Mark(3, 99, 38))
    offsets = [one.offset for data in found.batches for b in split(data, GROUP)
               for one in b.messages()]  # fmt: skip
    assert offsets == [10, 11, 14, 15]
    assert (found.next_offset, found.voids, found.is_cut) == (16, ((12, 14),), False)
    assert (found.committed, found.barrier, found.partitions) == (40, 99, 3)


def test_an_answer_that_ends_amid_a_stamp_is_cut(log: Log) -> None:
    asked = m.Fetch(ADDRESS, 10, 1)
    plan = reads.plan_of(log.state, asked)
    assert plan is not None
    portion = reads.read_portion(plan._replace(credit=1 << 20, until=15), log.entries, log.state)
    assert portion is not None
    assert reads.fetched_of(asked, portion, 16, None, 0, 0).is_cut


def test_a_message_is_told_to_be_here_skipped_or_no_message(log: Log) -> None:
    kept = reads.StoredBatches().select(batch(16, ["a", "b", "a"], 7), frozenset({"b"}), GROUP)
    assert kept is not None
    log.relay([Row(1, 3, 7, len(kept)), Row(3, 2, 8)], bytes(kept))
    log.add(GapTold(21, 25, "gone"))
    found = {at: reads.presence_in(log.state, at, 23) for at in (9, 10, 21, 22, 23, 24, 25)}
    assert found == {
        9: Presence.DELETED, 10: Presence.STORED, 21: Presence.DELETED, 22: Presence.DELETED,
        23: Presence.LOST, 24: Presence.LOST, 25: Presence.AWAITED,
    }  # fmt: skip
    assert reads.presence_in(log.state, 10, -1) is Presence.STORED
    with pytest.raises(Unavailable, match="not said yet whether it is past retention"):
        reads.presence_in(log.state, 21, -1)
    assert reads.presence_in(RelayState(), 0, -1) is Presence.AWAITED
    told = {}
    for offset in (10, 11, 12, 14, 15, 16, 17, 18, 19):
        (index,) = log.state.entries_from(offset, offset + 1, 1)
        told[offset] = reads.found_in(log.entries[index], offset)
    assert told == {
        10: (Presence.STORED, 5, 1), 11: (Presence.STORED, 5, 1), 12: (Presence.ABORTED, 0, 1),
        14: (Presence.STORED, 6, 1), 15: (Presence.STORED, 6, 1), 16: (Presence.SKIPPED, 0, 1),
        17: (Presence.STORED, 7, 1), 18: (Presence.SKIPPED, 0, 1), 19: (Presence.SKIPPED, 0, 1),
    }  # fmt: skip


def test_a_mark_beyond_what_is_told_as_committed_is_not_told(log: Log) -> None:
    found = log.fetch(10, mark=Mark(3, 99, 17))
    assert (found.committed, found.barrier, found.partitions) == (16, 0, 3)


def test_messages_say_how_many_partitions_there_are_without_a_mark(log: Log) -> None:
    found = log.fetch(10)
    assert (found.batches != (), found.barrier, found.partitions) == (True, 0, 3)
    empty = log.fetch(16)
    assert (empty.batches, empty.barrier, empty.partitions) == ((), 0, 3)


def test_tags_are_filtered_and_told_as_skipped(log: Log) -> None:
    found = log.fetch(10, "c")
    assert (found.batches, found.is_filtered) == ((), True)
    assert found.skipped == ((10, 12), (14, 16))
    assert found.voids == ((12, 14),)


def test_a_batch_that_begins_before_its_row_is_the_first_of_an_answer() -> None:
    """Else its messages would be handed out twice."""
    log = Log(StartMoved(10), FilterSet(1, None, 10))
    data = batch(10, ["a", "b", "a"], 5)
    log.relay([Row(2, 2, 5, len(data))], data)
    log.relay([Row(1, 1, 5, len(data))], data)
    first = log.fetch(10)
    assert (first.next_offset, len(first.batches), first.is_cut) == (12, 1, True)
    second = log.fetch(12)
    assert (second.next_offset, len(second.batches), second.is_cut) == (13, 1, False)


def test_a_batch_that_begins_in_what_was_skipped_before_it_is_the_first_of_an_answer() -> None:
    """Else two parts of an answer would tell what became of the same offset."""
    log = Log(StartMoved(10), FilterSet(1, ("b",), 10))
    data = batch(10, ["a", "b", "b"], 5)
    log.relay([Row(3, 1)])
    log.relay([Row(1, 2, 5, len(data))], data)
    first = log.fetch(10, "b")
    assert (first.next_offset, first.skipped, first.batches) == (11, ((10, 11),), ())
    second = log.fetch(11, "b")
    assert (second.next_offset, second.skipped, len(second.batches)) == (13, (), 1)


def test_refusals_say_where_to_go_on(log: Log) -> None:
    with pytest.raises(OffsetOutOfRange) as below:
        log.fetch(9)
    assert below.value.detail == 10
    with pytest.raises(Unavailable, match="this relay has received nothing of t yet"):
        Log().fetch(0)
    log.add(GapTold(16, 20, "gone"))
    with pytest.raises(DamagedRange, match="offsets 16 to 19 of t are lost"):
        log.fetch(17)
    assert log.fetch(20).next_offset == 20


def test_a_gap_that_retention_has_passed_is_out_of_range_as_in_the_core(log: Log) -> None:
    log.add(GapTold(16, 20, "gone"))
    log.log_start = 18
    for offset in (16, 17):
        with pytest.raises(OffsetOutOfRange) as past:
            log.fetch(offset)
        assert past.value.detail == 18
    with pytest.raises(DamagedRange):
        log.fetch(18)
    log.log_start = 40
    with pytest.raises(OffsetOutOfRange) as past:
        log.fetch(18)
    assert past.value.detail == 20, "what lies behind is still here"
    log.log_start = -1
    with pytest.raises(Unavailable, match="offsets 16 to 19 of t are not here"):
        log.fetch(18)
    assert log.fetch(10).next_offset == 16


def test_what_the_filter_excludes_is_refused_never_left_out() -> None:
    log = Log(StartMoved(10), FilterSet(1, ("a",), 10))
    data = batch(10, ["a"], 5)
    log.relay([Row(1, 1, 5, len(data)), Row(3, 4, 6)], data)
    for offset in (10, 15):
        with pytest.raises(BadRequest, match="keeps the tags 'a'"):
            log.fetch(offset)
        with pytest.raises(BadRequest, match=CORE):
            log.fetch(offset, "a", "b")
    found = log.fetch(10, "a")
    assert (found.next_offset, found.skipped, len(found.batches)) == (15, ((11, 15),), 1)


def test_chunks_are_found_by_their_index_in_the_core() -> None:
    log = Log(StartMoved(10), FilterSet(1, None, 10))
    pieces = [bytes(encode([b"piece"], group=GROUP, chunk_at=5 * n)) for n in range(2)]
    for index, piece in zip((40, 41), pieces, strict=True):
        log.add(ChunkStored(index, 10), piece)
    closing = encode([b""], group=GROUP, references=References(10, 1, ((40, 2),)))
    data = stamped(closing, 9, 10) + bytes(closing[HEADER_SIZE:])
    log.relay([Row(1, 1, 9, len(data))], data)
    assert log.fetch(10).batches == (data,)
    indexes = reads.chunk_indexes(log.state, 40, 5)
    assert list(map(bytes, reads.chunks_in(indexes, log.entries))) == pieces
    assert reads.chunk_indexes(log.state, 39, 5) == []


def test_what_was_not_read_ends_an_answer(log: Log) -> None:
    plan = reads.plan_of(log.state, m.Fetch(ADDRESS, 10, 1 << 20))
    assert plan is not None
    first, second = plan.indexes
    some = {first: log.entries[first]}
    portion = reads.read_portion(plan, some, log.state)
    assert portion is not None
    assert portion.next == 15
    assert reads.read_portion(plan, {second: log.entries[second]}, log.state) is None


def test_a_relay_tells_who_has_read_in_a_lineage_that_ended(log: Log) -> None:
    """The log was [10, 17); the core's went on otherwise from 14 on."""
    assert log.fetch(10, lineage=0).lineage == 0
    assert log.fetch(17).lineage == 0
    log.add(Forked(2, 14, ((2, 14),)))
    for rows in range(4):
        behind = log.state.end
        for offset in range(max(15, behind), 20):
            with pytest.raises(OffsetOutOfRange, match="Lineage 2 began at offset 14") as refused:
                log.fetch(offset, lineage=0)
            assert refused.value.detail == 14
        assert log.fetch(14, lineage=0).lineage == 2
        assert log.fetch(max(14, behind), lineage=2).lineage == 2
        log.relay([Row(3, rows + 1)])
    with pytest.raises(OffsetOutOfRange, match="offset 15 lies behind the end of lineage 0"):
        log.fetch(15, lineage=0)
    assert log.fetch(15).next_offset == log.state.end


def test_a_relay_is_not_read_by_who_knows_a_later_lineage(log: Log) -> None:
    with pytest.raises(Unavailable, match="has not heard of lineage 1 of t yet"):
        log.fetch(10, lineage=1)
