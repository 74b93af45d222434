"""The dedupe table of producers against plain dicts."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.shards import most_in_a_part, stripes_of
from weir.broker.records.snapshots import pack, unpack
from weir.broker.state import producers
from weir.broker.state.producers import PARTS, Answer, Known, ProducerTable
from weir.broker.state.state import PartitionState
from weir.model.ids import WINDOWS, producer_of, window_of
from weir.model.limits import PIPELINE_WINDOW

#: Ids that were granted without a window, and with each that there is.
IDS = [producer_of(number, window) for number in (1, 2, 257 << 16) for window in (0, *WINDOWS[1:])]
writes = st.lists(
    st.tuples(st.sampled_from(IDS), st.integers(0, 2), st.integers(1, 5)), max_size=300
)


def repacked(table: ProducerTable) -> ProducerTable:
    return ProducerTable.decode(unpack(pack(table.encode())), unpack(pack(table.encode_narrow())))


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
    for kept in (table, repacked(table)):
        assert len(kept) == len(twin)
        for producer, (epoch, answers) in twin.items():
            end, window = answers[-1].sequence + answers[-1].messages, window_of(producer)
            assert kept.known(producer) == Known(epoch, end)
            for answer in answers[-window:]:
                assert kept.answer(producer, answer.sequence) == answer
            for answer in answers[:-window]:
                assert kept.answer(producer, answer.sequence) is None


@pytest.mark.parametrize("window", WINDOWS[1:])
def test_as_many_answers_are_kept_as_the_window_has(window: int) -> None:
    table, producer = ProducerTable(), producer_of(5 << 16, window)
    for sequence in range(3 * window + 1):
        table.record(producer, 1, Answer(sequence, 1, sequence, sequence, 0))
        kept = [n for n in range(sequence + 1) if table.answer(producer, n) is not None]
        assert kept == [*range(max(0, sequence + 1 - window), sequence + 1)]
    table.record(producer, 2, Answer(0, 1, 99, 99, 0))
    assert [n for n in range(3 * window + 1) if table.answer(producer, n) is not None] == [0]


@pytest.mark.parametrize("window", [0, 1, 4])
def test_many_producers_of_one_rhythm_are_told_apart(window: int) -> None:
    """Ids are stamps: those of an even rate differ by a multiple of 65,536."""
    table = ProducerTable()
    ids = [producer_of((1 << 56) + (n << 16), window) for n in range(5_000)]
    for offset, producer in enumerate(ids):
        table.record(producer, 0, Answer(0, 1, offset, offset + 1, 7))
    for kept in (table, repacked(table)):
        assert len(kept) == len(ids)
        for offset, producer in enumerate(ids):
            assert kept.answer(producer, 0) == Answer(0, 1, offset, offset + 1, 7)
            assert kept.known(producer + 1) is None
    assert most_in_a_part(table) < 3 * len(ids) / PARTS, (
        "a part is copied whole when it is written to"
    )
    assert table.expire(4_001, range(PARTS)) == 4_000
    assert [table.known(producer) is not None for producer in ids] == [False] * 4_000 + [
        True
    ] * 1_000
    for producer in ids:
        table.record(producer, 0, Answer(1, 1, 9, 9_999, 7))
    assert len(table) == len(ids)


def test_a_narrow_row_takes_as_many_bytes_as_its_answers() -> None:
    table = ProducerTable()
    for number in range(1, 1_001):
        table.record(producer_of(number << 16, 1), 0, Answer(0, 1, 0, number, 0))
    rows = sum(len(stripe.rows) for stripe in stripes_of(table))
    assert rows == 1_000 * (16 + 36)


def test_nobody_is_known_at_first() -> None:
    for producer in IDS:
        assert ProducerTable().known(producer) is None
        assert ProducerTable().answer(producer, 0) is None
    assert ProducerTable().encode_narrow() == []


@pytest.mark.parametrize("window", [0, 1, 2, 4, 8])
def test_producers_expire_by_stamp(window: int) -> None:
    first, second = (producer_of(number, window) for number in (1, 2))
    table = ProducerTable()
    table.record(first, 0, Answer(0, 1, 0, 100, 0))
    table.record(second, 0, Answer(0, 1, 1, 200, 0))
    assert table.oldest == 100
    assert table.expire(101, range(PARTS)) == 1
    assert table.oldest == repacked(table).oldest == 200
    assert table.known(first) is None
    assert table.known(second) == Known(0, 1)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 60)), max_size=60),
    st.booleans(),
    st.sampled_from((0, 1, 4)),
)
def test_whoever_wrote_last_below_the_horizon_expires(
    steps: list[tuple[bool, int, int]], decoded: bool, window: int
) -> None:
    table, last = ProducerTable(), dict[int, int]()
    ids = [producer_of(number * PARTS, window) for number in range(4)]
    for expires, number, stamp in steps:
        if expires:
            gone = {one for one, at in last.items() if at < stamp}
            assert table.expire(stamp, range(PARTS)) == len(gone)
            last = {one: at for one, at in last.items() if one not in gone}
        else:
            table.record(ids[number], 0, Answer(0, 1, 0, stamp, 0))
            last[ids[number]] = stamp
        if decoded:
            table = repacked(table)
        assert {one for one in ids if table.known(one)} == last.keys()


def test_a_producer_may_write_more_than_four_billion_batches() -> None:
    head = producers._HEAD.pack(0, 0xFFFFFFFF, 7, 1)
    full = bytes(producers._ANSWER.size) * PIPELINE_WINDOW
    row = head + full
    packed = array("Q", [1]).tobytes(), array("I", [len(row)]).tobytes(), row
    table = ProducerTable.decode([packed])
    for sequence in range(7, 7 + 2 * PIPELINE_WINDOW):
        table.record(1, 0, Answer(sequence, 1, sequence, sequence, 0))
    assert table.known(1) == Known(0, 7 + 2 * PIPELINE_WINDOW)
    assert table.answer(1, 7 + PIPELINE_WINDOW) is not None
    assert table.answer(1, 7) is None


@given(writes, writes)
def test_a_snapshot_of_producers_stays_what_it_was(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    table = ProducerTable()
    for stamp, (producer, epoch, messages) in enumerate(before):
        table.record(producer, epoch, Answer(stamp, messages, stamp, stamp, 7))
    frozen = table.encode(), table.encode_narrow()
    packed = pack(frozen)
    for stamp, (producer, epoch, messages) in enumerate(after, len(before)):
        table.record(producer, epoch, Answer(stamp, messages, stamp, stamp, 8))
    table.expire(len(before), range(PARTS))
    assert pack(frozen) == packed
    again = ProducerTable.decode(*unpack(packed))
    assert pack((again.encode(), again.encode_narrow())) == packed


def test_golden_rows_of_a_window() -> None:
    """What a checkpoint holds of ids with a window: it is read back for as long as weir is."""
    table = ProducerTable()
    for window in (1, 2):
        table.record(producer_of(0x10000, window), 3, Answer(6, 2, 40, 0x50000, 0xABCD))
    assert unpack(pack(table.encode_narrow())) == [
        [
            0x1C9,
            0x50000,
            bytes.fromhex("ffffffff" * 2 + "00000000" + "ffffffff" * 5),
            bytes.fromhex(
                "0000010000000010" "03000000" "01000000"
                "0600000000000000" "02000000" "2800000000000000" "0000050000000000"
                "cdab000000000000"
            ),
        ],
        [
            0x219,
            0x50000,
            bytes.fromhex("ffffffff" * 2 + "00000000" + "ffffffff" * 5),
            bytes.fromhex(
                "0000010000000020" "03000000" "01000000"
                "0600000000000000" "02000000" "2800000000000000" "0000050000000000"
                "cdab000000000000" + "00" * 36
            ),
        ],
    ]  # fmt: skip


def test_a_state_without_windows_is_written_as_before() -> None:
    """Releases below format level 3 read it: they grant no id with a window."""
    state = PartitionState()
    state.producers.record(1, 0, Answer(0, 1, 0, 1, 0))
    assert unpack(pack(state.encode()))[0] == 7
    state.producers.record(producer_of(1, 8), 0, Answer(0, 1, 0, 1, 0))
    assert unpack(pack(state.encode()))[0] == 7
    state.producers.record(producer_of(1, 1), 0, Answer(0, 1, 0, 1, 0))
    packed = unpack(pack(state.encode()))
    assert packed[0] == 13
    again = PartitionState.decode(packed)
    assert again.producers.known(producer_of(1, 1)) == Known(0, 1)
    assert len(again.producers) == 3
    assert pack(again.encode()) == pack(state.encode())
