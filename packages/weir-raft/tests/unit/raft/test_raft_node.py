from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from weir_raft import (
    EntryKind,
    HardState,
    Leadership,
    NothingReady,
    OutOfOrder,
    Overloaded,
    Role,
    Snapshot,
)

if TYPE_CHECKING:
    from rigs.lone_voter import Lone

    Start = Callable[..., Lone]


def test_a_new_node_wants_nothing(lone: Start) -> None:
    node = lone().node
    assert (node.role, node.term, node.leader, node.log.last_index) == (Role.FOLLOWER, 0, 0, 0)
    assert not node.has_ready
    with pytest.raises(NothingReady):
        node.ready()
    assert node.take() is None


def test_take_hands_out_what_ready_does_and_each_piece_once(lone: Start) -> None:
    node = lone().node
    node.campaign()
    vote = node.take()
    assert vote is not None
    assert (vote.number, vote.hard_state) == (1, HardState(1, 1))
    assert node.take() is None
    node.persisted(vote.number)
    won = node.take()
    assert won is not None
    assert (won.number, won.became_leader) == (2, Leadership(1, 0))
    assert [entry.kind for entry in won.entries] == [EntryKind.NOOP]
    node.persisted(won.number)
    last = node.ready()
    assert (last.number, last.entries, last.committed) == (3, (), won.entries)
    assert node.take() is None


def test_the_first_tick_campaigns_and_later_ones_do_nothing(lone: Start) -> None:
    host = lone()
    for _ in range(3):
        host.node.tick()
    assert (host.node.role, host.node.term) == (Role.CANDIDATE, 1)
    host.settle()
    host.node.tick()
    assert (host.node.role, host.node.term, host.node.leader) == (Role.LEADER, 1, 1)
    assert not host.node.has_ready


def test_the_election_in_readies(lone: Start) -> None:
    host = lone(fence=7)
    host.node.campaign()
    vote = host.take()
    assert (vote.number, vote.hard_state, vote.must_persist) == (1, HardState(1, 1), True)
    assert (vote.entries, vote.committed, vote.became_leader) == ((), (), None)
    assert not host.node.has_ready
    host.sync()
    won = host.take()
    assert (won.number, won.hard_state, won.became_leader) == (2, None, Leadership(1, 7))
    assert [(entry.index, entry.term, entry.kind) for entry in won.entries] == [
        (1, 1, EntryKind.NOOP)
    ]
    host.sync()
    last = host.take()
    assert (last.number, last.committed, last.must_persist) == (3, won.entries, False)
    assert not host.node.has_ready


def test_nothing_commits_before_its_sync_however_far_the_host_lags(leader: Lone) -> None:
    node = leader.node
    for item in "abc":
        leader.propose(item)
        assert leader.take().committed == ()
    assert (node.log.last_index, node.log.committed) == (4, 1)
    first, second, third = leader.unsynced
    node.persisted(first.number)
    assert node.log.committed == 2
    node.persisted(second.number)
    node.persisted(third.number)
    assert node.log.committed == 4
    assert [entry.data for entry in node.ready().committed] == ["a", "b", "c"]


def test_acknowledgements_come_in_order_and_once(leader: Lone) -> None:
    node = leader.node
    leader.propose("a")
    first = leader.take().number
    leader.propose("b")
    second = leader.take().number
    with pytest.raises(OutOfOrder, match=f"came before persisted\\({first}\\)"):
        node.persisted(second)
    with pytest.raises(OutOfOrder, match="were handed out"):
        node.persisted(second + 1)
    assert node.log.committed == 1
    node.persisted(first)
    with pytest.raises(OutOfOrder, match="are acknowledged"):
        node.persisted(first)
    node.persisted(second)
    assert node.log.committed == 3


def test_a_ready_that_asks_nothing_may_be_acknowledged_or_not(leader: Lone) -> None:
    node = leader.node
    leader.propose("a")
    leader.take()
    leader.sync()
    leader.propose("b")
    both = leader.take()
    assert both.committed
    assert both.entries
    leader.sync()
    only_committed = leader.take()
    assert not only_committed.must_persist
    node.persisted(only_committed.number)
    with pytest.raises(OutOfOrder):
        node.persisted(only_committed.number)


def test_an_empty_acknowledgement_does_not_overtake_a_real_one(leader: Lone) -> None:
    leader.propose("a")
    leader.take()
    leader.propose("b")
    late = leader.take()
    leader.node.persisted(leader.unsynced[0].number)
    committed = leader.take()
    assert not committed.must_persist
    with pytest.raises(OutOfOrder, match=f"came before persisted\\({late.number}\\)"):
        leader.node.persisted(committed.number)


def test_memory_is_let_go_when_durable_and_applied(leader: Lone) -> None:
    class Data:
        pass

    data = Data()
    gone = weakref.ref(data)
    leader.node.propose(data, 100)
    del data
    ready = leader.node.ready()
    leader.node.persisted(ready.number)
    del ready
    ready = leader.node.ready()
    assert ready.committed[0].data is gone()
    del ready
    gc.collect()
    assert gone() is not None
    leader.node.applied(2)
    gc.collect()
    assert gone() is None


def test_overload_refuses_without_a_trace(lone: Start) -> None:
    host = lone(max_pending_bytes=1_000)
    host.lead()
    host.node.propose("big", 800)
    with pytest.raises(Overloaded):
        host.node.propose("more", 100)
    assert host.node.log.last_index == 2
    host.settle()
    assert host.node.propose("more", 100) == 3


def test_the_fence_only_rises(lone: Start) -> None:
    node = lone(fence=10).node
    node.raise_fence(4)
    assert node.fence == 10
    node.raise_fence(12)
    assert node.fence == 12


def test_leadership_tells_a_fence_raised_while_a_candidate(lone: Start) -> None:
    host = lone(fence=10)
    host.node.campaign()
    host.take()
    host.node.raise_fence(20)
    host.sync()
    assert host.take().became_leader == Leadership(1, 20)


def test_a_restart_hands_everything_out_again_through_its_own_noop(leader: Lone) -> None:
    leader.propose("a", "b", "c")
    leader.settle()
    again = leader.restart(max_apply_bytes=2)
    assert (again.node.term, again.node.log.committed, again.node.log.last_index) == (1, 0, 4)
    again.node.campaign()
    again.take()
    again.sync()
    again.take()
    assert again.node.log.committed == 0
    again.sync()
    chunks = []
    while again.node.has_ready:
        chunks.append([entry.index for entry in again.take().committed])
    assert chunks == [[1, 2, 3], [4], [5]]
    assert again.data == ["a", "b", "c"]
    assert again.node.term == 2


def test_a_restart_starts_above_what_is_applied(leader: Lone) -> None:
    leader.propose("a", "b", "c")
    leader.settle()
    again = leader.restart(applied=3)
    again.lead()
    assert again.data == ["c"]


def test_a_crash_loses_only_what_was_never_acknowledged(leader: Lone) -> None:
    leader.propose("kept")
    leader.settle()
    leader.propose("lost")
    leader.take()
    again = leader.restart()
    again.lead()
    assert again.data == ["kept"]


def test_snapshot_compact_discard_restart(leader: Lone) -> None:
    leader.propose("a", "b")
    leader.settle()
    node, storage = leader.node, leader.storage
    storage.save_snapshot(Snapshot(2, node.log.term(2), "a"))
    node.compact(2)
    storage.discard(2)
    assert (node.log.first_index, node.log.term(2), node.log.term(3)) == (3, 1, 1)
    leader.propose("c")
    leader.settle()
    again = leader.restart()
    assert (again.node.log.first_index, again.node.log.applied) == (3, 2)
    again.lead()
    assert again.data == ["b", "c"]


def test_a_read_error_of_storage_takes_nothing_from_the_ready(leader: Lone) -> None:
    leader.propose("a")
    leader.settle()
    again = leader.restart()
    again.node.campaign()
    for _ in range(2):
        again.take()
        again.sync()
    stored = again.storage.entries

    def failing(lo: int, hi: int, max_bytes: int) -> list[object]:
        raise OSError("read error")

    again.storage.entries = failing  # type: ignore[method-assign]
    with pytest.raises(OSError, match="read error"):
        again.node.ready()
    again.storage.entries = stored  # type: ignore[method-assign]
    again.settle()
    assert again.data == ["a"]
