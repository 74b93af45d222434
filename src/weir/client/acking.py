"""A consumer's acks on their way: gathered by partition, sent together, and told of when late.

What it gives back goes the same way: `weir.client.returning`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weir.client.acks import Acks
from weir.client.places import Places
from weir.client.runs import Run
from weir.errors import BadRequest, StaleGrant, UnknownCluster
from weir.model.ids import Address
from weir.wire import messages as m

log = logging.getLogger(__name__)

Range = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Stale:
    """Messages [offset, next_offset) that were settled after their lease had ended."""

    topic: str
    partition: int
    offset: int
    next_offset: int


class Acking:
    """Ranges (fence, first, next) of each partition that are done, until the broker knows it."""

    def __init__(self, topic: str, cluster: str, on_stale: Callable[[Stale], None] | None) -> None:
        """Begin with nothing done; `begin` says where the partitions are."""
        #: How many acks came too late.
        self.stale = 0
        #: By partition, the offset below which all is done, as of the last ack.
        self.cursors: dict[int, int] = {}
        self._topic = topic
        self._cluster = cluster
        self._on_stale = on_stale
        self._places: Places | None = None
        self._acks: dict[int, Acks] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._awaited: set[tuple[int, int]] = set()

    def begin(self, places: Places) -> None:
        """Send to these places from now on; what is not sent yet is kept, if it is of this topic
        and not of one that had its name.
        """
        if self._places is not None and self._places.id != places.id:
            self._acks.clear()
            self.cursors.clear()
        self._places = places

    def done(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a grant as done."""
        self._acks.setdefault(partition, Acks()).done(fence, first, behind)

    async def ack(self, partition: int, fence: int, runs: Sequence[Run]) -> bool:
        """Say that they are done; return when a majority knows, False if it was too late."""
        key = (partition, fence)
        self._awaited.add(key)
        try:
            for first, behind in runs:
                self.done(partition, fence, first, behind)
            await self.flush(partition)
            return key in self._awaited
        finally:
            self._awaited.discard(key)

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""
        return [partition for partition, acks in self._acks.items() if acks]

    async def flush(self, partition: int) -> None:
        """Ack all that waits; one request of a partition at a time, so that acks gather."""
        acks = self._acks.setdefault(partition, Acks())
        async with self._locks.setdefault(partition, asyncio.Lock()):
            while ranges := acks.take():
                try:
                    await self._ack(partition, ranges)
                except UnknownCluster:
                    # Of what was deleted, or lost, the broker knows nothing: to say it again and
                    # again would help nobody, and what is there comes again by itself.
                    raise
                except (StaleGrant, BadRequest) as error:
                    if len(ranges) > 1:
                        await self._ack_each(partition, acks, ranges)
                    elif isinstance(error, BadRequest):
                        raise
                    else:
                        self.expired(partition, ranges[0])
                except BaseException:
                    acks.put_back(ranges)
                    raise

    async def _ack_each(self, partition: int, acks: Acks, ranges: list[Range]) -> None:
        """Ack one by one: some are stale or lost, and the others must not suffer for it. Raises
        what was said of a lost one when all are told.
        """
        lost: BadRequest | None = None
        for at, one in enumerate(ranges):
            try:
                await self._ack(partition, [one])
            except StaleGrant:
                self.expired(partition, one)
            except BadRequest as error:
                lost = error
            except UnknownCluster:
                raise
            except BaseException:
                acks.put_back(ranges[at:])
                raise
        if lost is not None:
            raise lost

    async def _ack(self, partition: int, ranges: list[Range]) -> None:
        def request(address: Address) -> m.Request:
            return m.Ack(address, self._cluster, ranges)

        assert self._places is not None  # what is done was pulled from there
        acked = await self._places.ask(partition, request, m.Acked)
        self.cursors[partition] = max(acked.done, self.cursors.get(partition, 0))

    def expired(self, partition: int, one: Range) -> None:
        """Tell of messages (fence, first, next) that were settled too late."""
        fence, first, behind = one
        self.stale += 1
        self._awaited.discard((partition, fence))
        if self._on_stale is not None:
            try:
                self._on_stale(Stale(self._topic, partition, first, behind))
            except Exception:
                # Its error must not cost the reports, and acks, of the ranges behind this one.
                log.exception("on_stale= of a consumer of %s raised", self._topic)
            return
        log.warning(
            "%s/%d: messages %d to %d were settled after their lease had ended; others of cluster "
            "%s get them again: give a longer lease=, or a smaller max_messages=",
            self._topic, partition, first, behind - 1, self._cluster,
        )  # fmt: skip
