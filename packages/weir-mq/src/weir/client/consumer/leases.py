"""What a consumer holds at a time: pulled, kept up, and told of when it is settled."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from itertools import chain

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.acknowledgements import Acking, Nacks, Telling
from weir.client.consumer.cursor_lease import Turns
from weir.client.consumer.delivery import ConsumerOptions, Extending, Held, Holding
from weir.client.consumer.pulls import Pulling, Wanted
from weir.client.core.grants import Run, joined, within, without
from weir.client.core.retries import seconds
from weir.client.reader.fetcher import FetchBuffer
from weir.errors import StaleGrant, WeirError
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX, PINGED_PARTITIONS_MAX
from weir.model.topic import Mode

#: Seconds for the acks that wait when pulling has failed; without them messages come again.
_LAST_ACKS = 2.0


class ConsumerLeases:
    """The grants of one consumer, under a connection of its own, and what becomes of them."""

    def __init__(self, home: NetworkClient, topic: str, options: ConsumerOptions) -> None:
        """Take the client's link; `open` dials another to the same system."""
        self.topic = topic
        self.options = options
        self._counted = Acking(topic, options.cluster, options.on_stale)
        self.acking: Acking | Turns = self._counted
        self._ordered = options.number is Mode.ORDERED
        self._returning: Nacks | Turns = Nacks(
            options.cluster, self._ordered, self._counted.expired
        )
        self._telling = self._tells()
        self._home = home
        self._link: NetworkClient | None = None
        #: Where the topic is served; None before `open`.
        self.places: Places | None = None
        self._pulling: Pulling | Turns | None = None
        self._feed: FetchBuffer[Holding] | None = None
        self._extending: Extending | None = None
        self.held = Held()
        self._work_seconds = options.max_work_seconds
        #: Those with deliveries that are done, and not noted yet.
        self._news: list[Holding] = []
        #: Whether somebody waits for a grant; and what wakes pulls that wait for that, or for the
        #: end of work whose lease has ended.
        self._wanted = 0
        self._moved = asyncio.Event()
        #: When the first lease ends of what is settled and perhaps not told.
        self._untold_ends = math.inf
        #: Whether something is done that failed before. That is told before others are begun: one
        #: that ends the process would have it fail again.
        self._tell_first = False

    @property
    def connected(self) -> bool:
        """Whether others wait for what is held, or there may be acks to send."""
        return self._link is not None

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return 1 if self._pulling is None else self._pulling.partitions

    # Pulling.

    async def open(self) -> None:
        """Connect and ask for the partitions. Raises `UnknownTopic`, `Disconnected`."""
        if self._link is not None:
            return
        self._link = self._home.another(self)
        try:
            await self._link.start()
            self.places = await Places.find(self._link, self.topic)
        except BaseException:
            await self._disconnect()
            raise
        options = self.options
        if self._ordered and self.places.order == "total":
            self._take_turns(self._link, self.places)
            return
        assert isinstance(self.acking, Acking)
        assert isinstance(self._returning, Nacks)
        self.acking.begin(self.places)
        self._returning.begin(self.places)
        lease = seconds(options.lease)
        wanted = Wanted(options.cluster, options.number, options.max_bytes, lease)
        self._pulling = Pulling(
            self._home, self.places, wanted, self._returning.quiet, self._refuse, self._may_pull,
            self.held,
        )  # fmt: skip
        monotonic = self._home.system.monotonic
        self._extending = Extending(options.cluster, self.places, lease, self.held, monotonic)

    def _tells(self) -> Telling:
        soon = seconds(self.options.ack_within)
        return Telling(self.acking, self._returning, soon, self._note_news, self._failed)

    def _take_turns(self, link: NetworkClient, places: Places) -> None:
        """Have one order of all partitions, and one cursor."""
        options, note = self.options, self._note_news
        turns = Turns(
            self._home, link, places, options, self._counted, note, self.soon, self._refuse
        )
        self.acking = self._returning = self._pulling = turns
        self._telling.stop()
        self._telling = self._tells()

    async def take(self, size: int, dropped: Holding | None = None) -> Holding:
        """Return the next grant whose lease runs; pulls ask for `size` messages from now on.

        What of it has expired is noted as done. One who gives up waiting loses none. One taken
        before may be `dropped`.
        """
        if dropped is not None:
            self.drop(dropped)
        await self.open()
        assert self._pulling is not None  # `open` has made it
        self._pulling.size = size
        if self._tell_first:
            self._tell_first = False
            with contextlib.suppress(WeirError):  # it is told later
                await self.flush()
        if self._feed is None:
            self._feed = self._pulling.feed()
            self._telling.begin()
        feed = self._feed
        while True:
            self._wanted += 1
            self._moved.set()
            try:
                holding = await feed.take()
            except Exception:
                await self.reset()
                raise
            finally:
                self._wanted -= 1
            assert holding is not None  # pullers do not end by themselves
            if holding.over or (
                # In order, it may be behind what was given back since, which comes again first.
                self._ordered and holding.asked != self._returning.times(holding.partition)
            ):
                self.drop(holding)
                continue
            self.held.put(holding)
            self.keep(holding)
            if self._extending is not None:
                self._extending.begin()
            grant = holding.grant
            for run in grant.expired:
                self.settle(holding, *run)
            if grant.expired:
                self.soon()
            if grant.batches:
                return holding
            # Nothing of it is to be handled: whatever it holds is done.
            self.settle(holding, grant.offset, grant.next_offset)
            self.soon()
            holding.let_next_come()

    def keep(self, holding: Holding) -> None:
        """Let the lease of a grant be extended for `max_work` from now on."""
        holding.work_ends = holding.monotonic() + self._work_seconds

    async def _may_pull(self, partition: int) -> None:
        """Return once a partition may be pulled from.

        What is done and not told might be granted again once its lease has ended, so that is told
        before. And while work goes on whose lease has ended, nothing is pulled ahead.
        """
        while True:
            if any(one.over for one in chain(self.held.values(), self._news)):
                self._note_news()
            if self._home.system.monotonic() >= self._untold_ends:
                self._untold_ends = math.inf
                await self.flush()
                continue  # others may have been settled meanwhile
            if self._wanted or not any(one.over and one.begun for one in self.held.values()):
                break
            self._moved.clear()
            await self._moved.wait()

    def in_hand(self) -> list[tuple[Address, str, list[Run]]]:
        """Return what is worked on, of all partitions, as a ping tells it."""
        found, room = list[tuple[Address, str, list[Run]]](), ACK_RANGES_MAX
        places = self.places
        if places is None:
            return found
        # In turns, what is held may be of a partition that only the reading has heard of yet.
        partitions = sorted(
            {one.partition for one in self.held.values() if one.partition < len(places)}
        )
        for partition in partitions[:PINGED_PARTITIONS_MAX]:
            runs = self.held.begun(partition)[:room]
            room -= len(runs)
            found.append((places[partition], self.options.cluster, runs))
        return found

    def pause(self) -> None:
        """Pull nothing until `resume`; what came and was not taken goes back, untried."""
        if self._pulling is not None:
            self._pulling.pause()
        for holding in [] if self._feed is None else self._feed.drain():
            self._refuse(holding)

    async def quiet(self) -> None:
        """Flush, in a pause; return when nothing is pulled any more, either."""
        if self._pulling is not None:
            await self._pulling.withdraw()
        await self.flush()

    def resume(self) -> None:
        """Pull again."""
        if self._pulling is not None:
            self._pulling.resume()

    def _refuse(self, holding: Holding) -> None:
        self.give_back_rest(holding)
        holding.let_next_come()

    def drop(self, holding: Holding) -> None:
        """Hand out nothing more of a grant. In order it goes back: its lease may run on where
        the partition is led, and what is behind it would come before it.
        """
        if self._ordered:
            self.give_back_rest(holding)
        holding.let_next_come()

    # Settling.

    def settle(self, holding: Holding, first: int, behind: int) -> None:
        """Note that what is left of messages [first, behind) is done."""
        self._tell_first = self._tell_first or holding.grant.attempts > 1
        for run in [*within(holding.left, first, behind)]:
            self.acking.done(holding.partition, holding.fence, *run)
        self._take_out(holding, [(first, behind)])

    def settled(self, holding: Holding) -> None:
        """The first delivery of a grant is done, of those that are not noted yet."""
        self._tell_first = self._tell_first or holding.grant.attempts > 1
        self._news.append(holding)
        self.soon()

    def give_back(
        self, holding: Holding, offsets: Sequence[int], delay_ms: int, untried: bool
    ) -> None:
        """Note that messages go back; what is not left of them is not touched."""
        left = [offset for offset in offsets if holding.holds(offset)]
        if left:
            holding.skipped.update(left)
            runs = joined(left)
            self._take_out(holding, runs)
            for run in runs:
                self._returning.back(holding.partition, holding.fence, run, delay_ms, untried)
            self.soon()

    def give_back_rest(self, holding: Holding) -> None:
        """Note that what was not handed out of a grant goes back, untried."""
        rest = [*within(holding.left, holding.handed, holding.grant.next_offset)]
        self._take_out(holding, rest)
        for run in rest:
            self._returning.back(holding.partition, holding.fence, run, 0, untried=True)
        if rest:
            self.soon()

    def take_out(self, holding: Holding, runs: Sequence[Run]) -> list[Run]:
        """Take runs out of what is left; return what of them was there."""
        self._note_news()
        there = [*chain.from_iterable(within(holding.left, *run) for run in runs)]
        self._take_out(holding, runs)
        return there

    def _take_out(self, holding: Holding, runs: Sequence[Run]) -> None:
        self._untold_ends = min(self._untold_ends, holding.ends)
        if holding.over:
            self._moved.set()
        holding.left = without(holding.left, runs)
        if not holding.left:
            self.held.pop((holding.partition, holding.fence), None)

    def _note_news(self) -> None:
        news, self._news = self._news, []
        for holding in news:
            finished, holding.finished = holding.finished, []
            runs = joined(finished)
            for run in runs:
                self.acking.done(holding.partition, holding.fence, *run)
            self._take_out(holding, runs)

    async def nack(
        self, holding: Holding, runs: Sequence[Run], behind: Sequence[Run], delay_ms: int
    ) -> bool:
        """Give back `runs`, and before that, untried, those behind; False if it was too late."""
        partition, fence = holding.partition, holding.fence
        for other in [*self.held.values()] if self._ordered else ():
            if other.partition == partition and other.grant.offset >= holding.grant.next_offset:
                for run in self.take_out(other, other.grant.leased):
                    self._returning.back(partition, other.fence, run, delay_ms, untried=True)
        for run in self.take_out(holding, behind):
            self._returning.back(partition, fence, run, delay_ms, untried=True)
        failed = self.take_out(holding, runs)
        return await self._returning.now(partition, fence, failed, delay_ms)

    async def report(self, holding: Holding, runs: list[Run]) -> None:
        """Tell that messages are about to begin that were tried before: the broker counts no
        attempt of such a message that is lost and was not reported (docs/adr/0064).

        A grant that was lost with its connection is over then. Raises what a request does: then the
        message must not begin.
        """
        assert self._pulling is not None  # it was pulled
        try:
            await self._pulling.report(holding.partition, runs)
        except StaleGrant:
            holding.ends = self._home.system.monotonic()

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for `lease` seconds from now; False if it had ended."""
        assert self._pulling is not None  # it was pulled
        return await self._pulling.extend(holding, lease)

    def soon(self) -> None:
        """Tell what is settled, together with what is settled until then. Of any thread."""
        self._telling.soon()

    async def flush(self) -> None:
        """Tell all that is settled; return when a majority knows."""
        await self._telling.flush()

    def _failed(self, error: WeirError) -> None:
        if self._feed is not None:
            self._feed.fail(error)

    # Ending.

    async def stop(self) -> list[Holding]:
        """Stop pulling; return what came and was not asked for yet."""
        feed, self._feed = self._feed, None
        self._telling.stop()
        if feed is None:
            return []
        await feed.close()
        return feed.drain()

    async def close(self) -> None:
        """Tell what is settled, and end the connection; what is not goes to others at once."""
        try:
            await self._withdraw()
            unasked = await self.stop()
            await self.flush()
            await self._give_back([*unasked, *self.held.values()])
        finally:
            await self._disconnect()

    async def _withdraw(self) -> None:
        """Pull no more, if something is about to go back: it is not to be granted to a pull of this
        consumer again, which would count as an attempt.
        """
        self._note_news()
        if self._pulling is None or not self.held:
            return
        self.pause()
        async with _last_acks():
            await self._pulling.withdraw()

    async def _give_back(self, holdings: Sequence[Holding]) -> None:
        """Give all back, and say of what was not handed out that nobody tried it.

        Best effort: with the connection all is free that was granted to it, but not what was
        granted before that was lost and dialled again.
        """
        for holding in holdings:
            self.give_back_rest(holding)
            left, holding.left = holding.left, []
            for run in left:
                self._returning.back(holding.partition, holding.fence, run, 0, untried=False)
        async with _last_acks():
            for partition in self._returning.waiting():
                await self._returning.flush(partition)
            if isinstance(self._pulling, Turns):
                await self._pulling.leave()

    async def reset(self) -> None:
        """End the feed and the connection: what the broker grants to its pulls goes to others."""
        await self.stop()
        async with _last_acks():
            await self.flush()
        await self._disconnect()

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        try:
            if self._extending is not None:
                await self._extending.end()
        finally:  # who is cancelled ends the link all the same: others wait for what is held
            self.held.clear()
            if link is not None:
                await link.close()


@contextlib.asynccontextmanager
async def _last_acks() -> AsyncIterator[None]:
    """Let what is told last fail, or take too long."""
    with contextlib.suppress(WeirError, TimeoutError):
        async with asyncio.timeout(_LAST_ACKS):
            yield
