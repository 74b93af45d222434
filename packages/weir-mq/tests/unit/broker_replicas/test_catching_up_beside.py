"""A world in which a node catches up while clients publish: it makes way, and it gets there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from weir.broker.api.settings import Replication
from weir.broker.replica.catch_up import CatchUp, CatchUpPermits
from weir.protocol.client import messages as m

PIECE = 4_096
#: More of a piece than this is under way only where nobody makes way.
WINDOW = 4 * PIECE
MISSED = 150
#: So long it may take at most, in the time of the world: it lags by some 40 pieces.
BOUND_MS = 8_000
HARD_BOUND_MS = 40_000


class Beside:
    """A trio of which one node was away, and clients that publish to one group for ever."""

    def __init__(self, trio: Any, produce: Any, seed: int, every_ms: int) -> None:
        self.trio, self.produce = trio, produce
        self.dice = random.Random(seed)
        self.every_ms = every_ms
        self.info, self.grant = trio.topic(), trio.producer()
        self.id = self.info.addresses[0].group
        self.sent = 0
        self.leader = trio.leader(self.id)
        for _ in range(3):
            assert isinstance(trio.told(self.next_batch(), self.id), m.Confirm)
        taken = {self.leader.id, trio.leader().id}
        self.away = next(node for node in trio.live() if node.id not in taken)
        self.away.kill()
        for _ in range(MISSED):
            assert isinstance(trio.told(self.next_batch(), self.id), m.Confirm)

    def next_batch(self) -> m.Produce:
        """Return the next batch, of one message that is an entry by itself."""
        value = b"%06d" % self.sent + bytes(994)
        self.sent += 1
        batch: m.Produce = self.produce(self.info, self.grant, self.sent - 1, value)
        return batch

    @property
    def lacks(self) -> int:
        """How many entries the node that was away does not have yet."""
        here, there = self.away.group(self.id), self.leader.group(self.id)
        return there.node.log.last_index - (here.node.log.durable if here is not None else 0)

    def regain(self, bound_ms: int) -> Iterator[int]:
        """Start the node again; tell each millisecond when that was, until it lacks little."""
        self.away.boot()
        for ms in range(bound_ms):
            if ms % self.every_ms == 0:
                self.leader.ask(self.next_batch())
            self.trio.clock.wall += 1
            self.trio.clock.monotonic += 1
            if ms % 50 == 0:
                self.trio.pass_ms(0)
            for _ in range(self.dice.randint(1, 6)):
                self.trio.one(self.dice)
                self.trio.trunks.carry()
            if self.lacks <= 16:
                return
            yield ms
        raise AssertionError(f"{self.lacks} entries are lacking after {bound_ms} ms")


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(one, marks=pytest.mark.slow) for one in range(3, 6))]
)
def test_a_node_catches_up_beside_live_traffic(
    make_trio: Any, produce: Any, monkeypatch: Any, seed: int
) -> None:
    replication = Replication(append_bytes_max=PIECE, inflight_bytes_max=WINDOW)
    world = Beside(make_trio(replication=replication), produce, seed, every_ms=5)
    reads, ends = list[int](), list[int]()
    read, done = CatchUp.read, CatchUpPermits.done

    def note_read(self: CatchUp, load: Any) -> None:
        reads.append(world.trio.clock.monotonic)
        read(self, load)

    def note_done(self: CatchUpPermits, group: int) -> None:
        ends.append(world.trio.clock.monotonic)
        done(self, group)

    monkeypatch.setattr(CatchUp, "read", note_read)
    monkeypatch.setattr(CatchUpPermits, "done", note_done)
    most = max((world.lacks for _ in world.regain(BOUND_MS)), default=0)
    assert most > MISSED // 2
    assert len(reads) >= 10, "it came from memory"
    # Of each piece: what it took, and the rest before the next one.
    pairs = list(zip(reads, ends, reads[1:], strict=False))
    assert all(end <= following for _, end, following in pairs), "several were under way"
    rested = sum(following - end for _, end, following in pairs)
    worked = sum(end - began for began, end, _ in pairs)
    assert 1.5 * worked <= rested <= 2 * worked + 12 * len(pairs), (rested, worked)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in (1, 2))]
)
def test_a_node_gets_there_though_more_is_written_than_it_gains_beside_it(
    make_trio: Any, produce: Any, monkeypatch: Any, seed: int
) -> None:
    monkeypatch.setattr("weir.broker.runtime.live_traffic.REST", 40)
    replication = Replication(append_bytes_max=PIECE, inflight_bytes_max=WINDOW)
    world = Beside(make_trio(replication=replication), produce, seed, every_ms=8)
    lacks = [world.lacks for _ in world.regain(HARD_BOUND_MS)]
    assert max(lacks) > MISSED, "it was left behind at first, or the world is too easy"
