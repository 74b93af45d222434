"""Fetching: what one fetch brings, checked, and the tasks that fetch ahead.

Batches come from leaders or replicas, the chunks of large values as somebody asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.core.delivered_batches import (
    Assembly,
    Delivered,
    LargeDelivered,
    check_covered,
    deliver,
)
from weir.client.core.grants import Run, without
from weir.client.reader.positions import Span
from weir.codec import Buffer
from weir.errors import BadBatch, Disconnected, OffsetOutOfRange, Refused, WeirError
from weir.model.columns import References
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.protocol.client import admin as a
from weir.protocol.client import messages as m

#: Seconds until a replica that was left may be asked again.
_LEFT_FOR = 10.0
#: So long after an answer is due, a replica that gives none is left.
_LATE = 1.0
#: So long a replica may lack what is known to be committed.
_LAG = 0.3

#: Of one reply; a single chunk may be larger.
FETCH_BYTES = 4 * MIB

#: For so many seconds a broker may wait for the first message, and at most where none comes.
LONG_POLL = 5.0
LONGEST_POLL = 60.0
#: So many seconds lie between two requests of which the first one brought nothing, so that a broker
#: that does not wait is not stormed.
EMPTY_PAUSE = 0.01

T = TypeVar("T")
K = TypeVar("K")


async def pause_behind(began: float) -> None:
    """Return once a request may be repeated that brought nothing, and that `began` at this time of
    the loop.

    A broker that has waited is asked again at once: all polls whose answers came together leave
    together, and cost it one turn.
    """
    rest = began + EMPTY_PAUSE - asyncio.get_running_loop().time()
    if rest > 0:
        await asyncio.sleep(rest)


class LongPolls(Generic[K]):
    """For how many seconds a broker may wait with its answer, by partition or shard: twice as long
    with each answer that brings nothing. A thousand idle partitions cost as few requests as that.
    """

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        """Begin with short ones."""
        self._seconds: dict[K, float] = {}

    def seconds(self, asked: K) -> float:
        """Return for how long the next answer of a partition or shard may be waited for."""
        return self._seconds.get(asked, LONG_POLL)

    def answered(self, asked: K, is_empty: bool) -> None:
        """An answer came, with messages or a mark, or without."""
        if is_empty:
            self._seconds[asked] = min(2 * self.seconds(asked), LONGEST_POLL)
        else:
            self._seconds.pop(asked, None)


class Replicas:
    """Which replica of each partition is asked. All are as good: a reader keeps to one of them.

    What a replica gives is committed, however far it lags behind. Where none will do, the leader
    has to be asked.
    """

    def __init__(self, network: NetworkClient, places: Places) -> None:
        """Know of none yet: `find` asks."""
        self._network = network
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
                at = int(self._network.random.random() * len(nodes))
                self._nodes[partition] = nodes[at:] + nodes[:at]

    def expect(self, partition: int, offset: int) -> None:
        """All messages below `offset` are committed: a fetch waits a moment for them."""
        self._expected[partition] = max(offset, self._expected.get(partition, 0))
        if (asked := self._asked.get(partition)) is not None and asked[0] < offset:
            self._shorten(asked[1])

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
            address = self._network.led_by(self._places[partition], node)
            try:
                async with asyncio.timeout(wait + _LATE) as limit:
                    self._asked[partition] = position, limit
                    if self._expected.get(partition, 0) > position:
                        self._shorten(limit)
                    fetched = await self._network.request(
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

    def _shorten(self, limit: asyncio.Timeout) -> None:
        until, due = asyncio.get_running_loop().time() + _LAG, limit.when()
        if due is None or until < due:
            limit.reschedule(until)


class ChunkedValue(msgspec.Struct, frozen=True):
    """The pieces of one value. Each iteration fetches, and checks, all of it."""

    places: Places
    partition: int
    references: References

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        """Yield pieces in order. Raises `BadBatch` behind the last if the whole is not right."""
        assembly = Assembly(self.references, self.places[self.partition].group)
        while (wanted := assembly.wanted()) is not None:
            for piece in await self._fetch(assembly, *wanted):
                yield piece

    async def _fetch(self, assembly: Assembly, index: int, count: int) -> list[memoryview]:
        pieces: list[memoryview] = []

        def request(address: Address) -> m.Request:
            return m.FetchChunks(address, index, count, FETCH_BYTES)

        def check(fetched: m.FetchedChunks) -> None:
            pieces[:] = assembly.opened(fetched.batches)

        await self.places.ask(self.partition, request, m.FetchedChunks, wait=0.0, check=check)
        assembly.took(pieces)
        return pieces


class Chunks(msgspec.Struct, frozen=True):
    """Fetches the large values of one topic."""

    places: Places

    def pieces(self, partition: int, references: References) -> ChunkedValue:
        """Return where a value's pieces come from; nothing is fetched yet."""
        return ChunkedValue(self.places, partition, references)


async def loaded(delivered: Delivered, size_max: int) -> Delivered:
    """Return `delivered`, its value fetched if it lies in chunks and has up to `size_max` bytes.

    Raises `BadBatch`, which says how to go on.
    """
    if not isinstance(delivered, LargeDelivered) or delivered.references.size > size_max:
        return delivered
    (message,) = delivered.messages()
    try:
        return replace(delivered, loaded=await message.read())
    except BadBatch as error:
        raise BadBatch(
            f"offset {delivered.offset} of {delivered.topic}/{delivered.partition} cannot be read: "
            f"{error}. To skip it, read with start={{{delivered.partition}: "
            f"{delivered.next_offset}}}"
        ) from error


class ReadyBatches(msgspec.Struct, frozen=True):
    """Batches in the order in which they are handed out, and by partition the position behind them.

    `slot` is to be released once nothing of it is at hand any more.
    """

    delivered: list[Delivered]
    positions: Mapping[int, int]
    slot: asyncio.Semaphore | None = None


class Portion(msgspec.Struct, frozen=True):
    """Batches of one partition, and the position behind them.

    `over`: what was asked for ends here. All that is ever stamped at or below `barrier` lies below
    offset `committed`, and so many `partitions` belong to the order then; 0 says nothing. All that
    is ever stamped at or below `received` lies below `next_offset`, by what came; 0: nothing came.
    """

    partition: int
    delivered: list[Delivered]
    next_offset: int
    over: bool = False
    committed: int = 0
    barrier: int = 0
    partitions: int = 0
    received: int = 0


class Fetcher:
    """Fetches portions of one topic, from leaders, or from `replicas` if any are given."""

    def __init__(
        self,
        network: NetworkClient,
        places: Places,
        span: Span,
        max_bytes: int,
        replicas: Replicas | None = None,
    ) -> None:
        """Leave out what does not lie in `span` by its stamp; ask for `max_bytes` at a time."""
        self.places = places
        self._network = network
        self._span = span
        self._max_bytes = max_bytes
        self._replicas = replicas
        self._polls = LongPolls[int]()

    async def fetch(self, partition: int, position: int, end: int | None) -> Portion:
        """Return what lies at `position`, none of it at or behind `end`; nothing where none comes
        for long.

        Raises `OffsetOutOfRange`, which says how to go on.
        """

        def request(address: Address, replica: bool = False) -> m.Request:
            wait_ms = int((LONG_POLL if replica else poll) * 1_000)
            return m.Fetch(
                address, position, self._max_bytes, wait_ms, replica, True, self._span.pick.asked,
                lineage,
            )  # fmt: skip

        delivered: list[Delivered] = []
        poll = self._polls.seconds(partition)
        lineage = self._span.lineages.get(partition, -1)

        def check(fetched: m.Fetched) -> None:
            behind = _behind(fetched, end)
            places = self.places
            delivered[:] = deliver(
                fetched.batches, places[partition].group, places.topic, partition, position, behind,
                Chunks(places),
            )  # fmt: skip
            check_covered(fetched, delivered, max(behind, position), self._span.pick.asked)

        fetched: m.Fetched | None = None
        if self._replicas is not None:
            fetched = await self._replicas.ask(
                partition, position, lambda address: request(address, True), LONG_POLL, check
            )
            if fetched is not None and _missing(delivered, fetched, position, end):
                fetched = None
        try:
            if fetched is None:
                fetched = await self.places.ask(
                    partition, request, m.Fetched, wait=poll, check=check
                )
                self._polls.answered(partition, fetched.next_offset == position)
        except OffsetOutOfRange as error:
            if self._span.found.get(partition) == position < error.detail:
                # Nobody named this offset: retention was faster than the first fetch.
                return Portion(partition, [], error.detail)
            raise self._out_of_range(partition, position, error) from error
        self._span.committed[partition] = fetched.committed
        if fetched.lineage >= 0:
            self._span.lineages[partition] = fetched.lineage
        for part in delivered:
            self._network.saw(part.batch.header.stamp)
        wanted, ceiling = self._span.pick.passes(delivered)
        return Portion(
            partition,
            wanted,
            max(_behind(fetched, end), position) if ceiling is None else ceiling,
            ceiling is not None,
            fetched.committed,
            fetched.barrier,
            fetched.partitions,
            _received(delivered, fetched, end),
        )

    def expect(self, partition: int, offset: int) -> None:
        """All below `offset` is committed: a replica that does not give it soon is left."""
        if self._replicas is not None:
            self._replicas.expect(partition, offset)

    def _out_of_range(
        self, partition: int, position: int, refusal: OffsetOutOfRange
    ) -> OffsetOutOfRange:
        nearest = refusal.detail
        # What a relay lacks may lie amid what it has: the earliest would lead here again.
        why, way = (
            ("Messages before it are past retention.", "")
            if nearest > position
            else (f"The broker says: {refusal}.", " or start='earliest'")
        )
        return OffsetOutOfRange(
            f"{self.places.topic}/{partition} has no offset {position}; the nearest one is "
            f"{nearest}. {why} To go on, read with start={{{partition}: {nearest}}}{way}",
            nearest,
        )


def _behind(fetched: m.Fetched, end: int | None) -> int:
    return fetched.next_offset if end is None else min(fetched.next_offset, end)


def _received(delivered: list[Delivered], fetched: m.Fetched, end: int | None) -> int:
    """Return the stamp up to which all of the partition lies in front of what comes next."""
    if not delivered:
        return 0
    is_cut = fetched.is_cut or _behind(fetched, end) < fetched.next_offset
    return delivered[-1].batch.header.stamp - is_cut


def _missing(
    delivered: list[Delivered], fetched: m.Fetched, position: int, end: int | None
) -> list[Run]:
    """Return what neither came nor is said to be void or without a wanted tag."""
    wanted = [(position, _behind(fetched, end))]
    rest = without(wanted, [(d.offset, d.next_offset) for d in delivered])
    return without(without(rest, fetched.voids), fetched.skipped)


class _Over(msgspec.Struct, frozen=True):
    """A puller has ended, by itself or by an error."""

    error: Exception | None = None


class FetchBuffer(Generic[T]):
    """Batches that pullers fetched, in order of arrival. Each puller limits how much it fetches
    ahead.
    """

    def __init__(
        self, pullers: Iterable[Callable[[FetchBuffer[T]], Coroutine[None, None, None]]]
    ) -> None:
        """Start every puller; it gets this buffer, and ends it by raising."""
        self._queue: asyncio.Queue[T | _Over] = asyncio.Queue()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._live = 0
        for puller in pullers:
            self.add(puller)

    def add(
        self, puller: Callable[[FetchBuffer[T]], Coroutine[None, None, None]]
    ) -> asyncio.Task[None]:
        """Start one more puller, and return it."""
        task = asyncio.get_running_loop().create_task(self._run(puller), name="weir puller")
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        self._live += 1
        return task

    def put(self, item: T) -> None:
        """Queue an item."""
        self._queue.put_nowait(item)

    def fail(self, error: Exception) -> None:
        """Queue an error: the reader gets it after the batches that are queued."""
        self._queue.put_nowait(_Over(error))

    async def take(self) -> T | None:
        """Return the next item, None once every puller has ended; raise what a puller raised."""
        while self._live:
            item = await self._queue.get()
            if not isinstance(item, _Over):
                return item
            if item.error is not None:
                raise item.error
            self._live -= 1
        return None

    def drain(self) -> list[T]:
        """Return what is queued; errors, and ends of pullers, stay."""
        queued = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for item in queued:
            if isinstance(item, _Over):
                self._queue.put_nowait(item)
        return [item for item in queued if not isinstance(item, _Over)]

    async def close(self) -> None:
        """End every puller."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, puller: Callable[[FetchBuffer[T]], Coroutine[None, None, None]]) -> None:
        try:
            await puller(self)
        except Exception as error:
            self.fail(error)
        else:
            self._queue.put_nowait(_Over())
