"""What a node is made with: its Config, and what it is given or does without."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from weir_raft import (
    Config,
    HostError,
    InvalidConfig,
    MemoryStorage,
    Multi,
    Node,
    NodeContext,
    VoteReply,
)
from weir_raft import VoteRequest as Request
from weir_raft.config import Clock, Contacts, OwnContext, Promises


def test_a_lone_voter_is_valid() -> None:
    Config(id=7, voters=(7,), fence=3, applied=0).validate()


@pytest.mark.parametrize(
    "config",
    [
        Config(id=1, voters=(1, 2)),
        Config(id=1, voters=(2, 1, 3)),
        Config(id=1, voters=(1,), learners=(2,)),
        Config(id=1, voters=(2,), learners=(1,)),
        Config(id=1, voters=(2,)),
        Config(id=1, voters=()),
    ],
)
def test_any_members_are_valid_and_a_node_need_not_be_one_yet(config: Config) -> None:
    config.validate()
    assert Node(config, MemoryStorage()).configuration.voters == config.voters


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(id=0, voters=(0,)), "ids must be positive"),
        (Config(id=1, voters=(1, -2)), "ids must be positive"),
        (Config(id=1, voters=(1, 1)), "named twice"),
        (Config(id=1, voters=(1,), learners=(1,)), "named twice"),
        (Config(id=1, voters=(1,), fence=-1), "fence and applied"),
        (Config(id=1, voters=(1,), applied=-1), "fence and applied"),
        (Config(id=1, voters=(1,), max_apply_bytes=0), "max_apply_bytes"),
        (Config(id=1, voters=(1,), max_pending_bytes=0), "max_pending_bytes"),
        (Config(id=1, voters=(1,), max_append_bytes=0), "max_append_bytes"),
        (Config(id=1, voters=(1,), max_inflight_bytes=0), "max_inflight_bytes"),
        (Config(id=1, voters=(1,), snapshot_chunk_bytes=0), "snapshot_chunk_bytes"),
        (Config(id=1, voters=(1,), heartbeat_ms=0), "heartbeat_ms"),
        (Config(id=1, voters=(1,), heartbeat_ms=100, election_ms=100), "election_ms must be above"),
    ],
)
def test_a_contradiction_is_named(config: Config, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        config.validate()


class Ledger:
    """Promises that a host keeps in its own way."""

    def __init__(self) -> None:
        self.told: list[int] = []

    @property
    def fence(self) -> int:
        return max(self.told, default=0)

    def raise_to(self, fence: int) -> None:
        self.told.append(fence)


@dataclass
class HostContext:
    promises: Promises
    clock: Clock = field(default_factory=Clock)
    contacts: Contacts = field(default_factory=Contacts)
    group: int = 7
    active: set[int] = field(default_factory=set)
    asking: set[int] = field(default_factory=set)


def made(context: NodeContext | None = None, fence: int = 0, id: int = 1) -> Node:
    return Node(Config(id, (1, 2, 3), fence=fence), MemoryStorage(), context)


def vote_of(node: Node) -> VoteReply:
    """What it answers a candidate, once that is durable."""
    node.step(Request(1, 2, node.term + 1, 0, 0))
    ready = node.ready()
    node.persisted(ready.number)
    (reply,) = node.ready().messages
    assert isinstance(reply, VoteReply)
    return reply


def test_promises_are_a_port_of_the_host() -> None:
    ledger = Ledger()
    node = made(HostContext(ledger), fence=5)
    assert ledger.told == [5]
    node.raise_fence(9)
    assert ledger.told == [5, 9]
    ledger.told.append(12)  # given in another way than through this node
    assert node.fence == 12
    assert vote_of(node).fence == 12


def test_a_host_that_promises_nothing_leaves_it_out() -> None:
    node = made()
    assert isinstance(node.context, OwnContext)
    assert node.fence == vote_of(node).fence == 0
    assert made(fence=5).fence == 5
    assert made().context.promises is not node.context.promises


def test_a_node_says_of_which_group_it_has_work() -> None:
    context = HostContext(Ledger())
    node = made(context)
    assert context.active == set(), "nothing has happened yet"
    node.campaign()
    assert context.active == {7}


def test_time_passes_by_the_clock_of_the_context() -> None:
    context = HostContext(Ledger())
    node = made(context)
    node.tick(300)
    assert context.clock.now == 300


def test_nodes_of_a_multi_share_time_and_promises() -> None:
    multi = Multi(lambda group, member: member)
    nodes = {group: made(multi.context(group), fence=group) for group in (3, 8, 5)}
    assert [node.fence for node in nodes.values()] == [8, 8, 8]
    nodes[3].raise_fence(20)
    assert nodes[5].fence == 20
    for group, node in nodes.items():
        multi.add(group, node)
    multi.tick(50)
    assert {node.context.clock.now for node in nodes.values()} == {50}
    assert {node.context.group for node in nodes.values()} == {3, 8, 5}


def test_a_multi_takes_no_node_that_was_made_otherwise() -> None:
    multi, other = (Multi(lambda group, member: member) for _ in range(2))
    for node in (made(), made(other.context(4)), made(multi.context(5))):
        with pytest.raises(HostError, match=r"Multi.context\(4\)"):
            multi.add(4, node)
    assert multi.take_active() == []


def test_a_node_that_was_not_added_or_was_removed_wakes_nobody() -> None:
    multi = Multi(lambda group, member: member)
    early, gone, here = (made(multi.context(group)) for group in (1, 2, 3))
    multi.add(2, gone)
    multi.add(3, here)
    assert multi.take_active() == []
    multi.remove(2)
    early.campaign()
    assert multi.take_active() == []
    early.campaign()
    gone.campaign()
    here.campaign()
    assert multi.take_active() == [3]
    multi.add(1, early)
    assert multi.take_active() == [1], "what it had done before is to be served"
