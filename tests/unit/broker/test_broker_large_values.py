"""Values of chunks at the broker: what is taken, what readers see of it, when it is void."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from weir.errors import BadRequest, Overloaded, SequenceReused, TooLarge, ValueLost
from weir.model.batch import Batch, split
from weir.model.chunks import Piece, References
from weir.model.header import HEADER_SIZE, Compression, Packed, parse, seal
from weir.model.limits import OPEN_VALUE_MS, OPEN_VALUES_MAX
from weir.model.topic import SettingsChange
from weir.wire import administration as a
from weir.wire import messages as m


class Publisher:
    """One producer that sends a value piece by piece."""

    def __init__(self, rig: Any, info: m.TopicInfo, session: int = 1) -> None:
        self.rig, self.info, self.session = rig, info, session
        self.grant = rig.answer(session, m.OpenProducer())
        self.sequence = 0

    def ask(self, *values: bytes, **more: Any) -> Any:
        batch = self.rig.batch(self.info, self.grant, self.sequence, *values, **more)
        reply = self.rig.answer(self.session, batch)
        if isinstance(reply, m.Confirm):
            self.sequence += max(len(values), 1)
        return reply

    def pieces(self, *pieces: bytes, at: int = 0) -> list[int]:
        """Send pieces from byte `at` on; return the indices of their entries."""
        indices = []
        for piece in pieces:
            confirm = self.ask(piece, chunk_at=at)
            assert (confirm.offset, confirm.duplicate) == (-1, False)
            indices.append(confirm.index)
            at += len(piece)
        return indices

    def close(self, size: int, *indices: int, **more: Any) -> Any:
        runs = tuple((index, 1) for index in indices)
        return self.ask(references=joined(References(size, 7, runs)), **more)


def joined(references: References) -> References:
    """The same references, neighbours in one run."""
    runs: list[tuple[int, int]] = []
    for first, count in references.runs:
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + count)
        else:
            runs.append((first, count))
    return References(references.size, references.hash, tuple(runs))


@pytest.fixture
def large(rig: Any) -> tuple[Any, Publisher]:
    rig.connect()
    return rig, Publisher(rig, rig.topic(1))


def fetched(rig: Any, info: m.TopicInfo, offset: int = 0) -> list[Batch]:
    reply = rig.answer(1, m.Fetch(info.addresses[0], offset, 1 << 20))
    return [batch for part in reply.batches for batch in split(part, info.addresses[0].group)]


def chunks(rig: Any, info: m.TopicInfo, index: int, count: int, size: int = 1 << 20) -> Any:
    return rig.answer(1, m.FetchChunks(info.addresses[0], index, count, size))


def test_chunks_take_no_offset_and_the_closing_entry_takes_one(large: Any) -> None:
    rig, publisher = large
    indices = publisher.pieces(b"abc", b"de")
    assert publisher.ask(b"small").offset == 0  # in between, by the same producer
    indices += publisher.pieces(b"f", at=5)
    assert publisher.close(6, *indices, keys=[b"k"]).offset == 1
    small, closing = fetched(rig, publisher.info)
    assert small.values() == [b"small"]
    assert closing.keys() == [b"k"]
    assert closing.header.first_offset == 1
    assert closing.references is not None
    (first, two), (third, one) = closing.references.runs
    assert (first, two, third, one) == (indices[0], 2, indices[2], 1)
    reply = chunks(rig, publisher.info, first, two)
    (payload,) = reply.batches
    pieces = split(payload, publisher.info.addresses[0].group)
    assert [(piece.piece, piece.values()) for piece in pieces] == [
        (Piece(0, 3), [b"abc"]),
        (Piece(3, 2), [b"de"]),
    ]
    stamps = [p.header.stamp for p in pieces] + [small.header.stamp, closing.header.stamp]
    assert stamps == sorted(set(stamps))


def test_a_reader_that_waits_is_not_woken_with_chunks(large: Any) -> None:
    rig, publisher = large
    address = publisher.info.addresses[0]
    asked = rig.ask(1, m.Fetch(address, 0, 1 << 20, 10_000))
    (index,) = publisher.pieces(b"abc")
    assert asked not in dict(rig.replies[1])
    publisher.close(3, index)
    assert dict(rig.replies[1])[asked].next_offset == 1


def test_a_chunk_sent_again_gets_the_same_answer(large: Any) -> None:
    rig, publisher = large
    batch = rig.batch(publisher.info, publisher.grant, 0, b"abc", chunk_at=0)
    first, again = rig.answer(1, batch), rig.answer(1, batch)
    assert (again.offset, again.index, again.stamp) == (-1, first.index, first.stamp)
    assert again.duplicate
    other = rig.batch(publisher.info, publisher.grant, 0, b"abd", chunk_at=0)
    assert rig.answer(1, other).code == SequenceReused.code
    rig.boot()
    rig.connect()
    assert rig.answer(1, batch) == again


@pytest.mark.parametrize("at", [1, 2, 4, 1 << 60])
def test_a_piece_that_continues_nothing_is_refused(large: Any, at: int) -> None:
    _, publisher = large
    publisher.pieces(b"abc")
    refusal = publisher.ask(b"x", chunk_at=at)
    assert (refusal.code, refusal.detail) == (ValueLost.code, 3)
    publisher.pieces(b"de", at=3)


def test_references_that_are_not_the_open_value_are_refused(large: Any) -> None:
    rig, publisher = large
    assert publisher.close(3, 2).code == ValueLost.code  # nothing is open
    first, second = publisher.pieces(b"abc", b"de")
    for size, *indices in ((4, first, second), (3, first), (5, first), (5, second, second + 1)):
        assert publisher.close(size, *indices).code == ValueLost.code
    other = Publisher(rig, publisher.info)
    assert other.close(5, first, second).code == ValueLost.code  # of another producer
    assert publisher.close(5, first, second).offset == 0
    assert publisher.close(5, first, second).code == ValueLost.code  # closed already


def test_references_wait_for_no_chunk_under_way(large: Any) -> None:
    rig, publisher = large
    (index,) = publisher.pieces(b"abc")
    batch = rig.batch(publisher.info, publisher.grant, 1, b"de", chunk_at=3)
    early = References(3, 7, ((index, 1),))
    closing = rig.batch(publisher.info, publisher.grant, 2, references=early)
    rig.ask(1, batch)
    refused = rig.ask(1, closing)
    assert dict(rig.replies[1])[refused].code == ValueLost.code


def test_a_new_value_replaces_the_one_that_was_given_up(large: Any) -> None:
    rig, publisher = large
    old = publisher.pieces(b"given", b"up")
    new = publisher.pieces(b"abc")
    assert publisher.close(7, *old).code == ValueLost.code
    assert publisher.close(3, *new).offset == 0
    assert len(rig.shard.topics.partition(publisher.info.addresses[0].group)[1].state.values) == 0


def test_chunks_of_an_ended_epoch_are_void(large: Any) -> None:
    rig, publisher = large
    indices = publisher.pieces(b"abc")
    publisher.grant = rig.answer(1, m.OpenProducer(publisher.grant.producer))
    publisher.sequence = 0
    assert publisher.close(3, *indices).code == ValueLost.code
    assert publisher.ask(b"x", chunk_at=3).code == ValueLost.code
    publisher.ask(b"small")
    state = rig.shard.topics.partition(publisher.info.addresses[0].group)[1].state
    assert state.values.open(publisher.grant.producer) is None


def test_an_unfinished_value_expires(large: Any) -> None:
    rig, publisher = large
    (index,) = publisher.pieces(b"abc")
    rig.time.pass_ms(OPEN_VALUE_MS + 1)
    assert publisher.ask(b"de", chunk_at=3).code == ValueLost.code
    assert publisher.close(3, index).code == ValueLost.code
    state = rig.shard.topics.partition(publisher.info.addresses[0].group)[1].state
    assert len(state.values) == 1
    Publisher(rig, publisher.info).ask(b"by anybody")
    assert len(state.values) == 0  # by the stamp of an entry, so on every replica alike


def test_a_restart_forgets_nothing_of_an_open_value(large: Any) -> None:
    rig, publisher = large
    indices = publisher.pieces(b"abc")
    rig.boot()
    rig.connect()
    indices += publisher.pieces(b"de", at=3)
    rig.tick(600_000)  # a checkpoint, and a start from it
    rig.settle()
    rig.boot()
    rig.connect()
    assert publisher.close(5, *indices).offset == 0


def test_the_number_of_open_values_is_bounded(large: Any, monkeypatch: Any) -> None:
    rig, publisher = large
    monkeypatch.setattr("weir.broker.growing.OPEN_VALUES_MAX", 2)
    others = [Publisher(rig, publisher.info) for _ in range(2)]
    (index,) = publisher.pieces(b"abc")
    others[0].pieces(b"abc")
    assert others[1].ask(b"abc", chunk_at=0).code == Overloaded.code
    publisher.pieces(b"again", at=0)  # instead of his own
    assert publisher.close(3, index).code == ValueLost.code
    assert OPEN_VALUES_MAX > 2


def test_a_value_in_too_many_places_is_refused(large: Any, monkeypatch: Any) -> None:
    rig, publisher = large
    other = Publisher(rig, publisher.info)
    monkeypatch.setattr("weir.broker.growing.VALUE_RUNS_MAX", 2)
    monkeypatch.setattr("weir.broker.growing.OPEN_RUNS_MAX", 3)
    indices = publisher.pieces(b"a")
    others = other.pieces(b"a")
    indices += publisher.pieces(b"b", at=1)
    assert other.ask(b"b", chunk_at=1).code == Overloaded.code
    assert publisher.ask(b"c", chunk_at=2).code == TooLarge.code
    assert publisher.close(2, *indices).offset == 0
    others += other.pieces(b"b", at=1)
    assert other.close(2, *others).offset == 1


@pytest.mark.parametrize("index", [0, 1, 99, (1 << 63) - 1])
def test_chunks_that_are_not_there_are_refused(large: Any, index: int) -> None:
    rig, publisher = large
    publisher.pieces(b"abc")
    refusal = chunks(rig, publisher.info, index, 1)
    assert refusal.code == (BadRequest.code if index == 0 else ValueLost.code)


def test_chunks_come_within_the_bytes_asked_for_but_at_least_one(large: Any) -> None:
    rig, publisher = large
    first, *_ = publisher.pieces(*[bytes([i]) * 1_000 for i in range(5)])
    group = publisher.info.addresses[0].group
    for size, expected in ((1, 1), (2_500, 2), (1 << 20, 5)):
        (payload,) = chunks(rig, publisher.info, first, 9, size).batches
        assert len(split(payload, group)) == expected


def test_a_chunk_is_no_part_of_a_larger_entry(large: Any) -> None:
    rig, publisher = large
    requests = [
        rig.batch(publisher.info, publisher.grant, sequence, b"v%d" % sequence, **more)
        for sequence, more in enumerate([{}, {"chunk_at": 0}, {"chunk_at": 2}, {}, {}])
    ]
    asked = [rig.ask(1, request) for request in requests]
    rig.settle()
    replies = dict(rig.replies[1])
    first, second = (replies[asked[i]].index for i in (1, 2))
    assert second == first + 1
    (payload,) = chunks(rig, publisher.info, first, 2).batches
    assert len(split(payload, publisher.info.addresses[0].group)) == 2
    assert [replies[number].offset for number in asked] == [0, -1, -1, 1, 2]


@pytest.mark.parametrize("kind", [Compression.LZ4, Compression.ZSTD])
def test_compressed_batches_are_looked_into_before_they_are_taken(large: Any, kind: int) -> None:
    rig, publisher = large
    values = [b"the same again and again " * 9] * 9
    confirm = publisher.ask(*values, compression=kind)
    assert confirm.offset == 0
    (batch,) = fetched(rig, publisher.info)
    assert batch.header.compression == kind
    assert batch.values() == values
    produce = rig.batch(publisher.info, publisher.grant, 9, *values, compression=kind)
    bad = spoilt(bytes(produce.batch), publisher.info.addresses[0].group)
    refusal = rig.answer(1, m.Produce(produce.address, 0, memoryview(bad)))
    assert refusal.code == BadRequest.code
    assert "inflate" in refusal.message


def spoilt(batch: bytes, group: int) -> bytearray:
    """The same batch, its compressed part nonsense, its checksums right: nobody could read it."""
    h = parse(batch)
    bad = bytearray(batch)
    bad[HEADER_SIZE : HEADER_SIZE + h.packed_size] = b"\xff" * h.packed_size
    fields = (h.columns, h.producer, h.epoch, h.count, h.sequence, h.base_time)
    seal(bad, fields, group, Packed(h.compression, h.raw_size, h.packed_size))
    return bad


def test_a_broker_without_the_library_says_so(large: Any, monkeypatch: Any) -> None:
    rig, publisher = large
    produce = rig.batch(publisher.info, publisher.grant, 0, b"x" * 999, compression=Compression.LZ4)
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    refusal = rig.answer(1, produce)
    assert refusal.code == BadRequest.code
    assert "weir-mq[compress]" in refusal.message


def look(rig: Any, ms: int = 50) -> None:
    for _ in range(3):
        rig.tick(ms)
        rig.settle()


def limited(make_rig: Any, **limits: int) -> tuple[Any, m.TopicInfo]:
    rig = make_rig(retention_every_ms=1, checkpoint_bytes=1)
    rig.connect()
    return rig, rig.answer(1, m.CreateTopic("t", settings=SettingsChange(**limits)))


def test_retention_keeps_the_chunks_of_what_it_keeps_and_no_others(make_rig: Any) -> None:
    rig, info = limited(make_rig, retention_bytes=3_000)
    publisher, other = Publisher(rig, info), Publisher(rig, info)
    piece = bytes(900)
    gone = publisher.pieces(piece, piece)
    assert publisher.close(1_800, *gone).offset == 0
    abandoned = other.pieces(piece)
    kept = publisher.pieces(piece, piece)
    for offset in range(1, 9):
        assert other.ask(piece).offset == offset
    other.pieces(b"instead of the abandoned one")
    assert publisher.close(1_800, *kept).offset == 9
    look(rig)
    start = rig.answer(1, m.Positions(info.addresses[0])).start
    assert 0 < start <= 9
    assert chunks(rig, info, gone[0], 1).code == ValueLost.code
    assert chunks(rig, info, abandoned[0], 1).code == ValueLost.code
    for index in kept:
        assert isinstance(chunks(rig, info, index, 1), m.FetchedChunks)
    rig.disk.crash()
    rig.boot()
    rig.connect()
    (closing,) = (b for b in fetched(rig, info, start) if b.references is not None)
    assert closing.references is not None
    assert closing.references.first_index == kept[0]
    assert isinstance(chunks(rig, info, *closing.references.runs[0]), m.FetchedChunks)


def test_an_upload_that_breaks_off_pushes_no_message_out(make_rig: Any) -> None:
    rig, info = limited(make_rig, retention_bytes=20_000)
    publisher, other = Publisher(rig, info), Publisher(rig, info)
    for offset in range(5):
        assert publisher.ask(bytes(1_000)).offset == offset
    other.pieces(*[bytes(8_000)] * 5)
    look(rig)
    held = rig.answer(1, a.DescribePartition(info.addresses[0]))
    assert (held.start, held.end) == (0, 5)
    assert held.bytes > 45_000
    look(rig, OPEN_VALUE_MS)
    assert publisher.ask(b"x").offset == 5
    look(rig)
    held = rig.answer(1, a.DescribePartition(info.addresses[0]))
    assert (held.start, held.end) == (0, 6)
    assert held.bytes < 8_000


def test_the_chunks_of_a_message_count_as_it_does(make_rig: Any) -> None:
    rig, info = limited(make_rig, retention_bytes=20_000)
    publisher = Publisher(rig, info)
    for offset in range(5):
        assert publisher.ask(bytes(1_000)).offset == offset
    indices = publisher.pieces(*[bytes(8_000)] * 3)
    look(rig)
    assert rig.answer(1, m.Positions(info.addresses[0])).start == 0
    assert publisher.close(24_000, *indices).offset == 5
    look(rig)
    held = rig.answer(1, a.DescribePartition(info.addresses[0]))
    assert (held.start, held.end) == (5, 6)
    assert 24_000 < held.bytes < 26_000
    for offset in range(6, 36):
        assert publisher.ask(bytes(1_000)).offset == offset
    look(rig)
    held = rig.answer(1, a.DescribePartition(info.addresses[0]))
    assert 15 < held.start < 20
    assert 20_000 <= held.bytes < 21_200


@pytest.mark.parametrize("messages", [0, 2])
def test_an_upload_that_broke_off_goes_also_where_nothing_else_is_published(
    make_rig: Any, messages: int
) -> None:
    rig, info = limited(make_rig, retention_ms=0)
    publisher, other = Publisher(rig, info), Publisher(rig, rig.topic(1, "other"))
    for offset in range(messages):
        assert publisher.ask(b"stays").offset == offset
    indices = publisher.pieces(*[bytes(8_000)] * 8)
    look(rig, OPEN_VALUE_MS // 4)
    assert isinstance(chunks(rig, info, indices[0], 1), m.FetchedChunks)
    look(rig, OPEN_VALUE_MS // 4)
    for restarted in (False, True):
        if restarted:
            rig.disk.crash()
            rig.boot()
            rig.connect()
        assert rig.answer(1, a.DescribePartition(info.addresses[0])).bytes < 1_000
        state = rig.shard.topics.partition(info.addresses[0].group)[1].state
        assert len(state.values) == 0
        assert (state.log_start, state.next_offset) == (0, messages)
        other.ask(bytes(1_000))  # the log moves on, and a checkpoint lets go of what is void
        look(rig)
    if not messages:
        assert chunks(rig, info, indices[0], 1).code == ValueLost.code
    assert publisher.close(64_000, *indices).code == ValueLost.code
