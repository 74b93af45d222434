"""One of three logs loses its synced tail while all nodes are down: nothing confirmed is lost.

Node 3 was down while messages were confirmed, so node 1 that lost them must not vote with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from weir.storage.errors import LogDamaged
from weir.storage.format.checkpoint import begin_lost
from weir.testing.simulator.disk import SimDisk

PLACES = 100
VALUES = [b"%d" % number * 300 for number in range(40)]


def zeroed(disk: SimDisk, name: str, at: int, older: SimDisk) -> None:
    disk.write(name, at, [bytes(disk.size(name) - at)])
    disk.sync(name)


def cut(disk: SimDisk, name: str, at: int, older: SimDisk) -> None:
    disk.truncate(name, at)


def set_back(disk: SimDisk, name: str, at: int, older: SimDisk) -> None:
    before = older.read(name, 0, disk.size(name)) if name in older.names() else b""
    disk.write(name, at, [before.ljust(disk.size(name), b"\0")[at:]])
    disk.sync(name)


class Written:
    """A set that has confirmed all values while node 3 was down; each disk as it was then."""

    def __init__(self, trio: Any, produce: Callable[..., Any]) -> None:
        self.trio = trio
        info, grant = trio.topic(), trio.producer()
        self.group = info.addresses[0].group
        trio.run(1_000)
        trio[3].kill()
        for number, value in enumerate(VALUES):
            assert trio.told(produce(info, grant, number, value), self.group).offset == number
            if number == len(VALUES) // 3:
                self.older = copy.deepcopy(trio[1].disk)
        self.tail = trio[1].shard.writers[0].log.tail
        for node in (trio[1], trio[2]):
            node.kill()
        self.disks = {
            node: copy.deepcopy((trio[node].disk, trio[node].other)) for node in (1, 2, 3)
        }

    def put_back(self) -> None:
        """Let all disks of the stopped set be what they were."""
        for node in self.trio.live():
            node.kill()
        for number in (1, 2, 3):
            node = self.trio[number]
            node.disk, node.other = copy.deepcopy(self.disks[number])
            node.began_on, node.generation = node.disk, 1

    def ruin(self, place: int, how: Callable[..., None]) -> None:
        """Take all from a place on from node 1."""
        disk, base = self.trio[1].disk, 0
        for name in sorted(name for name in disk.names() if name.startswith("segment-")):
            size = disk.size(name)
            if base + size > place:
                how(disk, name, max(place - base, 0), self.older)
            base += size

    def start(self) -> bool:
        """Start node 1; where its log is refused, with an empty disk, as an operator would."""
        node = self.trio[1]
        try:
            node.boot()
        except LogDamaged:
            node.disk = SimDisk(self.trio[2].disk.dice)
            begin_lost(node.disk, 0, node.shard.identity.system)
            node.boot()
            return False
        return True


@pytest.mark.parametrize("how", [zeroed, cut, set_back])
def test_who_lost_the_tail_elects_nobody_who_lacks_it(
    trio: Any, produce: Callable[..., Any], how: Callable[..., None]
) -> None:
    written = Written(trio, produce)
    mended = 0
    hows = [zeroed, cut, set_back]
    for number in range(hows.index(how), PLACES, len(hows)):
        place = number * written.tail // PLACES
        written.put_back()
        written.ruin(place, how)
        mended += written.start()
        trio[3].boot()
        trio.run(2_500)
        for node in (trio[1], trio[3]):
            here = node.group(written.group)
            assert here is None or not here.machine.leads, f"place {place:,}: {how.__name__}"
        trio[2].boot()
        trio.leader(written.group)
        trio.until(lambda: whole(trio, written.group), f"place {place:,}: it lacks something")
        assert trio.same_everywhere(written.group) == VALUES
    assert mended > PLACES // len(hows) // 4


def whole(trio: Any, group: int) -> bool:
    found = [node.group(id) for node in trio.live() for id in (0, group)]
    return all(one is not None and one.damage is None and one.is_current for one in found)
