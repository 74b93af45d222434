"""Messages of aborted scatterings, which never were: whatever else happens, nobody gets them."""

from __future__ import annotations

from typing import Any

from weir.broker.records.partition import LogStartMoved, MessagesGranted
from weir.broker.state.clusters import ClusterState
from weir.model.batch import Batch
from weir.protocol.client import messages as m


def test_what_is_forgotten_while_it_is_read_is_left_out(make_rig: Any) -> None:
    """A fetch was on the disk when retention passed what it read (simulated ordered set 11)."""
    rig = make_rig(cache=0)
    rig.connect()
    info = rig.topic(1)
    grant = rig.answer(1, m.OpenProducer())
    for sequence in range(3):
        rig.answer(1, rig.batch(info, grant, sequence, b"%d" % sequence))
    _, partition = rig.shard.topics.partition(info.addresses[0].group)
    partition.state.voids.add(1, 2)
    asked = rig.ask(1, m.Fetch(info.addresses[0], 0, 1 << 20))
    assert rig.jobs, "it was not read from the disk"
    partition.state.move_start(LogStartMoved(2, 2))
    rig.settle()
    (fetched,) = (reply for number, reply in rig.replies[1] if number == asked)
    assert fetched.voids == ((1, 2),)
    values = [value for piece in fetched.batches for value in Batch(bytes(piece)).values()]
    assert values[0] == b"0"
    assert b"1" not in values


def granted(cluster: ClusterState, fence: int, first: int, behind: int) -> None:
    assert cluster.grant(fence, MessagesGranted("crew", 7, first, behind, 900, 110)) is not None


def test_an_ack_moves_the_frontier_over_what_is_void() -> None:
    """Else what is void would be granted once its partition has forgotten it (simulated ordered
    set 47).
    """
    cluster = ClusterState()
    granted(cluster, 10, 0, 2)
    cluster.skip(2, 5)
    assert cluster.frontier == 2
    assert cluster.ack(10, 0, 2)
    assert (cluster.cursor, cluster.frontier) == (5, 5)


def test_retention_moves_the_frontier_over_what_is_void() -> None:
    cluster = ClusterState()
    cluster.skip(3, 6)
    cluster.drop_below(3)
    assert (cluster.cursor, cluster.frontier) == (6, 6)
