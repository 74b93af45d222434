"""Entries that look sound, and were superseded by others that were lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import Kept, save
from weir.storage.format.frame import Frame, Kind
from weir.storage.format.index_file import is_index
from weir.storage.format.record import Record
from weir.storage.group_scan import FoundCopies, Joining
from weir.storage.log import Log
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk

GROUP = 65536
#: What one entry of a few bytes takes.
ENTRY = 64
HOLE = 1_000


def joined(*frames: tuple[int, int, int], lost: int, kept: Kept | None = None) -> tuple[int, ...]:
    """Return what is in doubt of a group with these entries, each position, term and index, if at
    `HOLE` so many others lay of which nobody knows whose they were.
    """
    known = {GROUP: kept} if kept else {}
    holes = [LogDamaged(1, "segment", HOLE, "rot")]
    joining = Joining(1, known, FoundCopies(1, known), holes, 3_000)
    joining.doubts.darken(HOLE, HOLE + lost * ENTRY)
    for position, term, index in frames:
        frame = Frame(position, ENTRY, GROUP, term, index, Kind.CONTROL, -1, -1, -1)
        joining.add(None, frame, position)
    joining.finish()
    return joining.doubts.of(GROUP, joining.index[GROUP])


def test_what_was_lost_may_have_superseded_what_a_later_term_seems_to_follow() -> None:
    before = [(100, 1, 1), (200, 1, 2), (300, 1, 3)]
    assert joined(*before, (2_000, 2, 4), lost=2) == (2, 3)
    assert joined(*before, (2_000, 2, 4), lost=50) == (1, 2, 3)


def test_so_it_may_have_below_what_is_superseded_by_an_entry_that_is_there() -> None:
    before = [(100, 1, 1), (200, 1, 2), (300, 1, 3)]
    assert joined(*before, (2_000, 2, 3), lost=1) == (2,)


def test_what_filled_a_gap_superseded_nothing_else() -> None:
    before = [(100, 1, 1), (200, 1, 2)]
    assert joined(*before, (2_000, 2, 5), lost=2) == ()
    assert joined(*before, (2_000, 2, 5), lost=3) == (2,)


def test_entries_of_the_same_term_are_the_same_leaders() -> None:
    before = [(100, 1, 1), (200, 2, 2)]
    assert joined(*before, (2_000, 2, 3), lost=9) == ()
    assert joined(*before, (2_000, 3, 3), (2_100, 3, 4), lost=9) == (1, 2)


def test_what_came_behind_a_hole_is_in_no_doubt_by_it() -> None:
    assert joined((1_500, 1, 1), (1_600, 1, 2), (2_000, 2, 3), lost=5) == ()


def test_who_is_superseded_anyway_is_in_no_doubt_any_more() -> None:
    before = [(100, 1, 1), (200, 1, 2)]
    assert joined(*before, (2_000, 2, 3), (2_100, 3, 1), (2_200, 3, 2), lost=1) == ()


def test_the_last_entries_may_have_been_superseded_by_the_lost_ones_alone() -> None:
    """Nothing of the group came behind the hole: only its term tells, as the checkpoint has it."""
    before = [(100, 1, 1), (200, 1, 2)]

    def at_term(term: int) -> tuple[int, ...]:
        kept = Kept(term, 1, 0, start=1, applied=2, base=-1, behind=-1, last=2)
        return joined(*before, lost=1, kept=kept)

    assert at_term(2) == (2,)
    assert at_term(1) == ()


@pytest.mark.parametrize("superseding", [2, 3])
def test_a_start_doubts_what_a_header_that_rotted_may_have_superseded(
    disk: SimDisk,
    small: Settings,
    log: Log,
    control: Callable[..., Record],
    settle: Callable[[Log], object],
    superseding: int,
) -> None:
    """Entry 2 of term 1 was let go of, and would be given to who asks for entry 2."""
    for index in (1, 2, 3)[:superseding]:
        log.append(control(index))
    settle(log)
    hidden = log.append(control(2, term=2))
    log.append(control(3, term=2))
    settle(log)
    save(disk, log.checkpoint({GROUP: 3}, b"state"))
    log.checkpoint_saved()
    log.append(control(4, term=2))
    settle(log)
    (name,) = (name for name in disk.names() if name.startswith("segment"))
    disk.flip(name, hidden + 8)
    for _ in range(2):
        found = recover(disk, small)
        group = found.groups[GROUP]
        assert (group.damage, group.unreadable, group.doubtful) == (None, 0, (2,))
        there = found.log.reader.stored(GROUP, 2)
        assert there is not None
        assert found.log.reader.load(there), (
            "whoever is alone with it knows that nothing superseded it"
        )
        found.log.reader.disbelieve(GROUP, group.doubtful)
        gone = found.log.reader.stored(GROUP, 2)
        assert gone is not None
        with pytest.raises(LogDamaged, match=name):
            found.log.reader.load(gone)
        assert [found.log.reader.term_of(GROUP, index) for index in (1, 2, 3, 4)] == [1, 0, 2, 2]


def test_a_group_that_begins_anew_is_in_no_doubt(
    disk: SimDisk,
    small: Settings,
    log: Log,
    control: Callable[..., Record],
    settle: Callable[[Log], object],
) -> None:
    log.append(control(1))
    log.append(control(2))
    hidden = log.append(control(2, term=2))
    log.append(control(3, term=2))
    settle(log)
    save(disk, log.checkpoint({GROUP: 3}, b"state"))
    log.checkpoint_saved()
    log.append(control(4, term=2))
    settle(log)
    (name,) = (name for name in disk.names() if name.startswith("segment"))
    disk.flip(name, hidden + 8)
    found = recover(disk, small)
    assert found.groups[GROUP].doubtful
    found.log.install(GROUP, 3, 2, 3, 2, (b"from another",))
    settle(found.log)
    assert not recover(disk, small).groups[GROUP].doubtful
    assert not any(map(is_index, disk.names()))
