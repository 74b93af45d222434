"""Snapshots and reads without a log write, rule by rule. (Ongaro, 2014: chapter 5, §6.4)"""

from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Configuration,
    HeartbeatReply,
    InstallSnapshot,
    NotLeader,
    NotReady,
    ReadState,
    Role,
    Snapshot,
    SnapshotMeta,
    SnapshotReply,
)
from weir_raft.testing.member import Member, log_of

THREE = Configuration((1, 2, 3))
META = SnapshotMeta(20, 2, THREE, 20, 2, 6)


def rounds(member: Member) -> int:
    """The newest round of heartbeats it has sent."""
    return max(m.round for m in member.pass_ms(100) if hasattr(m, "round"))


def test_6_4_a_new_leader_reads_nothing_before_its_own_entry_is_committed() -> None:
    """§6.4, step 1: it may not know which entries are committed until one of its term is."""
    one = Member(1, 1, 1)
    one.lead()
    with pytest.raises(NotReady, match="is not committed"):
        one.node.read_index(1)


def test_6_4_a_read_waits_until_a_majority_has_answered_a_later_heartbeat() -> None:
    """§6.4, step 3: a round of heartbeats begun after the request says that nobody else leads."""
    one = Member(1)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1, commit=1))
    before = rounds(one)
    one.node.read_index(7)
    asked = [m.round for m in one.sent() if hasattr(m, "round")]
    assert asked == [before + 1] * 2
    one.tell(HeartbeatReply(1, 2, 1, before))
    assert one.reads == []
    one.tell(HeartbeatReply(1, 2, 1, before + 1))
    assert one.reads == [ReadState(7, 1)]


def test_6_4_a_read_is_served_at_what_was_committed_when_it_was_asked_for() -> None:
    """§6.4, step 2: readIndex is the commit index when the request came."""
    one = Member(1)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1, commit=1))
    one.node.read_index(7)
    one.node.propose("later", 1)
    round = max(m.round for m in one.sent() if hasattr(m, "round"))
    one.tell(AppendReply(1, 2, 1, 2, commit=1))
    assert one.node.log.committed == 2
    one.tell(HeartbeatReply(1, 2, 1, round))
    assert one.reads == [ReadState(7, 1)]


def test_6_4_one_round_serves_all_reads_that_waited_for_it() -> None:
    """§6.4: the cost of a round is shared by the reads that gather meanwhile."""
    one = Member(1)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1, commit=1))
    for context in range(50):
        one.node.read_index(context)
    asked = [m for m in one.sent() if hasattr(m, "round")]
    assert len(asked) == 2
    one.tell(HeartbeatReply(1, 3, 1, asked[0].round))
    assert [read.context for read in one.reads] == list(range(50))


def test_6_4_who_no_longer_leads_serves_nothing() -> None:
    """§6.4: reads of a leader that was deposed meanwhile are not answered from stale state."""
    one = Member(1)
    one.lead()
    one.tell(AppendReply(1, 2, 1, 1, commit=1))
    one.node.read_index(7)
    round = max(m.round for m in one.sent() if hasattr(m, "round"))
    one.tell(HeartbeatReply(1, 3, 2, round))
    one.tell(HeartbeatReply(1, 2, 1, round))
    assert one.reads == []
    assert len(one.lost) == 1
    with pytest.raises(NotLeader):
        one.node.read_index(8)


def test_5_1_the_last_entry_of_a_snapshot_stays_known() -> None:
    """§5.1: index and term of the last entry covered serve the check of the next Append."""
    one = Member(1, 1, 1, 2)
    one.lead()
    one.tell(AppendReply(1, 2, 3, 4))
    one.disk.save_snapshot(Snapshot(3, 2, b"state", THREE))
    one.node.compact(3)
    one.disk.discard(3)
    one.restart()
    assert (one.node.log.first_index, one.node.log.term(3), one.node.log.applied) == (4, 2, 3)


def test_5_1_each_server_compacts_by_itself() -> None:
    """§5.1: servers take snapshots independently of each other, of committed entries alone."""
    two = Member(2)
    two.tell(Append(2, 1, 1, 0, 0, log_of(1, 1, 1), 2))
    two.disk.save_snapshot(Snapshot(2, 1, b"state", THREE))
    two.node.compact(2)
    assert two.node.log.first_index == 3


def test_5_2_a_snapshot_is_for_who_needs_what_is_gone() -> None:
    """§5.2: when the next entry for a follower is discarded, the leader sends its snapshot."""
    one = Member(1, 1, 1)
    one.lead()
    one.tell(AppendReply(1, 2, 2, 3, commit=3))
    one.disk.save_snapshot(Snapshot(3, 2, b"state", THREE))
    one.node.compact(3)
    one.disk.discard(3)
    one.tell(AppendReply(1, 3, 2, 2, rejected=True))
    one.node.send_snapshot(3, Snapshot(3, 2, b"state"))
    (piece,) = [m for m in one.sent() if isinstance(m, InstallSnapshot)]
    assert (piece.to, piece.data, piece.done, piece.snapshot.index) == (3, b"state", True, 3)
    assert piece.snapshot.configuration == THREE


def test_5_2_pieces_come_one_after_the_other_and_the_last_replaces_all() -> None:
    """§5.2, Figure 5.3: chunks are written at their offset; the last makes it the state."""
    two = Member(2, 1, 1, 1)
    (reply,) = two.tell(InstallSnapshot(2, 1, 2, META, 0, b"abc", False))
    assert reply == SnapshotReply(1, 2, 2, 3)
    assert two.disk.snapshot() is None
    (reply,) = two.tell(InstallSnapshot(2, 1, 2, META, 3, b"def", True))
    assert reply == AppendReply(1, 2, 2, 20, commit=20)
    kept = two.disk.snapshot()
    assert kept is not None
    assert (kept.index, kept.data, two.disk.last_index()) == (20, b"abcdef", 20)


def test_5_2_entries_behind_a_snapshot_that_the_log_already_has_are_kept() -> None:
    """§5.2: if the snapshot describes a prefix of the log, what follows it is retained."""
    two = Member(2, 1, 1, 2, 2)
    meta = SnapshotMeta(3, 2, THREE, 3, 2, 3)
    (reply,) = two.tell(InstallSnapshot(2, 1, 3, meta, 0, b"abc", True))
    assert reply == AppendReply(1, 2, 3, 3, commit=3)
    assert two.terms == [1, 1, 2, 2]


def test_5_2_a_snapshot_of_less_than_is_committed_takes_nothing_back() -> None:
    """§5.2: an old one, late or repeated, is covered by the log already."""
    two = Member(2, term=1)
    two.tell(Append(2, 1, 1, 0, 0, log_of(1, 1, 1), 3))
    two.tell(InstallSnapshot(2, 1, 1, SnapshotMeta(2, 1, THREE, 2, 1, 3), 0, b"abc", True))
    assert (two.node.log.committed, two.terms, two.disk.snapshot()) == (3, [1, 1, 1], None)


def test_a_snapshot_over_a_log_that_is_kept_counts_only_as_far_as_the_log_goes() -> None:
    """Beyond §5.2: whoever installs it must be filled in before it stands for those entries."""
    two = Member(2)
    meta = SnapshotMeta(20, 2, THREE, 10, 1, 3)
    (reply,) = two.tell(InstallSnapshot(2, 1, 2, meta, 0, b"abc", True))
    assert isinstance(reply, AppendReply)
    assert (reply.index, two.node.log.applied) == (10, 20)
    two.pass_ms(5_000)
    assert two.node.role is Role.FOLLOWER
    two.tell(Append(2, 1, 2, 10, 1, log_of(*(2,) * 10, first=11), 20))
    assert (two.node.log.last_index, two.applied) == (20, [])
    two.pass_ms(2_000)
    assert two.node.role is not Role.FOLLOWER
