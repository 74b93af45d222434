"""What stands in for entries that lay in a damaged place, found by simulated bit rot."""

from __future__ import annotations

from weir.log.frame import Kind
from weir.log.index import GroupIndex

HOLE = 4_000


def one_lost(first: int = 1) -> GroupIndex:
    """Entry 1 held offsets 0 to 4 and is lost; 2 and 3 are control entries."""
    index = GroupIndex(first)
    index.base = 0
    index.lose(1, HOLE)
    index.add(2, 1, Kind.CONTROL, 5_000, 40)
    index.add(3, 1, Kind.CONTROL, 5_100, 40)
    return index


def test_a_lost_entry_held_the_messages_and_not_a_control_entry_behind_it() -> None:
    index = one_lost()
    index.mend(1, 5)
    index.add(4, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    for offset in range(5):
        stored, behind = next(index.holding(offset, 4, 1 << 30))
        assert (stored.position, behind) == (HOLE, 5)
    stored, behind = next(index.holding(5, 4, 1 << 30))
    assert (stored.position, behind) == (6_000, 8)


def test_what_is_not_known_to_be_old_does_not_go_by_age() -> None:
    index = one_lost()
    index.mend(1, 5)
    assert index.at_stamp(0, 1 << 30) == (1, 0)
    assert index.at_stamp(1 << 60, 1 << 30) == (1, 0)
    assert index.stamp_of(2) is None


def test_lost_entries_are_as_old_as_the_messages_behind_them_allow() -> None:
    index = one_lost()
    index.mend(1, 5)
    index.add(4, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    assert index.at_stamp(70, 1 << 30) == (1, 0)
    assert index.at_stamp(71, 1 << 30) is None
    assert index.stamp_of(2) == index.stamp_of(6) == 70


def test_rows_of_an_index_file_tell_how_old_a_lost_entry_was() -> None:
    whole = GroupIndex(1)
    whole.add(1, 1, Kind.BATCHES, HOLE, 300, 0, 5, 60)
    whole.add(2, 1, Kind.CONTROL, 5_000, 40)
    whole.add(3, 1, Kind.BATCHES, 6_000, 200, 5, 8, 70)
    index = GroupIndex(1)
    index.base = 0
    index.lose(1, HOLE)
    index.mend(1, 5)
    index.join(whole.rows(5_000, 7_000))
    assert index.stamp_of(2) == 60
    assert index.at_stamp(61, 1 << 30) == (3, 5)
