from __future__ import annotations

from rigs.descriptions import describe_entry, describe_node, describe_ready
from weir_raft import Config, Entry, EntryKind, HardState, Leadership, MemoryStorage, Node, Ready


def test_an_entry() -> None:
    assert describe_entry(Entry(3, 2, EntryKind.NORMAL, "x", 5)) == "3@2 normal 5B"
    assert describe_entry(Entry(1, 1, EntryKind.NOOP, None, 0)) == "1@1 noop"


def test_a_ready_in_the_order_of_its_duties() -> None:
    noop = Entry(4, 2, EntryKind.NOOP, None, 0)
    old = Entry(3, 1, EntryKind.NORMAL, "x", 5)
    assert describe_ready(Ready(7, HardState(2, 1), (noop,), (old,), Leadership(2, 9))) == (
        "ready 7: lead term=2 fence=9; persist term=2 vote=1; append 4@2 noop; apply 3@1 normal 5B"
    )
    assert describe_ready(Ready(8, None, (), (old, noop), None)) == (
        "ready 8: apply 3@1 normal 5B, 4@2 noop"
    )


def test_a_node() -> None:
    assert describe_node(Node(Config(id=1, voters=(1,), fence=2), MemoryStorage())) == (
        "follower term=0 leader=0 fence=2 first=1 last=0 commit=0 applied=0"
    )
