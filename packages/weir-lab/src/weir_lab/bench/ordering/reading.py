"""Readers of several partitions: each in its order, all in one, or as a sequencer numbered them."""

from __future__ import annotations

import heapq
import time
from typing import Literal

from weir.client.core.delivered_batches import Delivered
from weir.client.reader.reader import Reader
from weir_lab.bench.harness.payload import Checker
from weir_lab.bench.ordering.sending import MARK

#: How a topic is read. `sequencer`: partition by partition, sorted by the numbers of batches.
Order = Literal["partition", "total", "sequencer"]


class Reading:
    """Checks what a reader gives, batch by batch, and notes how late it is."""

    def __init__(self, order: Order, checker: Checker) -> None:
        """Take nothing yet."""
        self.order = order
        self.checker = checker
        #: Of batches, from when their producer began with them.
        self.delivery_ms: list[float] = []
        #: When a batch came last, on CLOCK_MONOTONIC.
        self.last_ns = 0
        #: Batches that came in front of one that belongs before them.
        self.misplaced = 0
        self._place = (0, 0, 0)
        self._next = 0
        self._early: list[tuple[int, int, int, Delivered]] = []
        self._batches = 0

    async def run(self, reader: Reader) -> None:
        """Take what comes until it is cancelled."""
        take = {"partition": self._give, "total": self._in_order, "sequencer": self._by_number}
        given = take[self.order]
        async for delivered in reader.batches():
            given(delivered)

    def _give(self, delivered: Delivered, since_us: int = 0, skip: int = 0) -> None:
        column = delivered.batch.value_column
        first = delivered.skip + skip
        self.checker.take(column.offsets[first : delivered.skip + len(delivered) + 1], column.data)
        self.last_ns = time.monotonic_ns()
        since_us = since_us or delivered.batch.header.base_time
        self.delivery_ms.append(time.time_ns() / 1e6 - since_us / 1e3)

    def _in_order(self, delivered: Delivered) -> None:
        place = delivered.batch.header.stamp, delivered.partition, delivered.offset
        self.misplaced += place <= self._place
        self._place = place
        self._give(delivered)

    def _by_number(self, delivered: Delivered) -> None:
        """Keep a batch until all that were numbered before it were here."""
        column = delivered.batch.value_column
        first, behind = column.offsets[delivered.skip : delivered.skip + 2]
        number, asked_us = MARK.unpack(column.data[first:behind])
        self._batches += 1
        heapq.heappush(self._early, (number, self._batches, asked_us, delivered))
        while self._early and self._early[0][0] == self._next:
            _, _, asked_us, delivered = heapq.heappop(self._early)
            self._next += 1
            self._give(delivered, asked_us, skip=1)
