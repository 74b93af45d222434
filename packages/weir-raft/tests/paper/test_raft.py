"""Ongaro, "Consensus: Bridging Theory and Practice" (2014), statement by statement.

What a lone voter can show, and what roles and quorums decide for more of them.
Each test is: set up, act, check. The text above each says, in our words, what the section states.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from weir_raft import (
    AppendReply,
    Config,
    Entry,
    EntryKind,
    HardState,
    MemoryStorage,
    Node,
    NotLeader,
    NotReady,
    Ready,
    Role,
    Snapshot,
    VoteReply,
)
from weir_raft.election import Candidate
from weir_raft.membership import VoteResult, committed_index, vote_result
from weir_raft.node_state import NodeState


class Server(NamedTuple):
    """A node and its stable storage."""

    node: Node
    storage: MemoryStorage

    def persist(self, ready: Ready) -> None:
        self.storage.save(ready.hard_state, ready.entries)
        if ready.must_persist:
            self.node.persisted(ready.number)

    def settle(self) -> list[Entry]:
        """Serve everything; return what was applied."""
        applied: list[Entry] = []
        while self.node.has_ready:
            ready = self.node.ready()
            self.persist(ready)
            if ready.committed:
                applied += ready.committed
                self.node.applied(ready.committed[-1].index)
        return applied


def boot(storage: MemoryStorage | None = None, applied: int = 0) -> Server:
    storage = storage or MemoryStorage()
    return Server(Node(Config(id=1, voters=(1,), applied=applied), storage), storage)


@pytest.fixture
def leading() -> Server:
    server = boot()
    server.node.campaign()
    server.settle()
    return server


class Leading:
    """Server 1 of five, that leads term 3 over a log whose first entries are of older terms."""

    def __init__(self, older: int) -> None:
        storage = MemoryStorage()
        old = [Entry(i, 2, EntryKind.NORMAL, i, 1) for i in range(1, older + 1)]
        storage.save(HardState(2), old)
        self.node = Node(Config(id=1, voters=(1, 2, 3, 4, 5)), storage)
        self.node.campaign()
        for pre in (True, False):
            for voter in (2, 3):
                self.node.step(VoteReply(1, voter, 3, granted=True, pre=pre))
            asked = self.node.ready()
            if pre:
                self.node.persisted(asked.number)
        self._asked = asked.number
        assert self.node.role is Role.LEADER

    def durable(self, voter: int, index: int) -> int:
        """A voter holds the log durably through `index`; return what is committed then."""
        if voter == 1:
            self.node.persisted(self._asked)
        else:
            self.node.step(AppendReply(1, voter, 3, index))
        return self.node.log.committed


def positions(entries: tuple[Entry, ...] | list[Entry]) -> list[tuple[int, int]]:
    return [(entry.index, entry.term) for entry in entries]


# §3.3 Raft basics


def test_3_3_terms_are_consecutive_integers_each_begun_by_an_election() -> None:
    storage = MemoryStorage()
    for term in (1, 2, 3):
        server = boot(storage)
        server.node.campaign()
        assert server.node.term == term
        server.settle()


def test_3_3_the_current_term_rises_monotonically_over_time() -> None:
    storage = MemoryStorage()
    storage.save(HardState(41, 7), ())
    server = boot(storage)
    assert server.node.term == 41
    server.node.campaign()
    assert server.node.term == 42


# §3.4 Leader election


def test_3_4_a_server_starts_as_follower_even_if_it_led_before(leading: Server) -> None:
    assert leading.node.role is Role.LEADER
    assert boot(leading.storage).node.role is Role.FOLLOWER
    assert boot().node.role is Role.FOLLOWER


def test_3_4_to_begin_an_election_it_increments_its_term_and_votes_for_itself() -> None:
    server = boot()
    server.node.tick()
    assert server.node.role is Role.CANDIDATE
    assert server.node.ready().hard_state == HardState(term=1, vote=1)


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 5])
def test_3_4_votes_of_a_majority_of_the_full_cluster_win(voters: int) -> None:
    everybody = tuple(range(1, voters + 1))
    candidate = Candidate(NodeState(Config(1, everybody), MemoryStorage()))
    results = [candidate.voted(voter, granted=True, fence=0) for voter in everybody]
    losing = voters // 2
    assert results[:losing] == [VoteResult.PENDING] * losing
    assert set(results[losing:]) == {VoteResult.WON}


def test_3_4_one_vote_a_term_so_at_most_one_candidate_wins_it() -> None:
    voters = (1, 2, 3, 4)
    for choice in range(16):
        mine = {voter: bool(choice >> place & 1) for place, voter in enumerate(voters)}
        theirs = {voter: not vote for voter, vote in mine.items()}
        results = [vote_result(voters, mine), vote_result(voters, theirs)]
        assert results.count(VoteResult.WON) <= 1


# §3.5 Log replication


def test_3_5_only_the_leader_takes_commands() -> None:
    server = boot()
    with pytest.raises(NotLeader):
        server.node.propose("x", 1)
    server.node.campaign()
    with pytest.raises(NotLeader):
        server.node.propose("x", 1)


def test_3_5_the_leader_appends_a_command_as_a_new_entry(leading: Server) -> None:
    index = leading.node.propose("x", 1)
    assert leading.node.ready().entries == (Entry(index, 1, EntryKind.NORMAL, "x", 1),)
    assert leading.node.log.last_index == index


def test_3_5_the_term_in_an_entry_is_the_one_in_which_it_was_received(leading: Server) -> None:
    leading.node.propose("x", 1)
    leading.settle()
    again = boot(leading.storage)
    again.node.campaign()
    again.settle()
    again.node.propose("y", 1)
    again.settle()
    stored = again.storage.entries(1, 5, 100)
    assert positions(stored) == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_3_5_a_command_is_applied_only_after_its_entry_is_committed(leading: Server) -> None:
    leading.node.propose("x", 1)
    ready = leading.node.ready()
    assert ready.committed == ()
    assert not leading.node.has_ready
    leading.persist(ready)
    assert leading.node.ready().committed == ready.entries


def test_3_5_an_entry_on_a_majority_is_committed_and_all_before_it() -> None:
    leader = Leading(older=6)
    leader.durable(1, 7)
    leader.durable(2, 7)
    assert leader.durable(3, 7) == 7


def test_3_5_committed_entries_are_applied_in_log_order(leading: Server) -> None:
    for item in "abc":
        leading.node.propose(item, 1)
    assert [entry.data for entry in leading.settle()] == ["a", "b", "c"]


# Figure 3.2, the properties that hold at all times


def test_figure_3_2_a_leader_only_appends(leading: Server) -> None:
    seen: list[Entry] = [*leading.storage.entries(1, 2, 100)]
    for item in "abc":
        leading.node.propose(item, 1)
        leading.settle()
        now = list(leading.storage.entries(1, leading.node.log.last_index + 1, 100))
        assert now[: len(seen)] == seen
        seen = now


def test_figure_3_2_state_machine_safety_over_a_restart(leading: Server) -> None:
    for item in "abc":
        leading.node.propose(item, 1)
    before = leading.settle()
    again = boot(leading.storage)
    again.node.campaign()
    assert again.settle()[1:-1] == before


# §3.6.2 Committing entries from previous terms


def test_3_6_2_an_older_term_does_not_commit_by_counting_replicas() -> None:
    leader = Leading(older=4)
    committed = [leader.durable(voter, 4) for voter in (2, 3, 4)]
    assert committed_index([4, 4, 4, 0, 0]) == 4
    assert committed == [0, 0, 0]


def test_figure_3_7_it_commits_indirectly_through_an_entry_of_the_current_term() -> None:
    leader = Leading(older=4)
    leader.durable(1, 5)
    leader.durable(2, 5)
    assert leader.durable(3, 4) == 0
    assert leader.durable(3, 5) == 5


def test_3_6_2_a_restarted_lone_leader_commits_its_past_only_with_its_own_entry(
    leading: Server,
) -> None:
    leading.node.propose("old", 1)
    leading.settle()
    again = boot(leading.storage)
    again.node.campaign()
    again.persist(again.node.ready())
    noop = again.node.ready()
    assert again.node.role is Role.LEADER
    assert again.node.log.committed == 0
    assert not again.node.has_ready
    again.persist(noop)
    assert positions(again.settle()) == [(1, 1), (2, 1), (3, 2)]


# §3.8 Persisted state and server restarts


def test_3_8_term_and_vote_are_persisted_before_the_vote_counts() -> None:
    server = boot()
    server.node.campaign()
    vote = server.node.ready()
    assert vote.hard_state == HardState(1, 1)
    assert server.node.role is Role.CANDIDATE
    server.persist(vote)
    assert server.node.role is Role.LEADER


def test_3_8_a_vote_is_not_forgotten_so_a_term_is_never_led_twice() -> None:
    server = boot()
    server.node.campaign()
    server.persist(server.node.ready())
    again = boot(server.storage)
    again.node.campaign()
    assert again.node.ready().hard_state == HardState(2, 1)


def test_3_8_an_entry_is_persisted_before_it_counts_towards_its_commitment(
    leading: Server,
) -> None:
    leading.node.propose("a", 1)
    first = leading.node.ready()
    leading.node.propose("b", 1)
    second = leading.node.ready()
    assert leading.node.log.committed == 1
    leading.persist(first)
    assert leading.node.log.committed == 2
    leading.persist(second)
    assert leading.node.log.committed == 3


def test_3_8_the_commit_index_may_start_again_at_zero(leading: Server) -> None:
    leading.node.propose("x", 1)
    leading.settle()
    again = boot(leading.storage)
    assert again.node.log.committed == 0
    again.node.campaign()
    again.settle()
    assert again.node.log.committed == 3


def test_3_8_a_volatile_state_machine_applies_the_log_again(leading: Server) -> None:
    leading.node.propose("x", 1)
    applied = leading.settle()
    again = boot(leading.storage)
    again.node.campaign()
    assert applied[0] in again.settle()


def test_3_8_a_durable_state_machine_does_not_apply_an_entry_twice(leading: Server) -> None:
    leading.node.propose("x", 1)
    leading.settle()
    again = boot(leading.storage, applied=leading.node.log.applied)
    again.node.campaign()
    assert positions(again.settle()) == [(3, 2)]


# §5.1 Snapshotting; §6.4 the no-op; §10.2.1 the leader's own disk


def test_5_1_a_snapshot_replaces_the_log_before_it_and_keeps_its_last_index_and_term(
    leading: Server,
) -> None:
    node, storage = leading
    node.propose("x", 1)
    node.propose("y", 1)
    leading.settle()
    storage.save_snapshot(Snapshot(2, node.log.term(2), "x"))
    node.compact(2)
    storage.discard(2)
    assert (node.log.first_index, node.log.term(2)) == (3, 1)
    again = boot(storage)
    assert (again.node.log.applied, again.node.log.term(2)) == (2, 1)
    again.node.campaign()
    assert positions(again.settle()) == [(3, 1), (4, 2)]


def test_6_4_a_leader_commits_a_noop_at_the_start_of_its_term() -> None:
    server = boot()
    server.node.campaign()
    server.persist(server.node.ready())
    with pytest.raises(NotReady):
        server.node.propose("x", 1)
    ready = server.node.ready()
    assert ready.became_leader is not None
    assert [entry.kind for entry in ready.entries] == [EntryKind.NOOP]
    server.persist(ready)
    server.settle()
    assert server.node.propose("x", 1) == 2


def test_10_2_1_a_majority_of_others_commits_before_the_leaders_disk() -> None:
    leader = Leading(older=2)
    leader.durable(2, 3)
    leader.durable(3, 3)
    assert leader.durable(4, 3) == 3


def test_10_2_1_the_leader_counts_itself_by_its_disk(leading: Server) -> None:
    for item in "abc":
        leading.node.propose(item, 1)
    ready = leading.node.ready()
    assert (leading.node.log.last_index, leading.node.log.committed) == (4, 1)
    leading.persist(ready)
    assert leading.node.log.committed == 4
