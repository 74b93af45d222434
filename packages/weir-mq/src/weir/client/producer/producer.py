"""A producer: messages in, batches out, each exactly once and in order per partition.

What is delayed is due by the broker's clock, as far as that is known here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from weir.client.arguments import (
    Delay,
    Due,
    Timing,
    as_bytes,
    check_columns,
    key_bytes,
    timing,
    value_bytes,
)
from weir.client.connection.network_client import NetworkClient
from weir.client.core.batcher import (
    MESSAGE_OVERHEAD,
    ArrowBatch,
    ColumnRows,
    Whole,
    arrow_rows,
    cuts,
    rows_by_partition,
    size_of,
)
from weir.client.producer.chunker import Columns, first_of, pieces_of, send_large
from weir.client.producer.receipts import (
    BatchReceipt,
    PendingBatch,
    PendingMessage,
    Receipt,
    Unconfirmed,
)
from weir.client.producer.sender import LONE_WINDOW, ProducerOptions, SharedId, TopicSender
from weir.client.schemas import SchemaVersion
from weir.codec import Buffer
from weir.errors import BadRequest, Overloaded, PartitionEnded, Refused, UnknownTopic, WeirError
from weir.model.columns import is_large
from weir.model.limits import BATCH_BYTES_MAX, VALUE_CHUNK_BYTES
from weir.order.clock import milliseconds_of

__all__ = ["Producer", "ProducerOptions"]

#: By so much, in µs, this machine's clocks may differ in how long it is since the broker was asked.
_DIFFER = 1_000_000


class ProducerKind(NamedTuple):
    """What publishes share a producer: of a topic, of a version of its schema, and all delayed or
    none: what is delayed may be refused, or wait, where the rest does not.
    """

    topic: str
    delayed: bool
    schema: SchemaVersion | None


class BrokerClock:
    """Microseconds since 1970, as the broker has them."""

    def __init__(self, network: NetworkClient, now: Callable[[], int]) -> None:
        """Go by this machine's clock, `now`, until the broker was asked."""
        self._network = network
        self._now = now
        #: What it said when it was asked last, and two clocks of this machine just before that.
        self._asked: tuple[int, int, int] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._learning: asyncio.Task[None] | None = None

    def guess(self) -> int:
        """Return what it says by the last answer, and by what the broker has stamped since.

        Of this machine's clocks one is set, also back; the other one stands still while the machine
        sleeps. The later one counts: what comes late is late, what comes early breaks a promise.
        """
        seen = milliseconds_of(self._network.seen) * 1_000
        if self._asked is None:
            return max(self._now(), seen)
        said, steady, wall = self._asked
        steadily, by_wall = self._steady() - steady, self._now() - wall
        passed = max(steadily, by_wall)
        if abs(steadily - by_wall) > _DIFFER and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self.learn())
        return max(said + passed, seen)

    async def learn(self) -> None:
        """Ask, and go by this machine's clock for now if nobody answers."""
        with contextlib.suppress(WeirError):
            await self.ask()

    async def ask(self) -> int:
        """Return what it says; those who ask at the same time share an answer."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="weir clock")
        await asyncio.shield(self._asking)
        return self.guess()

    async def _ask(self) -> None:
        steady, wall = self._steady(), self._now()
        said = await self._network.wall_ms() * 1_000
        # Since before it was asked: its answer was on its way for some of the time.
        self._asked = said, steady, wall

    def _steady(self) -> int:
        return round(self._network.system.monotonic() * 1_000_000)


class Producer:
    """Sends to one topic under a producer id of its own. `async with` opens, flushes and closes."""

    def __init__(
        self,
        network: NetworkClient,
        topic: str,
        options: ProducerOptions,
        shared: SharedId | None = None,
    ) -> None:
        """Take the connections, and the id that is `shared`; `open` talks to the broker."""
        options.check()
        self.topic = topic
        self._network = network
        self._options = options
        self._now = network.system.now_us
        self._clock = BrokerClock(network, self._now)
        self._unconfirmed = Unconfirmed(
            topic, network.request_timeout, options.max_buffered, options.on_confirm
        )
        self._sender = TopicSender(network, topic, options, self._unconfirmed, shared)

    async def open(self) -> Self:
        """Ask where the partitions are and for a producer id. Raises `UnknownTopic`."""
        await asyncio.gather(self._sender.open(), self._clock.learn())
        return self

    async def close(self) -> None:
        """Give up what is not confirmed; `flush` first to give up nothing."""
        await self._sender.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        try:
            await self.flush()
        except WeirError as unsent:
            if error is None:
                raise
            error.add_note(f"also, not all messages were confirmed: {unsent}")
        finally:
            await self.close()

    @property
    def buffered(self) -> int:
        """Bytes gathered or sent, and not confirmed."""
        return self._unconfirmed.buffered

    @property
    def error(self) -> WeirError | None:
        """The error that ended one of its partitions for good; then open another producer."""
        return self._sender.error

    async def flush(self) -> None:
        """Return when all that was sent before is confirmed; raise the first error since the last.

        Raises `Disconnected` after `request_timeout` without any confirm.
        """
        await self._sender.flush()

    def send(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        delay: Delay | None = None,
        due: Due | None = None,
        ttl: Delay | None = None,
    ) -> PendingMessage:
        """Send one message; await the result for its receipt, or leave that to `flush`.

        `value` is what `publish` takes, as far as it fits in a batch; `delay`, `due` and `ttl` too,
        where now is what the broker's clock said last. A `partition` that is not known yet is
        looked for: the result raises `UnknownTopic` if the topic has none such, and so does `send`
        for the next 2 s. Raises `Overloaded` over `max_buffered` bytes: `await producer.ready()`
        first.
        """
        buffered = self._unconfirmed.buffered
        if buffered > self._options.max_buffered:
            raise Overloaded(
                f"{buffered:,} bytes await their confirms: `await producer.ready()` "
                "before sending more, or raise max_buffered"
            )
        if type(value) is not bytes:
            value = value_bytes(value)
        if (checker := self._sender.checker) is not None:
            checker.check((value,))
        if tag is not None or time is not None or headers:
            check_columns(tag, time, headers)
        raw = None if key is None else key_bytes(key)
        sender = self._sender.choose(raw, partition)
        if raw is None and tag is None and not headers:
            size = MESSAGE_OVERHEAD + len(value)  # as `size_of` says, without being asked
        else:
            size = size_of(value, raw, tag, headers)
        pinned = partition is not None or self._options.partition is not None
        if delay is None and due is None and ttl is None:
            return sender.add(size, value, self._now(), raw, tag, time, headers, pinned=pinned)
        moments = _moments(timing(delay, due, ttl), self._clock.guess())
        now = self._now()
        return sender.add(size, value, now, raw, tag, time, headers, *moments, pinned=pinned)

    async def ready(self) -> None:
        """Return when `send` has room again."""
        await self._unconfirmed.ready()

    async def publish(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        delay: Delay | None = None,
        due: Due | None = None,
        ttl: Delay | None = None,
    ) -> Receipt:
        """Wait for room, send, wait for the receipt. Text is sent as UTF-8, objects as JSON.

        Clusters get it after `delay` ("5m", or seconds), or when it is `due` (a datetime, ISO 8601,
        or µs since 1970), a year ahead at most; and not once its `ttl` is over, which begins now.
        Raises `Disconnected` without a confirm within `request_timeout`; the message is still
        tried until the producer is closed, so it may come to be.
        """
        if tag is not None or time is not None or headers:
            check_columns(tag, time, headers)
        if partition is not None:
            await self._sender.look_for(partition)
        if delay is not None or due is not None or ttl is not None:
            # Raises before anything is sent; `send` goes by the answer.
            _moments(timing(delay, due, ttl), await self._clock.ask())
        if self._unconfirmed.buffered > self._options.max_buffered:
            await self.ready()
        data = value if type(value) is bytes else as_bytes(value)
        if len(data) > VALUE_CHUNK_BYTES // 2:
            welcome = self._network.welcome
            batch_bytes_max = welcome.batch_bytes_max if welcome else BATCH_BYTES_MAX
            if is_large(size_of(data, key_bytes(key), tag, headers), batch_bytes_max):
                if (checker := self._sender.checker) is not None:
                    checker.check((bytes(data),))
                moments = _moments(timing(delay, due, ttl), self._clock.guess())
                columns = self._columns(key, tag, time, headers, moments)
                return await self._send_whole(data, columns, partition)
        sent = self.send(
            bytes(data),
            key=key,
            tag=tag,
            time=time,
            headers=headers,
            partition=partition,
            delay=delay,
            due=due,
            ttl=ttl,
        )
        return sent.receipt(await sent.batch.within(self._unconfirmed.timeout))

    async def publish_from(
        self,
        source: Any,
        *,
        key: bytes | str | None = None,
        tag: str | None = None,
        time: int | None = None,
        headers: Mapping[str, bytes] | None = None,
        partition: int | None = None,
        delay: Delay | None = None,
        due: Due | None = None,
        ttl: Delay | None = None,
    ) -> Receipt:
        """Send one message, however large, whose value comes in pieces; return its receipt.

        `source` is a file open in binary mode, or an iterable or async iterable of bytes. At most
        `max_buffered` bytes of it are in memory.
        """
        when = timing(delay, due, ttl)
        if partition is not None:
            await self._sender.look_for(partition)
        system = self._network.system
        whole, pieces = await first_of(pieces_of(source, system.monotonic, system.chunk_bytes))
        if whole is None:
            if self._sender.checker is not None:
                raise BadRequest(
                    "a value in pieces cannot be checked by its schema: give the whole value to "
                    "`publish`, or use a producer with check=False"
                )
            moments = _moments(when, await self._clock.ask() if when else 0)
            columns = self._columns(key, tag, time, headers, moments)
            return await self._send_large(pieces, columns, partition)
        return await self.publish(
            whole,
            key=key,
            tag=tag,
            time=time,
            headers=headers,
            partition=partition,
            delay=delay,
            due=due,
            ttl=ttl,
        )

    def _columns(
        self,
        key: bytes | str | None,
        tag: str | None,
        time: int | None,
        headers: Mapping[str, bytes] | None,
        moments: tuple[int | None, int | None],
    ) -> Columns:
        return Columns(self._now(), key_bytes(key), tag, time, headers, *moments)

    def _is_pinned(self, partition: int | None) -> bool:
        """Whether a message may go to no other partition."""
        return partition is not None or self._options.partition is not None

    async def _send_whole(self, data: Buffer, columns: Columns, partition: int | None) -> Receipt:
        """Send a large value that is all here: again, elsewhere, if its partition ends."""
        while True:
            try:
                return await self._send_large(
                    pieces_of(data, self._network.system.monotonic), columns, partition
                )
            except PartitionEnded as error:
                if self._is_pinned(partition):
                    raise
                self._unconfirmed.forgive(error)  # its chunks were sent in vain, no more

    async def _send_large(
        self, pieces: AsyncIterator[Buffer], columns: Columns, partition: int | None
    ) -> Receipt:
        sender = self._sender.choose(columns.key, partition)
        return await send_large(self._sender, sender, self._unconfirmed, pieces, columns)

    async def send_many(
        self,
        values: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | None = None,
        tags: Sequence[str | None] | None = None,
        times: Sequence[int] | None = None,
        partition: int | None = None,
        delay: Delay | None = None,
        due: Due | None = None,
        ttl: Delay | None = None,
    ) -> list[PendingBatch]:
        """Pack many messages straight into batches; return these once all are in line to be sent.

        Waits only for room in the window. Without keys a batch goes to one partition, the next
        batch to the next. `delay`, `due` and `ttl`, as for `publish`, are those of all of them.
        Await a batch for its `BatchReceipt`, or leave that to `flush`.
        """
        for column in (keys, tags, times):
            if column is not None and len(column) != len(values):
                raise ValueError(f"a column of {len(column)} for {len(values)} values: give all")
        if (checker := self._sender.checker) is not None:
            checker.check(values)
        when = timing(delay, due, ttl)
        if partition is not None:
            await self._sender.look_for(partition)
        moments = _moments(when, await self._clock.ask() if when else 0)
        rows = ColumnRows(values, keys, tags, times, *moments)
        if partition is None:
            partition = self._options.partition
        if keys is None or partition is not None or len(self._sender.senders) == 1:
            return await self._pack(rows, partition, pinned=partition is not None)
        pending = []
        chooser = self._sender.partitioner
        partitions, turn, closed = len(chooser.senders), chooser.turn, chooser.closed
        for chosen, places in rows_by_partition(keys, partitions, turn, closed).items():
            pending += await self._pack(rows.taken(places), chosen, pinned=False)
        return pending

    async def publish_arrow(self, data: Any, *, partition: int | None = None) -> list[BatchReceipt]:
        """Send a pyarrow record batch or table; return what became of it, batch by batch.

        Columns by name: value, and optionally key, tag, time, headers, as `weir.model.arrow.SCHEMA`
        has them, or of types that cast to those. Rows go to the partition of their key, else to
        each partition in turn. No Python object is made for a row. Raises `BadRequest`, `TooLarge`,
        and `MissingLibrary` without the extra `arrow`.
        """
        found = arrow_rows(data)
        if (checker := self._sender.checker) is not None:
            for whole in found:
                checker.check(whole.values.to_pylist())
        if partition is None:
            partition = self._options.partition
        else:
            await self._sender.look_for(partition)
        pending = []
        chooser = self._sender.partitioner
        for whole in found:
            partitions, turn, closed = len(chooser.senders), chooser.turn, chooser.closed
            spread = partition is None and whole.keys is not None and partitions > 1
            parts = whole.by_partition(partitions, turn, closed) if spread else [(partition, whole)]
            for chosen, rows in parts:
                for first, last, size in rows.cuts(self._options.batch_bytes):
                    batch = partial(
                        ArrowBatch[PendingBatch],
                        base_time=self._now(),
                        rows=rows.slice(first, last),
                    )
                    pending.append(
                        await self._put(chosen, size, last - first, batch, partition is not None)
                    )
        return [await self._unconfirmed.confirmed(batch) for batch in pending]

    async def _pack(
        self, rows: ColumnRows, partition: int | None, pinned: bool
    ) -> list[PendingBatch]:
        pending = []
        found = cuts(
            rows.values,
            self._options.batch_bytes,
            keys=rows.keys,
            tags=rows.tags,
            times=rows.times,
            timed=rows.due is not None or rows.expires is not None,
        )
        for first, last, size in found:
            whole = partial(rows.gathered, first=first, last=last, now=self._now(), size=size)
            pending.append(await self._put(partition, size, last - first, whole, pinned))
        return pending

    async def _put(
        self,
        partition: int | None,
        size: int,
        count: int,
        whole: Callable[[PendingBatch], Whole[PendingBatch]],
        pinned: bool,
    ) -> PendingBatch:
        sender = self._sender.choose(None, partition)
        return await self._sender.put(sender, size, count, whole, pinned)


def _moments(when: Timing | None, now: int) -> tuple[int | None, int | None]:
    """Return when messages are due and when they expire, in µs since 1970."""
    return (None, None) if when is None else when.columns(now)


class SharedProducers:
    """The producers that all publishes of a client share."""

    def __init__(self, network: NetworkClient) -> None:
        """Have none yet."""
        self._network = network
        self._producers: dict[ProducerKind, Producer] = {}
        #: Of those that are delayed and of those that are not, by version of a schema: a topic may
        #: have a producer of each.
        self._ids: dict[tuple[bool, SchemaVersion | None], SharedId] = {}
        self._retired: list[Producer] = []
        self._opening = asyncio.Lock()

    async def publish(
        self,
        kind: ProducerKind,
        send: Callable[[Producer], Coroutine[Any, Any, Receipt]],
    ) -> Receipt:
        """Return what `send` returns of the topic's producer. Raises as `Producer.publish`."""
        known = self._producers.get(kind)
        producer = known or await self._shared(kind)
        try:
            return await send(producer)
        except Refused as error:
            # A refused batch may have ended the producer: the next publish opens a new one.
            # What the old one has under way to other partitions goes on.
            if producer.error is None:
                raise
            if self._producers.get(kind) is producer:
                self._retired.append(self._producers.pop(kind))
            if known is None or not isinstance(error, UnknownTopic):
                raise
        # It was deleted since, and may have been made again: a name means what it means now.
        return await send(await self._shared(kind))

    async def close(self) -> None:
        """Flush what is under way, as far as the network is up, and give up the rest."""
        producers = [*self._producers.values(), *self._retired]
        self._producers.clear()
        try:
            for producer in producers:
                if self._network.error is None and producer.buffered:
                    await producer.flush()
        finally:
            for producer in producers:
                await producer.close()

    async def _shared(self, kind: ProducerKind) -> Producer:
        async with self._opening:
            for producer in [old for old in self._retired if not old.buffered]:
                self._retired.remove(producer)
                await producer.close()
            if kind not in self._producers:
                options = ProducerOptions(linger=0, schema=kind.schema, window=LONE_WINDOW)
                key = kind.delayed, kind.schema
                shared = self._ids.setdefault(key, SharedId(self._network))
                producer = Producer(self._network, kind.topic, options, shared)
                self._producers[kind] = await producer.open()
            return self._producers[kind]
