"""Whatever rots or is cut short on one node of three: nothing is lost, and the node mends itself.

Each of WEIR_SET_FLIPS trials stops a node once or twice, spoils one place of its log, and starts
it again: a bit flips, a stretch of bytes is wrong, or a file ends too soon. A log that cannot be
opened at all says so, and its node comes back with an empty disk. At the end another node loses its
disk, so that what the first one took from the others is what it lives on.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from weir.model.ids import REGISTRY_GROUP, node_of
from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import begin_lost
from weir.testing.simulator.disk import SimDisk

TRIALS = int(os.environ.get("WEIR_SET_FLIPS", "6"))
_STRETCH_BYTES = 4_000


def segments(node: Any) -> list[str]:
    return sorted(name for name in node.disk.names() if name.startswith("segment"))


def flip(disk: Any, name: str, end: int, dice: random.Random) -> None:
    disk.flip(name, dice.randrange(end), dice.randrange(8))


def spoil(disk: Any, name: str, end: int, dice: random.Random) -> None:
    first = dice.randrange(end)
    for position in range(first, min(end, first + dice.randrange(1, _STRETCH_BYTES))):
        disk.flip(name, position)


def cut(disk: Any, name: str, end: int, dice: random.Random) -> None:
    disk.truncate(name, dice.randrange(end))


class Life:
    """A topic on three nodes, and what was confirmed of it."""

    def __init__(self, trio: Any, produce: Callable[..., Any], dice: random.Random) -> None:
        self.trio, self.produce, self.dice = trio, produce, dice
        self.info = trio.topic(partitions=dice.choice((1, 2)))
        self.grant = trio.producer()
        self.groups = [address.group for address in self.info.addresses]
        self.confirmed: list[bytes] = []

    def publish(self, count: int) -> None:
        for _ in range(count):
            number = len(self.confirmed)
            value = self.dice.randbytes(300)
            request = self.produce(self.info, self.grant, number, value)
            assert self.trio.told(request, self.groups[0]).offset == number
            self.confirmed.append(value)

    def damage(self, node: Any) -> None:
        """Stop a node, spoil one place of its log, and start it again."""
        tail = node.shard.writers[0].log.tail
        if self.dice.random() < 0.3:
            node.shard.writers[0].checkpoints.save()
            self.trio.run(300)
        node.kill()
        name = self.dice.choice(segments(node))
        end = min(node.disk.size(name), tail)
        self.dice.choices((flip, spoil, cut), (5, 3, 2))[0](node.disk, name, end, self.dice)
        try:
            node.boot()
        except LogDamaged:
            self.replace(node)

    def replace(self, node: Any) -> None:
        """Start a stopped node with an empty disk, as its host does."""
        node.disk = SimDisk(self.dice)
        begin_lost(node.disk, 0, node.shard.identity.system)
        node.boot()

    def mends(self, node: Any) -> None:
        """Return once a node lacks nothing, and all have what was confirmed, and more of it."""
        self.trio.until(lambda: self.is_whole(node), "it lacks something still")
        self.publish(self.dice.randrange(1, 5))
        assert self.trio.same_everywhere(self.groups[0]) == self.confirmed

    def is_whole(self, node: Any) -> bool:
        """Whether a node has a part in all groups again, and lacks no message of them.

        Of the registry old entries may be lost: their outcome is whole, and nobody reads them.
        """
        catalog = node.shard.topics.catalog
        wanted = [REGISTRY_GROUP, *self.groups]
        found = [node.group(group) for group in wanted]
        return (
            all(
                one is not None
                and one.damage is None
                and one.is_current
                and not (one.is_incomplete and one.id != REGISTRY_GROUP)
                for one in found
            )
            and not catalog.nodes.unsettled
            and all(node.id in map(node_of, catalog.voters(group)) for group in wanted)
        )


@pytest.mark.parametrize("seed", range(TRIALS))
def test_one_node_that_rots_is_mended_by_the_others(
    trio: Any, produce: Any, seed: int, tell: Callable[..., None]
) -> None:
    dice = random.Random(seed)
    life = Life(trio, produce, dice)
    life.publish(dice.randrange(5, 60))
    changes = dice.randrange(1, 3)
    for _ in range(changes):
        node = trio[dice.randrange(1, 4)]
        life.damage(node)
        life.mends(node)
    tell(lives=1, damages=changes)
    other = trio[node.id % 3 + 1]
    other.kill()
    life.replace(other)
    life.mends(other)
