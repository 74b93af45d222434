"""Merging: the one order, whatever comes when; and nothing handed out too soon."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import RemoteProtocolError
from weir.order.barrier import NO_BOUND, Barrier, Merge, Merged, Roster


def _merge(partitions: int, bytes_max: int = 1_000) -> Merge[str]:
    return Merge(Roster(range(partitions)), dict.fromkeys(range(partitions), 0), bytes_max)


def _places(taken: list[Merged[str]]) -> list[tuple[int, int, int]]:
    return [(one.stamp, one.partition, one.offset) for one in taken]


def test_nothing_comes_out_before_every_partition_has_passed_it() -> None:
    merge = _merge(2)
    merge.push(0, 10, 0, 5, 1, "a")
    merge.barrier(0, Barrier(10, 5))
    assert merge.take() == []
    assert merge.roster.behind() == [1]
    merge.barrier(1, Barrier(12, 0))
    assert _places(merge.take()) == [(10, 0, 0)]


def test_equal_stamps_go_by_partition_and_offset() -> None:
    merge = _merge(2)
    merge.push(1, 10, 0, 1, 1, "b")
    merge.push(0, 10, 0, 1, 1, "a")
    for partition in (0, 1):
        merge.barrier(partition, Barrier(10, 1))
    assert [one.item for one in merge.take()] == ["a", "b"]


def test_a_barrier_is_used_only_with_all_that_lies_below_it() -> None:
    merge = _merge(2)
    merge.barrier(0, Barrier(1_000, 2))  # 900 is on its way (counterexample 5)
    merge.barrier(1, Barrier(1_000, 1))
    merge.push(1, 950, 0, 1, 1, "q")
    assert merge.take() == []
    merge.push(0, 900, 0, 2, 1, "p")
    assert [one.item for one in merge.take()] == ["p", "q"]


def test_offsets_that_hold_nothing_for_a_reader_count_as_received() -> None:
    merge = _merge(1)
    merge.barrier(0, Barrier(50, 7))
    merge.skip(0, 7)
    assert merge.roster.barrier == 50
    merge.skip(0, 3)
    assert merge.next(0) == 7


def test_what_is_ahead_waits_within_its_room() -> None:
    merge = _merge(2, bytes_max=10)
    for offset in range(3):
        assert merge.wants(0)
        merge.push(0, 10 + offset, offset, offset + 1, 4, "x")
    assert not merge.wants(0)
    assert merge.wants(1)
    merge.barrier(0, Barrier(12, 3))
    merge.barrier(1, Barrier(10, 0))
    assert len(merge.take()) == 2
    assert merge.wants(0)
    assert merge.held == 4


def test_a_partition_that_joins_counts_from_its_floor_on() -> None:
    merge = _merge(1)
    merge.push(0, 100, 0, 1, 1, "join")
    merge.barrier(0, Barrier(100, 1))
    merge.take()
    merge.roster.join(1, 120)
    merge.add(1, 0)
    merge.push(0, 119, 1, 2, 1, "a")
    merge.push(0, 130, 2, 3, 1, "b")
    merge.barrier(0, Barrier(140, 3))
    assert [one.item for one in merge.take()] == ["a"]
    merge.push(1, 125, 0, 1, 1, "new")
    merge.barrier(1, Barrier(135, 1))
    assert [one.item for one in merge.take()] == ["new", "b"]


def test_a_partition_that_ended_holds_nobody_back() -> None:
    merge = _merge(2)
    merge.roster.end(1, 60)
    merge.push(0, 80, 0, 1, 1, "a")
    merge.barrier(0, Barrier(90, 1))
    merge.barrier(1, Barrier(59, 0))
    assert merge.take() == []
    merge.barrier(1, Barrier(60, 0))
    assert [one.item for one in merge.take()] == ["a"]


def test_a_gap_and_a_broken_promise_are_refused() -> None:
    merge = _merge(2)
    with pytest.raises(RemoteProtocolError, match="where 0 is next"):
        merge.push(0, 10, 3, 4, 1, "x")
    # Partition 1 has told nothing: a promise is its own partition's.
    merge.barrier(0, Barrier(20, 0))
    with pytest.raises(RemoteProtocolError, match="all at or below 20"):
        merge.push(0, 20, 0, 1, 1, "x")


def test_many_barriers_without_data_cost_little_and_the_newest_counts() -> None:
    merge = _merge(1)
    for through in range(1, 1_000):
        merge.barrier(0, Barrier(through * 10, through))
    merge.skip(0, 1)
    assert merge.roster.barrier == 10
    merge.skip(0, 999)
    assert merge.roster.barrier == 9_990


def test_stamps_that_fall_with_offsets_are_refused() -> None:
    merge = _merge(2)
    merge.push(0, 10, 0, 1, 1, "x")
    with pytest.raises(RemoteProtocolError, match="all at or below 9"):
        merge.push(0, 9, 1, 2, 1, "x")


def test_who_joins_without_a_floor_is_waited_for_from_the_beginning() -> None:
    roster = Roster((0, 1))
    roster.report(0, 50)
    roster.report(1, 40)
    assert roster.frontier == (41, 1)
    roster.join(2, 0)
    assert roster.frontier == (1, 2)


def test_a_roster_of_nobody_has_no_barrier() -> None:
    assert Roster(()).barrier == 0
    ended = Roster((0,))
    ended.end(0, 0)
    assert ended.barrier == NO_BOUND
    assert ended.behind() == []


@given(st.integers(0, 1 << 32), st.integers(1, 5))
def test_every_reader_gets_the_same_sequence(seed: int, partitions: int) -> None:
    dice = random.Random(seed)
    logs: list[list[tuple[int, int, int]]] = []  # (stamp, offset, behind)
    for _ in range(partitions):
        log, stamp, offset = [], 1, 0
        for _ in range(dice.randint(0, 8)):
            stamp += dice.randint(0, 3)  # several may have one, also in several partitions
            log.append((stamp, offset, offset + dice.randint(1, 3)))
            offset = log[-1][2]
        logs.append(log)
    end = max([log[-1][0] for log in logs if log], default=0)
    expected = sorted((s, p, o) for p, log in enumerate(logs) for s, o, _ in log)
    for _ in range(2):
        merge, at, got = _merge(partitions), [0] * partitions, list[tuple[int, int, int]]()
        while any(at[p] < len(logs[p]) for p in range(partitions)):
            p = dice.randrange(partitions)
            if at[p] < len(logs[p]) and dice.random() < 0.7:
                stamp, offset, behind = logs[p][at[p]]
                merge.push(p, stamp, offset, behind, 1, "")
                at[p] += 1
            reached = logs[p][at[p] - 1] if at[p] else (0, 0, 0)
            is_cut = reached[0] in [stamp for stamp, _, _ in logs[p][at[p] : at[p] + 1]]
            merge.barrier(p, Barrier(reached[0] - is_cut, reached[2]))
            got += _places(merge.take())
        for p, log in enumerate(logs):
            merge.barrier(p, Barrier(end, log[-1][2] if log else 0))
        got += _places(merge.take())
        assert got == expected


def test_what_was_received_says_how_far_its_partition_is() -> None:
    """Else one whose room is full before its barrier's offset came would wait for itself."""
    merge = _merge(2, bytes_max=4)
    merge.barrier(0, Barrier(1_000, 9))
    merge.push(0, 10, 0, 1, 4, "a")
    assert not merge.wants(0)
    merge.push(1, 12, 0, 1, 4, "b")
    assert [one.item for one in merge.take()] == ["a"]
    assert merge.wants(0)
    assert (merge.highest, merge.holds(0), merge.holds(1)) == (12, False, True)
    merge.skip(0, 9)
    assert [one.item for one in merge.take()] == ["b"]
    assert merge.highest == 0
    assert 1 in merge
    assert 2 not in merge


def test_the_least_register_is_known_whatever_changed_last() -> None:
    roster, dice = Roster(range(3)), random.Random(5)
    registers, joined = dict.fromkeys(range(3), 0), 3
    for _ in range(500):
        partition = dice.choice([*registers])
        stamp = registers[partition] + dice.randint(0, 3)
        roster.report(partition, stamp)
        registers[partition] = max(registers[partition], stamp)
        if dice.random() < 0.02:
            floor = min(registers.values()) + dice.randint(0, 5)
            roster.join(joined, floor)
            registers[joined], joined = floor, joined + 1
        assert roster.barrier == min(registers.values())
        assert set(roster.behind()) == {p for p, at in registers.items() if at == roster.barrier}
        assert roster.frontier == (roster.barrier + 1, min(roster.behind()))
        assert all(roster.register(p) == at for p, at in registers.items())


def test_of_a_stamp_with_several_batches_the_last_one_completes_it() -> None:
    """p0 gives b1, p1 gives c; b2 of p0 comes later, and lies in front of c."""
    merge = _merge(2)
    merge.push(0, 10, 0, 1, 1, "b1")
    merge.push(1, 10, 0, 1, 1, "c")
    merge.received(1, 10)
    assert [one.item for one in merge.take()] == ["b1"]
    assert merge.roster.register(0) == 9
    merge.push(0, 10, 1, 2, 1, "b2")
    assert [one.item for one in merge.take()] == ["b2"]
    merge.received(0, 10)
    assert [one.item for one in merge.take()] == ["c"]


@pytest.mark.parametrize("how", ["barrier", "higher"])
def test_a_stamp_is_complete_by_a_barrier_and_by_a_higher_one(how: str) -> None:
    merge = _merge(2)
    merge.push(0, 10, 0, 1, 1, "b1")
    merge.push(1, 10, 0, 1, 1, "c")
    merge.push(0, 10, 1, 2, 1, "b2")
    merge.take()
    if how == "barrier":
        merge.barrier(0, Barrier(10, 3))  # the third batch of this stamp is on its way
        assert merge.take() == []
        merge.push(0, 10, 2, 3, 1, "b3")
    else:
        merge.push(0, 11, 2, 3, 1, "b3")
    assert [one.item for one in merge.take()] == (["b3", "c"] if how == "barrier" else ["c"])
    with pytest.raises(RemoteProtocolError, match="all at or below 10"):
        merge.push(0, 10, 3, 4, 1, "late")


def test_a_stamp_that_is_larger_than_all_rooms_passes() -> None:
    merge, given = _merge(3, bytes_max=1), list[Merged[str]]()
    count = 50
    for offset in range(count):
        for partition in range(3):
            if merge.wants(partition) and merge.next(partition) == offset:
                merge.push(partition, 10, offset, offset + 1, 4, "x")
        given += merge.take()
        assert merge.wants(0), "whoever is waited for has no room"
    assert not merge.wants(1)
    merge.received(0, 10)
    for partition in (1, 2):
        while merge.next(partition) < count:
            given += merge.take()
            offset = merge.next(partition)
            assert merge.wants(partition)
            merge.push(partition, 10, offset, offset + 1, 4, "x")
        merge.received(partition, 10)
    given += merge.take()
    assert _places(given) == [(10, p, offset) for p in range(3) for offset in range(count)]


def test_who_joins_lies_behind_what_goes_in_the_middle_of_a_stamp() -> None:
    merge = _merge(1)
    merge.push(0, 10, 0, 1, 1, "b1")
    merge.roster.join(1, 10)
    merge.add(1, 0)
    merge.push(1, 11, 0, 1, 1, "new")
    assert [one.item for one in merge.take()] == ["b1"]
    merge.push(0, 10, 1, 2, 1, "b2")
    merge.received(0, 10)
    assert [one.item for one in merge.take()] == ["b2"]
    merge.barrier(0, Barrier(11, 2))
    assert [one.item for one in merge.take()] == ["new"]


def test_who_ends_in_the_middle_of_a_stamp_is_waited_for_until_its_end() -> None:
    merge = _merge(2)
    merge.roster.end(0, 10)
    merge.push(0, 10, 0, 1, 1, "b1")
    merge.push(1, 10, 0, 1, 1, "c")
    merge.received(1, 10)
    assert [one.item for one in merge.take()] == ["b1"]
    merge.barrier(0, Barrier(10, 2))
    merge.push(0, 10, 1, 2, 1, "b2")
    merge.push(1, 12, 1, 2, 1, "d")
    merge.received(1, 12)
    assert [one.item for one in merge.take()] == ["b2", "c", "d"]
    assert merge.roster.register(0) == NO_BOUND
