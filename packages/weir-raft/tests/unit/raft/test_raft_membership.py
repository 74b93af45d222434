from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir_raft import (
    Change,
    Configuration,
    Entry,
    EntryKind,
    InvalidChange,
    InvalidConfig,
    MemoryStorage,
    StorageError,
)
from weir_raft.membership import History, VoteResult

IDS = st.lists(st.integers(1, 9), unique=True, max_size=5).map(tuple)


def test_a_change_of_voters_is_joint_and_then_left() -> None:
    old = Configuration((1, 2, 3), (), (4,))
    joint = old.changed(Change(add_voters=(4,), add_learners=(2,), remove=(3,)))
    assert joint == Configuration((1, 4), (1, 2, 3), (2,))
    assert joint.joint
    assert joint.members == (1, 4, 2, 3)
    assert [joint.counts(member) for member in (1, 2, 3, 4, 5)] == [True, True, True, True, False]
    assert joint.left() == Configuration((1, 4), (), (2,))
    with pytest.raises(InvalidChange, match="only leaves"):
        joint.changed(Change(remove=(1,)))


def test_a_change_of_learners_alone_needs_no_joint_phase() -> None:
    old = Configuration((1, 2), (), (3,))
    assert old.changed(Change(add_learners=(4,), remove=(3,))) == Configuration((1, 2), (), (4,))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (Change(), "name each member"),
        (Change(add_voters=(2,), remove=(2,)), "name each member"),
        (Change(add_voters=(0,)), "positive id"),
        (Change(remove=(1,)), "without voters"),
        (Change(add_learners=(1,)), "without voters"),
    ],
)
def test_a_change_that_leads_nowhere_is_refused(change: Change, said: str) -> None:
    with pytest.raises(InvalidChange, match=said):
        Configuration((1,)).changed(change)


def test_golden_bytes() -> None:
    packed = Configuration((1, 65536), (2,), (3,)).pack()
    assert packed.hex() == (
        "01000200010001000100000000000000000001000000000002000000000000000300000000000000"
    )


@given(voters=IDS, outgoing=IDS)
def test_a_configuration_comes_back_as_it_was(
    voters: tuple[int, ...], outgoing: tuple[int, ...]
) -> None:
    configuration = Configuration(voters, outgoing, (10,))
    assert Configuration.unpack(configuration.pack()) == configuration


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + bytes(7),
        Configuration((1, 2)).pack()[:-1],
        Configuration((1, 2)).pack() + b"x",
        Configuration((1,)).pack()[:8] + bytes(8),
    ],
)
def test_what_is_no_configuration_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidConfig):
        Configuration.unpack(data)


@given(voters=IDS.filter(bool), outgoing=IDS, yes=IDS, no=IDS)
def test_joint_decisions_need_both_halves(
    voters: tuple[int, ...], outgoing: tuple[int, ...], yes: tuple[int, ...], no: tuple[int, ...]
) -> None:
    votes = dict.fromkeys(no, False) | dict.fromkeys(yes, True)
    halves = [half for half in (voters, outgoing) if half]

    def most(half: tuple[int, ...], count: int) -> bool:
        return 2 * count > len(half)

    won = all(most(half, sum(v in yes for v in half)) for half in halves)
    open_still = all(most(half, sum(votes.get(v, True) for v in half)) for half in halves)
    wanted = VoteResult.WON if won else VoteResult.PENDING if open_still else VoteResult.LOST
    assert Configuration(voters, outgoing).vote_result(votes) is wanted


@given(
    voters=IDS.filter(bool),
    outgoing=IDS,
    match=st.dictionaries(st.integers(1, 9), st.integers(0, 5)),
)
def test_what_is_committed_is_on_a_majority_of_both_halves(
    voters: tuple[int, ...], outgoing: tuple[int, ...], match: dict[int, int]
) -> None:
    halves = [half for half in (voters, outgoing) if half]
    held = [
        index
        for index in range(6)
        if all(2 * sum(match.get(v, 0) >= index for v in half) > len(half) for half in halves)
    ]
    assert Configuration(voters, outgoing).committed(match) == max(held)


def test_any_two_majorities_along_a_change_meet() -> None:
    """Between the old, the joint and the new configuration nothing can be decided twice. (§4.3)"""
    old = Configuration((1, 2, 3))
    joint = old.changed(Change(add_voters=(4, 5), remove=(1,)))
    path = [old, joint, joint.left()]
    sets = [set(c) for n in range(6) for c in itertools.combinations(range(1, 6), n)]
    for one, other in itertools.pairwise(path):
        for mine in sets:
            theirs = {v: v not in mine for v in range(1, 6)}
            ours = {v: v in mine for v in range(1, 6)}
            won = [one.vote_result(ours), other.vote_result(theirs)]
            assert won != [VoteResult.WON, VoteResult.WON]


def history(*changes: tuple[int, Configuration]) -> History:
    storage = MemoryStorage()
    entries = [Entry(i, 1, EntryKind.NOOP, None, 0) for i in range(1, 10)]
    for index, configuration in changes:
        data = configuration.pack()
        entries[index - 1] = Entry(index, 1, EntryKind.CONFIGURATION, data, len(data))
    storage.save(None, entries)
    return History(0, Configuration((1,)), storage.configurations())


def test_the_newest_configuration_in_the_log_counts_until_its_entry_is_replaced() -> None:
    one, two = Configuration((1, 2)), Configuration((1, 2, 3))
    known = history((3, one), (7, two))
    assert (known.newest, known.index) == (two, 7)
    assert [known.at(index) for index in (2, 3, 6, 7, 99)] == [
        Configuration((1,)),
        one,
        one,
        two,
        two,
    ]
    known.supersede(4)
    assert (known.newest, known.index) == (one, 3)
    known.supersede(1)
    assert known.newest == Configuration((1,))


def test_what_lies_below_the_log_is_forgotten_but_for_what_is_in_force_there() -> None:
    one, two = Configuration((1, 2)), Configuration((1, 2, 3))
    known = history((3, one), (7, two))
    known.forget(5)
    assert [known.at(index) for index in (5, 7)] == [one, two]
    known.restart(20, one)
    assert (known.newest, known.index) == (one, 20)


def test_a_snapshots_configuration_comes_before_those_of_the_log() -> None:
    with pytest.raises(StorageError, match="not above 5"):
        History(5, Configuration((4,)), [(2, Configuration((1,)).pack())])
