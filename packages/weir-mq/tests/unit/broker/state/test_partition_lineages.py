"""Where the lineages of a partition begin, as its snapshot keeps it."""

from __future__ import annotations

from weir.broker.records.snapshots import pack, unpack
from weir.broker.state.state import OrderMembership, PartitionState

#: The snapshot of a partition without a lineage but the first, and the same with lineage 2 from
#: offset 90 on and lineage 3 from 95 on; from format level 3 on.
PLAIN = "9e0700005f00009090909490c400c400c40095cd0400c400c400c400c4009600909090909200909090"
FORKED = (
    "dc00160e00005f00009090909490c400c400c40095cd0400c400c400c400c400960090909090920090909000909094"
    "909096c400c400c400c400c400c4080000000000000000909300c400c40090909292025a92035f"
)


def forked() -> PartitionState:
    state = PartitionState()
    state.next_offset = 90
    state.begin_lineage(2)
    state.next_offset = 95
    state.begin_lineage(3)
    return state


def test_lineages_have_these_bytes() -> None:
    assert bytes(pack(forked().encode())).hex() == FORKED
    found = PartitionState.decode(unpack(bytes.fromhex(FORKED)))
    assert found.membership.forks == ((2, 90), (3, 95))
    assert bytes(pack(found.encode())).hex() == FORKED


def test_without_a_lineage_they_are_as_before() -> None:
    state = PartitionState()
    state.next_offset = 95
    assert bytes(pack(state.encode())).hex() == PLAIN
    assert PartitionState.decode(unpack(bytes.fromhex(PLAIN))).membership.forks == ()


def test_the_fork_of_a_lineage_is_the_lowest_one_behind_it() -> None:
    membership = forked().membership
    assert [membership.fork_of(lineage) for lineage in range(5)] == [90, 90, 95, -1, -1]
    assert membership.lineage == 3


def test_a_lineage_that_is_no_later_one_begins_nothing() -> None:
    state = forked()
    state.next_offset = 99
    for lineage in (0, 1, 2, 3):
        state.begin_lineage(lineage)
    assert state.membership.forks == ((2, 90), (3, 95))


def test_the_oldest_lineages_are_told_as_one() -> None:
    membership = OrderMembership()
    assert membership.lineages == ((0, 0),)
    membership.forks = ((1, 20), (3, 10), (4, 30))
    assert membership.lineages == ((0, 0), (1, 20), (3, 10), (4, 30))
    membership.forks = ((1, 20), (3, 10), (4, 30), (5, 40), (6, 50))
    assert membership.lineages == ((0, 0), (4, 10), (5, 40), (6, 50))
