"""Programs of the shipped client that send large values, and messages that are due later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from weir.client.client import Client
from weir.client.consumer.consumer import Consumer, LeasedMessage
from weir.client.core.retries import Backoff
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import Receipt
from weir.errors import Disconnected, TopicExists, ValueLost, WeirError
from weir.model.message import Message
from weir.testing.simulator.world import MS, SECOND
from weir_lab.sim.observations import Parcel, Parcels
from weir_lab.sim.programs.scene import Scene
from weir_lab.sim.programs.shipped.process import CHUNK_BYTES, Shipped

PARCELS = "parcels"
PORTERS = "porters"
_PARTITIONS = 2

#: In seconds: how late messages are due, and how long a lease is.
_DELAYS = ((0, 0.02, 0.1, 0.4), (0, 0.1, 1.0, 3.0))
_LEASES = ((0.1, 0.5), (1.0, 6.0))
_LARGE = 0.4
_CHUNKS_MAX = 5
#: How likely a piece of a value takes a while to come, and how long that is, in seconds.
_SLOW = 0.1
_SLOWLY = 0.05
#: How likely it does not wait for the receipt of one before it sends the next.
_AHEAD = 0.3
#: How likely it does nothing for a while, and how long that is at most, in seconds.
_IDLES = 0.3
_IDLE = 0.3
_WAITS = 0.4
_LEAVE = 0.06
#: How long the sender's clock goes right, and how far it is set back then, in seconds. Set ahead,
#: it would make some messages late by as much.
_STEADY = ((20 * MS, 300 * MS), (500 * MS, 4 * SECOND))
_SET = (0, 2, 60, 7_200)
#: How likely a message is given back, and for how long.
_NACK = 0.05
_NACKED = 0.05
#: How likely it is acked without a block, and then that this is waited for; and that a block fails.
_PLAINLY = 0.4
_CONFIRMED = 0.1
_RAISES = 0.1
#: How likely it is forgotten, and has no outcome until its consumer is left.
_FORGETS = 0.05
_RETRY = Backoff(first=0.02, most=0.3)


class Dropped(Exception):
    """A porter has dropped what it carried."""


async def _create(client: Client) -> None:
    with suppress(TopicExists):
        await client.create_topic(PARCELS, _PARTITIONS)


class ShippedSender(Shipped):
    """Sends so many parcels, then waits for the end."""

    def __init__(self, scene: Scene, name: str, times: int, parcels: Parcels) -> None:
        """Note in `parcels` what it sends."""
        super().__init__(scene, name)
        self._left = times
        self._parcels = parcels
        self._serial = 0
        #: Whether it hands over small ones alone, and so asks for the time but once.
        self._quick = False

    def start(self) -> None:
        """Start, on a machine whose clock will be set back by hours."""
        super().start()
        self.world.after(self.world.between(*_STEADY[self.scene.brokers.far]), self._set_clock)

    def _set_clock(self) -> None:
        if self.spared or self.retired:
            return
        self._skew_us -= self.world.dice.choice(_SET) * SECOND
        self.world.note("set clock of client", self.name, self._skew_us)
        self.world.after(self.world.between(*_STEADY[self.scene.brokers.far]), self._set_clock)

    async def work(self, client: Client) -> None:
        """Send, by one producer after the other."""
        await _create(client)
        self._quick = self.world.chance(0.5)
        while self._left and not self._ending:
            waiting: list[asyncio.Task[None]] = []
            try:
                async with client.producer(PARCELS, linger=0) as producer:
                    await self._send_some(producer, waiting)
            except WeirError as error:
                self._met(error)
            finally:
                await asyncio.gather(*waiting)
        await self.told_to_end()

    async def _send_some(self, producer: Producer, waiting: list[asyncio.Task[None]]) -> None:
        while self._left and not self._ending and producer.error is None:
            self._left -= 1
            task = asyncio.create_task(self._send(producer))
            waiting.append(task)
            if not self.world.chance(_AHEAD):
                await asyncio.wait([task])
            await self.rest()
            if self.world.chance(_IDLES):
                await asyncio.sleep(self.world.dice.random() * _IDLE)
            if self.world.chance(_LEAVE):
                return

    async def _send(self, producer: Producer) -> None:
        dice = self.world.dice
        self._serial += 1
        name = f"{self.name}.{self.life}.{self._serial}"
        large = not self._quick and self.world.chance(_LARGE)
        size = dice.randint(CHUNK_BYTES + 1, _CHUNKS_MAX * CHUNK_BYTES) if large else 0
        text = name.encode() + b"|"
        value = (text * (size // len(text) + 1))[: max(size, len(text))]
        delay = dice.choice(_DELAYS[self.scene.brokers.far])
        due = self.world.now + round(delay * 1_000_000) if delay else 0
        parcel = self._parcels.all[name] = Parcel(name, value, due, large)
        with self.operation(f"send {name}"):
            try:
                receipt = await self._published(producer, value, large, delay or None)
            except WeirError as error:
                self._met(error)
            else:
                parcel.place = receipt.partition, receipt.offset
                self.world.note(self.name, "sent", name, *parcel.place)

    async def _published(
        self, producer: Producer, value: bytes, large: bool, delay: float | None
    ) -> Receipt:
        if large:
            return await producer.publish_from(self._pieces(value), delay=delay)
        if not self._quick and self.world.chance(0.5):
            return await producer.publish(value, delay=delay)
        await producer.ready()
        return await producer.send(value, delay=delay)

    async def _pieces(self, value: bytes) -> AsyncIterator[bytes]:
        at = 0
        while at < len(value):
            size = self.world.dice.randint(1, CHUNK_BYTES)
            yield value[at : at + size]
            at += size
            if self.world.chance(_SLOW):
                await asyncio.sleep(_SLOWLY)

    def _met(self, error: WeirError) -> None:
        self.world.note(self.name, "failed", type(error).__name__)
        if not isinstance(error, ValueLost) or not self.history.values_expire:
            self.expect(error, "Delivered", "a parcel was refused for good")


class ShippedPorter(Shipped):
    """Takes parcels, until nothing is left that is not done."""

    def __init__(self, scene: Scene, name: str, parcels: Parcels) -> None:
        """Note in `parcels` what it gets."""
        super().__init__(scene, name)
        self._parcels = parcels
        self._lease = scene.world.dice.choice(_LEASES[scene.brokers.far])
        self._forgotten: list[LeasedMessage] = []

    async def work(self, client: Client) -> None:
        """Consume, as one consumer after the other."""
        await _create(client)
        while True:
            await self._consume(client)
            if self._ending and await self.is_drained(client, PORTERS, PARCELS):
                self._parcels.drained = True
                return
            await self.rest()

    async def _consume(self, client: Client) -> None:
        consumer = client.consumer(
            PARCELS,
            cluster=PORTERS,
            lease=self._lease,
            max_messages=self.world.dice.choice((1, 10)),
            max_work=None if self.world.chance(0.5) else 0,
            retry=_RETRY,
        )
        try:
            async with consumer:
                await self._take(consumer)
            self._forgotten.clear()
        except Disconnected as error:
            self.world.note(self.name, "takes no more", str(error))
        except ValueLost as error:
            if not self.history.values_expire:
                self.complain("Delivered", f"a value is lost: {error!r}")
        except WeirError as error:
            self.expect(error, "Delivered", "a consumer was refused")

    async def _take(self, consumer: Consumer) -> None:
        while True:
            try:
                async with asyncio.timeout(_WAITS):
                    message = await anext(consumer)
            except TimeoutError:
                if self._ending or self.world.chance(_LEAVE):
                    return
                continue
            parcel = self._got(message)
            await self._settle(message, parcel)
            await self.rest()

    async def _settle(self, message: LeasedMessage, parcel: Parcel | None) -> None:
        """Say that a message is done, or that it failed, in one of the ways to say so."""
        chance = self.world.dice.random()
        if self._ending or chance < _PLAINLY:
            _told(parcel)
            await message.ack(confirmed=chance < _CONFIRMED)
            return
        if chance > 1 - _NACK:
            await message.nack(_NACKED, confirmed=chance > 1 - _NACK / 2)
            return
        if chance > 1 - _NACK - _FORGETS:
            self._forgotten.append(message)
            return
        with suppress(Dropped):
            async with message:
                await self.rest()
                if chance > 1 - _NACK - _FORGETS - _RAISES:
                    raise Dropped
                _told(parcel)

    def _got(self, message: Message) -> Parcel | None:
        """Compare what came with what was sent."""
        name = message.value.split(b"|", 1)[0].decode(errors="replace")
        place = message.partition, message.offset
        self.world.note(self.name, "got", name, *place)
        parcel = self._parcels.all.get(name)
        if parcel is None:
            self.complain("Delivered", f"{name!r} at {place} was sent by nobody")
            return None
        if message.value != parcel.value:
            parcel.wrong = f"{len(message.value)} bytes at {place} for {len(parcel.value)}"
        parcel.places.add(place)
        if parcel.arrived < 0:
            parcel.arrived = self.world.now
        return parcel


def _told(parcel: Parcel | None) -> None:
    """Note that somebody is about to say that it is done."""
    if parcel is not None:
        parcel.told = True
