"""Where a topic's partitions are served, asked again when they move, and when some may be added."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from weir.client.connection.network_client import NetworkClient
from weir.errors import (
    BadBatch,
    Disconnected,
    NotLeader,
    Refused,
    Unavailable,
    UnknownTopic,
    WeirError,
)
from weir.model.ids import PARTITIONS_MAX, Address, group_of
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

R = TypeVar("R")

TRIES = 8
#: Seconds until it is asked again where a partition is that is only reached by way of others.
LOOK_EVERY = 2.0
#: Far fewer than a broker lets one connection have open.
_ASKED_TOGETHER = 256
#: Seconds before the client asks again which partitions have joined.
_LOOK_AGAIN = 0.05
#: Seconds until a partition that was added is noticed, at the latest.
ASK_EVERY = 10.0


class Places:
    """The addresses of one topic, for requests that go to a partition's leader."""

    def __init__(self, network: NetworkClient, topic: str, info: m.TopicInfo) -> None:
        """Take what `find` was told."""
        self.topic = topic
        self._network = network
        self._info = info
        self._sought = 0.0

    @classmethod
    async def find(cls, network: NetworkClient, topic: str) -> Places:
        """Ask where a topic is served. Raises `UnknownTopic`."""
        return cls(network, topic, await network.request(m.DescribeTopic(topic), m.TopicInfo))

    async def find_again(self) -> None:
        """Ask where the topic is served now, and how many partitions it has.

        Raises `UnknownTopic` if it was deleted, also if it was made again: that is another one.
        """
        await self._take(await self._ask())

    async def look_again(self) -> None:
        """Do as `find_again`, with the answer to another one of this client that does just now."""
        await self._take(await self._network.looks.share(self.topic, self._ask))

    async def _ask(self) -> m.TopicInfo:
        self._sought = asyncio.get_running_loop().time()
        return await self._network.request(m.DescribeTopic(self.topic), m.TopicInfo)

    async def _take(self, info: m.TopicInfo) -> None:
        if info.id != self._info.id:
            raise UnknownTopic(
                f"{self.topic} was deleted and created again: open it again", info.id
            )
        former, self._info = self._info, info
        self._include(former.addresses)
        await self._network.learn(info.addresses)

    async def next_look(self) -> None:
        """Return when it is time to look again how many partitions there are: with all others of
        this client that do, and after `ASK_EVERY` seconds at most.
        """
        await self._network.looks.wait(ASK_EVERY)

    def include(self, former: Places) -> None:
        """Add the partitions that were known of this topic before, over another connection."""
        self._include(former._info.addresses)

    def _include(self, former: Sequence[Address]) -> None:
        # A node that lags behind may not have heard of all of them yet: none is ever taken away.
        addresses = [*self._info.addresses, *former[len(self) :]]
        self._info = msgspec.structs.replace(self._info, addresses=addresses)

    async def find_all(self, count: int) -> None:
        """Return once it is known where so many partitions are served.

        Raises `Unavailable` if that takes longer than a request may.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._network.request_timeout
        while len(self) < count:
            await self.find_again()
            if len(self) >= count:
                return
            if loop.time() >= until:
                raise Unavailable(
                    f"{self.topic} has {count} partitions, and it is not said where they are "
                    "served: try again shortly"
                )
            await asyncio.sleep(_LOOK_AGAIN)

    async def find_these(self, partitions: Iterable[int]) -> None:
        """Return once it is known where these partitions are served.

        The node that was asked may not have heard yet of a partition that was added. Raises
        `UnknownTopic` for one that the topic does not have, `Unavailable` as `find_all` does.
        """
        asked = [*partitions]
        last = max(asked, default=0)
        if len(self) <= last < PARTITIONS_MAX and min(asked) >= 0:
            # Refused only by a node whose registry is up to date.
            request = a.AskLeader(Address(0, 0, group_of(self.id, last)))
            try:
                await self._network.request(request, a.LeaderInfo)
            except UnknownTopic:
                await self.find_again()
            else:
                await self.find_all(last + 1)
        for partition in asked:
            self[partition]  # raises if the topic has no such partition

    @property
    def id(self) -> int:
        """The number of the topic."""
        return self._info.id

    @property
    def schema(self) -> tuple[int, bool]:
        """The number of the newest version of its schema, 0 for none; whether values are checked
        by it before they are sent.
        """
        return self._info.schema, self._info.checked

    @property
    def order(self) -> str:
        """What of the topic has one order: each "partition", or all together ("total")."""
        return self._info.order

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._info.addresses)

    @property
    def closed(self) -> frozenset[int]:
        """The partitions to which nothing is published any more, as was told last."""
        return self._info.closed

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
        wait: float = 0.0,
        check: Callable[[R], None] | None = None,
        again: bool = True,
        behind: Callable[[m.Request], bool] | None = None,
    ) -> R:
        """Return the leader's reply, once `check` accepts it; ask again where the leader moved, for
        as long as a request may take. `again` and `behind` as in `NetworkClient.request`.

        A reply whose bytes changed on the way (`BadBatch`) is asked for again too, 8 times in all.
        """
        loop = asyncio.get_running_loop()
        bad = moves = 0
        until = 0.0
        while True:
            await self._look(partition)
            try:
                reply = await self._network.request(
                    request(self[partition]), kind, wait=wait, again=again, behind=behind
                )
                if check is not None:
                    check(reply)
            except BadBatch as error:
                bad += 1
                if bad == TRIES:
                    raise
                await asyncio.sleep(self._network.pause(bad, error))
            except NotLeader as error:
                moves += 1
                until = until or loop.time() + self._network.request_timeout
                pause = self._network.pause(moves, error)
                if loop.time() + pause >= until:
                    raise
                if not error.detail:
                    self._network.doubt(moves)
                await asyncio.sleep(pause)
                await self._follow(partition, error.detail)
            else:
                return reply

    async def positions(
        self, stamp: int = 0, partitions: Iterable[int] | None = None
    ) -> dict[int, m.PositionsReply]:
        """Return where some partitions, or all, begin and end; a few hundred are asked at a time.

        See `weir.protocol.client.messages.PositionsReply` for what `stamp` does.
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
        )

    async def _follow(self, partition: int, node: int) -> None:
        """Go to the node that is said to lead now; without one, ask again."""
        if not node:
            await self.find_again()
        elif partition < len(self):
            self._info.addresses[partition] = self._network.led_by(self[partition], node)

    async def _look(self, partition: int) -> None:
        """Ask again where a partition is, now and then, while its node is not reached itself."""
        if not 0 <= partition < len(self) or not self._network.is_astray(self[partition]):
            return
        if asyncio.get_running_loop().time() - self._sought >= LOOK_EVERY:
            with contextlib.suppress(WeirError):  # the next request finds out
                await self.find_again()


async def watch(
    places: Places,
    known: int,
    grown: Callable[[range], None],
    looked: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Tell `grown` of partitions beyond the first `known`, and `looked` each time, until cancelled.

    Another request for the places of the topic may find them first: `grown` is told all the same.
    Raises `UnknownTopic` once the topic is gone, also if another of its name has come.
    """
    while True:
        await places.next_look()
        try:
            await places.look_again()
        except Disconnected:
            continue  # readers notice it themselves
        except Refused as error:
            if error.retryable:
                continue
            raise
        if len(places) > known:
            known, before = len(places), known
            grown(range(before, known))
        if looked is not None:
            await looked()
