"""Large values against a model: producers that mix pieces and messages, crashes at any moment.

Whatever happens, readers see each closed value once, whole and in its producer's order, and of all
else nothing: no chunk, no abandoned value, no half of one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.broker_rig import FakeTime, Rig
from weir.broker.api.settings import ShardSettings
from weir.client.core.delivered_batches import Assembly
from weir.errors import ValueLost
from weir.model.batch import parse, split
from weir.model.columns import References, chained, extend
from weir.protocol.client import messages as m
from weir.testing.simulator.disk import SimDisk

PRODUCERS = 2


@dataclass
class Sent:
    """One batch, until it is confirmed; `piece` belongs to the value that is growing."""

    request: m.Produce
    value: bytes | None = None
    piece: bool = False
    asked: int = -1


@dataclass
class Publisher:
    """A client as it should be: one sequence, everything sent again until it is confirmed."""

    number: int
    grant: m.ProducerGrant
    sequence: int = 0
    serial: int = 0
    growing: bytearray = field(default_factory=bytearray)
    hash: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    held: list[Sent] = field(default_factory=list)
    done: list[bytes] = field(default_factory=list)


class Play:
    """The broker, its publishers, and what must come of it."""

    def __init__(self, seed: int) -> None:
        disk = SimDisk(random.Random(seed))
        self.rig = Rig(disk, FakeTime(), ShardSettings(), 1 << 16)
        self.rig.connect()
        self.info = self.rig.topic(1)
        self.group = self.info.addresses[0].group
        self.publishers = [
            Publisher(n, self.rig.answer(1, m.OpenProducer())) for n in range(PRODUCERS)
        ]

    def send(self, who: Publisher, *values: bytes, **more: Any) -> None:
        request = self.rig.batch(self.info, who.grant, who.sequence, *values, **more)
        who.sequence += 1
        value = more.pop("whole", values[0] if values else None)
        who.held.append(Sent(request, None if "chunk_at" in more else value))
        who.held[-1].piece = "chunk_at" in more
        who.held[-1].asked = self.rig.ask(1, request)

    def fresh(self, who: Publisher, size: int) -> bytes:
        who.serial += 1
        return f"{who.number}.{who.serial}.".encode().ljust(size, b"x")

    def small(self, who: Publisher, size: int) -> None:
        self.send(who, self.fresh(who, size))

    def piece(self, who: Publisher, size: int) -> None:
        piece = self.fresh(who, size)
        self.send(who, piece, chunk_at=len(who.growing))
        chunk = parse(who.held[-1].request.batch).hash
        who.hash = chained(who.hash if who.growing else 0, chunk)
        who.growing += piece

    def close(self, who: Publisher, size: int) -> None:
        self.settle()
        if not who.growing:
            return
        whole = bytes(who.growing)
        references = References(len(whole), who.hash, tuple(who.runs))
        self.send(who, references=references)
        who.held[-1].value = whole
        who.growing, who.runs = bytearray(), []

    def abandon(self, who: Publisher, size: int) -> None:
        self.settle()
        who.growing, who.runs = bytearray(), []

    def wrong(self, who: Publisher, size: int) -> None:
        """A piece with a hole before it: refused, and no sequence is used."""
        self.settle()
        hole = len(who.growing) + size
        request = self.rig.batch(self.info, who.grant, who.sequence, b"?", chunk_at=hole)
        assert self.rig.answer(1, request).code == ValueLost.code

    def settle(self) -> None:
        """Let all that is under way be confirmed; send again what a crash has lost."""
        while True:
            self.rig.settle()
            replies = dict(self.rig.replies[1])
            for who in self.publishers:
                while who.held and who.held[0].asked in replies:
                    self.confirmed(who, who.held.pop(0), replies)
            left = [(who, sent) for who in self.publishers for sent in who.held]
            if not left:
                return
            for _, sent in left:
                sent.asked = self.rig.ask(1, sent.request)

    def confirmed(self, who: Publisher, sent: Sent, replies: dict[int, Any]) -> None:
        confirm = replies[sent.asked]
        assert isinstance(confirm, m.Confirm), confirm
        assert (confirm.offset == -1) == sent.piece == (confirm.index > 0)
        if sent.piece:
            extend(who.runs, confirm.index)
        else:
            assert sent.value is not None
            who.done.append(sent.value)

    def crash(self, who: Publisher, size: int) -> None:
        """Lose memory, and what the disk was not asked to keep; take up again."""
        for _ in range(size % 3):
            if self.rig.jobs:
                self.rig.step()
        # What was confirmed by now was heard.
        replies = dict(self.rig.replies[1])
        for other in self.publishers:
            while other.held and other.held[0].asked in replies:
                self.confirmed(other, other.held.pop(0), replies)
        self.rig.disk.crash()
        self.rig.boot()
        self.rig.connect()
        for other in self.publishers:
            for sent in other.held:
                sent.asked = self.rig.ask(1, sent.request)

    def checkpoint(self, who: Publisher, size: int) -> None:
        self.rig.tick(400_000)
        self.rig.settle()

    def values(self) -> list[bytes]:
        """Every message there is, as a reader takes it."""
        found: list[bytes] = []
        while True:
            reply = self.rig.answer(1, m.Fetch(self.info.addresses[0], len(found), 1 << 14))
            batches = [batch for part in reply.batches for batch in split(part, self.group)]
            for batch in batches:
                if batch.piece is not None:
                    continue
                assert batch.header.first_offset == len(found)
                if batch.references is None:
                    found += batch.values()
                else:
                    found.append(self.whole(batch.references))
            if not batches:
                return found

    def whole(self, references: References) -> bytes:
        assembly, parts = Assembly(references, self.group), []
        while (wanted := assembly.wanted()) is not None:
            request = m.FetchChunks(self.info.addresses[0], *wanted, 1 << 14)
            pieces = assembly.opened(self.rig.answer(1, request).batches)
            assembly.took(pieces)
            parts += pieces
        return b"".join(parts)


MOVES = ["small", "piece", "piece", "close", "abandon", "wrong", "crash", "checkpoint", "settle"]
STEP = st.tuples(st.sampled_from(MOVES), st.integers(0, PRODUCERS - 1), st.integers(8, 4_000))


@settings(max_examples=60)
@given(st.integers(0, 99), st.lists(STEP, min_size=15, max_size=40))
def test_readers_see_each_closed_value_once_and_nothing_else(
    seed: int, steps: list[tuple[str, int, int]]
) -> None:
    play = Play(seed)
    for move, number, size in steps:
        if move == "settle":
            play.settle()
        else:
            getattr(play, move)(play.publishers[number], size)
    play.settle()
    values = play.values()
    for who in play.publishers:
        mine = [value for value in values if value.startswith(b"%d." % who.number)]
        assert mine == who.done
    assert len(values) == sum(len(who.done) for who in play.publishers)
    play.rig.boot()
    play.rig.connect()
    assert play.values() == values
