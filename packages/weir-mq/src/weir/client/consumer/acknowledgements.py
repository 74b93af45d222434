"""What a consumer has done and what it gives back, on its way to the broker.

Both are gathered by partition and sent together, a moment after the first of it. `TopicOutcomes`
notes what becomes of each grant of a topic.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Protocol

from weir.client.connection.metadata import Places
from weir.client.consumer.delivery import AckResult, Held, Holding, Stale, result_of
from weir.client.consumer.moves import KeptGrants
from weir.client.consumer.pulls import Demand, TopicBuffer, TopicPresence
from weir.client.consumer.subscription import ConsumerOptions
from weir.client.consumer.telling import Telling
from weir.client.core.grants import Acks, Run, joined, merged, within, without
from weir.client.core.retries import seconds
from weir.errors import BadRequest, StaleGrant, UnknownCluster, UnknownTopic, WeirError
from weir.model.ids import Address
from weir.model.limits import ACK_RANGES_MAX
from weir.model.topic import AckOutcome, Mode
from weir.protocol.client import messages as m

log = logging.getLogger(__name__)

Range = tuple[int, int, int]

#: What others do, or did, with messages that were settled too late.
_FATES = {
    AckOutcome.DONE_ELSEWHERE: "have done them",
    AckOutcome.EXPIRED: "get them again",
    AckOutcome.PARTLY: "have done them or get them again",
}

#: Of so many partitions what is held is moved together.
_MOVED_TOGETHER = 64
#: Requests of one partition that are under way together.
_TOGETHER = 64

#: Fence, delay in milliseconds, and whether nobody tried it.
_Kind = tuple[int, int, bool]


class Acking:
    """Ranges (fence, first, next) of each partition that are done, until the broker knows it."""

    def __init__(
        self, topic: str, cluster: str, on_stale: Callable[[Stale], None] | None, kept: KeptGrants
    ) -> None:
        """Begin with nothing done; `begin` says where the partitions are."""
        #: How many acks came too late.
        self.stale = 0
        #: By partition, the offset below which all is done, as of the last ack.
        self.cursors: dict[int, int] = {}
        self._topic = topic
        self._cluster = cluster
        self._on_stale = on_stale
        self._kept = kept
        self._places: Places | None = None
        self._acks: dict[int, Acks] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        #: By partition and fence, what came too late of the acks that somebody waits for.
        self._awaited: dict[tuple[int, int], list[list[tuple[int, int, AckOutcome]]]] = {}

    def begin(self, places: Places) -> None:
        """Send to these places from now on, also what is not sent yet."""
        self._places = places

    def done(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a grant as done."""
        self._acks.setdefault(partition, Acks()).done(fence, first, behind)

    async def ack(self, partition: int, fence: int, runs: Sequence[Run]) -> AckResult:
        """Say that they are done; return when a majority knows."""
        key = (partition, fence)
        late: list[tuple[int, int, AckOutcome]] = []
        waiting = self._awaited.setdefault(key, [])
        waiting.append(late)
        try:
            for first, behind in runs:
                self.done(partition, fence, first, behind)
            await self.flush(partition)
        finally:
            waiting[:] = [one for one in waiting if one is not late]
            if not waiting:
                self._awaited.pop(key, None)
        return result_of(
            runs,
            [
                (*part, outcome)
                for first, behind, outcome in late
                for run in runs
                for part in within([(first, behind)], *run)
            ],
        )

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""
        return [partition for partition, acks in self._acks.items() if acks]

    def lock(self, partition: int) -> asyncio.Lock:
        """Return what is held while acks of a partition are under way."""
        return self._locks.setdefault(partition, asyncio.Lock())

    def fences(self, partition: int) -> Iterable[int]:
        """Return the grants of a partition with something to send."""
        return self._acks[partition].fences if partition in self._acks else ()

    async def flush(self, partition: int) -> None:
        """Ack all that waits; one request of a partition at a time, so that acks gather."""
        acks = self._acks.setdefault(partition, Acks())
        async with self.lock(partition):
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
        kept = self._kept
        named = [(kept.now(partition, fence), a, b) for fence, a, b in ranges]

        def request(address: Address) -> m.Request:
            return m.Ack(address, self._cluster, named, exact=True)

        assert self._places is not None  # what is done was pulled from there
        acked = await self._places.ask(partition, request, m.Acked)
        self.cursors[partition] = max(acked.done, self.cursors.get(partition, 0))
        for fence, first, behind, outcome in acked.late:
            one = kept.first(partition, fence), first, behind
            self.expired(partition, one, AckOutcome(outcome))

    def expired(self, partition: int, one: Range, outcome: AckOutcome = AckOutcome.EXPIRED) -> None:
        """Tell of messages (fence, first, next) that were settled too late."""
        fence, first, behind = one
        self.stale += 1
        for late in self._awaited.get((partition, fence), ()):
            late.append((first, behind, outcome))
        if self._on_stale is not None:
            try:
                self._on_stale(Stale(self._topic, partition, first, behind, outcome))
            except Exception:
                # Its error must not cost the reports, and acks, of the ranges behind this one.
                log.exception("on_stale= of a consumer of %s raised", self._topic)
            return
        log.warning(
            "%s/%d: messages %d to %d were settled after their lease had ended; others of cluster "
            "%s %s: give a longer lease=, or a smaller max_messages=",
            self._topic, partition, first, behind - 1, self._cluster, _FATES[outcome],
        )  # fmt: skip


class Nacks:
    """Runs of each partition that are to go back, until the broker knows it.

    They go in their order, and where the cluster is `ordered` the last ones first: what failed
    ends the grants of all behind it, and these are to be given back before that, without an attempt
    counted. What could not be told there is told before anything more is pulled.
    """

    def __init__(
        self, cluster: str, ordered: bool, late: Callable[[int, tuple[int, int, int]], None],
        kept: KeptGrants,
    ) -> None:  # fmt: skip
        """Begin with nothing to give back.

        `late` is told of what was another's already, unless nobody here had tried it.
        """
        self._cluster = cluster
        self._ordered = ordered
        self._late = late
        self._kept = kept
        self._places: Places | None = None
        self._pending: dict[int, dict[_Kind, list[Run]]] = {}
        self._times: dict[int, int] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    def begin(self, places: Places) -> None:
        """Send to these places from now on, also what is not sent yet."""
        self._places = places

    def back(self, partition: int, fence: int, run: Run, delay_ms: int, untried: bool) -> None:
        """Note that messages of a grant go back."""
        self._times[partition] = self.times(partition) + 1
        kinds = self._pending.setdefault(partition, {})
        kinds.setdefault((fence, delay_ms, untried), []).append(run)

    def lock(self, partition: int) -> asyncio.Lock:
        """Return what is held while something of a partition goes back."""
        return self._locks.setdefault(partition, asyncio.Lock())

    def fences(self, partition: int) -> list[int]:
        """Return the grants of a partition of which something is to go back."""
        return [fence for fence, *_ in self._pending.get(partition, ())]

    def times(self, partition: int) -> int:
        """Return how often something of a partition was given back."""
        return self._times.get(partition, 0)

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""
        return [partition for partition, kinds in self._pending.items() if kinds]

    async def flush(self, partition: int) -> None:
        """Return when the broker knows of all that was noted before, sent by this or another."""
        async with self.lock(partition):
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
            async with self.lock(partition):
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
        now = self._kept.now(partition, fence)

        def request(address: Address) -> m.Request:
            return m.Nack(address, self._cluster, now, runs, delay_ms, untried)

        assert self._places is not None  # what goes back was pulled from there
        try:
            await self._places.ask(partition, request, m.Nacked)
        except StaleGrant:
            if not untried:
                self._late(partition, (fence, runs[0][0], runs[-1][1]))
            return False
        return True


class Acknowledging(Protocol):
    """Takes messages that are done: acks of grants, or moves of a cursor."""

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which all is done, as of the last ack."""

    def done(self, partition: int, fence: int, first: int, behind: int) -> None:
        """Note messages [first, behind) of a grant as done."""

    async def ack(self, partition: int, fence: int, runs: Sequence[Run]) -> AckResult:
        """Say that they are done; return when a majority knows."""

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""

    async def flush(self, partition: int) -> None:
        """Send all that waits."""


class Returning(Protocol):
    """Takes messages that are given back."""

    def back(self, partition: int, fence: int, run: Run, delay_ms: int, untried: bool) -> None:
        """Note that messages of a grant go back."""

    async def now(self, partition: int, fence: int, runs: Sequence[Run], delay_ms: int) -> bool:
        """Give back; return when a majority knows, False if it was too late."""

    def times(self, partition: int) -> int:
        """Return how often something of a partition was given back."""

    def waiting(self) -> list[int]:
        """Return the partitions with something to send."""

    async def flush(self, partition: int) -> None:
        """Send all that waits."""


class CursorMoving(Acknowledging, Returning, Protocol):
    """Takes both, with one cursor."""


class TopicOutcomes:
    """The outcomes of the grants of one topic, until the broker knows them."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        places: Places,
        options: ConsumerOptions,
        demand: Demand,
        presence: TopicPresence,
        kept: KeptGrants,
    ) -> None:
        """Begin with nothing; `begin`, or `take_turns`, says where it is told."""
        self.held = Held()
        self._monotonic = monotonic
        self._is_ordered = options.number is Mode.ORDERED
        self._is_keyed = options.number is Mode.KEYED
        self._demand = demand
        self._presence = presence
        cluster, self._kept = options.cluster, kept
        self.counted = Acking(places.topic, cluster, options.on_stale, kept)
        self._nacks = Nacks(cluster, self._is_ordered, self.counted.expired, kept)
        self._acking: Acknowledging = self.counted
        self._returning: Returning = self._nacks
        self._telling = Telling(self, seconds(options.ack_within))
        self._feed: TopicBuffer | None = None
        #: Those with deliveries that are done, and not noted yet.
        self._news: list[Holding] = []
        #: When the first lease ends of what is settled and perhaps not told.
        self._untold_ends = math.inf

    @property
    def cursors(self) -> dict[int, int]:
        """By partition, the offset below which the cluster has done all, as of the last ack."""
        return dict(self._acking.cursors)

    def begin(self, places: Places) -> None:
        """Tell where the topic is served from now on."""
        self.counted.begin(places)
        self._nacks.begin(places)

    async def move(self, places: Places) -> None:
        """Keep all that is held, under other fencing numbers, by the connection of now."""

        async def move(partition: int) -> None:
            async with self.counted.lock(partition), self._nacks.lock(partition):
                settled = [*self.counted.fences(partition), *self._nacks.fences(partition)]
                await self._kept.move(places, partition, settled, self.held)

        for first in range(0, len(places) if self._kept.token else 0, _MOVED_TOGETHER):
            some = range(first, min(first + _MOVED_TOGETHER, len(places)))
            await asyncio.gather(*map(move, some))

    def take_turns(self, turns: CursorMoving) -> None:
        """Tell by the cursor of a turn from now on."""
        self._acking = self._returning = turns

    def tell_by_itself(self, feed: TopicBuffer) -> None:
        """Tell by a timer from now on; what is wrong then is told in `feed`."""
        self._feed = feed
        self._telling.begin()

    def stop(self) -> None:
        """Tell nothing more by itself: the feed has ended."""
        self._telling.stop()
        self._feed = None

    # Settling.

    def is_outrun(self, holding: Holding) -> bool:
        """Whether, in order, a grant may be behind what was given back since it was asked for,
        which comes again first.
        """
        return self._is_ordered and holding.asked != self._returning.times(holding.partition)

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

    async def give_back_all(self, holdings: Iterable[Holding]) -> None:
        """Give all back, and say of what was not handed out that nobody tried it."""
        for holding in holdings:
            self.give_back_rest(holding)
            left, holding.left = holding.left, []
            for run in left:
                self._returning.back(holding.partition, holding.fence, run, 0, untried=False)
        for partition in self._returning.waiting():
            await self._returning.flush(partition)

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

    # Telling.

    def soon(self) -> None:
        """Tell what is settled, together with what is settled until then. Of any thread."""
        self._telling.soon()

    def settled_all(self) -> None:
        """A grant is settled as a whole. Where its keys were kept from others until then, that is
        told at once: they may have nothing else to do.
        """
        if self._is_keyed:
            self._telling.now()

    async def flush(self) -> None:
        """Tell all that is settled; return when a majority knows."""
        try:
            await self._telling.flush()
        except UnknownTopic as error:
            self._presence.end(error)

    async def tell_overdue(self) -> bool:
        """Tell what is settled if some of it had a lease that has ended; False if none had."""
        if any(one.over for one in chain(self.held.values(), self._news)):
            self.note_news()
        if self._monotonic() < self._untold_ends:
            return False
        self._untold_ends = math.inf
        await self.flush()
        return True

    async def quiet(self, partition: int) -> int:
        """Return when the broker knows of all that was given back of a partition, and how often
        that was.
        """
        return await self._nacks.quiet(partition)

    def waiting(self) -> list[int]:
        """Return the partitions with something to tell."""
        return sorted({*self._acking.waiting(), *self._returning.waiting()})

    async def tell(self, partition: int) -> None:
        """Tell what is settled of a partition."""
        await self._acking.flush(partition)
        await self._returning.flush(partition)

    def failed(self, error: WeirError) -> None:
        """Report with the next grant that outcomes could not be sent to the broker."""
        try:
            if isinstance(error, UnknownTopic):
                self._presence.end(error)
                return
        except UnknownTopic:
            pass
        if self._feed is not None:
            self._feed.fail(error)
