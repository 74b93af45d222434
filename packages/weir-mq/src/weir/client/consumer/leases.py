"""What a consumer holds at a time: pulled, kept up, and told of when it is settled.

`TopicLeases` has the grants of one topic, and `ConsumerLeases` those of all topics of a consumer,
which come in one line: whichever is granted first is handed out first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.consumer.acknowledgements import TopicOutcomes
from weir.client.consumer.cursor_lease import Turns
from weir.client.consumer.delivery import Holding
from weir.client.consumer.moves import KeptGrants
from weir.client.consumer.pulls import Demand, Pulling, TopicBuffer, TopicPresence, Wanted
from weir.client.consumer.subscription import ConsumerOptions, Subscription
from weir.client.core.grants import Run
from weir.client.core.retries import seconds
from weir.client.reader.fetcher import FetchBuffer
from weir.errors import BadRequest, Disconnected, Refused, StaleGrant, UnknownTopic, WeirError
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX, PINGED_PARTITIONS_MAX
from weir.model.topic import Mode

log = logging.getLogger(__name__)

#: Seconds for the acks that wait when pulling has failed; without them messages come again.
_LAST_ACKS = 2.0
#: Seconds for telling that what is left is nobody's; also who cancels the end of a consumer waits.
_LEAVING = 1.0
#: Seconds between two looks at which topics a prefix matches.
_LOOK_EVERY = 2.0


def takes_turns(options: ConsumerOptions, places: Places) -> bool:
    """Whether a topic is consumed in one order of all its partitions, in turn."""
    return options.number is Mode.ORDERED and places.order == "total"


class TopicLeases:
    """The grants of one topic, over one connection after the other.

    A topic that a prefix matched is let go of once it is deleted: nothing more of it is told.
    """

    def __init__(
        self,
        home: NetworkClient,
        places: Places,
        options: ConsumerOptions,
        demand: Demand,
        gone: asyncio.Event | None,
        first: Sequence[int],
    ) -> None:
        """Publishes over `home` come after what comes here; `demand` is the consumer's.

        `gone` is set once the topic is deleted; without it, that is an error. Where all is in one
        order, a new cluster begins at offsets `first`, over whichever connection it has its turn.
        """
        self.id = places.id
        self.presence = TopicPresence(gone)
        monotonic = home.system.monotonic
        self._kept = KeptGrants(options.cluster, home)
        self.outcomes = TopicOutcomes(monotonic, places, options, demand, self.presence, self._kept)
        self.held = self.outcomes.held
        self._home = home
        self._options = options
        self._demand = demand
        self._first = first
        #: What is granted where the topic is served; None before `begin`.
        self._pulling: Pulling | Turns | None = None
        self._feed: TopicBuffer | None = None

    @property
    def partitions(self) -> int:
        """How many partitions are pulled from."""
        return 0 if self._pulling is None else self._pulling.partitions

    # Pulling.

    def begin(self, link: NetworkClient, places: Places) -> None:
        """Pull, and tell what was settled, where the topic is served from now on."""
        if self._pulling is not None:
            places.include(self._pulling.places)
        options, demand = self._options, self._demand
        if takes_turns(options, places):
            if options.tags is not None:
                raise BadRequest(
                    f"tags={options.tags!r}: a cluster that reads {places.topic} in total order "
                    "takes all messages: leave tags out, or use a reader with tag=, or a mode of "
                    "its partitions"
                )
            counted = self.outcomes.counted
            turns = Turns(self._home, link, places, options, counted, demand, self, self._first)
            self.outcomes.take_turns(turns)
            self._pulling = turns
            return
        self.outcomes.begin(places)
        wanted = Wanted(
            options.cluster,
            options.number,
            options.max_bytes,
            seconds(options.lease),
            options.asked,
        )
        self._pulling = Pulling(self._home, places, wanted, demand, self, self._kept)

    def pull(self, feed: FetchBuffer[Holding]) -> None:
        """Let grants come into the consumer's feed."""
        assert self._pulling is not None  # it has begun
        self._feed = TopicBuffer(feed, self.presence)
        self._pulling.pull(self._feed)
        self.outcomes.tell_by_itself(self._feed)

    async def let_go(self) -> None:
        """Pull nothing more, and tell nothing: the topic is gone."""
        self.presence.is_over = True
        ending = self.disconnect()
        if self._feed is not None:
            ending += self._feed.end()
        self.stop()
        if ending:
            await asyncio.wait(ending)

    def admit(self, holding: Holding) -> bool:
        """Hold a grant that was taken from the feed; False if nothing of it is to be handed out.

        What of it has expired is noted as done.
        """
        if self.presence.is_over or holding.over or self.outcomes.is_outrun(holding):
            # Nobody extends it: but in order, what is behind it would come before it.
            if self._options.number is Mode.ORDERED:
                self.outcomes.give_back_rest(holding)
            holding.let_next_come()
            return False
        self.held.put(holding)
        if isinstance(self._pulling, Pulling):
            self._pulling.extending.begin()
        grant, outcomes = holding.grant, self.outcomes
        for run in grant.expired:
            outcomes.settle(holding, *run)
        if grant.expired:
            outcomes.soon()
        if grant.batches:
            return True
        # Nothing of it is to be handled: whatever it holds is done.
        outcomes.settle(holding, grant.offset, grant.next_offset)
        outcomes.soon()
        holding.let_next_come()
        return False

    async def may_pull(self, partition: int) -> None:
        """Return once a partition may be pulled from.

        What is done and not told might be granted again once its lease has ended, so that is told
        before. And while work goes on whose lease has ended, nothing is pulled ahead.
        """
        while True:
            if await self.outcomes.tell_overdue():
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
        return await self.outcomes.quiet(partition)

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
        self.outcomes.give_back_rest(holding)
        holding.let_next_come()

    def drop(self, holding: Holding) -> None:
        """Hand out nothing more of a grant: the rest goes back. Its lease may run on where the
        partition is led, and an extension that is under way would have it kept up here, too.
        """
        self.outcomes.give_back_rest(holding)
        holding.let_next_come()

    # Leases.

    async def report(self, holding: Holding, runs: list[Run]) -> None:
        """Tell that messages are about to begin that were tried before: the broker counts no
        attempt of such a message that is lost and was not reported (docs/adr/0064).

        A grant that was lost with its connection is over then. Raises what a request does: then the
        message must not begin.
        """
        assert self._pulling is not None  # it was pulled
        partition, moves = holding.partition, -1
        try:
            # What is being moved is nobody's for the broker, and ours once that is done.
            while moves != self._kept.times(partition):
                moves = await self._kept.unmoved(partition)
                with contextlib.suppress(StaleGrant):
                    await self._pulling.report(partition, runs)
                    return
        except UnknownTopic as error:
            self.presence.end(error)
        holding.ends = self._home.system.monotonic()
        self.outcomes.take_out(holding, runs)  # there is nothing to give back

    async def extend(self, holding: Holding, lease: float) -> bool:
        """Let a lease run for `lease` seconds from now; False if it had ended."""
        assert self._pulling is not None  # it was pulled
        return await self._pulling.extend(holding, lease)

    def place_of(self, holding: Holding) -> tuple[Address, int]:
        """Return where a scattering may ack a grant, and the fencing number that it has there now.
        Raises `BadRequest` if its cluster has a cursor over all partitions.
        """
        if not isinstance(self._pulling, Pulling):
            raise BadRequest(
                "a cluster that reads in total order has a cursor and no grants, so its acks are "
                "no part of a scattering: read by partition, or make the effect idempotent"
            )
        partition = holding.partition
        return self._pulling.places[partition], self._kept.now(partition, holding.fence)

    async def move(self) -> None:
        """There is another connection: keep what is held. Raises what a request does."""
        if isinstance(self._pulling, Pulling):
            await self.outcomes.move(self._pulling.places)

    # Ending.

    @property
    def leaves_grants(self) -> bool:
        """Whether what is granted to a pull that nobody awaits any more may be kept for a while,
        for another connection of this consumer: it came by a relay then (docs/adr/0171).
        """
        return isinstance(self._pulling, Pulling) and bool(self._kept.token)

    async def leave(self, has_moved: bool) -> None:
        """Tell that nobody comes back for what is left (docs/adr/0212): what came by the connection
        of now, and by earlier ones unless all `has_moved` to it. Where that cannot be told, it is
        kept for a while.
        """
        if not isinstance(self._pulling, Pulling) or not self.leaves_grants:
            return
        places = self._pulling.places

        async def leave(partition: int) -> None:
            with contextlib.suppress(WeirError):  # it concerns no other partition
                await self._kept.leave(places, partition, has_moved)

        await asyncio.gather(*map(leave, range(len(places))))

    def stop(self) -> None:
        """Tell nothing more by itself: the feed has ended."""
        self.outcomes.stop()
        self._feed = None

    async def give_back_all(self, holdings: Iterable[Holding]) -> None:
        """Give all back, and say of what was not handed out that nobody tried it."""
        await self.outcomes.give_back_all(holdings)
        await self.end_turn()

    async def end_turn(self) -> None:
        """Give the turn of an ordered cluster back, if there is one."""
        if isinstance(self._pulling, Turns):
            await self._pulling.leave()

    def disconnect(self) -> list[asyncio.Task[None]]:
        """Hold nothing any more: the connection ends. Return what ends with it."""
        self.held.clear()
        self._kept.clear()
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
        #: Keeps what is held when the connection is another one.
        self._following: asyncio.Task[None] | None = None
        self._was_open = False
        #: Which connection of this one it was, by number, that all was moved to last.
        self._moved_to = 0
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
        return self._stale_before + sum(
            topic.outcomes.counted.stale for topic in self.topics.values()
        )

    @property
    def _has_moved(self) -> bool:
        """Whether all that an earlier connection was granted is held by the one of now, or goes to
        others.
        """
        return self._network is None or self._moved_to == self._network.home.times

    # Pulling.

    async def open(self) -> None:
        """Connect and ask for the partitions. Raises `UnknownTopic`, `Disconnected`."""
        if self._network is not None:
            return
        self._network = network = self._home.another(self)
        self._moved_to = 0
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
            following = self._follow(network)
            self._following = asyncio.get_running_loop().create_task(following, name="weir moves")
        except BaseException:
            await self._disconnect()
            raise

    async def _follow(self, network: NetworkClient) -> None:
        """Keep what is held by each connection that follows on another."""
        # What an earlier one held that is given up goes to others by that.
        times = 0 if self._was_open else await network.home.used(0)
        self._was_open, self._moved_to = True, times
        while True:
            times, is_all = await network.home.used(times), True
            for topic in [*self.topics.values()]:
                try:
                    await topic.move()
                except WeirError as error:
                    is_all = False
                    log.info("grants may be lost with a connection: %s", error)
            self._moved_to = times if is_all else 0

    def _begin(
        self, network: NetworkClient, name: str, places: Places, first: Sequence[int]
    ) -> TopicLeases:
        topic = self.topics.get(name)
        if topic is None:
            gone = None if self._subscription.is_named(name) else self._gone
            topic = TopicLeases(self._home, places, self._options, self._demand, gone, first)
            self.topics[name] = topic
        topic.begin(network, places)
        return topic

    def _forget(self, name: str) -> TopicLeases:
        topic = self.topics.pop(name)
        self._stale_before += topic.outcomes.counted.stale
        return topic

    async def take(self, size: int, dropped: Holding | None = None) -> Holding:
        """Return the next grant whose lease runs; pulls ask for `size` messages from now on.

        Its expired messages are noted as done. A cancelled caller loses no grant. A grant that was
        taken before may be `dropped`.
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
            for name in [name for name, topic in self.topics.items() if topic.presence.is_over]:
                await self._let_go(name)
            try:
                found = await self._subscription.matching(network)
            except Disconnected:
                continue  # the pulls notice it themselves
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
                    continue  # pulls from the former topic get the error
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
            await topic.outcomes.flush()

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
        """Tell what is settled, and end the connection; what is not goes to others at once, also
        when this is cancelled.
        """
        is_left = True
        try:
            is_withdrawn = await self._withdraw()
            unasked = await self.stop()
            await self.flush()
            is_left = not (await self._give_back(unasked) and is_withdrawn and self._has_moved)
        finally:
            await (self._leave() if is_left else self._disconnect())

    async def _withdraw(self) -> bool:
        """Pull no more, if something is about to go back: it is not to be granted to a pull of this
        consumer again, which would count as an attempt. Nor is anything to be granted once nobody
        awaits it, if others would not get it with the end of the connection, or as tried. Return
        whether nothing is pulled any more that would be kept.
        """
        for topic in self.topics.values():
            topic.outcomes.note_news()
        if not any(topic.held or topic.leaves_grants for topic in self.topics.values()):
            return True
        self.pause()
        async with _last_acks():
            await asyncio.gather(*(topic.withdraw() for topic in self.topics.values()))
            return True
        return False

    async def _give_back(self, unasked: Sequence[Holding]) -> bool:
        """Give all back; return whether that is done.

        Best effort: with the connection all is free that was granted to it, but not what was
        granted before that was lost and dialled again.
        """
        async with _last_acks():
            for topic in self.topics.values():
                mine = (one for one in unasked if one.lessor is topic)
                await topic.give_back_all([*mine, *topic.held.values()])
            return True
        return False

    async def reset(self) -> None:
        """End the feed and the connection: what the broker grants to its pulls goes to others."""
        try:
            await self.stop()
            async with _last_acks():
                await self.flush()
                for topic in self.topics.values():
                    # It outlives this connection if it was taken by an earlier one that was lost.
                    await topic.end_turn()
        finally:
            # Also when cancelled meanwhile: the last pull may still be granted messages, and a new
            # pull on the same connection would hold them without knowing.
            await self._leave()

    async def _leave(self) -> None:
        """End the connection, and before that tell that nobody comes back for what is left."""
        try:
            await self.stop()
            if self._network is not None and self._network.home.error is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LEAVING):
                        topics, has_moved = self.topics.values(), self._has_moved
                        await asyncio.gather(*(topic.leave(has_moved) for topic in topics))
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        network, self._network = self._network, None
        ending = [task for topic in self.topics.values() for task in topic.disconnect()]
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            ending.append(following)
        try:
            if ending:
                await asyncio.wait(ending)
        finally:  # a cancelled caller ends them, too: others wait for its grants
            if network is not None:
                await network.close()


@contextlib.asynccontextmanager
async def _last_acks() -> AsyncIterator[None]:
    """Let what is told last fail, or take too long."""
    with contextlib.suppress(WeirError, TimeoutError):
        async with asyncio.timeout(_LAST_ACKS):
            yield
