"""An order of best effort: who is silent is left, what comes too late is told, nothing is lost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import RemoteProtocolError
from weir.order.barrier import NO_BOUND, Barrier, Merge, Merged, Roster, Silence


def _merge(partitions: int) -> Merge[str]:
    return Merge(Roster(range(partitions)), dict.fromkeys(range(partitions), 0), 1_000)


def _items(taken: list[Merged[str]]) -> list[str]:
    return [one.item for one in taken]


def test_one_that_is_left_holds_nothing_back_and_comes_back_above_the_barrier() -> None:
    merge = _merge(2)
    merge.push(1, 10, 0, 1, 1, "b")
    merge.barrier(1, Barrier(12, 1))
    assert merge.take() == []
    assert merge.roster.leave(0)
    assert (merge.roster.left, merge.roster.barrier, merge.roster.behind()) == ([0], 12, [1])
    assert _items(merge.take()) == ["b"]
    assert merge.is_late(0, 9)
    assert merge.is_late(0, 10)  # of one stamp, the first partition comes first
    assert not merge.is_late(0, 11)
    assert not merge.is_late(1, 10)
    merge.skip(0, 1)
    merge.barrier(0, Barrier(11, 1))
    assert merge.roster.left == [0]
    merge.push(0, 12, 1, 2, 1, "a")  # it says that all below it is here
    assert merge.roster.left == [0]
    assert _items(merge.take()) == ["a"]
    merge.received(0, 12)
    assert merge.roster.left == []
    merge.barrier(1, Barrier(20, 1))
    merge.push(1, 21, 1, 2, 1, "c")
    assert merge.roster.behind() == [0]  # it is waited for as before
    assert merge.take() == []


def test_the_one_that_is_furthest_is_never_left() -> None:
    merge = _merge(3)
    merge.barrier(2, Barrier(5, 0))
    assert merge.roster.leave(0)
    assert merge.roster.leave(1)
    assert not merge.roster.leave(1)
    assert not merge.roster.leave(2)
    assert merge.roster.barrier == 5
    equal = _merge(2)
    assert not equal.roster.leave(0)  # nothing would be won


def test_where_others_have_ended_those_that_are_left_count_again_once_they_tell_something() -> None:
    merge = _merge(3)
    merge.push(0, 5, 0, 1, 1, "a")
    merge.push(1, 7, 0, 1, 1, "b")
    merge.barrier(2, Barrier(NO_BOUND, 0))
    assert merge.roster.leave(0)
    assert merge.roster.leave(1)
    assert _items(merge.take()) == ["a", "b"]
    merge.barrier(1, Barrier(9, 1))
    assert (merge.roster.left, merge.roster.behind()) == ([0], [1])
    merge.barrier(0, Barrier(8, 1))
    assert merge.roster.left == [0]
    merge.barrier(0, Barrier(9, 1))
    assert merge.roster.left == []
    merge.push(1, 12, 1, 2, 1, "d")
    assert merge.take() == []  # it is waited for
    merge.push(0, 11, 1, 2, 1, "c")
    merge.barrier(0, Barrier(12, 2))
    assert _items(merge.take()) == ["c", "d"]


def test_who_stamps_where_it_said_nothing_comes_is_refused_though_it_was_left() -> None:
    merge = _merge(2)
    merge.barrier(0, Barrier(4, 0))
    merge.barrier(1, Barrier(9, 0))
    assert merge.roster.leave(0)
    with pytest.raises(RemoteProtocolError, match="was said to be here"):
        merge.push(0, 4, 0, 1, 1, "a")


def test_silent_is_who_is_waited_for_and_tells_nothing_new() -> None:
    merge, silence = _merge(3), Silence(0.5)
    merge.barrier(2, Barrier(5, 0))
    assert silence.look(merge.roster, 0.0) == ([], 0.5)
    merge.barrier(1, Barrier(1, 0))
    merge.barrier(0, Barrier(1, 0))
    assert silence.look(merge.roster, 0.3) == ([], 0.5)  # both told something
    merge.barrier(1, Barrier(2, 0))
    assert silence.look(merge.roster, 0.4) == ([], pytest.approx(0.4))
    silent, _ = silence.look(merge.roster, 0.8)
    assert silent == [0]  # 1 is ahead of it
    silence.begin()
    assert silence.look(merge.roster, 9.0) == ([], 0.5)  # nobody had waited meanwhile


@given(st.integers(0, 1 << 32), st.integers(2, 4))
def test_all_is_taken_in_order_or_late(seed: int, count: int) -> None:
    dice, merge = random.Random(seed), _merge(count)
    stamps = {p: sorted(dice.sample(range(1, 200), 12)) for p in range(count)}
    sent, late = dict.fromkeys(range(count), 0), []
    taken: list[Merged[str]] = []
    while any(at < 12 for at in sent.values()):
        partition = dice.randrange(count)
        at = sent[partition]
        if dice.random() < 0.2:
            merge.roster.leave(dice.choice(merge.roster.behind()))
        elif at < 12:
            stamp = stamps[partition][at]
            if merge.is_late(partition, stamp):
                late.append((stamp, partition))
                merge.skip(partition, at + 1)
            else:
                merge.push(partition, stamp, at, at + 1, 1, "")
            merge.received(partition, stamp)
            sent[partition] += 1
        taken += merge.take()
    for partition in range(count):
        merge.received(partition, 1_000)
    taken += merge.take()
    places = [(one.stamp, one.partition) for one in taken]
    assert places == sorted(places)
    assert sorted(places + late) == sorted((s, p) for p, all_ in stamps.items() for s in all_)
