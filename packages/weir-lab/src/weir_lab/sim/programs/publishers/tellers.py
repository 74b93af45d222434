"""Simulated clients that publish because of what they have read: causes and their effects."""

from __future__ import annotations

from typing import ClassVar

from weir.errors import Refused, StampTooFar
from weir.order.clock import milliseconds_of
from weir.protocol.client import messages as m
from weir.testing.simulator.world import EPOCH_MS, MS
from weir_lab.sim.programs.publishers.producers import Batch, Producer
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.subscribers.order_readers import OrderReader

#: What was read may lie so far ahead of the time, and an answer is still sent.
_AHEAD_MS = 500


class Teller(Producer):
    """Sends to one partition, each time after all that a reader of all partitions has received."""

    def __init__(
        self, scene: Scene, name: str, partition: int, batches: int, reader: OrderReader
    ) -> None:
        """Publish so many batches, and have seen what `reader` has."""
        super().__init__(scene, name, partition, batches)
        self._reader = reader
        #: The highest stamp that was read before the last batch.
        self._told = 0

    def _compose(self) -> Batch | None:
        """Return the next batch; None while nothing new was read, or what was read lies in the
        future of sound clocks.
        """
        heard = self._reader.heard
        if heard == self._told:
            return None
        if milliseconds_of(heard) > EPOCH_MS + self.world.now // MS + _AHEAD_MS:
            return None
        self._told = heard
        self._seen = max(self._seen, heard)
        return super()._compose()

    def _refused(self, batch: Batch, send: int, error: Refused) -> None:
        if isinstance(error, StampTooFar) and batch.send == send and batch.publish.honest:
            self._rewind(batch)  # its leader's clock is behind: it goes on
        else:
            super()._refused(batch, send, error)


class PatientTeller(Teller):
    """Waits until nothing can come before what it sent."""

    level: ClassVar[m.Level] = m.Level.VISIBLE
