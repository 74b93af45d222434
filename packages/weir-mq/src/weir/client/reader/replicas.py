"""Reading from replicas: one for each partition, left for another if it fails or lags."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from weir.client.connection.link import Link
from weir.client.connection.metadata import Places
from weir.errors import BadBatch, Disconnected, Refused, WeirError
from weir.model.ids import Address
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

#: Seconds until a replica that was left may be asked again.
_LEFT_FOR = 10.0
#: So long after an answer is due, a replica that gives none is left.
_LATE = 1.0
#: So long a replica may lack what is known to be committed.
_LAG = 0.3


class Replicas:
    """Which replica of each partition is asked. All are as good: a reader keeps to one of them.

    What a replica gives is committed, however far it lags behind. Where none will do, the leader
    has to be asked.
    """

    def __init__(self, link: Link, places: Places) -> None:
        """Know of none yet: `find` asks."""
        self._link = link
        self._places = places
        #: By partition, the nodes that hold it, the one that is asked first.
        self._nodes: dict[int, list[int]] = {}
        #: By partition and node, until when it is not asked.
        self._left: dict[tuple[int, int], float] = {}
        #: By partition, the offset below which all is known to be committed.
        self._expected: dict[int, int] = {}
        #: By partition, from where on a replica is being asked, and how long it has for it.
        self._asked: dict[int, tuple[int, asyncio.Timeout]] = {}

    async def find(self, partitions: Iterable[int]) -> None:
        """Ask which nodes hold some partitions."""
        for partition in partitions:
            info = await self._places.ask(partition, a.DescribePartition, a.PartitionInfo)
            nodes = [node for node in info.nodes if node]
            if len(nodes) > 1:
                at = int(self._link.random.random() * len(nodes))
                self._nodes[partition] = nodes[at:] + nodes[:at]

    def expect(self, partition: int, offset: int) -> None:
        """All below `offset` is committed: whoever is asked has a moment to give it."""
        self._expected[partition] = max(offset, self._expected.get(partition, 0))
        if (asked := self._asked.get(partition)) is not None and asked[0] < offset:
            self._hurry(asked[1])

    async def ask(
        self,
        partition: int,
        position: int,
        request: Callable[[Address], m.Request],
        wait: float,
        check: Callable[[m.Fetched], None],
    ) -> m.Fetched | None:
        """Return a replica's answer once `check` accepts it; None if the leader is to be asked."""
        for node in self._good(partition):
            address = self._link.led_by(self._places[partition], node)
            try:
                async with asyncio.timeout(wait + _LATE) as limit:
                    self._asked[partition] = position, limit
                    if self._expected.get(partition, 0) > position:
                        self._hurry(limit)
                    fetched = await self._link.request(
                        request(address), m.Fetched, wait=wait, again=False
                    )
                check(fetched)
            except (Refused, Disconnected, BadBatch, TimeoutError):
                self._leave(partition, node)
                continue
            finally:
                self._asked.pop(partition, None)
            if fetched.next_offset > position or await self._is_end(partition, position):
                return fetched
            self._leave(partition, node)
        return None

    async def _is_end(self, partition: int, position: int) -> bool:
        """Return whether nothing is committed from `position` on, as far as anybody can say: a
        replica knows that only of itself.
        """
        if self._expected.get(partition, 0) <= position:
            with contextlib.suppress(WeirError):
                found = await self._places.positions(partitions=[partition])
                self.expect(partition, found[partition].end)
        return self._expected.get(partition, 0) <= position

    def _good(self, partition: int) -> list[int]:
        now = asyncio.get_running_loop().time()
        nodes = self._nodes.get(partition, [])
        return [node for node in nodes if self._left.get((partition, node), 0.0) <= now]

    def _leave(self, partition: int, node: int) -> None:
        self._left[partition, node] = asyncio.get_running_loop().time() + _LEFT_FOR

    def _hurry(self, limit: asyncio.Timeout) -> None:
        until, due = asyncio.get_running_loop().time() + _LAG, limit.when()
        if due is None or until < due:
            limit.reschedule(until)
