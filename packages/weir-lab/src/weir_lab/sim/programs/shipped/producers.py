"""Producers of the shipped client: one message at a time, in bursts, and many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from weir.client.arguments import AckLevel
from weir.client.client import Client
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import PendingBatch, PendingMessage, Receipt
from weir.errors import Disconnected, PartitionEnded, WeirError
from weir_lab.sim.history import UNKNOWN, Confirmed, Publish
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import Shipped

_KEYS = (None, None, b"a", b"b", b"c")
_SIZES = ((8,), (0, 0, 30, 200))
#: How many messages go out together, by how likely that is.
_COUNTS = (1, 1, 2, 5)
_MANY = (3, 8, 20)
#: How likely the next is sent before the last is confirmed.
_AHEAD = 0.4
_ACKS: tuple[AckLevel, ...] = ("replicated", "replicated", "replicated", "received", "visible")
_WINDOWS = (1, 2, 8)
#: How likely a producer is left for another one.
_LEAVE = 0.1


class ShippedProducer(Shipped):
    """Publishes so often, in one of three ways, to a partition of its own or to whichever."""

    def __init__(self, scene: Scene, name: str, partition: int | None, times: int) -> None:
        """Publish `times` times, then wait for the end."""
        super().__init__(scene, name)
        self._partition = partition
        self._left = times
        dice = scene.world.dice
        self._style = dice.choice(("publish", "burst", "many"))
        self._sizes = dice.choice(_SIZES)
        self._ack = dice.choice(_ACKS) if self._style != "publish" else _ACKS[0]
        self._serial = 0
        self._number = 0
        #: What the producer of just now was handed.
        self._out: list[PendingBatch | PendingMessage] = []

    async def work(self, client: Client) -> None:
        """Publish until nothing is left, and wait for what was sent."""
        while self._left and not self._ending:
            waiting: list[asyncio.Task[None]] = []
            try:
                if self._style == "publish":
                    while self._left and not self._ending:
                        await self._turn(waiting, self._publish(client))
                else:
                    await self._produce(client, waiting)
            finally:
                await asyncio.gather(*waiting)
        await self.told_to_end()

    async def _produce(self, client: Client, waiting: list[asyncio.Task[None]]) -> None:
        dice = self.world.dice
        producer = client.producer(
            TOPIC,
            linger=dice.choice((0, "1ms", "20ms")),
            batch_bytes=dice.choice((300, 4_000)),
            window=dice.choice(_WINDOWS),
            partition=self._partition,
            ack=self._ack,
        )
        self._out, before = [], list[PendingBatch | PendingMessage]()
        try:
            async with producer:
                while self._left and not self._ending and producer.error is None:
                    send = self._burst if self._style == "burst" else self._many
                    await self._turn(waiting, send(producer))
                    if self.world.chance(_LEAVE):
                        break
                before = [*self._out]
        except WeirError as error:
            self._met(error)
        else:
            await self._flushed(before)

    async def _flushed(self, before: Sequence[PendingBatch | PendingMessage]) -> None:
        """A program that leaves a producer without an error knows that everything it sent before is
        confirmed.
        """
        for one in before:
            try:
                await one
            except WeirError as error:
                self.complain("Durable", f"a producer was flushed, and then came {error!r}")

    async def _turn(
        self, waiting: list[asyncio.Task[None]], sending: Coroutine[Any, Any, None]
    ) -> None:
        """Begin one, and wait for it or not."""
        self._left -= 1
        task = asyncio.get_running_loop().create_task(sending)
        waiting.append(task)
        if not self.world.chance(_AHEAD):
            await asyncio.wait([task])
        await self.rest()

    # -- three ways ----------------------------------------------------------------------------

    async def _publish(self, client: Client) -> None:
        """Publish one message by the client itself."""
        (value,) = self._values(1)
        publish, key = self._begin(value), self._key(value)
        with self.operation("publish"):
            try:
                receipt = await client.publish(TOPIC, value, key=key, partition=self._partition)
            except WeirError as error:
                self._failed([publish], error)
            else:
                self._confirmed(publish, receipt)

    async def _burst(self, producer: Producer) -> None:
        """Send some messages, and wait for the receipt of each."""
        values = self._values(self.world.dice.choice(_COUNTS))
        with self.operation(f"burst of {len(values)}"):
            publishes, sents = [], []
            try:
                for value in values:
                    await producer.ready()
                    publish = self._begin(value)
                    publishes.append(publish)
                    sents.append(producer.send(value, key=self._key(value)))
                    self._out.append(sents[-1])
            except WeirError as error:
                self._failed(publishes[-1:], error)
            for publish, sent in zip(publishes, sents, strict=False):
                try:
                    self._confirmed(publish, await sent)
                except WeirError as error:
                    self._failed([publish], error)

    async def _many(self, producer: Producer) -> None:
        """Send many at once, and wait for the confirms of their batches."""
        values = self._values(self.world.dice.choice(_MANY))
        publishes = [self._begin(value) for value in values]
        with self.operation(f"send_many of {len(values)}"):
            try:
                handed = await producer.send_many(values)
            except WeirError as error:
                self._gave_up(error)  # the batches before the one that was refused may be there
                return
            self._out += handed
            for batch in handed:
                some, publishes = publishes[: batch.count], publishes[batch.count :]
                await self._settle(some, batch)

    async def _settle(self, publishes: Sequence[Publish], batch: PendingBatch) -> None:
        try:
            done = await batch
        except WeirError as error:
            self._failed(publishes, error)
            return
        for place, publish in enumerate(publishes):
            offset = done.offset + place if done.offset >= 0 else UNKNOWN
            receipt = Receipt(TOPIC, done.partition, offset, done.stamp, done.duplicate)
            if batch.moved is None:
                self._confirmed(publish, receipt)

    # -- what is noted -------------------------------------------------------------------------

    def _values(self, count: int) -> list[bytes]:
        values = []
        for _ in range(count):
            self._serial += 1
            name = f"{self.name}.{self.life}.{self._serial}".encode()
            values.append(name.ljust(self.world.dice.choice(self._sizes), b"."))
        return values

    def _key(self, value: bytes) -> bytes | None:
        key = self.world.dice.choice(_KEYS)
        if key is not None:
            self.history.keys[value] = key
        return key

    def _begin(self, value: bytes) -> Publish:
        self._number += 1
        publish = Publish(
            UNPLACED if self._partition is None else self._partition,
            ("shipped", self.name, self.life),
            self._number,
            (value,),
            self.world.now,
            early=self._ack == "received",
            visible=self._ack == "visible",
            after=self.seen,
            sends=1,
        )
        self.history.publishes.append(publish)
        return publish

    def _confirmed(self, publish: Publish, receipt: Receipt) -> None:
        publish.partition = receipt.partition
        offset = UNKNOWN if receipt.offset < 0 else receipt.offset
        publish.confirms.append(Confirmed(self.world.now, offset, receipt.stamp))
        self.world.note(self.name, "receipt", receipt.partition, offset, receipt.stamp)
        if not publish.early:
            self.seen = max(self.seen, receipt.stamp)

    def _failed(self, publishes: Sequence[Publish], error: WeirError) -> None:
        if isinstance(error, PartitionEnded) and self._partition is not None:
            for publish in publishes:
                publish.ended = not publish.early
        self._gave_up(error)

    def _gave_up(self, error: WeirError) -> None:
        self.world.note(self.name, "failed", type(error).__name__)
        if isinstance(error, PartitionEnded) and self._partition is not None:
            self._left = 0
            return
        self._met(error)

    def _met(self, error: WeirError) -> None:
        ended = isinstance(error, PartitionEnded) and self._partition is not None
        if not isinstance(error, Disconnected) and not ended:
            self.expect(error, "OneOffset", "a message was refused for good")


#: Where it is not known which partition a message went to: nobody confirmed it.
UNPLACED = -1
