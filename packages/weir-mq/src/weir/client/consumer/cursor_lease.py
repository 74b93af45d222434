"""A consumer of a cluster that reads a whole topic in total order, while it has the turn.

It stands where pulls, acks and returns of other consumers do. What it hands out comes from a reader
of the one order, a piece of one batch at a time; what is done moves the cluster's cursor, which
keeps the turn; and whatever goes back ends the turn there, for the next one to begin again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from msgspec.structs import replace

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
from weir.client.reader.options import ReaderOptions
from weir.client.reader.reader import Reader
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


class TurnProgress:
    """How far a consumer came in its turn, and in the one before, as the broker knows it."""

    def __init__(self) -> None:
        """Begin without a turn."""
        #: The turn's number, 0 without one; and the how-manieth it is that begins at its place.
        self.fence = self.attempts = 0
        #: What is done, and what of that the broker knows.
        self.vector = Vector()
        self.kept: tuple[int, ...] = ()
        #: How it is to end, if it is; and how often something was given back, in all turns.
        self.ending = Ending()
        self.times = 0
        #: Where the cursor was asked to be in this turn, without an answer.
        self._asked: deque[tuple[int, ...]] = deque(maxlen=_ASKED_MAX)
        #: Of the last turn that is over: its number, what the broker knew to be done in it, and
        #: whether it was given back.
        self._ended: tuple[int, tuple[int, ...], bool] = (0, (), False)

    def begin(self, fence: int, attempts: int, offsets: Sequence[int]) -> None:
        """Begin a turn where all below `offsets` is done."""
        self.fence, self.attempts = fence, attempts
        self.vector = Vector(offsets)
        self.kept = self.vector.offsets
        self._asked.clear()

    @property
    def has_news(self) -> bool:
        """Whether there is something that the broker is to know."""
        if not self.fence:
            return False
        due = self.ending.due(self.vector.has_open)
        return due is not None or self.vector.offsets != self.kept

    def back(self, partition: int, run: Run, delay_ms: int, untried: bool) -> None:
        """Messages go back: the turn ends in front of them."""
        self.times += 1
        self.vector.back(partition, *run)
        self.ending.want(delay_ms, untried)

    def ask(self, offsets: tuple[int, ...]) -> None:
        """The broker is about to be asked to have the cursor there."""
        if offsets != self.kept and offsets not in self._asked:
            self._asked.append(offsets)

    def keep(self, offsets: tuple[int, ...]) -> None:
        """The broker has answered: the cursor is there."""
        self.kept = offsets
        self._asked.clear()

    def unanswered(self, but: tuple[int, ...] | None) -> list[tuple[int, ...]]:
        """Return where the cursor was asked to be without an answer, without one of them."""
        return [one for one in self._asked if one != but]

    def end(self, given_back: bool) -> None:
        """The turn is over."""
        self._ended = self.fence, self.kept, given_back
        self.fence = 0
        self.ending.clear()

    def was_kept(self, partition: int, fence: int, runs: Sequence[Run]) -> bool:
        """Whether the broker knew of messages before their turn was over."""
        number, kept, _ = self._ended
        reached = kept[partition] if partition < len(kept) else 0
        return fence == number and all(behind <= reached for _, behind in runs)

    def was_given_back(self, fence: int) -> bool:
        """Whether a turn is over because it was given back."""
        number, _, given_back = self._ended
        return fence == number and given_back


class TurnClock:
    """How long a turn lasts, and what time it is where it was given."""

    def __init__(self, lease: float, monotonic: Callable[[], float]) -> None:
        """Take the seconds of a lease, and a clock in seconds."""
        self.lease = lease
        self.monotonic = monotonic
        #: The broker's time in milliseconds, less this process's monotonic time.
        self._ahead_ms = 0.0

    @property
    def lease_ms(self) -> int:
        """How many milliseconds a turn is asked for."""
        return int(self.lease * 1_000)

    @property
    def now_us(self) -> int:
        """The broker's time, in µs since 1970."""
        return int((self.monotonic() * 1_000 + self._ahead_ms) * 1_000)

    def told(self, deadline: int) -> None:
        """The broker has said when a turn ends that it has just given, or kept."""
        now_ms = milliseconds_of(deadline) - self.lease * 1_000
        self._ahead_ms = now_ms - self.monotonic() * 1_000


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
        self._network = network
        self._options = options
        self._acking = acking
        self._demand = demand
        self._lessor = lessor
        self._first = first
        self._withdrawing = PendingPulls(options.cluster, places)
        self._lock = asyncio.Lock()
        self._turn = TurnProgress()
        self._clock = TurnClock(seconds(options.lease), home.system.monotonic)
        #: Whether somebody was told that delays are for nothing here.
        self._warned = False
        self._out: Holding | None = None
        self._reading: TurnReading | None = None

    # -- handing out -------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        """How many are handed out at a time: they have one order."""
        return 1

    def pause(self) -> None:
        """In a pause, once nothing is worked on, another may have the turn."""
        if self._turn.fence:
            self._turn.ending.want(0, untried=True, waits=True)
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
                    if not self._turn.fence and await self._take() and not runs.is_set():
                        self._turn.ending.want(0, untried=True)
                holding = await self._piece(slot) if self._turn.fence else None
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
            lease, wait = self._clock.lease_ms, int(LONG_POLL * 1_000)
            begin = (*self._first, *[0] * (len(self.places) - len(self._first)))
            return m.TakeTurn(address, self._options.cluster, begin, lease, wait)

        turn = await self.places.ask(_HOME, request, m.Turn, wait=LONG_POLL)
        if not turn.fence:
            return False
        self._clock.told(turn.deadline)
        # Where others were in partitions that joined since: they would begin anew there.
        await self.places.find_all(len(turn.offsets))
        known = await self.places.positions()
        begins = {
            p: max(turn.offsets[p] if p < len(turn.offsets) else 0, reply.start)
            for p, reply in known.items()
        }
        await self._close_reading()
        self._reading = TurnReading(self._network, self.places, begins, self._options.max_bytes)
        self._turn.begin(turn.fence, turn.attempts, [begins[p] for p in sorted(begins)])
        return True

    async def _piece(self, slot: asyncio.Semaphore) -> Holding | None:
        """Return the next messages to hand out; None if the turn ended meanwhile."""
        size = self._demand.size
        if self._turn.attempts > 1:
            size = 1  # what failed is tried alone: nothing behind it has failed
        self._out = None
        if self._reading is None:  # an earlier feed had it, and ended while it had the turn
            self._turn.ending.want(0, untried=True)
            return None
        try:
            part = await self._reading.piece(size)
        except OffsetOutOfRange:
            # Retention has come by: the next turn begins behind what it took.
            self._turn.ending.want(0, untried=True)
            return None
        if part is None or not self._turn.fence:
            return None
        self._home.saw(part.batch.header.stamp)
        now = self._clock.now_us
        left, expired = sorted_out([part], (), now)
        if not self._warned and _is_early(part, now):
            self._warned = True
            log.warning("%s: a delay holds nothing back in total order", self.places.topic)
        grant = Grant(
            self.places.topic, part.partition, self._turn.fence, 0, part.offset, part.next_offset,
            max(self._turn.attempts, 1), tuple(left), (), tuple(expired),
        )  # fmt: skip
        self._turn.attempts = 1
        self._turn.vector.hand_out(part.partition, part.offset, part.next_offset)
        ends = self._clock.monotonic() + self._clock.lease
        return Holding(grant, ends, self._clock.monotonic, self._lessor, slot, self._turn.times)

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
        return dict(enumerate(self._turn.kept))

    def done(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a turn as done."""
        if fence == self._turn.fence:
            self._turn.vector.done(partition, first, behind)
        else:
            self._acking.expired(partition, (fence, first, behind))

    async def ack(self, partition: int, fence: int, runs: Sequence[Run]) -> AckResult:
        """Say that they are done; return when a majority knows."""
        if fence != self._turn.fence:
            return expired_result(runs)
        for run in runs:
            self.done(partition, fence, *run)
        await self.flush(_HOME)
        # Another request may have been told that the turn was over, and not have said all of this.
        in_time = fence == self._turn.fence or self._turn.was_kept(partition, fence, runs)
        return result_of(runs) if in_time else expired_result(runs)

    def back(self, partition: int, fence: int, run: Run, delay_ms: int, untried: bool) -> None:
        """Note that messages go back: the turn ends in front of them."""
        if fence == self._turn.fence:
            self._turn.back(partition, run, delay_ms, untried)

    async def now(self, partition: int, fence: int, runs: Sequence[Run], delay_ms: int) -> bool:
        """Give back; return when a majority knows, False if it was too late."""
        if fence != self._turn.fence:
            return False
        self._turn.times += 1
        self._turn.ending.want(delay_ms, untried=False)
        await self.flush(_HOME)
        return fence == self._turn.fence or self._turn.was_given_back(fence)

    def times(self, partition: int) -> int:
        """Return how often something was given back."""
        return self._turn.times

    def waiting(self) -> list[int]:
        """Return where there is something to tell."""
        return [_HOME] if self._turn.has_news else []

    async def flush(self, partition: int) -> None:
        """Tell where the cursor is, if it moved, or that the turn ends; return when it is known."""
        async with self._lock:
            self._lessor.outcomes.note_news()
            if self.waiting():
                await self._move()

    async def leave(self) -> None:
        """Give the turn back, if there is one."""
        if self._turn.fence:
            self._turn.ending.want(0, untried=not self._turn.vector.has_open)
            await self.flush(_HOME)

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Keep the turn for the lease of all turns from now on; False if it was over."""
        async with self._lock:
            if not self._turn.fence or holding.fence != self._turn.fence:
                return False
            await self._move()
            return holding.fence == self._turn.fence

    async def _keep(self, feed: TopicBuffer) -> None:
        """Keep the turn while nothing is to be done, or as long as work takes if that is wanted."""
        while True:
            await asyncio.sleep(self._clock.lease / _LOOKS)
            if self._turn.fence and (self._out is None or self._out.worked_on):
                async with self._lock:
                    if self._turn.fence:
                        await self._move()

    async def _move(self) -> None:
        """Ask for the cursor to be where it is here."""
        offsets, fence, working = (
            self._turn.vector.offsets,
            self._turn.fence,
            self._turn.vector.has_open,
        )
        ending = self._turn.ending.due(working)
        delay_ms, untried = ending or (self._clock.lease_ms, self._out is None and not working)

        def request(address: Address) -> m.Request:
            cluster, ends = self._options.cluster, ending is not None
            return m.MoveCursor(address, cluster, fence, offsets, delay_ms, ends, untried)

        began = self._clock.monotonic()
        self._turn.ask(offsets)
        try:
            moved = await self.places.ask(_HOME, request, m.Moved)
        except StaleGrant as error:
            if error.detail != -fence:
                await self._learn(fence, self._turn.unanswered(but=None if ending else offsets))
                self._lost(offsets)
                return
            self._turn.kept = offsets  # it was done, and the answer was lost
            if ending is None:
                self._lost(offsets)
            else:
                self._over(given_back=True)
            return
        self._turn.keep(offsets)
        if ending is not None:
            self._over(given_back=True)
            return
        self._clock.told(moved.deadline)
        if self._out is not None:
            self._out.ends = max(self._out.ends, began + self._clock.lease)

    async def _learn(self, fence: int, asked: Sequence[tuple[int, ...]]) -> None:
        """Learn how far a turn came that is over, where moves to `asked` had no answer."""
        for offsets in reversed(asked):

            def request(address: Address, said: tuple[int, ...] = offsets) -> m.Request:
                lease_ms = self._clock.lease_ms
                return m.MoveCursor(address, self._options.cluster, fence, said, lease_ms)

            try:
                await self.places.ask(_HOME, request, m.Moved)
            except StaleGrant as error:
                if error.detail == -fence:
                    self._turn.kept = offsets
                    return

    def _lost(self, offsets: tuple[int, ...]) -> None:
        """The turn was over before: what was done in it since is another's to do."""
        fence = self._turn.fence
        self._over()
        for partition, offset in enumerate(offsets):
            before = self._turn.kept[partition] if partition < len(self._turn.kept) else 0
            if offset > before:
                self._acking.expired(partition, (fence, before, offset))

    def _over(self, given_back: bool = False) -> None:
        self._turn.end(given_back)
        if self._out is not None:
            self._out.ends = min(self._out.ends, self._clock.monotonic())
        if self._reading is not None:
            self._reading.stop()


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
        """Cancel the wait for the next piece."""
        if self._next is not None:
            self._next.cancel()

    async def close(self) -> None:
        """Read no more."""
        await self._reader.close()


async def _following(batches: AsyncIterator[Delivered]) -> Delivered:
    return await anext(batches)
