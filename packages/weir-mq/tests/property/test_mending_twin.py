"""A log whose rotten payloads were filled in is the log that never rotted: places, offsets, stamps.

WEIR_MENDS trials: a random history with checkpoints, drops and superseded entries; some payloads
rot, and are filled in from a twin in any order.
"""

from __future__ import annotations

import os
import random

import pytest

from rigs.logs import rows_of
from weir.model.batch import HEADER_SIZE as BATCH_HEADER
from weir.model.batch import stamped
from weir.model.batch_builder import encode
from weir.storage.format.checkpoint import save
from weir.storage.format.frame import HEADER_SIZE, Kind
from weir.storage.format.record import HardState, Record
from weir.storage.group_index import Filled
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.scrub import filled_by
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

TRIALS = int(os.environ.get("WEIR_MENDS", "60"))
GROUPS = (0, 65536, 131072)
SETTINGS = Settings(log=1, system=7, segment_bytes=8192, entry_bytes_max=2000, spares=1)


class History:
    """A log with a random past."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.disk = SimDisk(random.Random(1))
        self.log = recover(self.disk, SETTINGS).log
        #: By group, the offset behind each entry.
        self.behind: dict[int, list[int]] = {group: [0] for group in GROUPS}
        #: By group, through which entry the last checkpoint holds its state.
        self.applied: dict[int, int] = {}
        self.term = 1
        for round in range(dice.randint(3, 25)):
            for group in GROUPS:
                for _ in range(dice.randint(0, 3)):
                    self.append(group, round)
            if dice.random() < 0.2:
                self.promise()
            if dice.random() < 0.15:
                self.supersede(dice.choice(GROUPS), round)
            self.settle()
            if dice.random() < 0.2:
                self.checkpoint()
        self.log.mark_idle()
        self.settle()

    def append(self, group: int, stamp: int) -> None:
        index, offset = len(self.behind[group]), self.behind[group][-1]
        if self.dice.random() < 0.4:
            data = self.dice.randbytes(self.dice.randint(1, 90))
            record = Record(group, self.term, index, Kind.CONTROL, (data,), len(data))
        else:
            count = self.dice.randint(1, 4)
            sealed = encode([self.dice.randbytes(60)] * count, group=group)
            data = stamped(sealed, stamp, offset) + bytes(sealed[BATCH_HEADER:])
            offset += count
            record = Record(
                group, self.term, index, Kind.BATCHES, (data,), len(data), offset - count, offset,
                stamp,
            )  # fmt: skip
        self.log.append(record)
        self.behind[group].append(offset)

    def supersede(self, group: int, stamp: int) -> None:
        """Another leader's entries take the place of the last ones."""
        first = self.log.groups.index[group].first if group in self.log.groups.index else 1
        keep = max(
            len(self.behind[group]) - self.dice.randint(1, 3), first, self.applied.get(group, 0) + 1
        )
        if keep >= len(self.behind[group]):
            return
        self.term += 1
        self.promise()
        del self.behind[group][keep:]
        self.append(group, stamp)

    def promise(self) -> None:
        for group in GROUPS:
            data = HardState(self.term, 1, 0).pack()
            self.log.append(Record(group, self.term, 0, Kind.HARD_STATE, (data,), len(data)))

    def settle(self) -> None:
        if (flush := self.log.next_flush()) is not None:
            flush.run(self.disk)
            self.log.flushed(flush)
        while chore := self.log.next_chore():
            chore.run(self.disk)

    def checkpoint(self) -> None:
        self.applied = {group: len(behind) - 1 for group, behind in self.behind.items()}
        save(self.disk, self.log.checkpoint(self.applied, b"body"))
        self.log.checkpoint_saved()
        for group, last in self.applied.items():
            if group != GROUPS[-1] and last > 9:
                self.log.drop_below(group, last - self.dice.randint(0, 9))

    def copy(self) -> SimDisk:
        disk = SimDisk(random.Random(2))
        for name in self.disk.names():
            disk.replace(name, self.disk.read(name, 0, self.disk.size(name)))
        return disk


def rows(log: Log) -> dict[int, object]:
    """All that a log knows of its entries; nothing lies before the first message."""
    return {group: rows_of(index) for group, index in log.groups.index.items()}


@pytest.mark.parametrize("seed", range(TRIALS))
def test_what_was_filled_in_is_as_if_it_had_never_rotted(seed: int) -> None:
    history = History(seed)
    whole_disk, disk = history.copy(), history.copy()
    whole = recover(whole_disk, SETTINGS).log
    dice = history.dice
    share = dice.choice((0.05, 0.3, 1.0))
    for group, index in whole.groups.index.items():
        for at in range(index.first, index.last + 1):
            if dice.random() < share:
                stored = whole.reader.stored(group, at)
                assert stored is not None
                segment = whole.segments.find(stored.place)
                place = stored.place - segment.base + HEADER_SIZE
                disk.flip(segment.name, place + dice.randrange(stored.length))
    found = recover(disk, SETTINGS)
    for group, one in found.groups.items():
        assert not one.hard_state_lost
        assert one.unreadable == len(one.rotten)
        assert (one.damage is not None) == any(
            i > history.applied.get(group, 0) for i in one.rotten
        )
        filled: dict[int, Filled] = {}
        for at in dice.sample(one.rotten, len(one.rotten)):
            stored = whole.reader.stored(group, at)
            assert stored is not None
            piece = found.log.reader.mend(group, at, whole.reader.load(stored))
            assert piece is not None
            assert not piece.run(disk).bad
            assert found.log.reader.mended(piece)
            filled[at] = filled_by(piece)
        found.log.reader.fill(group, filled)
    assert rows(found.log) == rows(whole)
    again = recover(disk, SETTINGS)
    assert rows(again.log) == rows(whole)
    assert not any(one.unreadable or one.damage for one in again.groups.values())
