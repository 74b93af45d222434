from __future__ import annotations

import pytest

from weir_raft import (
    Compacted,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MemoryStorage,
    Snapshot,
    StorageError,
    Unavailable,
)


def entry(index: int, term: int = 1, size: int = 10) -> Entry:
    return Entry(index, term, EntryKind.NORMAL, f"e{index}", size)


@pytest.fixture
def five() -> MemoryStorage:
    storage = MemoryStorage()
    storage.save(HardState(2, 1), [entry(1), entry(2), entry(3), entry(4, 2), entry(5, 2)])
    return storage


def test_a_new_storage_is_empty() -> None:
    storage = MemoryStorage()
    assert storage.hard_state() == HardState(0, 0)
    assert storage.snapshot() is None
    assert storage.last_index() == 0


def test_save_keeps_hard_state_and_entries(five: MemoryStorage) -> None:
    assert five.hard_state() == HardState(2, 1)
    assert five.last_index() == 5
    assert [five.term(index) for index in range(1, 6)] == [1, 1, 1, 2, 2]
    five.save(None, [entry(6, 3)])
    assert five.hard_state() == HardState(2, 1)
    assert five.term(6) == 3


def test_a_hole_is_refused_and_changes_nothing(five: MemoryStorage) -> None:
    for entries in ([entry(7)], [entry(0)], [entry(6), entry(8)]):
        with pytest.raises(StorageError, match="cannot follow"):
            five.save(HardState(9, 1), entries)
    assert five.last_index() == 5
    assert five.hard_state() == HardState(2, 1)


@pytest.mark.parametrize(
    ("lo", "hi", "max_bytes", "indexes"),
    [
        (1, 6, 1000, [1, 2, 3, 4, 5]),
        (2, 4, 1000, [2, 3]),
        (1, 6, 30, [1, 2, 3]),
        (1, 6, 29, [1, 2]),
        (3, 6, 1, [3]),
    ],
)
def test_entries_stop_at_bytes_but_give_one(
    five: MemoryStorage, lo: int, hi: int, max_bytes: int, indexes: list[int]
) -> None:
    assert [found.index for found in five.entries(lo, hi, max_bytes)] == indexes


def test_outside_the_log_is_an_error(five: MemoryStorage) -> None:
    with pytest.raises(Unavailable, match="ends at 5"):
        five.term(6)
    with pytest.raises(Compacted):
        five.term(0)
    with pytest.raises(Unavailable):
        five.entries(5, 7, 100)


def test_discard_needs_a_snapshot_and_keeps_the_last_index(five: MemoryStorage) -> None:
    with pytest.raises(StorageError, match="save a snapshot"):
        five.discard(1)
    with pytest.raises(StorageError, match="no entry 4 of term 1"):
        five.save_snapshot(Snapshot(4, 1, "state"))
    five.save_snapshot(Snapshot(5, 2, "state"))
    five.discard(3)
    five.discard(2)
    with pytest.raises(Compacted, match="starts at 4"):
        five.term(3)
    assert [found.index for found in five.entries(4, 6, 100)] == [4, 5]
    five.discard(5)
    assert five.last_index() == 5
    five.save(None, [entry(6, 2)])
    assert five.term(6) == 2


def test_entries_within_the_log_replace_all_from_there_on(five: MemoryStorage) -> None:
    five.save(None, [Entry(4, 9, EntryKind.NORMAL, "new", 1)])
    assert (five.last_index(), five.term(4)) == (4, 9)


def test_an_installed_snapshot_starts_the_log_again_behind_its_base(five: MemoryStorage) -> None:
    snapshot = Snapshot(20, 7, b"", Configuration((1, 2)), 18, 6)
    five.install(snapshot)
    assert (five.last_index(), five.snapshot(), five.configuration()) == (
        18,
        snapshot,
        Configuration((1, 2)),
    )
    five.save(None, [Entry(19, 7, EntryKind.NORMAL, "x", 1)])
    assert five.last_index() == 19
    with pytest.raises(StorageError, match="cannot follow"):
        five.save(None, [Entry(18, 7, EntryKind.NORMAL, "x", 1)])


def test_it_names_the_changes_above_its_snapshot() -> None:
    storage = MemoryStorage()
    data = Configuration((1, 2)).pack()
    changes = [Entry(i, 1, EntryKind.CONFIGURATION, data, len(data)) for i in (1, 2, 3)]
    storage.save(None, changes)
    assert storage.configurations() == [(1, data), (2, data), (3, data)]
    storage.save_snapshot(Snapshot(2, 1, None))
    assert storage.configurations() == [(3, data)]
