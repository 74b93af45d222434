"""Values of chunks and retention: what is kept for them, what they push out, when they go."""

from __future__ import annotations

from typing import Any

import pytest

from weir.errors import ValueLost
from weir.model.batch import Batch, split
from weir.model.limits import OPEN_VALUE_MS
from weir.model.topic import SettingsChange
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m


def fetched(rig: Any, info: m.TopicInfo, offset: int = 0) -> list[Batch]:
    reply = rig.answer(1, m.Fetch(info.addresses[0], offset, 1 << 20))
    return [batch for part in reply.batches for batch in split(part, info.addresses[0].group)]


def chunks(rig: Any, info: m.TopicInfo, index: int, count: int, size: int = 1 << 20) -> Any:
    return rig.answer(1, m.FetchChunks(info.addresses[0], index, count, size))


def look(rig: Any, ms: int = 50) -> None:
    for _ in range(3):
        rig.tick(ms)
        rig.settle()


def limited(make_rig: Any, **limits: int) -> tuple[Any, m.TopicInfo]:
    rig = make_rig(retention_every_ms=1, checkpoint_bytes=1)
    rig.connect()
    return rig, rig.answer(1, m.CreateTopic("t", settings=SettingsChange(**limits)))


def test_retention_keeps_the_chunks_of_what_it_keeps_and_no_others(
    make_rig: Any, make_publisher: Any
) -> None:
    rig, info = limited(make_rig, retention_bytes=3_000)
    publisher, other = make_publisher(rig, info), make_publisher(rig, info)
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


def test_an_upload_that_breaks_off_pushes_no_message_out(
    make_rig: Any, make_publisher: Any
) -> None:
    rig, info = limited(make_rig, retention_bytes=20_000)
    publisher, other = make_publisher(rig, info), make_publisher(rig, info)
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


def test_the_chunks_of_a_message_count_as_it_does(make_rig: Any, make_publisher: Any) -> None:
    rig, info = limited(make_rig, retention_bytes=20_000)
    publisher = make_publisher(rig, info)
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
    make_rig: Any, make_publisher: Any, messages: int
) -> None:
    rig, info = limited(make_rig, retention_ms=0)
    publisher, other = make_publisher(rig, info), make_publisher(rig, rig.topic(1, "other"))
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
