"""A reader: batches or messages of a topic from some position on, without a cluster.

In total order it hands out one sequence of all partitions: fetched ahead, held until nothing can
come in front of it, merged by stamp, partition and offset. Every reader gets the same sequence,
from whichever replica, live or replayed (DESIGN §6 OneOrder).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Protocol

import msgspec

from weir.client.connection.metadata import Places, watch
from weir.client.connection.network_client import NetworkClient
from weir.client.core.delivered_batches import Delivered
from weir.client.reader.fetcher import (
    FetchBuffer,
    Fetcher,
    LongPolls,
    Portion,
    ReadyBatches,
    Replicas,
    loaded,
    pause_behind,
)
from weir.client.reader.options import (
    BEST_EFFORT,
    SILENT_AFTER,
    ReaderOptions,
    ReadingOrder,
    begin_of,
    end_of,
)
from weir.client.reader.positions import Barriers, Span
from weir.errors import (
    Disconnected,
    Overloaded,
    Refused,
    Unavailable,
    UnknownOpcode,
    WeirError,
)
from weir.model.limits import KIB, MIB
from weir.model.message import Message
from weir.model.topic import check_order
from weir.order.barrier import NO_BOUND, Barrier, Merge, Roster, Silence
from weir.protocol.client import messages as m

#: What all partitions together may hold that waits for the barrier; as much may wait for the user.
HELD_BYTES = 64 * MIB
_HELD_BYTES_MIN = 64 * 1024
#: No question for barriers begins sooner after the last one, in seconds.
ASK_EVERY = 0.005
#: At so many shards a reader awaits marks at most.
STANDING_MAX = 16
#: After so many seconds a shard is asked again that could not be reached.
_REST = 0.5
#: How often, and after how many seconds, the reader asks again which partitions joined.
_TRIES = 200
_AGAIN_AFTER = 0.05
#: Answers of one partition that are with the user or ahead of him.
PREFETCH = 2
#: An answer of at most so many bytes is with the user before the next fetch is sent: it takes the
#: user less time than the request takes. A larger one is worked on while the next one is under way.
_SMALL_BYTES = 4 * KIB


class _Marks(NamedTuple):
    """The last mark that was used: the order of so many partitions is complete through `above`."""

    above: int
    partitions: int


_NO_MARK = _Marks(0, 0)


class _Subscription(msgspec.Struct):
    """What is awaited of marks, and what they told."""

    #: Whether any are awaited, and brokers know of them.
    is_open: bool
    #: The last one that was used, and by partition the offset that marks told.
    last: _Marks = _NO_MARK
    throughs: dict[int, int] = msgspec.field(default_factory=dict)
    #: The shards at which one is awaited again and again, and at which one is awaited just now.
    places: dict[tuple[int, int], None] = msgspec.field(default_factory=dict)
    awaited: dict[tuple[int, int], None] = msgspec.field(default_factory=dict)
    polls: LongPolls[tuple[int, int]] = msgspec.field(default_factory=LongPolls)
    #: How many partitions are known to have ended.
    ended: int = 0
    #: By partition, when something of it came.
    heard: dict[int, float] = msgspec.field(default_factory=dict)
    #: The partition of which something came last: its leader is asked for barriers.
    latest: int | None = None


class _Held(NamedTuple):
    """A batch that waits for the barrier, and where its partition goes on behind it."""

    delivered: Delivered
    behind: int


def room_for(partitions: int) -> int:
    """Return how many bytes each of so many partitions may hold."""
    return max(HELD_BYTES // max(partitions, 1), _HELD_BYTES_MIN)


class TotalOrder:
    """Pullers of all partitions, and one order of what they bring.

    Barriers come with what leaders answer, and as marks: a request for the next mark is under way
    at each shard of which messages came, which answers it as soon as what it accepts may be handed
    out. Barriers are asked for while something is held and no mark comes: the shard is not known
    yet, or is of an earlier release.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        barriers: Barriers,
        begins: Mapping[int, int],
        span: Span,
        grows: bool,
        patience: float | None = None,
    ) -> None:
        """Read each partition from `begins` on, up to where `span` ends. If it `grows`, partitions
        that are added later join `span` before anything of them comes; else they are not read.

        After `patience` seconds, if there is any, in which what was received waits for a partition
        that tells nothing new, the order goes on without it.
        """
        self._fetcher = fetcher
        self._barriers = barriers
        self._silence = None if patience is None else Silence(patience)
        self._span = span
        self._grows = grows
        self._merge: Merge[_Held] = Merge(Roster(begins), begins, room_for(len(begins)))
        #: By partition, up to where it was received, with nothing behind what was handed out.
        self._passed: dict[int, int] = {}
        self._rooms = {partition: asyncio.Event() for partition in begins}
        self._news = asyncio.Event()
        self._waits = asyncio.Event()
        self._error: Exception | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._live = len(begins)
        #: By partition that has ended, the offset behind its last message.
        self._over: dict[int, int] = {}
        for partition in begins:
            self._begin(partial(self._pull, partition))
        self._subscription = _Subscription(span.ends is None)
        if span.ends is None:
            self._begin(self._ask)
        if grows:
            self._begin(partial(watch, fetcher.places, len(begins), self._grown))

    @property
    def late(self) -> int:
        """How many messages came too late for the order: they are not handed out."""
        return 0 if self._silence is None else self._silence.late

    async def take(self) -> ReadyBatches | None:
        """Return what comes next, None at the end; raise what a puller raised."""
        while (ready := self._let_out()) is None:
            if self._error is not None:
                raise self._error
            if not self._live and not self._merge.highest:
                return None
            self._news.clear()
            if self._merge.highest:
                self._waits.set()
            await self._wait_for_news()
        self._waits.clear()
        if self._silence is not None and ready.delivered:
            self._silence.begin()  # while the user has something to do, nobody waits
        return ready

    async def _wait_for_news(self) -> None:
        """Return once there are some, or what is held goes on without a silent partition."""
        if self._silence is None or not self._merge.highest:
            await self._news.wait()
            return
        loop, roster = asyncio.get_running_loop(), self._merge.roster
        silent, rest = self._silence.look(roster, loop.time())
        for partition in silent:
            if roster.leave(partition):
                return
        with suppress(TimeoutError):
            async with asyncio.timeout(rest):
                await self._news.wait()

    async def close(self) -> None:
        """End every puller."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._run(work), name="weir order"))

    async def _run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._error = self._error or error
            self._news.set()

    # -- batches -------------------------------------------------------------------------------

    async def _pull(self, partition: int) -> None:
        loop = asyncio.get_running_loop()
        merge, room = self._merge, self._rooms[partition]
        ends = self._span.ends
        end = None if ends is None else ends[partition]
        position = merge.next(partition)
        while end is None or position < end:
            while not merge.wants(partition):
                room.clear()
                await room.wait()
            if self._has_ended(partition, position):
                return  # a reader that follows still waits for the other partitions
            began = loop.time()
            try:
                portion = await self._fetcher.fetch(partition, position, end)
            except WeirError as error:
                if self._has_ended(partition, position):  # it may well have no leader any more
                    return
                if not self._outlives(error):
                    raise
                await asyncio.sleep(_REST)
                continue
            await self._learn(portion.partitions)
            self._take_in(portion)
            if portion.over:
                break
            if portion.next_offset == position:
                await pause_behind(began)
            position = portion.next_offset
        merge.barrier(partition, Barrier(NO_BOUND, merge.next(partition)))
        self._live -= 1
        self._news.set()

    def _has_ended(self, partition: int, position: int) -> bool:
        return self._span.ends is None and self._over.get(partition, NO_BOUND) <= position

    def _take_in(self, portion: Portion) -> None:
        merge, partition, delivered = self._merge, portion.partition, portion.delivered
        for at, part in enumerate(delivered, 1):
            behind = delivered[at].offset if at < len(delivered) else portion.next_offset
            header = part.batch.header
            merge.skip(partition, part.offset)
            if self._silence is not None and merge.is_late(partition, header.stamp):
                self._refuse(part, behind)
                continue
            held = _Held(part, behind)
            merge.push(partition, header.stamp, part.offset, behind, header.total_size, held)
            self._passed.pop(partition, None)
        if delivered:
            self._subscription.latest = partition
            self._stand(partition)
            self._subscription.heard[partition] = asyncio.get_running_loop().time()
        if portion.next_offset > merge.next(partition):
            merge.skip(partition, portion.next_offset)
            self._passed[partition] = portion.next_offset
        merge.received(partition, portion.received)
        if portion.barrier:
            merge.barrier(partition, Barrier(portion.barrier, portion.committed))
        self._news.set()

    def _refuse(self, part: Delivered, behind: int) -> None:
        """Count what would lie in front of what was handed out; a position behind it is kept."""
        wanted = self._span.pick.wanted(part)
        if self._silence is not None and wanted is not None:
            self._silence.late += len(wanted)
        self._merge.skip(part.partition, behind)
        self._passed[part.partition] = behind

    def _outlives(self, error: WeirError) -> bool:
        """Whether the others are read on while a partition, or what tells of all, cannot be asked:
        where order is best effort, as long as nothing else ends.
        """
        if self._silence is None or self._span.ends is not None:
            return False
        return isinstance(error, Disconnected) or (isinstance(error, Refused) and error.retryable)

    def _let_out(self) -> ReadyBatches | None:
        """Return all that nothing can come in front of; None if that is nothing."""
        taken = self._merge.take()
        positions = {merged.partition: merged.item.behind for merged in taken}
        for partition in positions:
            self._rooms[partition].set()
        for partition in [one for one in self._passed if not self._merge.holds(one)]:
            positions[partition] = self._passed.pop(partition)
        if not positions:
            return None
        return ReadyBatches([merged.item.delivered for merged in taken], positions)

    # -- barriers and partitions that join -------------------------------------------------------

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._waits.wait()
            if self._mark_is_due():
                await asyncio.sleep(ASK_EVERY)
                if not self._waits.is_set():
                    continue  # it came
            if (rest := self._quiet_in()) > 0:
                await asyncio.sleep(rest)
                continue
            self._waits.clear()
            began = loop.time()
            # The node that sent the news is awake, and gets the question with the next fetch.
            latest = self._subscription.latest
            try:
                told = await self._barriers.ask(self._merge.highest, partition=latest)
            except WeirError as error:
                if not self._outlives(error):
                    raise
                self._subscription.latest = None
                await asyncio.sleep(_REST)
                continue
            if not told.reached and self._subscription.latest == latest:
                self._subscription.latest = (
                    None  # it may be cut off from the others: ask where one is at home
                )
            await self._apply(told)
            await asyncio.sleep(max(began + ASK_EVERY - loop.time(), 0.0))

    def _stand(self, partition: int) -> None:
        """Keep a request for marks under way at the shard that leads a partition."""
        if self._subscription.is_open:
            place = self._barriers.place(partition)
            if (
                place not in self._subscription.places
                and len(self._subscription.places) < STANDING_MAX
            ):
                self._subscription.places[place] = None
                self._begin(partial(self._follow, partition))

    async def _follow(self, partition: int) -> None:
        """Take mark after mark, but none while those who are waited for talk anyway."""
        loop = asyncio.get_running_loop()
        place, polls = self._barriers.place(partition), self._subscription.polls
        while self._barriers.place(partition) == place:
            if (rest := self._quiet_in()) > 0:
                await asyncio.sleep(rest)
                continue
            began, marks, stamp = loop.time(), self._subscription.last, self._merge.highest
            self._subscription.awaited[place] = None
            try:
                wait_ms = int(polls.seconds(place) * 1_000)
                mark = await self._barriers.next_mark(marks.above, stamp, wait_ms, partition)
            except UnknownOpcode:
                self._subscription.is_open = False  # an earlier release: barriers are asked for
                break
            except (Disconnected, Overloaded, Unavailable):
                await asyncio.sleep(_REST)
                continue
            finally:
                self._subscription.awaited.pop(place, None)
            polls.answered(place, not mark.reached)
            if not await self._take_mark(mark, marks):
                await asyncio.sleep(_AGAIN_AFTER)
            await asyncio.sleep(max(began + ASK_EVERY - loop.time(), 0.0))
        self._subscription.places.pop(place, None)

    def _mark_is_due(self) -> bool:
        """Return whether the sender of the news has been asked for the next mark already."""
        latest = self._subscription.latest
        return latest is not None and self._barriers.place(latest) in self._subscription.awaited

    async def _take_mark(self, mark: m.OrderMark, since: _Marks) -> bool:
        """Use a mark that was asked for `since` others were used; False if it says nothing new."""
        merge, count = self._merge, mark.partitions
        if mark.ended > self._subscription.ended or (self._grows and count > len(merge.roster)):
            told = await self._barriers.ask(0)
            self._subscription.ended = len(told.ends)
            await self._apply(told)
            return False
        known = self._subscription.last.partitions
        if since.above and {count, since.partitions, known} != {known}:
            # It is of another set: of partitions that it leaves out nothing was told before.
            if count > known:
                self._subscription.last = _Marks(0, count)
            return True
        if (
            mark.stamp <= self._subscription.last.above
            or count < self._subscription.last.partitions
        ):
            return mark.stamp > since.above  # another shard was faster
        throughs = self._subscription.throughs
        for partition, through in mark.throughs:
            throughs[partition] = max(through, throughs.get(partition, 0))
            if partition in merge and through > merge.next(partition):
                self._fetcher.expect(partition, through)
        for partition in range(count):
            if partition in merge:
                merge.barrier(partition, Barrier(mark.stamp, throughs.get(partition, 0)))
        self._subscription.last = _Marks(mark.stamp, count)
        self._news.set()
        return mark.reached

    def _quiet_in(self) -> float:
        """Return in how many seconds somebody who holds the barrier back was silent for a while:
        until then, what he sends next is likely to say more than an answer would.
        """
        behind = self._merge.roster.behind()
        heard = min(
            (self._subscription.heard.get(partition, 0.0) for partition in behind), default=0.0
        )
        return heard + ASK_EVERY - asyncio.get_running_loop().time()

    async def _apply(self, told: m.Barriers) -> None:
        await self._join(told)
        for partition, stamp, through in told.registers:
            if stamp and partition in self._merge:
                if through > self._merge.next(partition):
                    self._fetcher.expect(partition, through)
                self._merge.barrier(partition, Barrier(stamp, through))
        for partition, stamp, offset in told.ends:
            if partition in self._merge and partition not in self._over:
                self._over[partition] = offset
                self._merge.roster.end(partition, stamp)
                self._merge.barrier(partition, Barrier(stamp, offset))
        self._news.set()

    async def _join(self, told: m.Barriers) -> None:
        """Read which partitions joined the order, before using later news of it."""
        if not self._grows or all(p in self._merge for p, _ in told.roster):
            return
        await self._barriers.known(told)
        for partition, floor in told.roster:
            if partition not in self._merge:
                self._span.join(partition)
                self._rooms[partition] = asyncio.Event()
                self._merge.roster.join(partition, floor)
                self._merge.add(partition, 0)
                self._live += 1
                self._begin(partial(self._pull, partition))

    async def _learn(self, partitions: int) -> None:
        """Wait until all partitions are read that belong to the order by now."""
        if not self._grows:
            return
        tries = 0
        while len(self._merge.roster) < partitions:
            await self._apply(await self._barriers.ask(0))
            tries += 1
            if tries > _TRIES:
                raise Unavailable(
                    f"{partitions} partitions belong to the order, and it is not told which: "
                    "read again shortly"
                )
            if len(self._merge.roster) < partitions:
                await asyncio.sleep(_AGAIN_AFTER)

    def _grown(self, partitions: Iterable[int]) -> None:
        self._begin(partial(self._learn, max(partitions) + 1))


class _BatchSource(Protocol):
    """Whatever gives batches in the order in which they are handed out."""

    async def take(self) -> ReadyBatches | None:
        """Return the next ones; None at the end."""

    async def close(self) -> None:
        """End all that runs for it."""


class Reader:
    """Iterate it for messages, or `batches()` for batches, each partition in offset order.

    In total order all of them come in one order, which is the same for every reader of the topic.
    `positions` is {partition: offset behind what was handed out}; kept and given back as `start`,
    it continues there without gap or repeat. So does iterating again after an error.
    """

    def __init__(self, network: NetworkClient, topic: str, options: ReaderOptions) -> None:
        """Take the connections; the first iteration talks to the broker."""
        options.check()
        self.topic = topic
        begin = begin_of(options.start)
        end = None if options.until is None else end_of(options.until)
        self._span = Span(begin, end, options.pick(begin, end), options.follow)
        self.positions = self._span.positions
        #: By partition, the offset behind the last committed message, as of the last fetch.
        self.committed = self._span.committed
        #: "partition" or "total", once it is open.
        self.order: ReadingOrder | Literal[""] = options.order or ""
        self._late = 0
        self._network = network
        self._options = options
        self._source: _BatchSource | None = None
        self._ready: ReadyBatches | None = None
        self._rest: deque[Delivered] = deque()
        self._delivered: Delivered | None = None
        self._messages: Iterator[Message] | None = None

    @property
    def late(self) -> int:
        """How many messages came too late for an order of best effort, and were left out."""
        source = self._source
        return self._late + (source.late if isinstance(source, TotalOrder) else 0)

    def checkpoint(self) -> dict[int, tuple[int, int]]:
        """Return `positions`, each with the lineage in which all below it was read, -1 where no
        broker has told it: kept and given back as `start`, a reader is told as this one would be
        where a core set was promoted meanwhile that does not have all of that.
        """
        lineages = self._span.lineages
        return {p: (at, lineages.get(p, -1)) for p, at in self.positions.items()}

    async def open(self) -> Reader:
        """Fill `positions`, and begin to fetch; `async with` and the first iteration do it too.

        Raises `UnknownTopic`, also for a partition that the topic does not have.
        """
        if self._source is None:
            await self._start()
        return self

    async def close(self) -> None:
        """Stop fetching. Iterating again would continue at `positions`."""
        source, self._source = self._source, None
        if isinstance(source, TotalOrder):
            self._late += source.late
        self._ready = self._delivered = self._messages = None
        self._rest.clear()
        if source is not None:
            await source.close()

    async def __aenter__(self) -> Reader:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Reader:
        return self

    async def __anext__(self) -> Message:
        while (message := self.at_hand()) is None:
            if not await self.more():
                raise StopAsyncIteration
        return message

    def at_hand(self) -> Message | None:
        """Return the next message if it is here already, without waiting; None: await `more`."""
        if self._messages is None:
            return None
        message = next(self._messages, None)
        if message is not None:
            self.positions[message.partition] = message.offset + 1
        elif self._delivered is not None:
            self.positions[self._delivered.partition] = self._delivered.next_offset
            self._delivered = self._messages = None
        return message

    async def more(self) -> bool:
        """Wait for messages, so that `at_hand` has one; False at the end."""
        delivered = await self._next()
        if delivered is None:
            return False
        self._delivered, self._messages = delivered, delivered.messages()
        return True

    async def batches(self) -> AsyncIterator[Delivered]:
        """Yield checked batches; `skip` of the first one may be above 0."""
        while (delivered := await self._next()) is not None:
            self.positions[delivered.partition] = delivered.next_offset
            yield delivered

    async def _next(self) -> Delivered | None:
        """Return the next batch; None at the end. `positions` moves over what holds no messages."""
        while (delivered := self._wanted()) is None:
            if self._ready is not None:
                ready, self._ready = self._ready, None
                self.positions.update(ready.positions)
                if ready.slot is not None:
                    ready.slot.release()
            source = self._source or await self._start()
            try:
                self._ready = await source.take()
            except BaseException:
                await self.close()
                raise
            if self._ready is None:
                return None
            # Moved, not copied: what is handed out is in nobody's hands but the user's, since an
            # opened batch may be a thousand times as large as what came.
            self._rest.extend(self._ready.delivered)
            self._ready.delivered.clear()
        return await self._whole(delivered)

    def _wanted(self) -> Delivered | None:
        """Return the next batch at hand with messages that are wanted, or nothing."""
        while self._rest:
            delivered = self._span.pick.wanted(self._rest.popleft())
            if delivered is not None:
                return delivered
        return None

    async def _whole(self, delivered: Delivered) -> Delivered:
        """Fetch a value that lies in chunks, unless it is over the limit."""
        try:
            return await loaded(delivered, self._options.value_bytes_max)
        except BaseException:
            await self.close()  # to go on at `positions`, with this very message
            raise

    async def _start(self) -> _BatchSource:
        options, span = self._options, self._span
        places = await Places.find(self._network, self.topic)
        self.order = options.order or check_order(places.order)
        merges = self.order != "partition"
        barriers = Barriers(self._network, places) if merges else None
        mine = await span.ask(self._network, places, options.partitions, barriers)
        replicas = None
        if options.read_from == "any":
            replicas = Replicas(self._network, places)
            await replicas.find(mine)
        max_bytes = options.max_bytes
        if barriers is not None:
            max_bytes = min(max_bytes, room_for(len(mine)))
        fetcher = Fetcher(self._network, places, span, max_bytes, replicas)
        grows = options.partitions is None and span.ends is None
        if barriers is not None:
            begins = {partition: span.positions[partition] for partition in mine}
            patience = SILENT_AFTER if self.order == BEST_EFFORT else None
            self._source = TotalOrder(fetcher, barriers, begins, span, grows, patience)
            return self._source
        buffer = self._source = FetchBuffer(
            partial(self._pull, fetcher, partition) for partition in mine
        )
        if grows:
            buffer.add(partial(self._watch, fetcher, len(mine)))
        return buffer

    async def _watch(self, fetcher: Fetcher, known: int, buffer: FetchBuffer[ReadyBatches]) -> None:
        """Read partitions that are added later, too: all that is in them is new."""

        def grown(partitions: range) -> None:
            for partition in partitions:
                self._span.join(partition)
                buffer.add(partial(self._pull, fetcher, partition))

        await watch(fetcher.places, known, grown)

    async def _pull(
        self, fetcher: Fetcher, partition: int, buffer: FetchBuffer[ReadyBatches]
    ) -> None:
        ends = self._span.ends
        position, end = self.positions[partition], None if ends is None else ends[partition]
        slots = asyncio.Semaphore(PREFETCH)
        loop = asyncio.get_running_loop()
        while end is None or position < end:
            await slots.acquire()
            began = loop.time()
            portion = await fetcher.fetch(partition, position, end)
            if portion.next_offset == position and not portion.over:
                slots.release()
                await pause_behind(began)
                continue
            position = portion.next_offset
            is_small = _is_small(portion.delivered)
            buffer.put(ReadyBatches(portion.delivered, {partition: position}, slots))
            if portion.over:
                return
            if is_small:
                await asyncio.sleep(0)  # the waiting reader continues before the next fetch


def _is_small(delivered: list[Delivered]) -> bool:
    return sum(one.batch.header.total_size for one in delivered) <= _SMALL_BYTES
