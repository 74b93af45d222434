"""Simulated producers of level `received`: confirmed by one disk, and so perhaps in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from weir.errors import Fenced, PartitionEnded, Refused, SequenceGap
from weir.protocol.client import messages as m
from weir.testing.simulator.network import Link
from weir_lab.sim.history import UNKNOWN
from weir_lab.sim.programs.publishers.producers import Batch, Producer
from weir_lab.sim.programs.scene import Scene


class Hasty(Producer):
    """Takes the leader's disk for enough, and goes on where that was lost (counterexample 19).

    The log ends before all that it holds then. So none of that is in it, and it comes again, once,
    in the next epoch, which ends what may still be on its way.
    """

    level: ClassVar[m.Level] = m.Level.RECEIVED

    def __init__(self, scene: Scene, name: str, partition: int, batches: int) -> None:
        """Publish so many batches, then be finished."""
        super().__init__(scene, name, partition, batches)
        #: The connection on which it asked for its next epoch, and how often it ever asked.
        self._asked_on: Link | None = None
        self._asks = 0

    def _cheat(self) -> None:
        """Be honest: where a batch was lost its sequence is free, and other bytes are as good."""

    def _confirmed(self, batch: Batch, reply: m.Confirm) -> None:
        if reply.offset != UNKNOWN or reply.index:
            self.complain("Durable", f"a place was named that may become another's: {reply}")

    def _refused(self, batch: Batch, send: int, error: Refused) -> None:
        first = self._held[0].publish.sequence if self._held else None
        if isinstance(error, SequenceGap | PartitionEnded) and batch.publish.confirms:
            return  # it is sent for the fun of it, and was lost: what is held will find that out
        if isinstance(error, Fenced) and self._grant is not None and self._asks > self._grant.epoch:
            # Of two times that it asked, what it heard of was done first.
            self._drop_epoch(self._grant.producer)
        elif not isinstance(error, SequenceGap) or first is None or batch.send != send:
            super()._refused(batch, send, error)
        elif error.detail < first and self._grant is not None:
            self._drop_epoch(self._grant.producer)
        else:
            super()._refused(batch, send, error)

    def ready(self) -> None:
        """Open the next epoch, if that is what was under way."""
        if self._grant is None and self._held:
            self._begin_anew(self._held[0].publish.producer[1])
        else:
            super().ready()

    def _next(self) -> None:
        if self._grant is None:
            self._running = False
        else:
            super()._next()

    def _opened(self, reply: m.Reply) -> None:
        if not self._held:  # else it is another epoch that it waits for
            super()._opened(reply)

    def _drop_epoch(self, producer: int) -> None:
        self._grant = None
        for later in self._held:
            later.send = 0
        self._begin_anew(producer)

    def _begin_anew(self, producer: object) -> None:
        if self._grant is None and self.link is not None and self.link is not self._asked_on:
            assert isinstance(producer, int)
            self._asked_on, self._asks = self.link, self._asks + 1
            self.ask(m.OpenProducer(producer), lambda reply: self.begun(producer, reply))

    def begun(self, producer: int, reply: m.Reply) -> None:
        self._asked_on = None
        if not isinstance(reply, m.ProducerGrant):
            self.soon(self._begin_anew, producer)
            return
        self._grant = reply
        self._done.clear()
        self._sequence = 0
        held, self._held = self._held, []
        for old in held:
            old.operation.ended = self.world.now
            values = old.publish.values
            self._held.append(self._batch(self._sequence, values, **self._columns_of(values)))
            self._sequence += len(values)
        self._send_all()
        self._run()

    def _columns_of(self, values: Sequence[bytes]) -> dict[str, Any]:
        """Return keys or times as these values had them before."""
        keys, dues = self.history.keys, self.history.dues
        if self._partition:
            return {"keys": [keys.get(value) for value in values]}
        if dues.keys().isdisjoint(values):
            return {}
        return {"dues": [dues.get(value, 0) * 1000 for value in values]}
