"""A consumer of a cluster that reads a whole topic in total order, while it has the turn.

It stands where pulls, acks and returns of other consumers do. What it hands out comes from a reader
of the one order, a piece of one batch at a time; what is done moves the cluster's cursor, which
keeps the turn; and whatever goes back ends the turn there, for the next one to begin again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.acknowledgements import Acking
from weir.client.consumer.delivery import AckResult, Holding, Lessor, expired_result, result_of
from weir.client.consumer.pulls import Demand, PendingPulls, TopicBuffer
from weir.client.consumer.subscription import ConsumerOptions
from weir.client.core.delivered_batches import Delivered
from weir.client.core.grants import Ending, Grant, Run, Vector, sorted_out
from weir.client.core.retries import seconds
from weir.client.reader.fetcher import LONG_POLL
from weir.client.reader.reader import Reader, ReaderOptions
from weir.errors import OffsetOutOfRange, StaleGrant
from weir.model.batch import Columns
from weir.model.ids import Address
from weir.order.clock import milliseconds_of
from weir.protocol.client import messages as m

log = logging.getLogger(__name__)

#: A turn is kept up so many times before it would end.
_LOOKS = 4
#: So many moves without an answer are remembered.
_ASKED_MAX = 8
#: Where the cursor is, whichever partition it is about.
_HOME = 0


class Turns:
    """One consumer's turns, and what it does in them."""

    def __init__(
        self,
        home: NetworkClient,
        network: NetworkClient,
        places: Places,
        options: ConsumerOptions,
        acking: Acking,
        demand: Demand,
        lessor: Lessor,
        first: Sequence[int] = (),
    ) -> None:
        """Ask over `network`, whose end ends the turn; publishes over `home` come after what came.

        `acking` counts what came too late. A cluster that is new begins at offsets `first`.
        """
        self.places = places
        self._home = home
        self._monotonic = home.system.monotonic
        self._network = network
        self._options = options
        self._acking = acking
        self._demand = demand
        self._lessor = lessor
        self._first = first
        self._withdrawing = PendingPulls(options.cluster, places)
        self._lease = seconds(options.lease)
        self._lock = asyncio.Lock()
        self._vector = Vector()
        #: The turn's number, 0 without one; what the broker knows to be done; how it is to end.
        self._fence = self._attempts = 0
        self._kept: tuple[int, ...] = ()
        #: Of the last turn that is over: its number, what the broker knew to be done in it, and
        #: whether it was given back.
        self._ended: tuple[int, tuple[int, ...], bool] = (0, (), False)
        #: Where the cursor was asked to be in this turn, without an answer.
        self._asked: deque[tuple[int, ...]] = deque(maxlen=_ASKED_MAX)
        self._ending = Ending()
        self._times = 0
        #: Whether somebody was told that delays are for nothing here.
        self._warned = False
        self._out: Holding | None = None
        self._reading: TurnReading | None = None
        #: The broker's time in milliseconds, less this process's monotonic time.
        self._ahead_ms = 0.0

    # -- handing out -------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many are handed out at a time: they have one order."""
        return 1

    def pause(self) -> None:
        """In a pause, once nothing is worked on, another may have the turn."""
        if self._fence:
            self._ending.want(0, untried=True, waits=True)
            self._lessor.outcomes.soon()

    async def withdraw(self) -> None:
        """Return, in a pause, when no turn is asked for any more. Raises what a request does."""
        await self._withdrawing.withdraw()

    async def report(self, partition: int, runs: list[Run]) -> None:
        """Tell nothing: a turn that does not get on is an attempt, whatever was worked on."""

    def pull(self, feed: TopicBuffer) -> None:
        """Begin to take turns."""
        feed.add(self._hand_out)
        feed.add(self._keep)

    async def _hand_out(self, feed: TopicBuffer) -> None:
        slot, runs = asyncio.Semaphore(1), self._demand.runs
        try:
            while True:
                await slot.acquire()
                while not runs.is_set():
                    await runs.wait()
                with self._withdrawing.asks(_HOME):
                    await self.flush(_HOME)
                    if not self._fence and await self._take() and not runs.is_set():
                        self._ending.want(0, untried=True)
                holding = await self._piece(slot) if self._fence else None
                if holding is None:
                    slot.release()
                    continue
                self._out = holding
                if runs.is_set():
                    feed.put(holding)
                else:
                    self._lessor.refuse(holding)
        finally:
            await self._close_reading()

    async def _take(self) -> bool:
        """Wait for the turn, and read on at its cursor; False if it is another's still."""

        def request(address: Address) -> m.Request:
            lease, wait = int(self._lease * 1_000), int(LONG_POLL * 1_000)
            begin = (*self._first, *[0] * (len(self.places) - len(self._first)))
            return m.TakeTurn(address, self._options.cluster, begin, lease, wait)

        turn = await self.places.ask(_HOME, request, m.Turn, wait=LONG_POLL)
        if not turn.fence:
            return False
        self._told(turn.deadline)
        # Where others were in partitions that joined since: they would begin anew there.
        await self.places.find_all(len(turn.offsets))
        known = await self.places.positions()
        begins = {
            p: max(turn.offsets[p] if p < len(turn.offsets) else 0, reply.start)
            for p, reply in known.items()
        }
        self._vector = Vector([begins[p] for p in sorted(begins)])
        self._kept = self._vector.offsets
        await self._close_reading()
        self._reading = TurnReading(self._network, self.places, begins, self._options.max_bytes)
        self._fence, self._attempts = turn.fence, turn.attempts
        self._asked.clear()
        return True

    async def _piece(self, slot: asyncio.Semaphore) -> Holding | None:
        """Return the next messages to hand out; None if the turn ended meanwhile."""
        size = self._demand.size
        if self._attempts > 1:
            size = 1  # what failed is tried alone: nothing behind it has failed
        self._out = None
        if self._reading is None:  # an earlier feed had it, and ended while it had the turn
            self._ending.want(0, untried=True)
            return None
        try:
            part = await self._reading.piece(size)
        except OffsetOutOfRange:
            # Retention has come by: the next turn begins behind what it took.
            self._ending.want(0, untried=True)
            return None
        if part is None or not self._fence:
            return None
        self._home.saw(part.batch.header.stamp)
        now = int((self._monotonic() * 1_000 + self._ahead_ms) * 1_000)
        left, expired = sorted_out([part], (), now)
        if not self._warned and _is_early(part, now):
            self._warned = True
            log.warning("%s: a delay holds nothing back in total order", self.places.topic)
        grant = Grant(
            self.places.topic, part.partition, self._fence, 0, part.offset, part.next_offset,
            max(self._attempts, 1), tuple(left), (), tuple(expired),
        )  # fmt: skip
        self._attempts = 1
        self._vector.hand_out(part.partition, part.offset, part.next_offset)
        ends = self._monotonic() + self._lease
        return Holding(grant, ends, self._monotonic, self._lessor, slot, self._times)

    async def _close_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await reading.close()

    # -- what is done, and what goes back ----------------------------------------------------

    @property
    def stale(self) -> int:
        """How many acks came too late."""
        return self._acking.stale

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which the cluster has done all, as of the last ack."""
        return dict(enumerate(self._kept))

    def done(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a turn as done."""
        if fence == self._fence:
            self._vector.done(partition, first, behind)
        else:
            self._acking.expired(partition, (fence, first, behind))

    async def ack(self, partition: int, fence: int, runs: Sequence[Run]) -> AckResult:
        """Say that they are done; return when a majority knows."""
        if fence != self._fence:
            return expired_result(runs)
        for run in runs:
            self.done(partition, fence, *run)
        await self.flush(_HOME)
        # Another request may have been told that the turn was over, and not have said all of this.
        in_time = fence == self._fence or self._was_kept(partition, fence, runs)
        return result_of(runs) if in_time else expired_result(runs)

    def back(self, partition: int, fence: int, run: Run, delay_ms: int, untried: bool) -> None:
        """Note that messages go back: the turn ends in front of them."""
        if fence == self._fence:
            self._times += 1
            self._vector.back(partition, *run)
            self._ending.want(delay_ms, untried)

    async def now(self, partition: int, fence: int, runs: Sequence[Run], delay_ms: int) -> bool:
        """Give back; return when a majority knows, False if it was too late."""
        if fence != self._fence:
            return False
        self._times += 1
        self._ending.want(delay_ms, untried=False)
        await self.flush(_HOME)
        number, _, given_back = self._ended
        return fence == self._fence or (fence == number and given_back)

    def _was_kept(self, partition: int, fence: int, runs: Sequence[Run]) -> bool:
        """Whether the broker knew of messages before their turn was over."""
        number, kept, _ = self._ended
        reached = kept[partition] if partition < len(kept) else 0
        return fence == number and all(behind <= reached for _, behind in runs)

    def times(self, partition: int) -> int:
        """Return how often something was given back."""
        return self._times

    def waiting(self) -> list[int]:
        """Return where there is something to tell."""
        if not self._fence:
            return []
        due = self._ending.due(self._vector.has_open)
        news = due is not None or self._vector.offsets != self._kept
        return [_HOME] if news else []

    async def flush(self, partition: int) -> None:
        """Tell where the cursor is, if it moved, or that the turn ends; return when it is known."""
        async with self._lock:
            self._lessor.outcomes.note_news()
            if self.waiting():
                await self._move()

    async def leave(self) -> None:
        """Give the turn back, if there is one."""
        if self._fence:
            self._ending.want(0, untried=not self._vector.has_open)
            await self.flush(_HOME)

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Keep the turn for the lease of all turns from now on; False if it was over."""
        async with self._lock:
            if not self._fence or holding.fence != self._fence:
                return False
            await self._move()
            return holding.fence == self._fence

    async def _keep(self, feed: TopicBuffer) -> None:
        """Keep the turn while nothing is to be done, or as long as work takes if that is wanted."""
        while True:
            await asyncio.sleep(self._lease / _LOOKS)
            if self._fence and (self._out is None or self._out.worked_on):
                async with self._lock:
                    if self._fence:
                        await self._move()

    async def _move(self) -> None:
        """Ask for the cursor to be where it is here."""
        offsets, fence, working = self._vector.offsets, self._fence, self._vector.has_open
        ending = self._ending.due(working)
        delay_ms, untried = ending or (int(self._lease * 1_000), self._out is None and not working)

        def request(address: Address) -> m.Request:
            cluster, ends = self._options.cluster, ending is not None
            return m.MoveCursor(address, cluster, fence, offsets, delay_ms, ends, untried)

        began = self._monotonic()
        if offsets != self._kept and offsets not in self._asked:
            self._asked.append(offsets)
        try:
            moved = await self.places.ask(_HOME, request, m.Moved)
        except StaleGrant as error:
            if error.detail != -fence:
                await self._learn(fence, [one for one in self._asked if ending or one != offsets])
                self._lost(offsets)
                return
            self._kept = offsets  # it was done, and the answer was lost
            if ending is None:
                self._lost(offsets)
            else:
                self._over(given_back=True)
            return
        self._kept = offsets
        self._asked.clear()
        if ending is not None:
            self._over(given_back=True)
            return
        self._told(moved.deadline)
        if self._out is not None:
            self._out.ends = max(self._out.ends, began + self._lease)

    async def _learn(self, fence: int, asked: Sequence[tuple[int, ...]]) -> None:
        """Learn how far a turn came that is over, where moves to `asked` had no answer."""
        for offsets in reversed(asked):

            def request(address: Address, said: tuple[int, ...] = offsets) -> m.Request:
                lease_ms = int(self._lease * 1_000)
                return m.MoveCursor(address, self._options.cluster, fence, said, lease_ms)

            try:
                await self.places.ask(_HOME, request, m.Moved)
            except StaleGrant as error:
                if error.detail == -fence:
                    self._kept = offsets
                    return

    def _lost(self, offsets: tuple[int, ...]) -> None:
        """The turn was over before: what was done in it since is another's to do."""
        fence = self._fence
        self._over()
        for partition, offset in enumerate(offsets):
            before = self._kept[partition] if partition < len(self._kept) else 0
            if offset > before:
                self._acking.expired(partition, (fence, before, offset))

    def _over(self, given_back: bool = False) -> None:
        self._ended = self._fence, self._kept, given_back
        self._fence = 0
        self._ending.clear()
        if self._out is not None:
            self._out.ends = min(self._out.ends, self._monotonic())
        if self._reading is not None:
            self._reading.stop()

    def _told(self, deadline: int) -> None:
        now_ms = milliseconds_of(deadline) - self._lease * 1_000
        self._ahead_ms = now_ms - self._monotonic() * 1_000


def _is_early(part: Delivered, now: int) -> bool:
    """Whether something of a batch was to come later than `now` (µs since 1970)."""
    dues = part.batch.numbers(Columns.DUE)
    return dues is not None and max(dues) > now


class TurnReading:
    """Pieces of one batch at a time, in the one order, from where a turn begins."""

    def __init__(
        self, network: NetworkClient, places: Places, begins: Mapping[int, int], max_bytes: int
    ) -> None:
        """Read each partition from its offset in `begins` on."""
        options = ReaderOptions(
            start=dict(begins), order="total", max_bytes=max_bytes, value_bytes_max=0
        )
        self._reader = Reader(network, places.topic, options)
        self._batches = self._reader.batches()
        self._next: asyncio.Task[Delivered] | None = None
        self._rest: Delivered | None = None

    async def piece(self, size: int) -> Delivered | None:
        """Return the next messages, `size` at most; None once it was told to `stop`."""
        part = self._rest or await self._batch()
        if part is None:
            return None
        self._rest = None
        if len(part) > size:
            cut = part.offset + size
            self._rest = replace(part, offset=cut)
            part = replace(part, next_offset=cut)
        return part

    async def _batch(self) -> Delivered | None:
        self._next = asyncio.get_running_loop().create_task(_following(self._batches))
        try:
            await asyncio.wait([self._next])
            return None if self._next.cancelled() else self._next.result()
        finally:
            self._next.cancel()

    def stop(self) -> None:
        """Let who waits for a piece wait no longer."""
        if self._next is not None:
            self._next.cancel()

    async def close(self) -> None:
        """Read no more."""
        await self._reader.close()


async def _following(batches: AsyncIterator[Delivered]) -> Delivered:
    return await anext(batches)
