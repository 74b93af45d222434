"""Asking how far the one order of a topic's partitions is complete (DESIGN §5 Aggregation)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from operator import itemgetter

from weir.client.connection.link import Link
from weir.client.connection.metadata import Places
from weir.errors import Unavailable
from weir.order.barrier import Barrier
from weir.protocol.client import messages as m

#: How long a broker may keep a question for barriers that are not there yet.
WAIT_MS = 100
_LOOK_AGAIN = 0.05


@dataclass(frozen=True, slots=True)
class Moment:
    """A cut through the one order: what is stamped at or below `stamp`, and all the rest.

    By partition, none stamped above it lies below `begins`, and none stamped at or below it lies
    at or behind `ends`.
    """

    stamp: int
    begins: dict[int, int]
    ends: dict[int, int]


class Barriers:
    """The questions of one reader."""

    def __init__(self, link: Link, places: Places) -> None:
        """Ask about the topic of `places`."""
        self._link = link
        self._places = places

    async def ask(
        self, stamp: int, wait_ms: int = WAIT_MS, partition: int | None = None
    ) -> m.Barriers:
        """Return what is known once all are at `stamp`, or after `wait_ms`. The leader of
        `partition` is asked, if there is an open connection to it; else the node at home.
        """
        request = m.AskBarriers(self._places.id, stamp, wait_ms)
        near = None if partition is None else self._places[partition]
        return await self._link.request(request, m.Barriers, wait=wait_ms / 1_000, near=near)

    async def reached(self, stamp: int) -> dict[int, Barrier]:
        """Return the barriers of all partitions, each at `stamp` or above; with 0, each such that
        all lies below it that was confirmed to anybody until now.

        Raises `Unavailable` if that takes longer than a request may.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + self._link.request_timeout
        while True:
            began = loop.time()
            told = await self.ask(stamp)
            if told.reached:
                await self.known(told)
                return {p: Barrier(at, through) for p, at, through in told.registers}
            if loop.time() >= until:
                least = min(told.registers, key=itemgetter(1), default=(0, 0, 0))[0]
                raise Unavailable(
                    f"partition {least} of {self._places.topic} has not said for "
                    f"{self._link.request_timeout:g} s how far it is complete: has it a leader? "
                    "`weir doctor` tells; order='partition' reads the others"
                )
            await asyncio.sleep(max(began + _LOOK_AGAIN - loop.time(), 0.0))

    async def now(self) -> Moment:
        """Return a cut that all lies before which was confirmed until now, and behind which all
        comes that is published once this has returned.
        """
        before = await self.reached(0)
        stamp = max(barrier.stamp for barrier in before.values())
        behind = await self.reached(stamp)
        begins = {p: before[p].through if p in before else 0 for p in behind}
        return Moment(stamp, begins, _throughs(behind))

    async def through(self, stamp: int) -> Moment:
        """Return the cut at a stamp, once nothing comes at or below it any more."""
        behind = await self.reached(stamp)
        return Moment(stamp, dict.fromkeys(behind, 0), _throughs(behind))

    async def known(self, told: m.Barriers) -> None:
        """Return once it is known where all partitions are served that belong to the order."""
        count = max(partition for partition, _, _ in told.registers) + 1
        await self._places.find_all(count)


def _throughs(barriers: dict[int, Barrier]) -> dict[int, int]:
    return {partition: barrier.through for partition, barrier in barriers.items()}
