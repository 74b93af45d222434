"""A simulated producer: pipelined, idempotent, and now and then up to mischief."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from weir import codec
from weir.errors import (
    Fenced,
    PartitionEnded,
    Refused,
    SequenceGap,
    SequenceReused,
    ValueLost,
    refusal,
)
from weir.model.batch_builder import encode
from weir.model.columns import References
from weir.model.ids import window_of
from weir.model.limits import PIPELINE_WINDOW
from weir.protocol.client import messages as m
from weir.testing.simulator.world import EPOCH_MS, MS
from weir_lab.sim.history import Confirmed, Operation, Publish
from weir_lab.sim.programs.program import Client
from weir_lab.sim.programs.scene import Scene

_NEXT = (0, 25 * MS)
#: Between nodes a program takes its time: so that a producer has several batches under way, some of
#: its batches follow on each other as quickly as its window allows.
_BURST = 0.6
_NEXT_OF_BURST = (0, 4 * MS)
_MISCHIEF = 0.15
_RESEND = 0.1
_TWICE = 0.1
#: How likely one of several batches is confirmed, and a later one sent again at once.
_IMPATIENT = 0.4
_KEYS = (None, b"a", b"b", b"c")
_DELAYED = 0.3
#: Shorter than consumers wait in the end before they go.
_DELAYS_MS = (0, 20, 100, 300)
_COMPRESSIONS = (0, codec.LZ4, codec.ZSTD)
#: How mischief is met.
_EXPECTED = (SequenceGap, SequenceReused, ValueLost, Fenced, PartitionEnded)


@dataclass(slots=True, eq=False)
class Batch:
    """A batch of this producer's; `send` is the number of its latest send, 0 if it must go out."""

    publish: Publish
    data: bytes
    operation: Operation
    send: int = 0
    #: How many were made before it.
    number: int = 0


class Values:
    """Values that nobody had before, and how a producer packs them, as it was drawn for it."""

    def __init__(self, name: str, dice: Random) -> None:
        """Draw sizes and compression of a producer that is called `name`."""
        self._name = name
        self._dice = dice
        self._serial = 0
        # Of one size in half of the runs, so that new frames begin where dropped ones did.
        self._sizes = dice.choice(((8,), (0, 0, 30, 200)))
        self._counts = (1,) if len(self._sizes) == 1 else (1, 1, 2, 5)
        self.compression = dice.choice(_COMPRESSIONS)

    def one(self, size: int = 0) -> bytes:
        """Return a value of any size from `size` on."""
        self._serial += 1
        name = f"{self._name}.{self._serial}".encode()
        return name.ljust(max(size, self._dice.choice(self._sizes)), b".")

    def some(self) -> list[bytes]:
        """Return the values of a batch."""
        return [self.one() for _ in range(self._dice.choice(self._counts))]


class Producer(Client):
    """Sends batches to one partition, always with the same bytes, until they are confirmed."""

    #: When a batch counts as confirmed.
    level: ClassVar[m.Level] = m.Level.REPLICATED

    def __init__(
        self,
        scene: Scene,
        name: str,
        partition: int,
        batches: int,
    ) -> None:
        """Publish so many batches, then be finished."""
        super().__init__(scene, name)
        self._partition = partition
        self._left = batches
        self._window = scene.world.dice.choice((1, 2, 4, 8, PIPELINE_WINDOW))
        self._grant: m.ProducerGrant | None = None
        self._sequence = 0
        self._sends = 0
        self._seen = 0
        self._made = 0
        self._held: list[Batch] = []
        self._done: list[Batch] = []
        self._paused = False
        self._running = False
        #: Batches left of a burst.
        self._burst = 0
        self._values = Values(name, scene.world.dice)

    @property
    def finished(self) -> bool:
        """Whether all that was begun is confirmed."""
        return not self._held

    def ready(self) -> None:
        """Open a producer id once; then send again whatever has no answer."""
        if self._grant is None:
            self.ask(m.OpenProducer(window=self._window), self._opened)
        else:
            self._send_all()
            self._run()

    def closed(self) -> None:
        """Everything unconfirmed goes out again, in order."""
        super().closed()
        for batch in self._held:
            batch.send = 0

    def _opened(self, reply: m.Reply) -> None:
        if self._grant is not None:
            return  # it asked twice, for it had been refused on one connection and lost another
        if isinstance(reply, m.ProducerGrant):
            self._grant = reply
            self._run()
        elif not self.ending:
            self.soon(self.ready)

    def _run(self) -> None:
        if not self._running:
            self._running = True
            self.world.after(self._until_next(), self._next)

    @property
    def _has_room(self) -> bool:
        """Whether another batch may go out: the broker remembers so many answers behind the first
        that is not confirmed, and not more.
        """
        span = self._made - self._held[0].number if self._held else 0
        return len(self._held) < self._window and span < self._remembered

    @property
    def _remembered(self) -> int:
        """How many answers the broker keeps."""
        return window_of(self._grant.producer) if self._grant is not None else 0

    def _until_next(self) -> int:
        if not self._burst and self.scene.brokers.far and self.world.chance(_BURST):
            self._burst = self._window
        elif self._burst:
            self._burst -= 1
        return self.world.between(*_NEXT_OF_BURST) if self._burst else self.rhythm(_NEXT)

    def _next(self) -> None:
        """Make the next batch, or some mischief."""
        self._running = False
        if self.link is None or self.ending or not self._left:
            return
        if self._has_room and (batch := self._compose()) is not None:
            self._left -= 1
            batch.number = self._made
            self._made += 1
            self._held.append(batch)
            self._sequence += max(1, len(batch.publish.values))
            self._send_all()
            if self.world.chance(_TWICE):
                self._send(self.world.dice.choice(self._held))
        # Within the window of answers that the broker keeps, counting those under way.
        oldest = self._made - self._remembered
        near = [batch for batch in self._done[-PIPELINE_WINDOW:] if batch.number >= oldest]
        if near and self.world.chance(_RESEND):
            self._send(self.world.dice.choice(near))
        if self.world.chance(_MISCHIEF):
            self._cheat()
        self._run()

    def _cheat(self) -> None:
        """Send what must be refused: a sequence too far ahead, or a used one with other bytes."""
        if self._done and self.world.chance(0.5):
            sequence = self.world.dice.choice(self._done).publish.sequence
            assert sequence is not None
        else:
            # What is late, and comes beside what another connection brings, may be next by then.
            far = 1_000 if self.scene.brokers.far else 0
            sequence = self._sequence + far + self.world.dice.randrange(1, 4)
        self._send(self._batch(sequence, [self._values.one()], honest=False))

    def _compose(self) -> Batch | None:
        """Return the next batch; None if there is none now."""
        values = self._values.some()
        return self._batch(self._sequence, values, **self._columns(values))

    def _columns(self, values: Sequence[bytes]) -> dict[str, Any]:
        """Return keys, for a cluster that keeps order, or times, where no such one reads."""
        dice, history = self.world.dice, self.history
        if self._partition:
            keys = [dice.choice(_KEYS) for _ in values]
            history.keys.update((v, k) for v, k in zip(values, keys, strict=True) if k is not None)
            return {"keys": keys}
        if not self.scene.delays or not self.world.chance(_DELAYED):
            return {}
        now_ms = EPOCH_MS + self.world.now // MS
        dues = [now_ms + delay if (delay := dice.choice(_DELAYS_MS)) else 0 for _ in values]
        history.dues.update((v, due) for v, due in zip(values, dues, strict=True) if due)
        return {"dues": [due * 1000 for due in dues]}

    def _batch(
        self, sequence: int, values: Sequence[bytes], honest: bool = True, **columns: Any
    ) -> Batch:
        """Seal a batch; `columns` are those of `weir.model.batch_builder.encode`."""
        assert self._grant is not None
        producer, epoch = self._grant.producer, self._grant.epoch
        data = encode(
            values,
            group=self.addresses[self._partition].group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            compression=self._values.compression,
            **columns,
        )
        references: References | None = columns.get("references")
        if "chunk_at" in columns:
            values = ()  # no reader ever sees it
        elif references is not None:
            values = (references.pack(),)
        publish = Publish(
            self._partition,
            ("producer", producer, epoch),
            sequence,
            tuple(values),
            self.world.now,
            honest,
            early=self.level is m.Level.RECEIVED,
            visible=self.level is m.Level.VISIBLE,
            after=self._seen,
        )
        self.history.publishes.append(publish)
        if honest:
            operation = self.history.begin(f"{self.name}: batch {sequence}", self.world.now)
        else:
            operation = Operation("mischief", self.world.now, self.world.now)
        return Batch(publish, bytes(data), operation)

    def _send_all(self) -> None:
        if self._paused:
            return
        for batch in self._held:
            if not batch.send and not batch.publish.confirms:
                self._send(batch)

    def _send(self, batch: Batch) -> None:
        self._sends += 1
        batch.send = send = self._sends
        batch.publish.sends += 1
        address, data = self.addresses[self._partition], memoryview(batch.data)
        request = m.Produce(address, batch.publish.after, data, self.level)
        self.ask(request, lambda reply: self._answered(batch, send, reply))

    def _answered(self, batch: Batch, send: int, reply: m.Reply) -> None:
        publish = batch.publish
        if isinstance(reply, m.Confirm):
            publish.confirms.append(Confirmed(self.world.now, reply.offset, reply.stamp))
            self._seen = max(self._seen, reply.stamp)
            batch.operation.ended = self.world.now
            if batch in self._held:
                self._held.remove(batch)
                self._done.append(batch)
                self._confirmed(batch, reply)
                if self.scene.brokers.far and self._held and self.world.chance(_IMPATIENT):
                    self._send(self.world.dice.choice(self._held))
        elif isinstance(reply, m.Refusal):
            self._refused(batch, send, refusal(reply.code, reply.message, reply.detail))

    def _confirmed(self, batch: Batch, reply: m.Confirm) -> None:
        """The first confirm of a batch came."""

    def _refused(self, batch: Batch, send: int, error: Refused) -> None:
        if not batch.publish.honest:
            if not error.retryable and not isinstance(error, _EXPECTED):
                self.complain("Honest", f"mischief met an odd refusal: {error!r}")
            return
        if isinstance(error, PartitionEnded) and not batch.publish.confirms:
            if batch in self._held:
                self._give_up(batch)
            return
        if batch.send != send:
            return  # a refusal counts only if it answers the latest send
        gap = isinstance(error, SequenceGap) and batch in self._held
        if not (error.retryable or gap):
            self.complain("OneOffset", f"an honest batch was refused for good: {error!r}")
            return
        self._rewind(batch)

    def _give_up(self, batch: Batch) -> None:
        """The partition has ended: it took nothing from this batch on, and never will."""
        first = self._held.index(batch)
        for later in self._held[first:]:
            later.publish.ended = not later.publish.early
            later.operation.ended = self.world.now
        del self._held[first:]
        self._left = 0

    def _rewind(self, batch: Batch) -> None:
        """All behind a batch were refused too, or will be: send them again in a while."""
        if batch not in self._held:
            return  # a repeat, sent for the fun of it; or an earlier send found that all is over
        for later in self._held[self._held.index(batch) :]:
            later.send = 0
        self._paused = True
        self.soon(self._resume)

    def _resume(self) -> None:
        self._paused = False
        if self.link is not None:
            self._send_all()
