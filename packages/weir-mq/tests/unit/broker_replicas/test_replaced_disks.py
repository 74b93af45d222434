"""A node whose disk was replaced by an empty one: what it held comes from the others, and nobody
counts a vote of it that its former self may have given to another.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from weir.errors import Halted
from weir.model.ids import REGISTRY_GROUP, voter_of
from weir.protocol.client import messages as m
from weir.storage.format.checkpoint import begin_lost
from weir.testing.simulator.disk import SimDisk

_SYSTEM = 99


def empty(node: Any) -> None:
    """Give a node that does not run an empty disk, as its host does."""
    node.disk = SimDisk(random.Random(77))
    begin_lost(node.disk, 0, _SYSTEM)


def has_voter(trio: Any, node: Any, group: int, incarnation: int) -> None:
    def is_back() -> bool:
        found = node.group(group)
        return (
            found is not None
            and found.damage is None
            and found.voter == voter_of(node.id, incarnation)
            and found.is_current
            and not node.shard.topics.catalog.nodes.unsettled
        )

    trio.until(is_back, "it never came back")


def test_what_an_empty_disk_held_is_not_voted_away(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    leader = trio.leader(group)
    behind, emptied = [node for node in trio.live() if node is not leader]
    trio.isolate(behind.id)
    trio.run(1_500)
    leader = trio.leader(group)
    if leader is emptied:
        leader, emptied = next(n for n in trio.live() if n not in (leader, behind)), leader
    values = [b"confirmed %d" % number for number in range(10)]
    for number, value in enumerate(values):
        assert trio.told(produce(info, grant, number, value), group).offset == number
    emptied.kill()
    leader.kill()
    empty(emptied)
    trio.heal()
    emptied.boot()
    trio.run(5_000)  # who was behind and who has nothing are a majority, but not of what counts
    assert behind.group(group) is None or not behind.group(group).machine.leads
    leader.boot()
    has_voter(trio, emptied, group, 1)
    assert trio.same_everywhere(group) == values


def test_a_disk_may_be_replaced_again_and_again(trio: Any, produce: Any) -> None:
    info, grant = trio.topic(), trio.producer()
    group = info.addresses[0].group
    for turn in range(3):
        assert trio.told(produce(info, grant, turn, b"v%d" % turn), group).offset == turn
        victim = trio[3]
        victim.kill()
        empty(victim)
        trio.run(1_500)
        victim.boot()
        has_voter(trio, victim, REGISTRY_GROUP, turn + 1)
        has_voter(trio, victim, group, turn + 1)
    confirm = trio.told(produce(info, grant, 3, b"v3"), group)
    assert isinstance(confirm, m.Confirm)
    assert trio.same_everywhere(group) == [b"v0", b"v1", b"v2", b"v3"]


def test_nodes_know_each_other_by_their_folders(make_trio: Callable[..., Any]) -> None:
    trio = make_trio()
    for node in trio.live():
        node.kill()
        node.birth = 70 + node.id
        node.boot()
    trio.until(lambda: all(_births(node) == [71, 72, 73] for node in trio.live()))
    told = {effect.node: effect.birth for effect in trio[1].connects if effect.birth}
    assert told == {2: 72, 3: 73}
    trio[3].kill()
    trio[3].birth = 99
    trio[3].boot()
    with pytest.raises(Halted, match="another data folder"):
        trio.run(5_000)


def _births(node: Any) -> list[int]:
    return [one.birth for one in node.shard.topics.catalog.nodes.all()]
