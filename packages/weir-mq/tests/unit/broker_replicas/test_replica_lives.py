"""What a group was in the middle of when it was dropped is nothing to who has its number next."""

from __future__ import annotations

from typing import Any

from rigs.shards import begin_anew
from weir.broker.api import effects as ef
from weir.model.ids import voter_of


def begun_anew(node: Any, group: int) -> Any:
    """Drop a group from a node, and open it again as another voter with nothing."""
    shard = node.shard
    shard.topics.leave(group)
    return begin_anew(shard, group, voter_of(node.id, 1))


def test_a_flush_of_its_former_life_makes_nothing_durable(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)  # who publishes is known from here on
    leader = trio.leader(group)
    other = next(node for node in trio.live() if node is not leader)
    trio.settle()
    leader.ask(produce(info, grant, 1, b"b"))
    while not any(isinstance(job, ef.StartFlush) for job in other.jobs):
        assert trio.deliver() or leader.jobs
        while leader.jobs:
            leader.step()
    again = begun_anew(other, group)
    while other.jobs:
        other.step()
    assert (again.node.log.durable, again.node.log.last_index) == (0, 0)


def test_a_checkpoint_of_its_former_life_covers_nothing(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    trio.told(produce(info, grant, 0, b"a"), group)
    trio.run(500)
    other = next(node for node in trio.live() if node is not trio.leader(group))
    other.shard.writers[0].checkpoints.save()
    trio.pass_ms(1)
    assert any(isinstance(job, ef.SaveCheckpoint) for job in other.jobs)
    again = begun_anew(other, group)
    while other.jobs:
        other.step()
    assert again.storage.snapshot() is None
