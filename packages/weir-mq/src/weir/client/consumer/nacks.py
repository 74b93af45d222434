"""What a consumer gives back on its way: gathered by partition, sent together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from weir.client.connection.metadata import Places
from weir.client.core.grants import Run, merged
from weir.errors import BadRequest, StaleGrant, UnknownCluster
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX
from weir.protocol.client import messages as m

#: Requests of one partition that are under way together.
_TOGETHER = 64

#: Fence, delay in milliseconds, and whether nobody tried it.
_Kind = tuple[int, int, bool]


class Returning:
    """Runs of each partition that are to go back, until the broker knows it.

    They go in their order, and where the cluster is `ordered` the last ones first: what failed
    ends the grants of all behind it, and these are to be given back before that, without an attempt
    counted. What could not be told there is told before anything more is pulled.
    """

    def __init__(
        self, cluster: str, ordered: bool, late: Callable[[int, tuple[int, int, int]], None]
    ) -> None:
        """Begin with nothing to give back.

        `late` is told of what was another's already, unless nobody here had tried it.
        """
        self._cluster = cluster
        self._ordered = ordered
        self._late = late
        self._places: Places | None = None
        self._pending: dict[int, dict[_Kind, list[Run]]] = {}
        self._times: dict[int, int] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    def begin(self, places: Places) -> None:
        """Send to these places from now on: what is not sent yet, too, if it is of this topic and
        not of one that had its name.
        """
        if self._places is not None and self._places.id != places.id:
            self._pending.clear()
        self._places = places

    def back(self, partition: int, fence: int, run: Run, delay_ms: int, untried: bool) -> None:
        """Note that messages of a grant go back."""
        self._times[partition] = self.times(partition) + 1
        kinds = self._pending.setdefault(partition, {})
        kinds.setdefault((fence, delay_ms, untried), []).append(run)

    def times(self, partition: int) -> int:
        """Return how often something of a partition was given back."""
        return self._times.get(partition, 0)

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""
        return [partition for partition, kinds in self._pending.items() if kinds]

    async def flush(self, partition: int) -> None:
        """Return when the broker knows of all that was noted before, sent by this or another."""
        async with self._locks.setdefault(partition, asyncio.Lock()):
            await self._flush(partition)

    async def quiet(self, partition: int) -> int:
        """Flush; return `times` of before. Where it is more later, the broker may not know."""
        times = self.times(partition)
        await self.flush(partition)
        return times

    async def _flush(self, partition: int) -> None:
        kinds = self._pending.pop(partition, {})
        order = sorted(kinds, key=lambda kind: min(kinds[kind]), reverse=self._ordered)
        together = 1 if self._ordered else _TOGETHER
        lost: BadRequest | None = None
        try:
            for at in range(0, len(order), together):
                some = order[at : at + together]
                sends = (self._send(partition, kind, merged(kinds[kind])) for kind in some)
                failed: BaseException | None = None
                answers = await asyncio.gather(*sends, return_exceptions=True)
                for kind, answer in zip(some, answers, strict=True):
                    if isinstance(answer, BadRequest):
                        lost = answer
                    elif isinstance(answer, BaseException):
                        failed = failed or answer
                        continue
                    del kinds[kind]
                if failed is not None:
                    raise failed
        except UnknownCluster:
            kinds.clear()
            raise
        finally:
            # What got no answer is tried again with what comes.
            for (fence, delay_ms, is_untried), runs in kinds.items():
                for run in runs:
                    self.back(partition, fence, run, delay_ms, is_untried)
        if lost is not None:
            raise lost

    async def now(self, partition: int, fence: int, runs: Sequence[Run], delay_ms: int) -> bool:
        """Give back, behind all that was noted; return when a majority knows.

        False if it was too late. Raises what was said of noted ones that the broker has lost when
        these are told, too.
        """
        self._times[partition] = self.times(partition) + 1
        lost: BadRequest | None = None
        try:
            async with self._locks.setdefault(partition, asyncio.Lock()):
                try:
                    await self._flush(partition)
                except BadRequest as error:
                    lost = error
                in_time = await self._send(partition, (fence, delay_ms, False), runs)
        except BaseException:
            for run in runs if self._ordered else ():
                self.back(partition, fence, run, delay_ms, untried=False)
            raise
        if lost is not None:
            raise lost
        return in_time

    async def _send(self, partition: int, kind: _Kind, runs: Sequence[Run]) -> bool:
        """Return False if some were another's already; raises what was said of those that the
        broker has lost when the others are told.
        """
        in_time, lost = True, None
        for at in range(0, len(runs), ACK_RANGES_MAX):
            some = [*runs[at : at + ACK_RANGES_MAX]]
            try:
                in_time &= await self._nack(partition, kind, some)
            except BadRequest as error:
                lost = error
                for run in some if len(some) > 1 else ():
                    with suppress(BadRequest):
                        in_time &= await self._nack(partition, kind, [run])
        if lost is not None:
            raise lost
        return in_time

    async def _nack(self, partition: int, kind: _Kind, runs: list[Run]) -> bool:
        fence, delay_ms, untried = kind

        def request(address: Address) -> m.Request:
            return m.Nack(address, self._cluster, fence, runs, delay_ms, untried)

        assert self._places is not None  # what goes back was pulled from there
        try:
            await self._places.ask(partition, request, m.Nacked)
        except StaleGrant:
            if not untried:
                self._late(partition, (fence, runs[0][0], runs[-1][1]))
            return False
        return True
