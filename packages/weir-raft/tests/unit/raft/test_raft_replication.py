"""How logs become the same: acknowledgements, conflicts, windows, older terms."""

from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Change,
    Config,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    MemoryStorage,
    Node,
    Progress,
    ProgressState,
    Ready,
    VoteReply,
)
from weir_raft.testing.rehearsal import Rehearsal


def entries(first: int, *terms: int) -> tuple[Entry, ...]:
    return tuple(Entry(i, term, EntryKind.NORMAL, i, 10) for i, term in enumerate(terms, first))


class Follower:
    """Node 2 of three, with its disk in the test's hands."""

    def __init__(self, *terms: int) -> None:
        self.storage = MemoryStorage()
        self.storage.save(HardState(max(terms, default=0)), entries(1, *terms))
        self.node = Node(Config(2, (1, 2, 3)), self.storage)
        self.unsynced: list[Ready] = []

    def take(self) -> list[object]:
        """What it sends now."""
        sent: list[object] = []
        while self.node.has_ready:
            ready = self.node.ready()
            sent += ready.messages
            if ready.must_persist:
                self.unsynced.append(ready)
            if ready.committed:
                self.node.applied(ready.committed[-1].index)
        return sent

    def sync(self) -> list[object]:
        """What it sends after one write is durable."""
        ready = self.unsynced.pop(0)
        self.storage.save(ready.hard_state, ready.entries)
        self.node.persisted(ready.number)
        return self.take()

    def append(self, term: int, prev: int, prev_term: int, *terms: int) -> list[object]:
        self.node.step(Append(2, 1, term, prev, prev_term, entries(prev + 1, *terms), 0))
        return self.take()


def has(index: int, term: int) -> list[object]:
    return [AppendReply(1, 2, term, index)]


def test_entries_are_acknowledged_when_they_are_durable() -> None:
    follower = Follower()
    assert follower.append(1, 0, 0, 1, 1) == []
    assert follower.sync() == has(2, 1)


def test_a_repeated_append_is_answered_with_what_is_durable_and_its_own() -> None:
    follower = Follower()
    follower.append(1, 0, 0, 1, 1)
    follower.sync()
    assert follower.append(1, 2, 1, 1) == []
    assert follower.append(1, 0, 0, 1, 1) == has(2, 1)
    assert follower.append(1, 2, 1, 1) == []
    assert follower.sync() == has(3, 1)


def test_what_an_old_leader_left_is_not_acknowledged_to_the_new_one() -> None:
    follower = Follower(1, 1, 1)
    assert follower.append(2, 1, 1) == []
    assert follower.sync() == has(1, 2)


def test_a_write_that_was_superseded_makes_nothing_durable_even_if_it_comes_back() -> None:
    follower = Follower()
    follower.append(1, 0, 0, 1, 1)
    follower.append(2, 0, 0, 2)
    follower.node.step(Heartbeat(2, 1, 3, 0, 1))
    follower.take()
    follower.append(3, 0, 0, 1, 1)
    for _ in range(3):
        assert follower.sync() == []
    assert follower.sync() == has(2, 3)


def test_a_commit_reaches_no_further_than_what_is_known_to_match() -> None:
    follower = Follower(1, 1, 1)
    follower.node.step(Append(2, 1, 2, 1, 1, (), 3))
    assert follower.node.log.committed == 1


def test_a_refusal_names_where_the_logs_could_agree() -> None:
    follower = Follower(1, 1, 2, 2, 2)
    assert follower.append(5, 9, 4) == [
        AppendReply(1, 2, 5, 9, rejected=True, hint_index=5, hint_term=2)
    ]
    assert follower.append(5, 5, 1) == [
        AppendReply(1, 2, 5, 5, rejected=True, hint_index=2, hint_term=1)
    ]


@pytest.mark.parametrize(
    "broken",
    [entries(3, 1), entries(1, 1)[:1] + entries(3, 1)],
    ids=["not behind prev", "with a hole"],
)
def test_a_broken_append_is_ignored(broken: tuple[Entry, ...]) -> None:
    follower = Follower()
    follower.node.step(Append(2, 1, 1, 0, 0, broken, 0))
    assert follower.node.log.last_index == 0


def progress(group: Rehearsal, member: int) -> Progress:
    return next(p for p in group.actors[1].node.progress() if p.member == member)


def test_proposals_made_together_are_sent_together_and_before_they_are_durable(
    group: Rehearsal,
) -> None:
    one = group.lead(1)
    for item in "abc":
        one.node.propose(item, 10)
    one.serve()
    assert [len(m.entries) for m in group.mail if isinstance(m, Append)] == [3, 3]
    assert one.node.log.committed == 1
    for message in list(group.mail):
        group.hand_over(message)
    for other in (2, 3):
        group.actors[other].sync(1)
        group.actors[other].serve()
    for message in list(group.mail):
        group.hand_over(message)
    assert one.node.log.committed == 4
    assert one.applied == 1
    group.flow()
    assert one.applied == 4


def test_a_window_of_bytes_is_sent_ahead_and_no_more(group: Rehearsal) -> None:
    one = group.lead(1)
    for item in range(20):
        one.node.propose(item, 10)
    one.serve()
    sent = [m for m in group.mail if isinstance(m, Append) and m.to == 2]
    assert [[e.index for e in m.entries] for m in sent] == [[2, 3, 4], [5, 6, 7], [8, 9, 10]]
    assert progress(group, 2).inflight_bytes == 90
    group.flow()
    assert progress(group, 2) == Progress(2, 21, ProgressState.REPLICATE, 0, 21)


def test_an_entry_larger_than_the_window_passes_alone(group: Rehearsal) -> None:
    one = group.lead(1)
    for size in (500, 500):
        one.node.propose("x", size)
    one.serve()
    sent = [m for m in group.mail if isinstance(m, Append) and m.to == 2]
    assert [[e.index for e in m.entries] for m in sent] == [[2]]
    group.flow()
    assert one.node.log.committed == 3


def test_lost_appends_are_found_out_without_sending_them_again_in_vain(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.propose("x", 10)
    one.serve()
    group.mail.clear()
    one.node.tick(150)
    one.serve()
    asked = [m for m in group.mail if isinstance(m, Append)]
    assert [m.entries for m in asked] == [(), ()]
    group.flow()
    assert one.node.log.committed == 2


def test_appends_that_overtake_each_other_do_no_harm(group: Rehearsal) -> None:
    one = group.lead(1)
    for item in range(6):
        one.node.propose(item, 10)
        one.serve()
    group.mail.reverse()
    group.flow()
    group.pass_ms(300)
    assert {a.node.log.last_index for a in group.actors.values() if a.id <= 3} == {7}
    assert one.node.log.committed == 7


def test_followers_hear_of_the_last_commit_soon(group: Rehearsal) -> None:
    one = group.lead(1)
    one.node.propose("x", 1)
    group.flow()
    group.pass_ms(200)
    assert [group.actors[id].applied for id in (1, 2, 3)] == [2, 2, 2]


def test_an_older_terms_entry_does_not_commit_by_count() -> None:
    """Figure 3.7: on a majority, and yet it could still be replaced."""
    storage = MemoryStorage()
    storage.save(HardState(3), entries(1, 1, 2))
    node = Node(Config(1, (1, 2, 3, 4, 5)), storage)
    node.campaign()
    for voter in (2, 3):
        node.step(VoteReply(1, voter, 4, granted=True, pre=True))
    node.persisted(node.ready().number)
    for voter in (2, 3):
        node.step(VoteReply(1, voter, 4, granted=True))
    noop = node.ready()
    for voter in (2, 3):
        node.step(AppendReply(1, voter, 4, 2))
    assert node.log.committed == 0
    node.persisted(noop.number)
    node.step(AppendReply(1, 2, 4, 3))
    assert node.log.committed == 0
    node.step(AppendReply(1, 3, 4, 3))
    assert node.log.committed == 3


def test_a_deposed_leaders_tail_is_replaced_everywhere(group: Rehearsal) -> None:
    one = group.lead(1)
    group.severed |= {(1, 2), (1, 3), (2, 1), (3, 1)}
    for item in range(5):
        one.node.propose(item, 10)
    group.flow()
    group.pass_ms(2_500)
    leader = next(a for a in group.actors.values() if a.node.accepts)
    leader.node.propose("kept", 10)
    group.flow()
    group.severed.clear()
    group.pass_ms(1_000)
    assert one.crc == leader.crc
    assert one.node.log.last_index == leader.node.log.last_index < 6


def test_entries_that_no_memory_holds_are_loaded() -> None:
    class Distant(MemoryStorage):
        def cached(self, lo: int, hi: int, max_bytes: int) -> None:
            return None

    storage = Distant()
    storage.save(HardState(1), entries(1, 1, 1, 1, 1))
    node = Node(Config(1, (1, 2, 3), max_append_bytes=20), storage)
    node.campaign()
    node.step(VoteReply(1, 2, 2, granted=True, pre=True))
    node.persisted(node.ready().number)
    node.step(VoteReply(1, 2, 2, granted=True))
    node.persisted(node.ready().number)
    node.step(AppendReply(1, 2, 2, 4, rejected=True))
    node.ready()
    node.step(AppendReply(1, 2, 2, 0))
    (load,) = node.ready().loads
    assert (load.lo, load.hi, load.max_bytes) == (1, 5, 20)
    node.loaded(load.number, None)
    assert not node.has_ready
    node.tick(200)
    while node.has_ready:
        node.ready()
    node.step(AppendReply(1, 2, 2, 0))
    (load,) = node.ready().loads
    node.loaded(load.number, storage.entries(1, 5, 20))
    ready = node.ready()
    assert [e.index for m in ready.messages if isinstance(m, Append) for e in m.entries] == [1, 2]
    assert [load.lo for load in ready.loads] == [3]
    node.loaded(load.number, storage.entries(1, 5, 20))
    assert not node.has_ready


def test_what_was_read_for_who_is_no_member_any_more_goes_to_nobody() -> None:
    class Distant(MemoryStorage):
        def cached(self, lo: int, hi: int, max_bytes: int) -> None:
            return None

    storage = Distant()
    storage.save(HardState(1), entries(1, 1, 1, 1, 1))
    node = Node(Config(1, (1, 2, 3)), storage)
    node.campaign()
    node.step(VoteReply(1, 3, 2, granted=True, pre=True))
    node.persisted(node.ready().number)
    node.step(VoteReply(1, 3, 2, granted=True))
    first = node.ready()
    storage.save(first.hard_state, first.entries)
    node.persisted(first.number)
    node.step(AppendReply(1, 3, 2, 5))
    node.step(AppendReply(1, 2, 2, 4, rejected=True))
    node.ready()
    node.step(AppendReply(1, 2, 2, 0))
    (load,) = node.ready().loads
    node.applied(node.log.committed)
    node.change(Change(remove=(2,)))
    while node.configuration.members != (1, 3):
        ready = node.ready()
        storage.save(ready.hard_state, ready.entries)
        node.persisted(ready.number)
        node.step(AppendReply(1, 3, 2, node.log.last_index))
        for entry in ready.committed:
            node.applied(entry.index)
    while node.has_ready:
        node.ready()
    node.loaded(load.number, storage.entries(1, 5, 20))
    assert not node.has_ready


def test_who_lost_what_it_acknowledged_gets_it_again() -> None:
    """A disk may cut off a durable tail that looks torn; the link to that node broke before."""
    group = Rehearsal(0, linked=True)
    one = group.lead(1)
    for item in "abc":
        one.node.propose(item, 1)
    group.flow()
    assert (progress(group, 2).match, one.node.log.committed) == (4, 4)
    one.multi.link_down(2)
    one.multi.link_up(2)
    one.tick(50)
    one.serve()
    group.mail.clear()
    term = one.node.term
    one.node.step(AppendReply(1, 2, term, 4, rejected=True, hint_index=2, hint_term=term))
    assert progress(group, 2).match == 2
    one.serve()
    (sent,) = [message for message in group.mail if isinstance(message, Append)]
    assert [entry.index for entry in sent.entries] == [3, 4]
