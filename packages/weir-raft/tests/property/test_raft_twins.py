"""Quorums, and the log as a node sees it, against twins too simple to be wrong."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from weir_raft import Config, Configuration, Entry, EntryKind, HardState, MemoryStorage, Snapshot
from weir_raft.log_view import LogView
from weir_raft.membership import VoteResult

IDS = range(1, 8)
members = st.sets(st.sampled_from(IDS), min_size=1).map(lambda ids: tuple(sorted(ids)))
configurations = st.builds(Configuration, members, st.one_of(st.just(()), members))


def quorums(configuration: Configuration) -> list[set[int]]:
    """Every set of members that may decide, found by trying all sets."""
    halves = [half for half in (configuration.voters, configuration.outgoing) if half]
    everybody = sorted({id for half in halves for id in half})
    return [
        set(some)
        for size in range(len(everybody) + 1)
        for some in combinations(everybody, size)
        if all(2 * len(set(some) & set(half)) > len(half) for half in halves)
    ]


@given(configurations, st.dictionaries(st.sampled_from(IDS), st.integers(0, 5)))
def test_an_index_is_committed_that_all_of_some_quorum_have(
    configuration: Configuration, match: dict[int, int]
) -> None:
    best = max(min(match.get(id, 0) for id in some) for some in quorums(configuration))
    assert configuration.committed(match) == best


@given(configurations, st.dictionaries(st.sampled_from(IDS), st.booleans()))
def test_an_election_is_won_by_a_quorum_and_lost_when_none_can_be_had(
    configuration: Configuration, votes: dict[int, bool]
) -> None:
    every = quorums(configuration)
    won = any(all(votes.get(id, False) for id in some) for some in every)
    possible = any(all(votes.get(id, True) for id in some) for some in every)
    expected = VoteResult.WON if won else VoteResult.PENDING if possible else VoteResult.LOST
    assert configuration.vote_result(votes) is expected


@given(members, members)
def test_no_two_quorums_of_a_change_miss_each_other(
    old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    """§4.3: old and joint, joint and new share a member, so no two decide apart."""
    joint = Configuration(new, old)
    for other in (Configuration(old), joint, Configuration(new)):
        assert all(one & two for one, two in product(quorums(joint), quorums(other)))


class LogAndList(RuleBasedStateMachine):
    """A LogView beside a list of terms, the first of which stands for what is before the log."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryStorage()
        self.log = LogView(Config(1, (1, 2, 3), max_apply_bytes=25), self.disk)
        self.terms = [0]
        self.staged: list[Entry] = []
        self.written = self.committed = self.handed = self.applied = self.compacted = 0
        self.term = 1

    @initialize(terms=st.lists(st.integers(1, 3), max_size=5))
    def restored(self, terms: list[int]) -> None:
        self.terms += sorted(terms)
        self.term = self.terms[-1] or 1
        kept = [self._entry(index) for index in range(1, len(self.terms))]
        self.disk.save(HardState(self.term), kept)
        self.log = LogView(Config(1, (1, 2, 3), max_apply_bytes=25), self.disk)
        self.written = len(kept)

    def _entry(self, index: int) -> Entry:
        return Entry(index, self.terms[index], EntryKind.NORMAL, None, 10)

    @property
    def last(self) -> int:
        return len(self.terms) - 1

    @rule(later=st.integers(0, 1))
    def append(self, later: int) -> None:
        """A leader's own entry."""
        self.term += later
        self.terms.append(self.term)
        assert self.log.append(self.term, EntryKind.NORMAL, None, 10) == self.last

    @precondition(lambda self: self.last > self.committed)
    @rule(data=st.data(), count=st.integers(1, 4))
    def replace(self, data: st.DataObject, count: int) -> None:
        """Another leader's entries in place of some that are not committed."""
        first = data.draw(st.integers(self.committed + 1, self.last))
        self.term += 1
        self.terms[first:] = [self.term] * count
        self.log.extend(tuple(self._entry(index) for index in range(first, first + count)))
        self.written = min(self.written, first - 1)
        self.staged = [entry for entry in self.staged if entry.index < first]

    @rule()
    def stage(self) -> None:
        entries = self.log.take_unstaged()
        expected = (self.staged[-1].index if self.staged else self.written) + 1
        assert [entry.index for entry in entries] == list(range(expected, self.last + 1))
        self.staged += entries

    @precondition(lambda self: self.staged)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        """The disk has done some of what it was asked for."""
        count = data.draw(st.integers(1, len(self.staged)))
        done, self.staged = self.staged[:count], self.staged[count:]
        self.disk.save(None, done)
        self.written = done[-1].index
        self.log.durable_to(self.written)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.last))
        self.committed = max(self.committed, index)
        self.log.commit_to(index)

    @rule()
    def hand_out(self) -> None:
        entries = self.log.take_unhanded()
        assert [entry.index for entry in entries] == list(
            range(self.handed + 1, self.handed + len(entries) + 1)
        )
        assert [entry.term for entry in entries] == [self.terms[e.index] for e in entries]
        self.handed += len(entries)
        assert self.handed <= min(self.committed, self.written)

    @rule()
    def apply(self) -> None:
        """Once all that was handed out is applied, more comes, as long as there is any."""
        self.log.applied_to(self.handed)
        self.applied = self.handed
        assert self.log.has_unhanded == (self.handed < min(self.committed, self.written))

    @precondition(lambda self: self.applied > self.compacted)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(self.compacted + 1, self.applied))
        self.disk.save_snapshot(Snapshot(self.applied, self.terms[self.applied], None))
        self.log.compact(index)
        self.disk.discard(index)
        self.compacted = index

    @invariant()
    def positions_and_terms_are_those_of_the_list(self) -> None:
        log = self.log
        assert (log.first_index, log.last_index) == (self.compacted + 1, self.last)
        assert (log.durable, log.committed) == (self.written, self.committed)
        for index in range(max(self.compacted, 0), self.last + 1):
            assert log.term(index) == self.terms[index]
        assert log.end == (self.terms[self.last], self.last)

    @invariant()
    def the_last_entry_of_a_term_is_found(self) -> None:
        for term in range(self.term + 1):
            among = range(self.compacted + 1, self.last + 1)
            found = max((i for i in among if self.terms[i] <= term), default=self.compacted)
            assert self.log.last_of_term(self.last, term) == found

    @invariant()
    def what_goes_out_is_the_list_from_there_on(self) -> None:
        for lo in range(self.compacted + 1, self.last + 1):
            found = self.log.outgoing(lo, 30)
            assert found is not None
            entries, size = found
            assert entries
            assert size == 10 * len(entries) <= 30
            assert [(e.index, e.term) for e in entries] == [
                (index, self.terms[index]) for index in range(lo, lo + len(entries))
            ]


TestLogAndList = LogAndList.TestCase
TestLogAndList.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
