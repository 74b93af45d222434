from __future__ import annotations

from collections.abc import Sequence

import pytest

from weir_raft import (
    Compacted,
    Config,
    Entry,
    EntryKind,
    MemoryStorage,
    OutOfOrder,
    Overloaded,
    Snapshot,
    StorageError,
    Unavailable,
)
from weir_raft.log_view import ENTRY_OVERHEAD_BYTES, LogView


def stored(*terms: int, size: int = 10) -> MemoryStorage:
    storage = MemoryStorage()
    entries = [Entry(i, term, EntryKind.NORMAL, i, size) for i, term in enumerate(terms, 1)]
    storage.save(None, entries)
    return storage


def view(storage: MemoryStorage | None = None, **config: int) -> LogView:
    return LogView(Config(id=1, voters=(1,), **config), storage or MemoryStorage())


def append(log: LogView, count: int, *, term: int = 1, size: int = 10) -> None:
    for _ in range(count):
        log.append(term, EntryKind.NORMAL, "x", size)


def indexes(entries: Sequence[Entry]) -> list[int]:
    return [entry.index for entry in entries]


def test_entries_are_staged_once_and_in_order() -> None:
    log = view()
    append(log, 2)
    assert indexes(log.take_unstaged()) == [1, 2]
    assert log.take_unstaged() == ()
    append(log, 1)
    assert indexes(log.take_unstaged()) == [3]


def test_committed_entries_are_handed_once_within_the_byte_bound() -> None:
    log = view(max_apply_bytes=25)
    append(log, 5)
    log.take_unstaged()
    log.durable_to(5)
    assert not log.has_unhanded
    log.commit_to(4)
    assert indexes(log.take_unhanded()) == [1, 2]
    assert indexes(log.take_unhanded()) == [3, 4]
    assert not log.has_unhanded
    assert log.take_unhanded() == ()


def test_an_entry_above_the_apply_bound_is_handed_alone() -> None:
    log = view(max_apply_bytes=25)
    append(log, 1)
    append(log, 1, size=100)
    append(log, 1)
    log.take_unstaged()
    log.durable_to(3)
    log.commit_to(3)
    assert [indexes(log.take_unhanded()) for _ in range(3)] == [[1], [2], [3]]


def test_commit_never_goes_back() -> None:
    log = view()
    append(log, 3)
    log.commit_to(2)
    log.commit_to(0)
    assert log.committed == 2


def test_memory_is_let_go_when_both_durable_and_applied() -> None:
    limit = 3 * (10 + ENTRY_OVERHEAD_BYTES)
    log = view(max_pending_bytes=limit)
    append(log, 3)
    log.take_unstaged()
    log.commit_to(3)
    log.durable_to(2)
    log.take_unhanded()
    with pytest.raises(Overloaded, match="after the next applied"):
        log.admit(10)
    log.applied_to(1)
    log.admit(10)
    with pytest.raises(Overloaded):
        log.admit(11)


def test_one_entry_beyond_the_limit_passes_alone() -> None:
    log = view(max_pending_bytes=100)
    log.admit(5_000)
    append(log, 1, size=5_000)
    with pytest.raises(Overloaded):
        log.admit(0)


def test_terms_come_from_memory_storage_or_the_snapshot() -> None:
    storage = stored(1, 1, 2, 2)
    storage.save_snapshot(Snapshot(2, 1, None))
    log = view(storage)
    append(log, 1, term=3)
    assert [log.term(index) for index in (2, 3, 4, 5)] == [1, 2, 2, 3]
    with pytest.raises(Unavailable, match="ends at 5"):
        log.term(6)
    with pytest.raises(Compacted, match="starts at 3"):
        log.term(1)
    assert view().term(0) == 0


def test_a_restart_starts_above_the_snapshot_or_what_is_applied() -> None:
    storage = stored(1, 1, 1, 1)
    storage.save_snapshot(Snapshot(2, 1, None))
    log = view(storage)
    assert (log.first_index, log.applied, log.committed, log.last_index) == (3, 2, 2, 4)
    assert view(storage, applied=3).applied == 3
    with pytest.raises(StorageError, match="entries were lost"):
        view(storage, applied=5)


def test_stored_entries_come_in_chunks_each_after_the_last_is_applied() -> None:
    log = view(stored(1, 1, 1, 1, 1), max_apply_bytes=20)
    append(log, 2)
    log.take_unstaged()
    log.durable_to(7)
    log.commit_to(7)
    assert indexes(log.take_unhanded()) == [1, 2]
    assert not log.has_unhanded
    log.applied_to(1)
    assert not log.has_unhanded
    log.applied_to(2)
    assert indexes(log.take_unhanded()) == [3, 4]
    log.applied_to(4)
    assert indexes(log.take_unhanded()) == [5]
    assert indexes(log.take_unhanded()) == [6, 7]


def test_only_what_was_handed_can_be_applied() -> None:
    log = view()
    append(log, 3)
    log.take_unstaged()
    log.durable_to(3)
    log.commit_to(3)
    with pytest.raises(OutOfOrder, match="was handed out to apply"):
        log.applied_to(1)
    log.take_unhanded()
    log.applied_to(2)
    log.applied_to(2)
    with pytest.raises(OutOfOrder):
        log.applied_to(1)
    with pytest.raises(OutOfOrder):
        log.applied_to(4)
    assert log.applied == 2


def test_what_is_released_is_gone_though_no_snapshot_covers_it() -> None:
    log = view(stored(1, 1, 2, 2))
    log.commit_to(3)
    log.take_unhanded()
    log.applied_to(2)
    log.release(1)
    assert (log.first_index, log.term(1), log.last_of_term(4, 1)) == (2, 1, 2)
    log.release(4)  # as far as it is applied
    log.release(1)
    assert (log.first_index, log.term(2), log.last_of_term(4, 1)) == (3, 1, 2)
    with pytest.raises(Compacted):
        log.term(1)


def test_compact_waits_for_snapshot_application_and_disk() -> None:
    storage = stored(1, 1, 2)
    log = view(storage)
    with pytest.raises(OutOfOrder, match="make a snapshot"):
        log.compact(1)
    storage.save_snapshot(Snapshot(3, 2, None))
    with pytest.raises(OutOfOrder, match="not yet applied"):
        log.compact(2)
    log.commit_to(3)
    log.take_unhanded()
    log.applied_to(3)
    log.compact(2)
    storage.discard(2)
    assert (log.first_index, log.term(2), log.term(3)) == (3, 1, 2)
    log.compact(1)
    assert log.first_index == 3
    with pytest.raises(Compacted):
        log.term(1)
    log.compact(3)
    storage.discard(3)
    assert (log.first_index, log.term(3)) == (4, 2)


class Lying(MemoryStorage):
    """Answers with other entries than it was asked for."""

    def __init__(self, answer: list[int]) -> None:
        super().__init__()
        self.save(None, [Entry(i, 1, EntryKind.NORMAL, i, 1) for i in range(1, 6)])
        self._answer = answer

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        return [Entry(index, 1, EntryKind.NORMAL, index, 1) for index in self._answer]


@pytest.mark.parametrize("answer", [[], [2], [1, 3], [1, 1], [1, 2, 3, 4, 5]])
def test_wrong_answers_of_storage_are_not_handed_on(answer: list[int]) -> None:
    log = view(Lying(answer))
    log.commit_to(4)
    with pytest.raises(StorageError, match="from 1 below 5"):
        log.take_unhanded()
    assert log.handed == 0


def entries(first: int, *terms: int) -> tuple[Entry, ...]:
    return tuple(Entry(i, term, EntryKind.NORMAL, i, 10) for i, term in enumerate(terms, first))


def test_a_leaders_entries_replace_the_tail_wherever_it_lies() -> None:
    log = view(stored(1, 1, 1))
    append(log, 2)
    log.take_unstaged()
    log.durable_to(5)
    log.extend(entries(3, 2, 2))
    assert (log.last_index, log.staged, log.durable) == (4, 2, 2)
    assert [log.term(index) for index in (2, 3, 4)] == [1, 2, 2]
    assert indexes(log.take_unstaged()) == [3, 4]
    log.extend(entries(4, 3))
    assert (log.last_index, log.staged, log.term(4)) == (4, 3, 3)


def test_a_committed_entry_is_never_replaced() -> None:
    log = view(stored(1, 1))
    log.commit_to(1)
    log.extend(entries(2, 2))
    with pytest.raises(StorageError, match="entry 1 is committed"):
        log.extend(entries(1, 2))


def test_nothing_is_handed_out_beyond_the_own_disk() -> None:
    log = view()
    append(log, 3)
    log.take_unstaged()
    log.commit_to(3)
    assert not log.has_unhanded
    log.durable_to(2)
    assert indexes(log.take_unhanded()) == [1, 2]


def test_a_restored_snapshot_is_filled_in_from_its_base_on() -> None:
    log = view(stored(1, 1))
    log.restore(Snapshot(10, 3, b"", None, 6, 2))
    assert (log.first_index, log.last_index, log.committed, log.applied) == (7, 6, 10, 0)
    log.restored()
    assert (log.applied, log.back_filling, log.end) == (10, True, (3, 10))
    assert (log.term(6), log.term(10)) == (2, 3)
    with pytest.raises(Unavailable):
        log.term(7)
    log.extend(entries(7, 2, 3, 3, 3, 4))
    log.take_unstaged()
    log.durable_to(11)
    assert not log.has_unhanded
    assert (log.back_filling, log.end) == (False, (4, 11))
    log.commit_to(11)
    assert indexes(log.take_unhanded()) == [11]


def test_a_restart_while_filling_in_goes_on_where_the_disk_ends() -> None:
    storage = MemoryStorage()
    storage.install(Snapshot(10, 3, b"", None, 6, 2))
    storage.save(None, entries(7, 2, 3))
    log = view(storage)
    assert (log.first_index, log.last_index, log.applied, log.back_filling) == (7, 8, 10, True)


def test_the_last_entry_of_a_term_is_found_between_the_base_and_an_index() -> None:
    storage = stored(1, 1, 2, 2, 5, 5)
    storage.save_snapshot(Snapshot(1, 1, None))
    log = view(storage)
    found = [log.last_of_term(6, term) for term in (0, 1, 2, 3, 4, 5, 6)]
    assert found == [1, 2, 4, 4, 4, 6, 6]
    assert log.last_of_term(3, 2) == 3


def test_what_is_sent_comes_from_memory_or_from_what_storage_has_at_hand() -> None:
    class Distant(MemoryStorage):
        def cached(self, lo: int, hi: int, max_bytes: int) -> None:
            return None

    log = view(stored(1, 1, 1))
    append(log, 3)
    assert [indexes(cut[0]) for lo in (2, 4, 7) if (cut := log.outgoing(lo, 20))] == [
        [2, 3],
        [4, 5],
        [],
    ]
    distant = Distant()
    distant.save(None, entries(1, 1, 1))
    assert view(distant).outgoing(1, 20) is None
