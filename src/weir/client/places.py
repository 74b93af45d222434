"""Where a topic's partitions are served, asked again when they move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from weir.client.link import Link
from weir.errors import BadBatch, NotLeader, UnknownTopic, WeirError
from weir.model.ids import Address
from weir.wire import messages as m

R = TypeVar("R")

TRIES = 8
#: Far fewer than a broker lets one connection have open.
_ASKED_TOGETHER = 256


class Places:
    """The addresses of one topic, for requests that go to a partition's leader."""

    def __init__(self, link: Link, topic: str, info: m.TopicInfo) -> None:
        """Take what `find` was told."""
        self.topic = topic
        self._link = link
        self._info = info

    @classmethod
    async def find(cls, link: Link, topic: str) -> Places:
        """Ask where a topic is served. Raises `UnknownTopic`."""
        return cls(link, topic, await link.request(m.DescribeTopic(topic), m.TopicInfo))

    async def find_again(self) -> None:
        """Ask where the topic is served now, and how many partitions it has.

        Raises `UnknownTopic` if it was deleted, also if it was made again: that is another one.
        """
        info = await self._link.request(m.DescribeTopic(self.topic), m.TopicInfo)
        if info.id != self._info.id:
            raise UnknownTopic(f"{self.topic} was deleted and made again: open it anew", info.id)
        self._info = info

    @property
    def id(self) -> int:
        """The number of the topic."""
        return self._info.id

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._info.addresses)

    def __getitem__(self, partition: int) -> Address:
        if not 0 <= partition < len(self):
            raise UnknownTopic(
                f"{self.topic} has no partition {partition}: give 0 to {len(self) - 1}"
            )
        return self._info.addresses[partition]

    async def ask(
        self,
        partition: int,
        request: Callable[[Address], m.Request],
        kind: type[R],
        *,
        wait: float,
        check: Callable[[R], None],
    ) -> R:
        """Return the leader's reply once `check` accepts it; ask again where the leader moved.

        A reply whose bytes changed on the way (`BadBatch`) is asked for again too, 8 times in all.
        """
        attempt = 0
        while True:
            try:
                reply = await self._link.request(request(self[partition]), kind, wait=wait)
                check(reply)
            except (NotLeader, BadBatch) as error:
                attempt += 1
                if attempt == TRIES:
                    raise
                await self._after(attempt, error)
            else:
                return reply

    async def positions(
        self, stamp: int = 0, partitions: Iterable[int] | None = None
    ) -> dict[int, m.PositionsReply]:
        """Return where some partitions, or all, begin and end; a few hundred are asked at a time.

        See `weir.wire.messages.PositionsReply` for what `stamp` does.
        """
        found: dict[int, m.PositionsReply] = {}
        asked = [*(range(len(self)) if partitions is None else partitions)]
        for first in range(0, len(asked), _ASKED_TOGETHER):
            some = asked[first : first + _ASKED_TOGETHER]
            replies = await asyncio.gather(*(self._position(p, stamp) for p in some))
            found.update(zip(some, replies, strict=True))
        return found

    async def _position(self, partition: int, stamp: int) -> m.PositionsReply:
        return await self.ask(
            partition,
            lambda address: m.Positions(address, stamp),
            m.PositionsReply,
            wait=0.0,
            check=lambda _: None,
        )

    async def _after(self, attempt: int, error: WeirError) -> None:
        await asyncio.sleep(self._link.pause(attempt, error))
        if isinstance(error, NotLeader):
            await self.find_again()
