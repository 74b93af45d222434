"""The dedupe tables against plain dicts."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from weir.broker import dedupe
from weir.broker.dedupe import Answer, Known, Origin, OriginTable, ProducerTable
from weir.model.limits import PIPELINE_WINDOW


def through_msgpack(data: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(data), strict=False)


writes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2), st.integers(1, 5)), max_size=300)


@given(writes)
def test_producers_agree_with_a_dict(rows: list[tuple[int, int, int]]) -> None:
    table = ProducerTable()
    twin: dict[int, tuple[int, list[Answer]]] = {}
    for stamp, (producer, epoch, messages) in enumerate(rows):
        held_epoch, answers = twin.get(producer, (epoch, []))
        if held_epoch != epoch:
            answers = []
        sequence = answers[-1].sequence + answers[-1].messages if answers else 0
        answer = Answer(sequence, messages, 10 * stamp, stamp, stamp ^ 0xFFFFFFFFFFFFFFFF)
        table.record(producer, epoch, answer)
        twin[producer] = (epoch, [*answers, answer])
    copy = ProducerTable.decode(through_msgpack(table.encode()))
    for kept in (table, copy):
        assert len(kept) == len(twin)
        for producer, (epoch, answers) in twin.items():
            end = answers[-1].sequence + answers[-1].messages
            assert kept.known(producer) == Known(epoch, end)
            for answer in answers[-PIPELINE_WINDOW:]:
                assert kept.answer(producer, answer.sequence) == answer
            for answer in answers[:-PIPELINE_WINDOW]:
                assert kept.answer(producer, answer.sequence) is None


def test_nobody_is_known_at_first() -> None:
    assert ProducerTable().known(1) is None
    assert ProducerTable().answer(1, 0) is None
    assert OriginTable().known(1, 2) is None
    assert len(OriginTable()) == 0


def test_producers_expire_by_stamp() -> None:
    table = ProducerTable()
    table.record(1, 0, Answer(0, 1, 0, 100, 0))
    table.record(2, 0, Answer(0, 1, 1, 200, 0))
    assert table.expire(101) == 1
    assert table.known(1) is None
    assert table.known(2) == Known(0, 1)


def test_a_producer_may_write_more_than_four_billion_batches() -> None:
    head = dedupe._HEAD.pack(0, 0xFFFFFFFF, 7, 1)
    full = bytes(dedupe._ANSWER.size) * PIPELINE_WINDOW
    table = ProducerTable.decode([(1, head + full)])
    for sequence in range(7, 7 + 2 * PIPELINE_WINDOW):
        table.record(1, 0, Answer(sequence, 1, sequence, sequence, 0))
    assert table.known(1) == Known(0, 7 + 2 * PIPELINE_WINDOW)
    assert table.answer(1, 7 + PIPELINE_WINDOW) is not None
    assert table.answer(1, 7) is None


origins = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1)),
        st.integers(0, 255),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32),
    ),
    max_size=200,
)


@given(origins, st.integers(0, 200))
def test_origins_agree_with_a_dict(rows: list[tuple[int, int, int, int]], horizon: int) -> None:
    table = OriginTable()
    twin: dict[tuple[int, int], Origin] = {}
    for stamp, (hub, sn, boot, following) in enumerate(rows):
        origin = Origin(boot, following, stamp * 3, stamp)
        table.record(hub, sn, origin)
        twin[hub, sn] = origin
    copy = OriginTable.decode(through_msgpack(table.encode()))
    for kept in (table, copy):
        assert len(kept) == len(twin)
        assert all(kept.known(hub, sn) == origin for (hub, sn), origin in twin.items())
        assert kept.known(21, 0) is None or (21, 0) in twin
    old = [place for place, origin in twin.items() if origin.stamp < horizon]
    assert table.expire(horizon) == len(old)
    assert all(table.known(hub, sn) is None for hub, sn in old)
    assert len(table) == len(twin) - len(old)


def test_origins_grow_stripe_by_stripe() -> None:
    table = OriginTable()
    for hub in range(200):
        for sn in range(256):
            table.record(hub, sn, Origin(1, hub, sn, 5))
    assert len(table) == 200 * 256
    assert all(
        table.known(hub, sn) == Origin(1, hub, sn, 5) for hub in range(200) for sn in range(256)
    )


def test_an_idle_partition_pays_for_no_stripe() -> None:
    table = OriginTable()
    assert table._stripes == {}
    table.record(1, 1, Origin(1, 1, 1, 1))
    assert len(table._stripes) == 1
