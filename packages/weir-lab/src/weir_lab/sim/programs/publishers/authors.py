"""Simulated authors: they write values in chunks, and take one producer id from each other."""

from __future__ import annotations

from dataclasses import dataclass

from weir.errors import Fenced, Refused, ValueLost
from weir.model.batch import parse
from weir.model.columns import References, chained, runs_of
from weir.protocol.client import messages as m
from weir.testing.simulator.world import MS
from weir_lab.sim.history import Fence
from weir_lab.sim.programs.publishers.producers import Batch, Producer
from weir_lab.sim.programs.scene import Scene

_PIECES = (100, 600, 1_500)
_PIECES_MAX = 5
_LARGE = 0.4
_GIVE_UP = 0.15
_CLAIM = 0.06
_CLAIM_AGAIN = (20 * MS, 200 * MS)
_CONTINUE = 0.3


@dataclass(slots=True)
class Pen:
    """The producer id that authors take from each other; 0 until one of them has opened it."""

    producer: int = 0
    opening: bool = False
    #: The bytes of the value that was under way when it was taken last.
    growing: int = 0


class Author(Producer):
    """Publishes values in chunks and others, until another author takes the pen from it.

    It goes on in the older epoch until it is told; from then on nothing of that may be accepted.
    """

    def __init__(
        self,
        scene: Scene,
        name: str,
        partition: int,
        batches: int,
        pen: Pen,
    ) -> None:
        """Publish so many batches, chunks among them, with `pen`."""
        super().__init__(scene, name, partition, batches)
        self._pen = pen
        self._asking = False
        self._claimed = 0
        self._growing = bytearray()
        self._pieces_left = 0
        #: By sequence, the index of each chunk of the value under way; 0 until it is confirmed.
        self._chunks: dict[int, int] = {}
        self._hash = 0

    def ready(self) -> None:
        """Take the pen, or open it; then go on."""
        if self._grant is not None:
            super().ready()
        elif not self.ending:
            self._claim()

    def closed(self) -> None:
        """Whether the pen was taken is not known: take it again."""
        super().closed()
        if self._asking:
            self._asking = self._pen.opening = False
            self._void()

    # -- the pen -------------------------------------------------------------------------------

    def _claim(self) -> None:
        if self.link is None or self._asking or self.ending:
            return
        if self._pen.opening:
            self.soon(self._claim)
            return
        self._asking = True
        self._pen.opening = not self._pen.producer
        self.ask(m.OpenProducer(self._pen.producer), self._opened)

    def _opened(self, reply: m.Reply) -> None:
        self._asking = False
        if self._pen.opening:
            self._pen.opening = False
        if not isinstance(reply, m.ProducerGrant):
            if self._grant is None:
                self.soon(self._claim)
            return
        self._void()
        self._pen.producer = reply.producer
        self._grant = reply
        if reply.epoch and not self.scene.brokers.far:
            # An undecided part hides all messages behind it: a request with a stamp waits until it
            # is decided.
            stamp = 1 if self.history.scatterings else 0
            asks = m.Positions(self.addresses[self._partition], stamp)
            self.ask(asks, lambda there: self._fenced(reply, there))
        if self._pen.growing and self.world.chance(_CONTINUE):
            # Chunks of an ended epoch are void: nothing may be added to them.
            piece = [self._values.one()]
            self._send(self._batch(0, piece, honest=False, chunk_at=self._pen.growing))
        self._run()

    def _fenced(self, grant: m.ProducerGrant, reply: m.Reply) -> None:
        """All that older epochs will ever have written is there."""
        if isinstance(reply, m.PositionsReply):
            fence = Fence(self._partition, grant.producer, grant.epoch, reply.end)
            self.history.fences.append(fence)

    def _void(self) -> None:
        """What was under way in an ended epoch may be there, or not."""
        for batch in self._held:
            batch.operation.ended = self.world.now
        self._pen.growing = len(self._growing)
        self._held.clear()
        self._done.clear()
        self._chunks.clear()
        self._growing = bytearray()
        self._sequence = self._pieces_left = 0
        self._grant = None

    # -- values --------------------------------------------------------------------------------

    def _next(self) -> None:
        if self._grant is None:
            self._running = False
            return
        if self.world.chance(_CLAIM):
            self._claim()
        super()._next()

    def _compose(self) -> Batch | None:
        dice = self.world.dice
        if not self._growing and not self._pieces_left and self.world.chance(_LARGE):
            self._pieces_left = dice.randint(1, _PIECES_MAX)
        if self._pieces_left:
            self._pieces_left -= 1
            piece = self._values.one(dice.choice(_PIECES))
            batch = self._batch(self._sequence, [piece], chunk_at=len(self._growing))
            self._hash = chained(self._hash if self._growing else 0, parse(batch.data).hash)
            self._growing += piece
            self._chunks[self._sequence] = 0
            return batch
        if self._growing and self.world.chance(_GIVE_UP):
            self._growing = bytearray()  # the next value takes its place
            self._chunks.clear()
        if not self._growing or self.world.chance(_CONTINUE):
            return super()._compose()
        return self._close() if all(self._chunks.values()) else None

    def _close(self) -> Batch:
        whole = bytes(self._growing)
        indices = [index for _, index in sorted(self._chunks.items())]
        references = References(len(whole), self._hash, runs_of(indices))
        self.history.keep_whole(self._partition, references.pack(), whole)
        self._growing = bytearray()
        self._chunks.clear()
        return self._batch(self._sequence, [], references=references)

    def _confirmed(self, batch: Batch, reply: m.Confirm) -> None:
        sequence = batch.publish.sequence
        if sequence in self._chunks:
            self._chunks[sequence] = reply.index

    def _refused(self, batch: Batch, send: int, error: Refused) -> None:
        if batch.publish.honest and batch not in self._held:
            return  # of an ended epoch, or a repeat
        expired = isinstance(error, ValueLost) and self.history.values_expire
        if batch.publish.honest and (isinstance(error, Fenced) or expired):
            self._void()
            self.world.after(self.world.between(*_CLAIM_AGAIN), self._claim)
        else:
            super()._refused(batch, send, error)
