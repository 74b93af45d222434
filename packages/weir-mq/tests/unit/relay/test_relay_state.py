"""The state of a relay's partition: what its log may hold, and what it answers."""

from __future__ import annotations

import random

import pytest

from weir.errors import UnknownVersion
from weir.relay import entries as e
from weir.relay.rows import RosterEntry, Row, RowKind, roster_entry
from weir.relay.state import EntryRefused, RelayState

A, B, AB = ("a",), ("b",), ("a", "b")


def relayed(
    first: int, next_: int, *, filter_: int = 1, lineage: int = 1, stamp: int = 0,
    roster: tuple[RosterEntry, ...] = (),
) -> e.Relayed:  # fmt: skip
    rows: tuple[Row, ...] = ()
    if next_ > first:
        kind = RowKind.BATCH if stamp else RowKind.SKIPPED
        rows = (Row(kind, next_ - first, stamp, 8 if stamp else 0),)
    return e.Relayed(lineage, first, next_, filter_, 0, rows, roster)


def begun(*records: e.AnyRecord, first: int = 100) -> RelayState:
    state = RelayState()
    for record in (
        e.Forked(1, 0, ()), e.StartMoved(first), e.FilterSet(1, A, first), *records,
    ):  # fmt: skip
        state.apply(record, 100)
    return state


def refused(state: RelayState, record: e.AnyRecord) -> str:
    before = state.encode()
    with pytest.raises(EntryRefused) as caught:
        state.apply(record, 100)
    assert state.encode() == before, "what was refused left something behind"
    return str(caught.value)


def test_ranges_lie_end_to_end() -> None:
    state = begun(relayed(100, 110), relayed(110, 111))
    assert (state.start, state.end, state.index) == (100, 111, 5)
    assert "does not go on at 111" in refused(state, relayed(112, 120))
    assert "does not go on at 111" in refused(state, relayed(110, 120))
    assert "does not go on at 111" in refused(state, e.GapTold(112, 120, ""))
    state.apply(e.GapTold(111, 120, "retention"), 100)
    state.apply(relayed(120, 121), 100)
    assert state.gaps == [(111, 120)]


def test_nothing_is_relayed_before_the_log_begins() -> None:
    state = RelayState()
    state.apply(e.Forked(1, 0, ()), 50)
    assert "go on" in refused(state, relayed(0, 5))
    assert "go on" in refused(state, e.GapTold(0, 5, ""))


def test_an_entry_is_of_the_filter_and_lineage_in_force() -> None:
    state = begun(e.FilterSet(2, AB, 150))
    assert "filter 2 is not the one at 100" in refused(state, relayed(100, 110, filter_=2))
    assert "past the filter's end 150" in refused(state, relayed(100, 151))
    assert "lineage 2 in a log of 1" in refused(state, relayed(100, 110, lineage=2))
    state.apply(relayed(100, 150), 100)
    assert "filter 1" in refused(state, relayed(150, 160))
    state.apply(relayed(150, 160, filter_=2), 100)
    assert "and not 3" in refused(state, e.FilterSet(2, A, 160))
    assert "below 160" in refused(state, e.FilterSet(3, A, 155))


def test_stamps_rise() -> None:
    state = begun(relayed(100, 101, stamp=50), relayed(101, 102, stamp=50))
    assert "comes behind 50" in refused(state, relayed(102, 103, stamp=49))


def test_no_roster_entry_is_missing() -> None:
    first, second = roster_entry(0, 100, 3), roster_entry(1, 105, 4)
    state = begun()
    assert "0 is missing" in refused(state, relayed(100, 105, roster=(second,)))
    state.apply(relayed(100, 105, roster=(first,)), 100)
    assert "1 is missing" in refused(state, relayed(105, 106, roster=(first,)))
    state.apply(relayed(105, 105, roster=(second,)), 100)  # nothing was published meanwhile
    assert "without anything" in refused(state, relayed(105, 105))
    assert state.roster == [first, second]
    assert state.partitions == RelayState.decode(state.encode()).partitions == 4


def test_what_was_kept_under_another_filter_is_not_reached() -> None:
    # [100, 150) has a, [150, 180) a and b, from 180 on b.
    state = begun(
        relayed(100, 150), e.FilterSet(2, AB, 150), relayed(150, 180, filter_=2),
        e.FilterSet(3, B, 180), relayed(180, 200, filter_=3),
    )  # fmt: skip
    a, b, both = frozenset(A), frozenset(B), frozenset(AB)
    assert [state.reach(at, a) for at in (100, 149, 150, 180)] == [180, 180, 180, 180]
    assert [state.reach(at, b) for at in (100, 149, 150, 199, 200)] == [100, 149, 200, 200, 200]
    assert [state.reach(at, both) for at in (100, 150, 180)] == [100, 180, 180]
    assert state.reach(150, None) == 150
    assert [state.covered_from(tags, 99) for tags in (a, b, both, None)] == [-1, 150, -1, -1]
    assert state.covered_from(b, 5) == -1, "its entry is not durable"
    assert state.covered_from(a, 3) == -1


def test_a_filter_of_what_is_to_come_reaches_that_alone() -> None:
    state = begun(relayed(100, 120), e.FilterSet(2, None, 150))
    assert state.reach(100, frozenset(A)) == 120
    assert state.reach(110, None) == 110
    assert state.covered_from(None, 5) == 150


def test_nothing_is_reached_across_a_gap() -> None:
    state = begun(relayed(100, 110), e.GapTold(110, 120, ""), relayed(120, 130))
    tags = frozenset(A)
    assert [state.reach(at, tags) for at in (100, 110, 115, 120)] == [110, 110, 115, 130]


def test_a_fork_cuts_what_another_lineage_took() -> None:
    state = begun(
        relayed(100, 110, roster=(roster_entry(0, 104, 3), roster_entry(1, 109, 4))),
        relayed(110, 120, stamp=90), e.GapTold(120, 130, ""), e.ChunkStored(7, 130),
        e.Forked(3, 110, ((2, 115), (3, 110))),
    )  # fmt: skip
    assert (state.end, state.lineage, state.last_stamp) == (110, 3, 0)
    assert state.gaps == []
    assert state.chunks.find(7) == 0
    assert [state.fork_of(one) for one in (1, 2, 3)] == [110, 110, -1]
    assert "does not go on at 110" in refused(state, relayed(130, 140, lineage=3))
    state.apply(relayed(110, 112, lineage=3, stamp=60), 100)
    assert "comes behind 3" in refused(state, e.Forked(3, 100, ()))
    assert state.entries_from(100, 112, 10**6) == (4, 9)


def test_a_fork_amid_a_range_cuts_the_whole_range() -> None:
    """A log is cut where an entry begins: what lies before the fork is pulled again."""
    state = begun(relayed(100, 110), relayed(110, 120), e.Forked(2, 115, ((2, 115),)))
    assert state.end == 110
    assert state.entries_from(100, 120, 10**6) == (4,)


def test_holds_above_a_fork_are_lowered() -> None:
    rows = (e.HoldRow(40, 1, 108, 5), e.HoldRow(41, 1, 101, 5))
    state = begun(
        relayed(100, 104), relayed(104, 110), e.HoldsStored(rows, 5, 107),
        e.Forked(2, 104, ((2, 104),)),
    )  # fmt: skip
    assert [row.offset for row in state.holds.rows] == [104, 101]
    assert state.holds.begun_at == 104


def test_roster_entries_at_the_cut_come_again() -> None:
    entries = tuple(roster_entry(n, at, 3 + n) for n, at in enumerate((102, 110)))
    state = begun(relayed(100, 110, roster=entries), e.Forked(2, 110, ((2, 110),)))
    assert (state.roster, state.partitions) == ([entries[0]], 3)


def test_chunks_are_kept_as_long_as_their_value() -> None:
    state = begun(
        relayed(100, 110), e.ChunkStored(5, 110), e.ChunkStored(7, 110), relayed(110, 111),
        e.ChunkStored(6, 111), relayed(111, 112),
    )  # fmt: skip
    assert [state.chunks.find(one) for one in (5, 6, 7, 8)] == [5, 8, 6, 0]
    assert state.kept_index() == 4
    state.apply(e.StartMoved(110), 10)
    assert state.kept_index() == 5, "the chunks lie before the batch that closes their value"
    state.apply(e.StartMoved(111), 10)
    assert [state.chunks.find(one) for one in (5, 6, 7)] == [0, 8, 0]
    assert state.kept_index() == 8
    state.apply(e.StartMoved(112), 10)
    assert len(state.chunks) == 0


def test_chunks_come_in_their_order_for_the_next_message() -> None:
    state = begun(e.ChunkStored(5, 100))
    assert "comes behind 5" in refused(state, e.ChunkStored(5, 100))
    assert "not at 100" in refused(state, e.ChunkStored(6, 101))


def test_the_log_starts_within_itself() -> None:
    state = begun(relayed(100, 110))
    for offset in (99, 111):
        assert "outside [100, 110]" in refused(state, e.StartMoved(offset))


def test_entries_are_read_up_to_a_number_of_bytes() -> None:
    state = begun(*(relayed(at, at + 10) for at in range(100, 200, 10)))
    assert state.entries_from(115, 200, 250) == (5, 6, 7)
    assert state.entries_from(115, 130, 10**6) == (5, 6)
    assert state.entries_from(199, 200, 0) == (13,)
    assert state.ranges.affordable(300) == 170
    assert state.ranges.affordable(10**6) == 100
    assert state.ranges.affordable(50) == -1


def drawn(seed: int) -> list[tuple[e.AnyRecord, int]]:
    """Return entries that fit each other."""
    dice = random.Random(seed)
    state, made = RelayState(), []
    for _ in range(dice.randrange(5, 80)):
        first = state.end
        now = state.filter_at(first)
        limit = next((f.first for f in state.filters if f.first > first), 1 << 40)
        next_ = min(first + dice.randrange(1, 9), limit)
        record: e.AnyRecord = dice.choice((
            relayed(first, next_, filter_=now.version if now else 0, lineage=state.lineage,
                    stamp=dice.choice((0, state.last_stamp + dice.randrange(3)))),
            e.ChunkStored(state.last_chunk + dice.randrange(1, 5), first),
            e.FilterSet(len(state.filters) + 1, dice.choice((A, B, None)), first + 5),
            e.GapTold(first, first + 3, "x"),
            e.StartMoved(dice.randrange(state.start, first + 1)),
            e.HoldsStored((e.HoldRow(1, 2, first, 3, A),)),
            e.Forked(state.lineage + 1, dice.randrange(first + 1), ((state.lineage + 1, 0),)),
        ))  # fmt: skip
        try:
            state.apply(record, 40)
        except EntryRefused:
            continue
        made.append((record, 40))
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_and_what_follows_make_the_same_state(seed: int) -> None:
    made = drawn(seed)
    state = RelayState()
    for at, (record, size) in enumerate(made):
        assert state.apply(record, size) == at + 1
    for cut in range(0, len(made), 7):
        again = RelayState()
        for record, size in made[:cut]:
            again.apply(record, size)
        again = RelayState.decode(again.encode())
        for record, size in made[cut:]:
            again.apply(record, size)
        assert again.encode() == state.encode()


def test_a_snapshot_of_another_release_is_refused() -> None:
    state = begun()
    data = state.encode()
    with pytest.raises(UnknownVersion):
        RelayState.decode(data.replace(b"\xdc\x00\x10\x01", b"\xdc\x00\x10\x02", 1))
    with pytest.raises(UnknownVersion):
        RelayState.decode(data[:-1])
