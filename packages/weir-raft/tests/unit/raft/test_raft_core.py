from __future__ import annotations

import pytest

from weir_raft import (
    Append,
    AppendReply,
    Config,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    MemoryStorage,
    Node,
    NotLeader,
    NotReady,
    OutOfOrder,
    Ready,
    Role,
    Snapshot,
    StorageError,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)


def three(**config: int) -> Node:
    return Node(Config(id=1, voters=(1, 2, 3), **config), MemoryStorage())


def serve(node: Node) -> Ready:
    """One Ready, durable at once and applied."""
    ready = node.ready()
    if ready.must_persist:
        node.persisted(ready.number)
    if ready.committed:
        node.applied(ready.committed[-1].index)
    return ready


def test_a_log_beyond_the_hard_state_must_not_vote() -> None:
    storage = MemoryStorage()
    storage.save(HardState(2, 1), [Entry(1, 3, EntryKind.NOOP, None, 0)])
    with pytest.raises(StorageError, match="must not vote again"):
        Node(Config(id=1, voters=(1,)), storage)


def test_a_lone_vote_that_was_superseded_on_its_way_to_the_disk_does_not_count() -> None:
    node = Node(Config(id=1, voters=(1,)), MemoryStorage())
    node.campaign()
    old = node.ready()
    node.step(Heartbeat(1, 2, 9, 0, 1))
    node.persisted(old.number)
    assert (node.role, node.term, node.leader) == (Role.FOLLOWER, 9, 2)


def test_roles_follow_one_another() -> None:
    node = three()
    node.campaign()
    assert (node.role, node.term) == (Role.PRE_CANDIDATE, 0)
    node.step(VoteReply(1, 2, 1, granted=True, pre=True))
    assert (node.role, node.term) == (Role.CANDIDATE, 1)
    assert not [m for m in serve(node).messages if isinstance(m, VoteRequest) and not m.pre]
    requests = serve(node).messages
    assert requests == (VoteRequest(2, 1, 1, 0, 0), VoteRequest(3, 1, 1, 0, 0))
    node.step(VoteReply(1, 3, 1, granted=True))
    assert (node.role, node.leader) == (Role.LEADER, 1)


def test_every_role_yields_to_a_higher_term() -> None:
    for steps in range(4):
        node = three()
        if steps > 0:
            node.campaign()
        if steps > 1:
            node.step(VoteReply(1, 2, 1, granted=True, pre=True))
            serve(node)
        if steps > 2:
            node.step(VoteReply(1, 2, 1, granted=True))
            serve(node)
        node.step(Append(1, 3, 7, 0, 0, (), 0))
        assert (node.role, node.term, node.leader) == (Role.FOLLOWER, 7, 3)
        assert node.ready().lost_leadership is (steps == 3)


def test_messages_of_an_earlier_term_only_tell_their_leader_so() -> None:
    node = three()
    node.step(Heartbeat(1, 2, 5, 0, 1))
    serve(node)
    for stale in (Append(1, 3, 4, 0, 0, (), 0), Heartbeat(1, 3, 4, 0, 1), TimeoutNow(1, 3, 4)):
        node.step(stale)
        assert serve(node).messages == (AppendReply(3, 1, 5, 0, rejected=True),)
    for stale in (VoteReply(1, 3, 4, granted=True), AppendReply(1, 3, 4, 9)):
        node.step(stale)
    assert not node.has_ready
    assert (node.leader, node.term) == (2, 5)


def test_what_only_a_leader_can_is_refused_with_a_hint() -> None:
    node = three()
    node.step(Heartbeat(1, 2, 5, 0, 1))
    for call in (
        lambda: node.propose("x", 1),
        lambda: node.read_index(1),
        lambda: node.transfer_leadership(2),
    ):
        with pytest.raises(NotLeader) as caught:
            call()
        assert caught.value.leader_hint == 2
    assert node.progress() == ()
    assert not node.accepts


@pytest.mark.parametrize("is_late", [False, True])
def test_a_leadership_counts_what_the_leader_itself_promised(is_late: bool) -> None:
    """{1, 2} promise, {1, 3} elect 1: its own promise is the only one that those two know of."""
    node = three()
    if not is_late:
        node.raise_fence(70)
    node.campaign()
    node.step(VoteReply(1, 3, 1, granted=True, pre=True))
    serve(node)
    if is_late:  # its own vote is counted already
        node.raise_fence(70)
    node.step(VoteReply(1, 3, 1, granted=True, fence=30))
    leadership = serve(node).became_leader
    assert leadership is not None
    assert leadership.fence == 70


def test_a_new_leader_waits_for_an_entry_of_its_term() -> None:
    node = three()
    node.campaign()
    node.step(VoteReply(1, 2, 1, granted=True, pre=True))
    serve(node)
    node.step(VoteReply(1, 2, 1, granted=True, fence=30))
    leadership = serve(node).became_leader
    assert leadership is not None
    assert leadership.fence == 30
    with pytest.raises(NotReady, match="entry 1, the first of term 1"):
        node.propose("x", 1)
    with pytest.raises(NotReady, match="committed"):
        node.read_index(1)
    node.step(AppendReply(1, 2, 1, 1))
    serve(node)
    assert node.accepts
    with pytest.raises(ValueError, match="its bytes, not -1"):
        node.propose("x", -1)
    assert node.propose("x", 1) == 2


def test_a_snapshot_to_send_must_meet_the_log() -> None:
    node = three()
    with pytest.raises(OutOfOrder, match="applied through 0"):
        node.send_snapshot(2, Snapshot(3, 1, b""))


def test_a_reply_from_the_future_of_the_log_is_not_believed() -> None:
    node = three()
    node.campaign()
    node.step(VoteReply(1, 2, 1, granted=True, pre=True))
    serve(node)
    node.step(VoteReply(1, 2, 1, granted=True))
    node.step(AppendReply(1, 2, 1, 100))
    node.step(AppendReply(1, 9, 1, 1))
    assert node.log.committed == 0
