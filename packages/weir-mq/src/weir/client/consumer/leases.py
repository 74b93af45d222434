"""What a consumer holds at a time: pulled, kept up, and told of when it is settled.

`TopicLeases` has the grants of one topic, and `ConsumerLeases` those of all topics of a consumer,
which come in one line: whichever is granted first is handed out first.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import chain

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.acknowledgements import Acking, AckResult, Nacks, Telling
from weir.client.consumer.cursor_lease import Turns
from weir.client.consumer.delivery import ConsumerOptions, Held, Holding
from weir.client.consumer.pulls import Demand, Pulling, TopicBuffer, Wanted
from weir.client.consumer.subscription import Subscription
from weir.client.core.grants import Run, joined, within, without
from weir.client.core.retries import seconds
from weir.client.reader.fetcher import FetchBuffer
from weir.errors import BadRequest, Disconnected, Refused, StaleGrant, UnknownTopic, WeirError
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX, PINGED_PARTITIONS_MAX
from weir.model.topic import Mode

#: Seconds for the acks that wait when pulling has failed; without them messages come again.
_LAST_ACKS = 2.0
#: Seconds between two looks at which topics a prefix matches.
_LOOK_EVERY = 2.0


def takes_turns(options: ConsumerOptions, places: Places) -> bool:
    """Whether a topic is consumed in one order of all its partitions, in turn."""
    return options.number is Mode.ORDERED and places.order == "total"


class TopicLeases:
    """The grants of one topic, and what becomes of them, over one connection after the other.

    A topic that a prefix matched is let go of once it is deleted: nothing more of it is told.
    """

    def __init__(
        self,
        home: NetworkClient,
        places: Places,
        options: ConsumerOptions,
        demand: Demand,
        gone: asyncio.Event | None,
    ) -> None:
        """Publishes over `home` come after what comes here; `demand` is the consumer's.

        `gone` is set once the topic is deleted; without it, that is an error.
        """
        self.id = places.id
        self.held = Held()
        self.is_gone = False
        self._home = home
        self._options = options
        self._demand = demand
        self._gone = gone
        self._counted = Acking(places.topic, options.cluster, options.on_stale)
        self._acking: Acking | Turns = self._counted
        self._returning: Nacks | Turns = Nacks(
            options.cluster, options.number is Mode.ORDERED, self._counted.expired
        )
        self._telling = Telling(self, seconds(options.ack_within))
        #: What is granted where the topic is served; None before `begin`.
        self._pulling: Pulling | Turns | None = None
        self._feed: TopicBuffer | None = None
        #: Those with deliveries that are done, and not noted yet.
        self._news: list[Holding] = []
        #: When the first lease ends of what is settled and perhaps not told.
        self._untold_ends = math.inf

    @property
    def partitions(self) -> int:
        """How many partitions are pulled from."""
        return 0 if self._pulling is None else self._pulling.partitions

    @property
    def stale(self) -> int:
        """How many acks came too late."""
        return self._counted.stale

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which the cluster has done all, as of the last ack."""
        return dict(self._acking.cursors)

    # Pulling.

    def begin(self, network: NetworkClient, places: Places, first: Sequence[int]) -> None:
        """Pull, and tell what was settled, where the topic is served from now on. Where all is in
        one order, a new cluster begins at `first`.
        """
        options = self._options
        if takes_turns(options, places):
            turns = Turns(
                self._home, network, places, options, self._counted, self._demand, self, first
            )
            self._acking = self._returning = self._pulling = turns
            return
        assert isinstance(self._returning, Nacks)  # the order of a topic stays
        self._counted.begin(places)
        self._returning.begin(places)
        wanted = Wanted(options.cluster, options.number, options.max_bytes, seconds(options.lease))
        self._pulling = Pulling(self._home, places, wanted, self._demand, self)

    def pull(self, feed: FetchBuffer[Holding]) -> None:
        """Let grants come into the consumer's feed."""
        assert self._pulling is not None  # it has begun
        self._feed = TopicBuffer(feed, self._went)
        self._pulling.pull(self._feed)
        self._telling.begin()

    def _went(self, error: UnknownTopic) -> None:
        """The topic is deleted. Raises that, unless it may be."""
        if self._gone is None:
            raise error
        self.is_gone = True
        self._gone.set()

    async def let_go(self) -> None:
        """Pull nothing more, and tell nothing: the topic is gone."""
        self.is_gone = True
        self._telling.stop()
        ending = self.disconnect()
        if self._feed is not None:
            ending += self._feed.end()
        if ending:
            await asyncio.wait(ending)

    def admit(self, holding: Holding) -> bool:
        """Hold a grant that was taken from the feed; False if nothing of it is to be handed out.

        What of it has expired is noted as done.
        """
        if self.is_gone or holding.over or (
            # In order, it may be behind what was given back since, which comes again first.
            self._is_ordered and holding.asked != self._returning.times(holding.partition)
        ):  # fmt: skip
            self.drop(holding)
            return False
        self.held.put(holding)
        if isinstance(self._pulling, Pulling):
            self._pulling.extending.begin()
        grant = holding.grant
        for run in grant.expired:
            self.settle(holding, *run)
        if grant.expired:
            self.soon()
        if grant.batches:
            return True
        # Nothing of it is to be handled: whatever it holds is done.
        self.settle(holding, grant.offset, grant.next_offset)
        self.soon()
        holding.let_next_come()
        return False

    @property
    def _is_ordered(self) -> bool:
        return self._options.number is Mode.ORDERED

    async def may_pull(self, partition: int) -> None:
        """Return once a partition may be pulled from.

        What is done and not told might be granted again once its lease has ended, so that is told
        before. And while work goes on whose lease has ended, nothing is pulled ahead.
        """
        while True:
            if any(one.over for one in chain(self.held.values(), self._news)):
                self.note_news()
            if self._home.system.monotonic() >= self._untold_ends:
                self._untold_ends = math.inf
                await self.flush()
                continue  # others may have been settled meanwhile
            if self._demand.is_waited_for or not any(
                one.over and one.begun for one in self.held.values()
            ):
                break
            await self._demand.moved()

    async def quiet(self, partition: int) -> int:
        """Return when the broker knows of all that was given back of a partition, and how often
        that was. In order nothing is pulled before that: what is behind would come without it.
        """
        assert isinstance(self._returning, Nacks)  # a turn asks for nothing ahead
        return await self._returning.quiet(partition)

    def in_hand(self, room: int) -> Iterable[tuple[Address, list[Run]]]:
        """Yield what is worked on, by partition, of up to `room` runs."""
        if self._pulling is None:
            return
        places = self._pulling.places
        # In turns, what is held may be of a partition that only the reading has heard of yet.
        partitions = {one.partition for one in self.held.values() if one.partition < len(places)}
        for partition in sorted(partitions):
            runs = self.held.begun(partition)[:room]
            room -= len(runs)
            yield places[partition], runs

    def pause(self) -> None:
        """The demand says that nothing is to come: a turn that is taken may end."""
        if isinstance(self._pulling, Turns):
            self._pulling.pause()

    async def withdraw(self) -> None:
        """Return, in a pause, when nothing is pulled any more. Raises what a request does."""
        if self._pulling is not None:
            await self._pulling.withdraw()

    def refuse(self, holding: Holding) -> None:
        """Give back what came in a pause."""
        self.give_back_rest(holding)
        holding.let_next_come()

    def drop(self, holding: Holding) -> None:
        """Hand out nothing more of a grant. In order it goes back: its lease may run on where
        the partition is led, and what is behind it would come before it.
        """
        if self._is_ordered:
            self.give_back_rest(holding)
        holding.let_next_come()

    # Settling.

    def settle(self, holding: Holding, first: int, behind: int) -> None:
        """Note that what is left of messages [first, behind) is done."""
        self._note_tried(holding)
        for run in [*within(holding.left, first, behind)]:
            self._acking.done(holding.partition, holding.fence, *run)
        self._take_out(holding, [(first, behind)])

    def settled(self, holding: Holding) -> None:
        """The first delivery of a grant is done, of those that are not noted yet."""
        self._note_tried(holding)
        self._news.append(holding)
        self.soon()

    def _note_tried(self, holding: Holding) -> None:
        # That is told before others are begun: one that ends the process would have it fail again.
        if holding.grant.attempts > 1:
            self._demand.tells_first = True

    async def ack(self, holding: Holding, runs: Sequence[Run]) -> AckResult:
        """Say that messages are done; return when a majority knows, and what that did."""
        self.take_out(holding, runs)
        return await self._acking.ack(holding.partition, holding.fence, runs)

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
        self.note_news()
        there = [*chain.from_iterable(within(holding.left, *run) for run in runs)]
        self._take_out(holding, runs)
        return there

    def put_back(self, holding: Holding, runs: Sequence[Run]) -> None:
        """Take runs back that were taken out: they are held again."""
        holding.left = sorted([*holding.left, *runs])
        self.held[holding.partition, holding.fence] = holding

    def _take_out(self, holding: Holding, runs: Sequence[Run]) -> None:
        self._untold_ends = min(self._untold_ends, holding.ends)
        if holding.over:
            self._demand.move()
        holding.left = without(holding.left, runs)
        if not holding.left:
            self.held.pop((holding.partition, holding.fence), None)

    def note_news(self) -> None:
        """Note what is done of deliveries that were settled one by one."""
        news, self._news = self._news, []
        for holding in news:
            finished, holding.finished = holding.finished, []
            runs = joined(finished)
            for run in runs:
                self._acking.done(holding.partition, holding.fence, *run)
            self._take_out(holding, runs)

    async def nack(
        self, holding: Holding, runs: Sequence[Run], behind: Sequence[Run], delay_ms: int
    ) -> bool:
        """Give back `runs`, and before that, untried, those behind; False if it was too late."""
        partition, fence = holding.partition, holding.fence
        for other in [*self.held.values()] if self._is_ordered else ():
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
        except UnknownTopic as error:
            self._went(error)
            holding.ends = self._home.system.monotonic()

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for `lease` seconds from now; False if it had ended."""
        assert self._pulling is not None  # it was pulled
        return await self._pulling.extend(holding, lease)

    def address_of(self, holding: Holding) -> Address:
        """Return where a scattering may ack a grant. Raises `BadRequest` if its cluster has a
        cursor over all partitions.
        """
        if not isinstance(self._pulling, Pulling):
            raise BadRequest(
                "a cluster that reads in total order has a cursor and no grants, so its acks are "
                "no part of a scattering: read by partition, or make the effect idempotent"
            )
        return self._pulling.places[holding.partition]

    # Telling.

    def soon(self) -> None:
        """Tell what is settled, together with what is settled until then. Of any thread."""
        self._telling.soon()

    async def flush(self) -> None:
        """Tell all that is settled; return when a majority knows."""
        try:
            await self._telling.flush()
        except UnknownTopic as error:
            self._went(error)

    def waiting(self) -> list[int]:
        """Return the partitions with something to tell."""
        return sorted({*self._acking.waiting(), *self._returning.waiting()})

    async def tell(self, partition: int) -> None:
        """Tell what is settled of a partition."""
        await self._acking.flush(partition)
        await self._returning.flush(partition)

    def failed(self, error: WeirError) -> None:
        """Let whoever takes the next grant know that what was settled could not be told."""
        try:
            if isinstance(error, UnknownTopic):
                self._went(error)
                return
        except UnknownTopic:
            pass
        if self._feed is not None:
            self._feed.fail(error)

    # Ending.

    def stop(self) -> None:
        """Tell nothing more by itself: the feed has ended."""
        self._telling.stop()
        self._feed = None

    async def give_back_all(self, holdings: Iterable[Holding]) -> None:
        """Give all back, and say of what was not handed out that nobody tried it."""
        for holding in holdings:
            self.give_back_rest(holding)
            left, holding.left = holding.left, []
            for run in left:
                self._returning.back(holding.partition, holding.fence, run, 0, untried=False)
        for partition in self._returning.waiting():
            await self._returning.flush(partition)
        if isinstance(self._pulling, Turns):
            await self._pulling.leave()

    def disconnect(self) -> list[asyncio.Task[None]]:
        """Hold nothing any more: the connection ends. Return what ends with it."""
        self.held.clear()
        return self._pulling.extending.end() if isinstance(self._pulling, Pulling) else []


class ConsumerLeases:
    """The grants of one consumer, under a connection of its own: of one topic, or of several."""

    def __init__(
        self, home: NetworkClient, subscription: Subscription, options: ConsumerOptions
    ) -> None:
        """Take the client's connections; `open` dials others to the same system."""
        self.topics: dict[str, TopicLeases] = {}
        self._home = home
        self._subscription = subscription
        self._options = options
        self._work_seconds = options.max_work_seconds
        self._demand = Demand()
        self._network: NetworkClient | None = None
        self._feed: FetchBuffer[Holding] | None = None
        #: Of topics that were let go of: how many acks came too late, and their numbers while nodes
        #: may still list them; and what tells that there is one more.
        self._stale_before = 0
        self._former: set[int] = set()
        self._gone = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Whether others wait for what is held, or there may be acks to send."""
        return self._network is not None

    @property
    def partitions(self) -> int:
        """How many partitions there are."""
        return max(sum(topic.partitions for topic in self.topics.values()), 1)

    @property
    def stale(self) -> int:
        """How many acks came too late."""
        return self._stale_before + sum(topic.stale for topic in self.topics.values())

    # Pulling.

    async def open(self) -> None:
        """Connect and ask for the partitions. Raises `UnknownTopic`, `Disconnected`."""
        if self._network is not None:
            return
        self._network = network = self._home.another(self)
        self._demand.runs.set()
        try:
            await network.start()
            found = await self._subscription.find(network)
            for name in [*self.topics]:
                if name not in found or self.topics[name].id != found[name].id:
                    self._forget(name)
            options = self._options
            for name, places in found.items():
                turns = takes_turns(options, places)
                first = await self._subscription.begin(network, places, options.cluster, turns)
                self._begin(network, name, places, first)
            self._subscription.begun()
        except BaseException:
            await self._disconnect()
            raise

    def _begin(
        self, network: NetworkClient, name: str, places: Places, first: Sequence[int]
    ) -> TopicLeases:
        topic = self.topics.get(name)
        if topic is None:
            gone = None if self._subscription.is_named(name) else self._gone
            topic = TopicLeases(self._home, places, self._options, self._demand, gone)
            self.topics[name] = topic
        topic.begin(network, places, first)
        return topic

    def _forget(self, name: str) -> TopicLeases:
        topic = self.topics.pop(name)
        self._stale_before += topic.stale
        return topic

    async def take(self, size: int, dropped: Holding | None = None) -> Holding:
        """Return the next grant whose lease runs; pulls ask for `size` messages from now on.

        What of it has expired is noted as done. One who gives up waiting loses none. One taken
        before may be `dropped`.
        """
        if dropped is not None:
            dropped.lessor.drop(dropped)
        await self.open()
        demand = self._demand
        demand.size = size
        if demand.tells_first:
            demand.tells_first = False
            with contextlib.suppress(WeirError):  # it is told later
                await self.flush()
        feed = self._feed or self._start()
        while True:
            try:
                with demand.waiting():
                    holding = await feed.take()
            except Exception:
                await self.reset()
                raise
            assert holding is not None  # pullers do not end by themselves
            if holding.lessor.admit(holding):
                self.keep(holding)
                return holding

    def _start(self) -> FetchBuffer[Holding]:
        feed = self._feed = FetchBuffer(())
        for topic in self.topics.values():
            topic.pull(feed)
        if self._subscription.has_prefixes:
            feed.add(self._look)
        return feed

    async def _look(self, feed: FetchBuffer[Holding]) -> None:
        """Take topics that a prefix matches by now, and let go of those that are deleted."""
        network = self._network
        assert network is not None  # grants come over it
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._gone.wait()
            self._gone.clear()
            for name in [name for name, topic in self.topics.items() if topic.is_gone]:
                await self._let_go(name)
            try:
                found = await self._subscription.matching(network)
            except Disconnected:
                continue  # whoever pulls notices by himself
            except Refused as error:
                if error.retryable:
                    continue
                raise
            self._former &= {places.id for places in found.values()}
            for name, places in found.items():
                known = self.topics.get(name)
                if places.id in self._former or (known is not None and known.id == places.id):
                    continue
                if known is not None and self._subscription.is_named(name):
                    continue  # whoever pulls from the former one is told
                if known is not None:
                    await self._let_go(name)
                # All that is in it is new.
                self._begin(network, name, places, ()).pull(feed)

    async def _let_go(self, name: str) -> None:
        topic = self._forget(name)
        self._former.add(topic.id)
        await topic.let_go()

    def keep(self, holding: Holding) -> None:
        """Let the lease of a grant be extended for `max_work` from now on."""
        holding.work_ends = holding.monotonic() + self._work_seconds

    def in_hand(self) -> list[tuple[Address, str, list[Run]]]:
        """Return what is worked on, of all partitions, as a ping tells it."""
        found, room = list[tuple[Address, str, list[Run]]](), ACK_RANGES_MAX
        for topic in self.topics.values():
            for address, runs in topic.in_hand(room):
                found.append((address, self._options.cluster, runs))
                room -= len(runs)
        return found[:PINGED_PARTITIONS_MAX]

    def pause(self) -> None:
        """Pull nothing until `resume`; what came and was not taken goes back, untried."""
        self._demand.runs.clear()
        for topic in self.topics.values():
            topic.pause()
        for holding in [] if self._feed is None else self._feed.drain():
            holding.lessor.refuse(holding)

    async def quiet(self) -> None:
        """Flush, in a pause; return when nothing is pulled any more, either."""
        for topic in self.topics.values():
            await topic.withdraw()
        await self.flush()

    def resume(self) -> None:
        """Pull again."""
        self._demand.runs.set()

    async def flush(self) -> None:
        """Tell all that is settled; return when a majority knows."""
        for topic in [*self.topics.values()]:
            await topic.flush()

    # Ending.

    async def stop(self) -> list[Holding]:
        """Stop pulling; return what came and was not asked for yet."""
        feed, self._feed = self._feed, None
        for topic in self.topics.values():
            topic.stop()
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
            await self._give_back(unasked)
        finally:
            await self._disconnect()

    async def _withdraw(self) -> None:
        """Pull no more, if something is about to go back: it is not to be granted to a pull of this
        consumer again, which would count as an attempt.
        """
        for topic in self.topics.values():
            topic.note_news()
        if not any(topic.held for topic in self.topics.values()):
            return
        self.pause()
        async with _last_acks():
            for topic in self.topics.values():
                await topic.withdraw()

    async def _give_back(self, unasked: Sequence[Holding]) -> None:
        """Give all back.

        Best effort: with the connection all is free that was granted to it, but not what was
        granted before that was lost and dialled again.
        """
        async with _last_acks():
            for topic in self.topics.values():
                mine = (one for one in unasked if one.lessor is topic)
                await topic.give_back_all([*mine, *topic.held.values()])

    async def reset(self) -> None:
        """End the feed and the connection: what the broker grants to its pulls goes to others."""
        await self.stop()
        async with _last_acks():
            await self.flush()
        await self._disconnect()

    async def _disconnect(self) -> None:
        network, self._network = self._network, None
        ending = [task for topic in self.topics.values() for task in topic.disconnect()]
        try:
            if ending:
                await asyncio.wait(ending)
        finally:  # who is cancelled ends the connections all the same: others wait for what is held
            if network is not None:
                await network.close()


@contextlib.asynccontextmanager
async def _last_acks() -> AsyncIterator[None]:
    """Let what is told last fail, or take too long."""
    with contextlib.suppress(WeirError, TimeoutError):
        async with asyncio.timeout(_LAST_ACKS):
            yield
