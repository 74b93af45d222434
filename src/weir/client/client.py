"""`Client`: publish, produce, read, consume, and look after topics over one link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from weir.client.batching import BATCH_BYTES
from weir.client.consumer import Consumer, ConsumerOptions
from weir.client.link import Link
from weir.client.places import Places
from weir.client.producer import Producer, ProducerOptions
from weir.client.reader import Reader, ReaderOptions, Start
from weir.client.receipts import Confirmed, Receipt
from weir.errors import Refused
from weir.model.limits import GRANT_MS_DEFAULT, MIB
from weir.wire import messages as m


class Client:
    """One link to a system of brokers. Get one from `weir.client.connect.connect`."""

    def __init__(self, link: Link) -> None:
        """Take a link that is up; `close` ends it."""
        self._link = link
        self._producers: dict[str, Producer] = {}
        self._retired: list[Producer] = []
        self._opening = asyncio.Lock()

    @property
    def welcome(self) -> m.Welcome:
        """Who answered last, and its limits."""
        assert self._link.welcome is not None
        return self._link.welcome

    # Messages.

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
    ) -> Receipt:
        """Send one message and return where it is once a majority has it.

        `value` is bytes, text (sent as UTF-8) or anything msgspec writes as JSON; `time` is in µs
        since 1970. Publishes of the same turn of the event loop share a batch.
        """
        producer = self._producers.get(topic) or await self._shared(topic)
        try:
            return await producer.publish(
                value, key=key, tag=tag, time=time, headers=headers, partition=partition
            )
        except Refused:
            # A refused batch may have ended the producer: the next publish opens a new one.
            # What the old one has under way to other partitions goes on.
            if producer.error is not None and self._producers.get(topic) is producer:
                self._retired.append(self._producers.pop(topic))
            raise

    def producer(
        self,
        topic: str,
        *,
        linger: str | float = "5ms",
        batch_bytes: int = BATCH_BYTES,
        window: int = 8,
        partition: int | None = None,
        max_buffered: int = 64 * MIB,
        on_confirm: Callable[[Confirmed], None] | None = None,
    ) -> Producer:
        """Return a producer to enter with `async with`; leaving it flushes."""
        options = ProducerOptions(linger, batch_bytes, window, partition, max_buffered, on_confirm)
        return Producer(self._link, topic, options)

    def reader(
        self,
        topic: str,
        *,
        start: Start = "earliest",
        partitions: list[int] | None = None,
        max_bytes: int = 4 * MIB,
        follow: bool = True,
    ) -> Reader:
        """Return a reader of all or some partitions; `follow=False` ends at today's end.

        `start`: "earliest", "latest", or {partition: offset}, as `Reader.positions` gives it;
        partitions it does not name begin at their earliest.
        """
        return Reader(self._link, topic, ReaderOptions(start, partitions, max_bytes, follow))

    def consumer(
        self,
        topic: str,
        *,
        cluster: str,
        max_messages: int = 1_000,
        max_bytes: int = MIB,
        lease: str | float = GRANT_MS_DEFAULT / 1_000,
        ack_within: str | float = "50ms",
    ) -> Consumer:
        """Return a consumer that shares the topic's messages with all others of `cluster`."""
        options = ConsumerOptions(cluster, max_messages, max_bytes, lease, ack_within)
        return Consumer(self._link, topic, options)

    # Topics.

    async def create_topic(
        self, name: str, partitions: int = 1, order: str = "partition", if_absent: bool = True
    ) -> m.TopicInfo:
        """Create a topic, or take the one that exists if `if_absent` and its settings agree."""
        request = m.CreateTopic(name, partitions, order, if_absent)
        # Without if_absent a second try could meet the topic that the first one made.
        return await self._link.request(request, m.TopicInfo, again=if_absent)

    async def topics(self, namespace: str = "") -> list[m.TopicInfo]:
        """Return the topics of a namespace, or of all ("")."""
        return (await self._link.request(m.ListTopics(namespace), m.TopicList)).topics

    async def describe(self, name: str) -> m.TopicInfo:
        """Return a topic and where its partitions are served. Raises `UnknownTopic`."""
        return await self._link.request(m.DescribeTopic(name), m.TopicInfo)

    async def positions(self, name: str) -> tuple[list[int], list[int]]:
        """Return, by partition, the first offsets and those behind the last committed."""
        places = await Places.find(self._link, name)
        found = (await places.positions()).values()
        return [reply.start for reply in found], [reply.end for reply in found]

    async def ping(self) -> None:
        """Return when the broker has answered."""
        await self._link.request(m.Ping(), m.Pong)

    # Ending.

    async def close(self) -> None:
        """Flush the publishes under way, then end the link and all that runs over it."""
        producers = [*self._producers.values(), *self._retired]
        self._producers.clear()
        try:
            for producer in producers:
                if self._link.error is None and producer.buffered:
                    await producer.flush()
        finally:
            for producer in producers:
                await producer.close()
            await self._link.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    async def _shared(self, topic: str) -> Producer:
        async with self._opening:
            for producer in [old for old in self._retired if not old.buffered]:
                self._retired.remove(producer)
                await producer.close()
            if topic not in self._producers:
                self._producers[topic] = await self.producer(topic, linger=0).open()
            return self._producers[topic]
