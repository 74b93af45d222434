"""Programs without async: they call `weir.sync`, each in a thread of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from weir.client.client import Client
from weir.client.core.retries import Backoff
from weir.client.producer.receipts import BatchReceipt, Receipt
from weir.client.sync import client as sync
from weir.errors import Disconnected, OffsetOutOfRange, ValueLost, WeirError
from weir.model.limits import MIB
from weir.testing.simulator.clients.threads import current_thread, run_in_loop
from weir.testing.simulator.world import SECOND
from weir_lab.sim.history import UNKNOWN, Publish
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.shipped.process import Shipped
from weir_lab.sim.programs.shipped.producers import ShippedProducer
from weir_lab.sim.programs.shipped.readers import ShippedReader

_MANY = (1, 3, 8)
#: How many messages a reader takes before it is left for another one.
_TAKES = (1, 10, 100)


class BlockingProducer(ShippedProducer):
    """Publishes so often, one message at a time or many at once, and waits for each call."""

    async def work(self, client: Client) -> None:
        """Publish until nothing is left, over a connection of its own."""
        await self.in_thread(self._produce_all)
        await self.told_to_end()

    def _produce_all(self) -> None:
        with connected(self) as w:
            while self._left and not self._ending:
                self._left -= 1
                if self._style == "publish":
                    self._publish_one(w)
                else:
                    self._publish_some(w)
                sleep(self._rhythm())

    def _publish_one(self, w: sync.Client) -> None:
        (value,) = self._values(1)
        publish, key = self._begin(value), self._key(value)
        with self.operation("blocking publish"):
            try:
                receipt = w.publish(TOPIC, value, key=key, partition=self._partition)
            except WeirError as error:
                self._failed([publish], error)
            else:
                self._confirmed(publish, receipt)

    def _publish_some(self, w: sync.Client) -> None:
        """Send some by a producer, which waits for all in the end."""
        values = self._values(self.world.dice.choice(_MANY))
        with self.operation(f"blocking send_many of {len(values)}"):
            publishes: list[Publish] = []
            try:
                with w.producer(TOPIC, partition=self._partition, ack=self._ack) as producer:
                    publishes = [self._begin(value) for value in values]
                    handed = producer.send_many(values)
                for batch in handed:
                    some, publishes = publishes[: batch.count], publishes[batch.count :]
                    self._note_confirms(some, batch.wait())
            except WeirError as error:
                self._failed(publishes, error)

    def _note_confirms(self, publishes: Sequence[Publish], done: BatchReceipt) -> None:
        for place, publish in enumerate(publishes):
            offset = done.offset + place if done.offset >= 0 else UNKNOWN
            receipt = Receipt(TOPIC, done.partition, offset, done.stamp, done.duplicate)
            self._confirmed(publish, receipt)


class BlockingReader(ShippedReader):
    """Reads the whole topic again and again, to a cut or a number of messages."""

    async def work(self, client: Client) -> None:
        """Read until it is to end; then once more, all that is there."""
        await self.in_thread(self._read_all)

    def _read_all(self) -> None:
        with connected(self) as w:
            while not self._ending:
                self._read_some(w, self.world.dice.choice(_TAKES))
                sleep(self._rhythm())
            while not self._read_some(w, 0):
                sleep(self._rhythm())

    def _read_some(self, w: sync.Client, most: int) -> bool:
        """Read so many messages at most, or all; return whether all were read."""
        self._resumed = False
        with self.operation(f"blocking read {self._order}"):
            since = self.world.now
            try:
                with w.reader(
                    TOPIC,
                    start="earliest",
                    order=self._order,
                    follow=False,
                    value_bytes_max=MIB if self._loads else 0,
                ) as reader:
                    start = dict(reader.positions)
                    readings, self._read_to = self._begun(start), dict(start)
                    for taken, message in enumerate(reader, 1):
                        self._note(readings, start, message)
                        if taken == most:
                            return False
            except ValueLost as error:
                self._lost(error)
            except OffsetOutOfRange as error:
                self._moved_up({}, error)
            except Disconnected as error:
                self.world.note(self.name, "reads no more", str(error))
            except WeirError as error:
                self.expect(error, "Durable", "a blocking reader was refused")
            else:
                for reading in readings.values():
                    reading.cut = since
                return True
        return False


def connected(process: Shipped) -> sync.Client:
    """Return a connection of `weir.sync` for a thread of a process."""
    retry = Backoff(most="500ms")
    return sync.connect(
        process.url, name=process.name, retry=retry, request_timeout=process.timeout
    )


def sleep(duration: int) -> None:
    """Wait so many virtual µs."""
    run_in_loop(current_thread(), asyncio.sleep(duration / SECOND))
