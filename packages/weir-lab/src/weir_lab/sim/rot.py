"""Bit rot: bytes that had been durable change while the node is down, and what it serves then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weir.errors import DamagedRange, OffsetOutOfRange, Refused, refusal
from weir.protocol.client import messages as m
from weir.storage.format.checkpoint import CHECKPOINT, COPY
from weir.storage.format.index_file import is_index
from weir.testing.simulator.disk import SimDisk
from weir.testing.simulator.world import SECOND, World
from weir_lab.sim.checkers.judge import ENTRY_BYTES_MAX, values_by_offset
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene

_CUT = 0.15
_TRIES = 200
#: A node that has just begun to lead gives less than all of it for so long.
_BEGINS_WITHIN = 5 * SECOND


class Rot(NamedTuple):
    """The file that was spoilt, and how many bytes of entries may be refused for it."""

    file: str
    costs: int


def spoil(world: World, disks: Mapping[int, SimDisk]) -> Rot:
    """Flip a bit of a file of one log, or cut the file short; return what that may cost."""
    dice = world.dice
    disk = disks[dice.choice(sorted(disks))]
    kinds: list[list[str]] = [[], [], []]
    for name in sorted(disk.names()):
        kinds[1 if is_index(name) else 2 if name in (CHECKPOINT, COPY) else 0].append(name)
    name = dice.choice(dice.choice([kind for kind in (kinds[0], *kinds) if kind]))
    size = disk.size(name)
    data = disk.read(name, 0, size)
    # What a segment holds can be told without its index file, and without one checkpoint.
    costs = 0 if is_index(name) or name in (CHECKPOINT, COPY) else ENTRY_BYTES_MAX
    if world.chance(_CUT):
        left = dice.randrange(size)
        disk.truncate(name, left)
        world.note("cut short", name)
        # The entry that the cut goes through, and all that was written behind it.
        return Rot(name, costs and costs + len(data[left:].rstrip(b"\0")))
    # Most of a segment is zeros behind its tail: rather where something was written.
    places = (dice.randrange(size) for _ in range(_TRIES))
    place = next((place for place in places if data[place]), 0)
    disk.flip(name, place, dice.randrange(8))
    world.note("rot", name, place)
    return Rot(name, costs)


class Survey(Client):
    """Asks for every offset by itself, and compares what comes with what was there."""

    def __init__(self, scene: Scene) -> None:
        """Go by the log as it was drained."""
        super().__init__(scene, "survey")
        self._open = set(range(scene.partitions))
        self._patient_until = scene.world.now + _BEGINS_WITHIN
        #: By partition, the offsets that were refused as damaged.
        self.refused: dict[int, set[int]] = {n: set() for n in range(scene.partitions)}

    @property
    def finished(self) -> bool:
        """Whether every offset was asked for."""
        return not self._open

    def ready(self) -> None:
        """Begin with all partitions that are left, anew on each connection."""
        for partition in sorted(self._open):
            self._fetch(partition, self.history.starts.get(partition, 0))

    def _fetch(self, partition: int, offset: int) -> None:
        records = self.history.drained[partition]
        if not records or offset > max(values_by_offset(records)):
            self._open.discard(partition)
            return
        request = m.Fetch(self.addresses[partition], offset, 1, equal_stamps=True)
        self.ask(request, lambda reply: self._fetched(partition, offset, reply))

    def _fetched(self, partition: int, offset: int, reply: m.Reply) -> None:
        if isinstance(reply, m.Fetched) and reply.next_offset > offset:
            # What was seen is compared in the end.
            self.check(partition, reply.batches, offset, reply.voids)
            self._fetch(partition, reply.next_offset)
            return
        if isinstance(reply, m.Fetched) and self.world.now < self._patient_until:
            self.soon(self._fetch, partition, offset)
            return
        text = f"{offset} of {partition} was there, and now: {reply}"
        if isinstance(reply, m.Refusal):
            error = refusal(reply.code, reply.message, reply.detail)
            if error.retryable:
                self.soon(self._fetch, partition, offset)
                return
            if self._moved_up(partition, offset, error):
                return
            damaged = isinstance(error, DamagedRange) and " at position " in reply.message
            if damaged or (isinstance(error, OffsetOutOfRange) and self.refused[partition]):
                self.refused[partition].add(offset)
                self._fetch(partition, offset + 1)
                return
        self.complain("Durable", text)
        self._open.discard(partition)

    def _moved_up(self, partition: int, offset: int, error: Refused) -> bool:
        """Go on where a partition begins now: what let go of the rest was under way until then."""
        behind, kept = offset < error.detail, not self.refused[partition]
        if isinstance(error, OffsetOutOfRange) and self.history.retention_bytes and behind and kept:
            self.history.starts[partition] = error.detail
            self._fetch(partition, error.detail)
            return True
        return False

    def judge(self, spoilt: Sequence[Rot]) -> None:
        """Complain if more is refused than the entries that the rot is in, and what was cut off."""
        lost = sum(
            record.size
            for partition, offsets in self.refused.items()
            for record in self.history.drained[partition]
            if offsets & set(range(record.offset, record.offset + len(record.values)))
        )
        if lost > sum(one.costs for one in spoilt):
            self.complain("Durable", f"{lost} bytes are refused for {names(spoilt)}")


def names(spoilt: Sequence[Rot]) -> list[str]:
    """Return the files that were spoilt, in that order."""
    return [one.file for one in spoilt]


def complaint(ruined: str, spoilt: Sequence[Rot]) -> str:
    """Return what is wrong with a start that was refused; empty if it names what is damaged."""
    named = any(one.file in ruined for one in spoilt)
    return "" if named else f"{names(spoilt)} rotted: {ruined}"
