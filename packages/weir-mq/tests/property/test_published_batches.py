"""Where published batches lie, against a plain list of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from weir.broker.records.staging import StagedRecord
from weir.broker.state.staging import OpenRun, Published, PublishedBatch, StagingTable

#: Of each publication: how far behind the one before it begins, and the messages of its batches.
PUBLICATIONS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(1, 4), min_size=1, max_size=4)), max_size=6
)


@given(PUBLICATIONS, st.randoms(use_true_random=False), st.integers(0, 60))
def test_rows_are_found_whatever_is_decided_first(found: Any, random: Any, start: int) -> None:
    table, rows, jobs = Published(), [], []
    offset, entry = 0, 100
    for number, (gap, counts) in enumerate(found):
        offset += gap
        run, first = OpenRun("q", number), offset
        for at, count in enumerate(counts):
            run.add(entry, StagedRecord(1, "q", number, 0, 0, count, 0, 10 * count))
            stamp, is_last = 1_000 + number, at == len(counts) - 1
            rows.append(PublishedBatch(entry, offset, offset + count, stamp, is_last))
            offset, entry = offset + count, entry + 1
        jobs.append(([run], first, 1_000 + number))
    random.shuffle(jobs)
    for job in jobs:
        table.add(*job)

    table = Published.decode(*table.encode())
    check(table, rows, offset)
    table.forget_below(start)
    check(table, [row for row in rows if row.behind > start], offset)


def check(table: Published, rows: list[PublishedBatch], behind: int) -> None:
    assert len(table) == len(rows)
    held = {offset: row for row in rows for offset in range(row.first, row.behind)}
    for offset in range(behind + 2):
        assert table.holds(offset) == (offset in held)
        following = []
        at = offset
        while at in held:
            following.append(held[at])
            at = held[at].behind
        assert list(table.of(offset)) == following
        later = min((one for one in held if one >= offset), default=behind + 5)
        assert table.next_first(offset, behind + 5) == later
        size = sum(10 * (row.behind - row.first) for row in rows if row.behind > offset)
        assert table.stored_from(offset) == size
        needed = min((row.entry for row in rows if row.behind > offset), default=7_000)
        assert table.first_needed_index(7_000, offset) == needed
        # Messages that were published as any lie in front of what was staged.
        assert table.first_needed_index(50, offset) == 50
        for end in range(offset, behind + 2):
            some = [row for row in rows if row.first < end and row.behind > offset]
            size = sum(10 * (row.behind - row.first) for row in some) if offset < end else 0
            assert table.stored(offset, end) == size


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=20))
def test_a_run_takes_its_batches_in_order_alone(found: list[tuple[int, int]]) -> None:
    table, known = StagingTable(), {}
    for index, (run, number) in enumerate(found, 1):
        taken = table.add(index, StagedRecord(run, "q", 0, number, index, 1, index, 10))
        assert taken == (known.get(run, 0) == number)
        known[run] = known.get(run, 0) + taken
    assert {run: table.batches(run) for run in known} == known
    again = StagingTable.decode(*table.encode())  # type: ignore[misc]
    assert again.encode() == table.encode()
    stamps = [run.stamp for run in again.opened.values()]
    assert stamps == sorted(stamps), "the longest untouched is first"
