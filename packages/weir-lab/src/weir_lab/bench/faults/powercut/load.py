"""The load: writers that keep a steady pace, a consumer that works 2 ms on each message, and
readers in total order.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from weir.client.client import Client, Connecting, connect
from weir.client.consumer.consumer import Consumer
from weir.client.core.retries import Backoff
from weir.client.producer.receipts import BatchReceipt
from weir.errors import UnknownTopic, WeirError
from weir.model.message import Message
from weir.model.topic import Order
from weir_lab.bench.faults.powercut.ledger import Given, Ledger, Name, Place, name_of, value_of

TOPIC = "power"
CLUSTER = "workers"
#: What the consumer does with a message takes so long, as in Minos, section 4.3.
WORK_SECONDS = 0.002
#: All writers together; the consumer could do 500 in a second if it did nothing else.
MESSAGES_PER_S = 240
_TURN_SECONDS = 0.025
#: Sent and not acked; with more the writers wait for the consumer, who stands still in an outage.
_BEHIND_MAX = 2_000
#: A grant is acked as a whole, so that the ledger knows which acks were confirmed.
_GRANT_MESSAGES = 32
_TIMEOUT = 60.0
#: Behind an error the consumer rests: a node that refuses at once would do nothing else.
_REST_SECONDS = 0.05
#: What was worked on is acked long before a consumer ends, unless the nodes are gone.
_END_SECONDS = 5.0
_RETRY = Backoff(first=0.02, most=0.2)


@dataclass(slots=True)
class Pulse:
    """Tells when something has moved, and how long none of the writers heard anything."""

    #: Acks that were confirmed, of a grant each; and these, confirms and what readers were given.
    acks: int = 0
    moves: int = 0
    dark_s: float = 0.0
    _confirmed_at: float = 0.0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def confirm(self) -> None:
        """Note a confirm."""
        now = time.monotonic()
        if self._confirmed_at:
            self.dark_s = max(self.dark_s, now - self._confirmed_at)
        self._confirmed_at = now
        self.moves += 1
        self._changed.set()

    def ack(self) -> None:
        """Note a confirmed ack."""
        self.acks += 1
        self.moves += 1
        self._changed.set()

    def give(self) -> None:
        """Note that a reader was given a message."""
        self.moves += 1
        self._changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Return once it is so; it is asked after each of these."""
        while not reached():
            self._changed.clear()
            await self._changed.wait()

    def longest_gap(self) -> float:
        """Return the longest time without any confirm, in seconds, since this was asked last."""
        dark, self.dark_s = self.dark_s, 0.0
        return dark


class Load:
    """Clients whose tasks are `write`, `work` and, for each reader, `read`; what they saw stands in
    `ledger`.
    """

    def __init__(
        self, publish_at: str, consume_at: str, partitions: int, lease_s: float, *,
        order: Order = "partition", readers: int = 0,
    ) -> None:  # fmt: skip
        """Take where writers connect, and where the consumer and readers do; each partition gets a
        writer, each grant such a lease. Only a topic in total order has readers.
        """
        self.ledger = Ledger(partitions, readers)
        self.pulse = Pulse()
        self._publish_at = publish_at
        self._consume_at = consume_at
        self._partitions = partitions
        self._lease_s = lease_s
        self._order: Order = order
        self._stop = asyncio.Event()

    def publishing(self, name: str) -> Connecting:
        """Return a client on its way to where messages are published, patient enough for any outage
        here.
        """
        return connect(self._publish_at, name=name, retry=_RETRY, request_timeout=_TIMEOUT)

    def consuming(self, name: str) -> Connecting:
        """Return the same on its way to where they are consumed."""
        return connect(self._consume_at, name=name, retry=_RETRY, request_timeout=_TIMEOUT)

    async def write(self) -> None:
        """Send until `stop`; return when all of it is confirmed."""
        async with self.publishing("writers") as client:
            await client.create_topic(TOPIC, partitions=self._partitions, order=self._order)
            await asyncio.gather(*(self._writer(client, n) for n in range(self._partitions)))

    async def work(self) -> None:
        """Consume for ever."""
        await self.pulse.until(lambda: any(self.ledger.confirmed.values()))
        async with self.consuming("consumer") as client:
            await known(client)
            consumer = await client.consumer(
                TOPIC, cluster=CLUSTER, max_messages=_GRANT_MESSAGES, lease=self._lease_s
            ).open()
            try:
                while True:
                    # It goes on after an error, as a user's program would.
                    try:
                        await self._work_on(consumer)
                    except WeirError:
                        await asyncio.sleep(_REST_SECONDS)
            finally:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_END_SECONDS):
                        await consumer.close()

    async def read(self, reader: int) -> None:
        """Read in total order for ever."""
        await self.pulse.until(lambda: any(self.ledger.confirmed.values()))
        async with self.consuming(f"reader-{reader}") as client:
            await known(client)
            async with client.reader(TOPIC, order="total") as reading:
                async for message in reading:
                    self.ledger.readings[reader].append(given(message))
                    self.pulse.give()

    async def flows(self) -> None:
        """Return once each writer has a confirm of what it sends from now on, each reader was given
        such a message, and a grant is acked.

        That is, everything that there was to wait for is over.
        """
        marks, acks, confirmed = dict(self.ledger.sent), self.pulse.acks, self.ledger.confirmed
        sent = sum(marks.values())
        await self.pulse.until(
            lambda: (
                self.pulse.acks > acks
                and all(len(one) > sent for one in self.ledger.readings)
                and all(len(confirmed[writer]) > mark for writer, mark in marks.items())
            )
        )

    def stop(self) -> None:
        """Send nothing more."""
        self._stop.set()

    async def all_done(self) -> None:
        """Return once everything that was sent was worked on, its ack confirmed, and each reader
        was given as many messages.
        """
        ledger = self.ledger
        await self.pulse.until(
            lambda: (
                ledger.behind <= 0
                and all(len(one) >= sum(ledger.sent.values()) for one in ledger.readings)
            )
        )

    async def _writer(self, client: Client, writer: int) -> None:
        def confirm(one: BatchReceipt) -> None:
            # They come in the order of sending.
            self.ledger.confirmed[writer] += range(one.offset, one.offset + one.count)
            self.pulse.confirm()

        sent, due = self.ledger.sent, 0.0
        producer = await client.producer(
            TOPIC, partition=writer, linger=0.002, on_confirm=confirm
        ).open()
        try:
            while not self._stop.is_set():
                # Behind a long outage nothing is sent for now, so that no `send` would say this.
                if producer.error is not None:
                    raise producer.error
                if self.ledger.behind < _BEHIND_MAX:
                    due += MESSAGES_PER_S * _TURN_SECONDS / self._partitions
                while sent[writer] < due:
                    await producer.ready()
                    producer.send(value_of(Name(writer, sent[writer])))
                    sent[writer] += 1
                await asyncio.sleep(_TURN_SECONDS)
            await producer.flush()
        finally:
            # A cancelled producer waits for no confirm: the nodes are gone.
            await producer.close()

    async def _work_on(self, consumer: Consumer) -> None:
        async for grant in consumer.batches():
            places = []
            for message in grant.messages():
                places.append(Place(message.partition, message.offset))
                self.ledger.deliver(places[-1], message.value)
                await asyncio.sleep(WORK_SECONDS)
            if await grant.ack(confirmed=True):
                self.ledger.ack(places)
                self.pulse.ack()


async def known(client: Client) -> None:
    """Return once the topic is known where a client connects; relays hear of it from the core."""
    while True:
        try:
            await client.positions(TOPIC)
        except UnknownTopic:
            await asyncio.sleep(_REST_SECONDS)
        else:
            return


def given(message: Message) -> Given:
    """Return what the ledger has of a message that a reader was given."""
    return Place(message.partition, message.offset), name_of(message.value)
