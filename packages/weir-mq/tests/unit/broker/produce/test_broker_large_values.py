"""Values of chunks at the broker: what is taken, what readers see of it, when it is void."""

from __future__ import annotations

from typing import Any

import pytest

from weir.client.core.delivered_batches import Assembly
from weir.errors import BadRequest, Overloaded, SequenceReused, TooLarge, ValueLost
from weir.model.batch import Batch, split
from weir.model.columns import Piece, References
from weir.model.limits import OPEN_VALUE_MS, OPEN_VALUES_MAX
from weir.protocol.client import messages as m


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


def test_references_that_are_not_the_open_value_are_refused(
    large: Any, make_publisher: Any
) -> None:
    rig, publisher = large
    assert publisher.close(3, 2).code == ValueLost.code  # nothing is open
    first, second = publisher.pieces(b"abc", b"de")
    for size, *indices in ((4, first, second), (3, first), (5, first), (5, second, second + 1)):
        assert publisher.close(size, *indices).code == ValueLost.code
    other = make_publisher(rig, publisher.info)
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


def test_a_hash_that_is_not_that_of_the_chunks_is_refused(large: Any) -> None:
    """Nobody could ever open that value, and its readers would come no further."""
    rig, publisher = large
    indices = publisher.pieces(b"given up")
    indices = publisher.pieces(b"abc", b"de")
    rig.tick(600_000)  # a checkpoint, and a start from it: the hash so far is part of it
    rig.settle()
    rig.boot()
    rig.connect()
    indices += publisher.pieces(b"f", at=5)
    right = publisher.hash
    for publisher.hash in (0, 7, right ^ 1):
        refusal = publisher.close(6, *indices)
        assert (refusal.code, "not its chunks" in refusal.message) == (ValueLost.code, True)
    publisher.hash = right
    assert publisher.close(6, *indices).offset == 0
    (closing,) = fetched(rig, publisher.info)
    assembly = Assembly(closing.references, publisher.info.addresses[0].group)
    whole = b""
    while (wanted := assembly.wanted()) is not None:
        pieces = assembly.opened(chunks(rig, publisher.info, *wanted).batches)
        assembly.took(pieces)
        whole += b"".join(pieces)
    assert whole == b"abcdef"


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


def test_an_unfinished_value_expires(large: Any, make_publisher: Any) -> None:
    rig, publisher = large
    (index,) = publisher.pieces(b"abc")
    rig.time.pass_ms(OPEN_VALUE_MS + 1)
    assert publisher.ask(b"de", chunk_at=3).code == ValueLost.code
    assert publisher.close(3, index).code == ValueLost.code
    state = rig.shard.topics.partition(publisher.info.addresses[0].group)[1].state
    assert len(state.values) == 1
    make_publisher(rig, publisher.info).ask(b"by anybody")
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


def test_the_number_of_open_values_is_bounded(
    large: Any, make_publisher: Any, monkeypatch: Any
) -> None:
    rig, publisher = large
    monkeypatch.setattr("weir.broker.state.large_values.OPEN_VALUES_MAX", 2)
    others = [make_publisher(rig, publisher.info) for _ in range(2)]
    (index,) = publisher.pieces(b"abc")
    others[0].pieces(b"abc")
    assert others[1].ask(b"abc", chunk_at=0).code == Overloaded.code
    publisher.pieces(b"again", at=0)  # instead of his own
    assert publisher.close(3, index).code == ValueLost.code
    assert OPEN_VALUES_MAX > 2


def test_values_that_were_given_up_keep_nobody_out(
    large: Any, make_publisher: Any, monkeypatch: Any
) -> None:
    """No entry has voided them yet: the one that will is that of the chunk itself."""
    rig, publisher = large
    monkeypatch.setattr("weir.broker.state.large_values.OPEN_VALUES_MAX", 2)
    for _ in range(2):
        make_publisher(rig, publisher.info).pieces(b"given up")
    state = rig.shard.topics.partition(publisher.info.addresses[0].group)[1].state
    rig.time.pass_ms(OPEN_VALUE_MS - 1)
    assert publisher.ask(b"abc", chunk_at=0).code == Overloaded.code
    rig.time.pass_ms(60_000)
    assert len(state.values) == 2
    indices = publisher.pieces(b"abc", b"de")
    assert len(state.values) == 1
    assert publisher.close(5, *indices).offset == 0


def test_the_places_of_values_that_were_given_up_keep_nobody_out(
    large: Any, make_publisher: Any, monkeypatch: Any
) -> None:
    rig, publisher = large
    monkeypatch.setattr("weir.broker.state.large_values.OPEN_RUNS_MAX", 3)
    for _ in range(2):
        make_publisher(rig, publisher.info).pieces(b"given up")
    rig.time.pass_ms(OPEN_VALUE_MS - 1)
    indices = publisher.pieces(b"abc")
    assert publisher.ask(b"de", chunk_at=3).code == Overloaded.code
    rig.time.pass_ms(60_000)
    indices += publisher.pieces(b"de", at=3)
    assert publisher.close(5, *indices).offset == 0


def test_a_value_in_too_many_places_is_refused(
    large: Any, make_publisher: Any, monkeypatch: Any
) -> None:
    rig, publisher = large
    other = make_publisher(rig, publisher.info)
    monkeypatch.setattr("weir.broker.state.large_values.VALUE_RUNS_MAX", 2)
    monkeypatch.setattr("weir.broker.state.large_values.OPEN_RUNS_MAX", 3)
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
