"""Stamp and size to a place in the log, against the obvious way: a walk over all entries."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from weir.storage.format.frame import Kind
from weir.storage.format.record import Record
from weir.storage.group_index import GroupIndex, size_between
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

Make = Callable[..., Record]
Settle = Callable[[Log], tuple[object, ...]]
Row = tuple[int, Kind, int, int, int, int]
GROUP = 65536


def drawn(dice: random.Random, count: int) -> list[Row]:
    """Entries of random kinds: index, kind, length, first offset, offset behind, stamp."""
    rows: list[Row] = []
    offset, stamp = dice.choice((0, 50)), dice.randrange(100)
    for index in range(7, 7 + count):
        roll = dice.random()
        if roll < 0.5:
            behind, stamp = offset + dice.randint(1, 9), stamp + dice.randint(1, 9)
            rows.append((index, Kind.BATCHES, dice.randint(1, 99), offset, behind, stamp))
            offset = behind
        elif roll < 0.7:  # a chunk: it has a place between offsets, and takes none
            rows.append((index, Kind.BATCHES, dice.randint(1, 99), -1, -1, -1))
        else:
            rows.append((index, Kind.CONTROL, dice.randint(1, 99), -1, -1, -1))
    return rows


def obvious(rows: list[Row], durable: int, fits: Callable[[int], bool]) -> tuple[int, int] | None:
    """The first entry with messages that is durable and fits."""
    for at, (index, _, _, first, behind, _) in enumerate(rows):
        if behind >= 0 and index * 100 < durable and fits(at):
            return index, first
    return None


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_those_of_a_walk(seed: int) -> None:
    dice = random.Random(seed)
    rows = drawn(dice, dice.randint(0, 30))
    index = GroupIndex(7)
    for at, kind, length, first, behind, stamp in rows:
        index.add(at, 1, kind, at * 100, length, first, behind, stamp)
    if dice.random() < 0.5 and rows:
        dropped = dice.randint(0, len(rows) - 1)
        index.drop(rows[dropped][0])
        rows = rows[dropped:]
    assert index.batch_bytes == sum(r[2] for r in rows if r[4] >= 0)
    durable = dice.choice((1 << 40, 100 * dice.randint(7, 40)))
    for stamp in range(0, 300, 3):
        expected = obvious(rows, durable, lambda at, stamp=stamp: rows[at][5] >= stamp)  # type: ignore[misc]
        assert index.at_stamp(stamp, durable) == expected
    stored = [row for row in rows if row[4] >= 0]

    def below(offset: int) -> int:
        """Bytes in front of an offset: of the entry that holds it, in proportion."""
        return sum(
            length * min(max(offset - first, 0), behind - first) // (behind - first)
            for _, _, length, first, behind, _ in stored
        )

    for begin in range(0, 120, 7):
        for end in range(begin, 120, 5):
            assert size_between(index, begin, end) == below(end) - below(begin)
    flushed = [r for r in rows if r[0] * 100 < durable]
    with_messages = [at for at, r in enumerate(flushed) if r[4] >= 0]

    elsewhere = {row[3]: dice.randint(1, 99) for row in rows if dice.random() < 0.2}

    def beside(offset: int) -> int:
        return sum(size for first, size in elsewhere.items() if first >= offset)

    def last(at: int, size: int, beside: Callable[[int], int]) -> bool:
        """Whether without this entry less than `size` would be left."""
        behind = flushed[at][4]
        left = sum(r[2] for r in flushed[at + 1 :] if r[4] >= 0) + beside(behind)
        return left < size or at == with_messages[-1]

    for size in range(1, 2000, 17):
        for more in (beside, lambda _: 0):
            expected = obvious(rows, durable, lambda at, size=size, more=more: last(at, size, more))  # type: ignore[misc]
            assert index.at_size(size, durable, more) == expected


def test_a_log_finds_offsets_by_stamp_also_after_a_restart(
    disk: SimDisk, log: Log, small: Settings, batches: Make, control: Make, settle: Settle
) -> None:
    log.append(batches(1, 0, count=3))
    log.append(control(2))
    log.append(batches(3, 3, count=2))
    settle(log)
    log.append(batches(4, 5))
    for one in (log, recover(disk, small).log):
        cuts = [one.reader.cut_by_stamp(GROUP, stamp) for stamp in (0, 1, 2, 3, 4)]
        assert cuts == [(1, 0), (1, 0), (3, 3), (3, 3), None]
        assert one.reader.cut_by_size(GROUP, 1, lambda _: 0) == (3, 3)
        assert one.reader.cut_by_size(GROUP, 1 << 30, lambda _: 0) == (1, 0)
        assert one.reader.cut_by_stamp(9, 0) is None
        assert one.reader.entry_above(9, 0) is None
        assert one.reader.bytes_between(9, 0, 5) == 0
        assert one.reader.cut_by_size(9, 1, lambda _: 0) is None
        assert one.reader.group_bytes(9) == 0
    above = log.reader.entry_above(GROUP, 3)  # durable or not
    assert above is not None
    assert (above[0].index, above[1]) == (4, 5)
    settle(log)
    assert log.reader.cut_by_stamp(GROUP, 4) == (4, 5)
    assert log.reader.group_bytes(GROUP) == sum(
        log.reader.stored(GROUP, i).length for i in (1, 3, 4)
    )  # type: ignore[union-attr]


def test_below_the_first_message_stored_nothing_is_read() -> None:
    index = GroupIndex(1)
    for at in range(1, 5):
        index.add(at, 1, Kind.BATCHES, at * 100, 8, at * 10, at * 10 + 10, at)
    index.drop(3)
    assert [stored.index for stored, _ in index.holding(30, 9, 1 << 30)] == [3, 4]
    assert list(index.holding(29, 9, 1 << 30)) == []
    assert (index.first, index.base, index.get(2)) == (3, 30, None)
    index.drop(9)
    assert (len(index), index.last, index.next_offset) == (0, 8, 50)
    index.add(9, 2, Kind.NOOP, 900, 1)
    assert (index.first, index.last, index.next_offset) == (9, 9, 50)


def test_rows_are_joined_as_they_were_added() -> None:
    for seed in range(40):
        dice = random.Random(seed)
        rows = drawn(dice, 20)
        whole, joined = GroupIndex(7), GroupIndex(7)
        for at, kind, length, first, behind, stamp in rows:
            whole.add(at, 1, kind, at * 100, length, first, behind, stamp)
        cuts = sorted(dice.sample(range(700, 2800), 3))
        for start, end in zip([0, *cuts], [*cuts, 1 << 30], strict=True):
            if (part := whole.rows(start, end)).columns.positions:
                joined.join(part)
        assert whole.rows(0, 1 << 30) == joined.rows(0, 1 << 30)
        assert (joined.base, joined.batch_bytes) == (whole.base, whole.batch_bytes)
        joined.join(whole.rows(1000, 1 << 30))
        assert whole.rows(0, 1 << 30) == joined.rows(0, 1 << 30)
