"""What `Client.publish` sends by: a producer a topic, opened when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from weir.client.connection.link import Link
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import Receipt
from weir.errors import Refused, UnknownTopic

#: A topic, and whether for what is delayed: that may be refused, or wait, where the rest does not.
_Kind = tuple[str, bool]


class Publishing:
    """The producers that all publishes of a client share."""

    def __init__(self, link: Link, producer: Callable[[str], Producer]) -> None:
        """Have none; `producer` returns one that is not open."""
        self._link = link
        self._producer = producer
        self._producers: dict[_Kind, Producer] = {}
        self._retired: list[Producer] = []
        self._opening = asyncio.Lock()

    async def publish(
        self,
        topic: str,
        delayed: bool,
        send: Callable[[Producer], Coroutine[Any, Any, Receipt]],
    ) -> Receipt:
        """Return what `send` returns of the topic's producer. Raises as `Producer.publish`."""
        kind = (topic, delayed)
        known = self._producers.get(kind)
        producer = known or await self._shared(kind)
        try:
            return await send(producer)
        except Refused as error:
            # A refused batch may have ended the producer: the next publish opens a new one.
            # What the old one has under way to other partitions goes on.
            if producer.error is None:
                raise
            if self._producers.get(kind) is producer:
                self._retired.append(self._producers.pop(kind))
            if known is None or not isinstance(error, UnknownTopic):
                raise
        # It was deleted since, and may have been made again: a name means what it means now.
        return await send(await self._shared(kind))

    async def close(self) -> None:
        """Flush what is under way, as far as the link is up, and give up the rest."""
        producers = [*self._producers.values(), *self._retired]
        self._producers.clear()
        try:
            for producer in producers:
                if self._link.error is None and producer.buffered:
                    await producer.flush()
        finally:
            for producer in producers:
                await producer.close()

    async def _shared(self, kind: _Kind) -> Producer:
        async with self._opening:
            for producer in [old for old in self._retired if not old.buffered]:
                self._retired.remove(producer)
                await producer.close()
            if kind not in self._producers:
                self._producers[kind] = await self._producer(kind[0]).open()
            return self._producers[kind]
