"""Kills nodes of a set, spoils what lies on their disks, and waits until it is filled in."""

from __future__ import annotations

import random
from typing import Any

from weir.model.ids import voter_of
from weir.storage.format.frame import HEADER_SIZE


def rot(node: Any, group: int, index: int) -> None:
    """Spoil the payload of an entry where it lies on a node's disk; its header stays whole."""
    log = node.shard.writers[0].log
    if (stored := log.reader.stored(group, index)) is None:
        return  # it is not needed any more
    segment = log.segments.find(stored.place)
    at = stored.place - segment.base + HEADER_SIZE
    node.disk.flip(segment.name, at + stored.length // 2)


def mended(trio: Any, group: int) -> None:
    """Return once all live nodes have a part in a group again, as who they were."""

    def is_mended() -> bool:
        found = [(node, node.group(group)) for node in trio.live()]
        return all(
            here is not None
            and here.damage is None
            and not here.is_incomplete
            and here.is_current
            and here.voter == voter_of(node.id, 0)
            for node, here in found
        )

    trio.until(is_mended, "it was not filled in")


class Crashes:
    """Kills one node at a time, and starts it again."""

    def __init__(self, trio: Any, dice: random.Random) -> None:
        self.trio, self.dice = trio, dice
        for node in trio.nodes.values():
            node.lives = 0
        self.down: Any = None

    def step(self) -> None:
        if self.down is None:
            self.down = self.dice.choice(self.trio.live())
            self.down.kill()
        else:
            self.restore()

    def restore(self) -> None:
        if self.down is not None:
            self.down.lives += 1
            self.down.boot()
            self.down = None
