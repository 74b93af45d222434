"""Pulls of a consumer: one task a partition, which asks for grants and checks what comes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from weir.client.chunked import Chunks, loaded
from weir.client.delivered import Delivered, LargeDelivered, deliver
from weir.client.feed import Feed
from weir.client.growth import watch
from weir.client.link import Link
from weir.client.places import Places
from weir.client.reader import EMPTY_PAUSE, LONG_POLL
from weir.errors import ValueLost
from weir.model.ids import Address
from weir.model.message import Message
from weir.wire import messages as m


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease of messages [offset, next_offset) until `deadline`, a stamp."""

    topic: str
    partition: int
    fence: int
    deadline: int
    offset: int
    next_offset: int
    attempts: int
    batches: tuple[Delivered, ...]

    def messages(self) -> Iterator[Message]:
        """Split into messages as people read them."""
        return chain.from_iterable(delivered.messages() for delivered in self.batches)


@dataclass(frozen=True, slots=True)
class Pulled:
    """A grant that came, the time of `time.monotonic` its lease ends at, and whom to let go on."""

    grant: Grant
    ends: float
    slot: asyncio.Semaphore

    @property
    def over(self) -> bool:
        """Whether its lease has ended: the messages are, or will be, another consumer's."""
        return time.monotonic() >= self.ends


class Pulling:
    """Asks for the grants of one topic's partitions, those that are added later too."""

    def __init__(
        self, home: Link, places: Places, cluster: str, max_bytes: int, lease: float
    ) -> None:
        """Take where to ask; `home` is the link whose publishes come after what is pulled."""
        #: Messages to ask for; whoever takes the grants says.
        self.size = 1
        self._home = home
        self._places = places
        self._cluster = cluster
        self._max_bytes = max_bytes
        self._lease = lease

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return len(self._places)

    def feed(self) -> Feed[Pulled]:
        """Begin to pull."""
        feed = Feed(partial(self._pull, p) for p in range(len(self._places)))
        feed.add(self._watch)
        return feed

    async def _watch(self, feed: Feed[Pulled]) -> None:
        def grown(partitions: range) -> None:
            for partition in partitions:
                feed.add(partial(self._pull, partition))

        await watch(self._places, grown)

    async def _pull(self, partition: int, feed: Feed[Pulled]) -> None:
        # One grant ahead of the user, no more: its lease runs while it waits.
        slot = asyncio.Semaphore(1)
        while True:
            await slot.acquire()
            grant = await self._once(partition)
            if grant is None:
                slot.release()
                await asyncio.sleep(EMPTY_PAUSE)
            else:
                feed.put(Pulled(grant, time.monotonic() + self._lease, slot))
                del grant  # this task sleeps for long, and what is opened of it grows

    async def _once(self, partition: int) -> Grant | None:
        places, delivered = self._places, list[Delivered]()

        def request(address: Address) -> m.Request:
            wait_ms, lease_ms = int(LONG_POLL * 1_000), int(self._lease * 1_000)
            return m.Pull(address, self._cluster, self.size, self._max_bytes, wait_ms, lease_ms)

        def check(granted: m.Granted) -> None:
            delivered[:] = deliver(
                granted.batches,
                places[partition].group,
                places.topic,
                partition,
                granted.offset,
                granted.next_offset,
                Chunks(places),
            )

        granted = await places.ask(partition, request, m.Granted, wait=LONG_POLL, check=check)
        if granted.fence == 0:
            return None
        for part in delivered:
            self._home.saw(part.batch.header.stamp)
        return Grant(
            places.topic,
            partition,
            granted.fence,
            granted.deadline,
            granted.offset,
            granted.next_offset,
            granted.attempts,
            tuple(delivered),
        )


async def with_values(grant: Grant, size_max: int) -> Grant:
    """Return the grant with its large values fetched, as far as `size_max` bytes hold them."""
    if not any(isinstance(one, LargeDelivered) for one in grant.batches):
        return grant
    batches: list[Delivered] = []
    for one in grant.batches:
        whole = one
        # One that is gone is told to whoever opens it: the others are here.
        with contextlib.suppress(ValueLost):
            whole = await loaded(one, size_max)
        if isinstance(whole, LargeDelivered) and whole.loaded is not None:
            size_max -= len(whole.loaded)
        batches.append(whole)
    return replace(grant, batches=tuple(batches))
