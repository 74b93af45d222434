"""Values over one batch, producer side: cut into chunks, closed by one message of references."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from weir.client.connection.system import REAL, in_daemon, read_some
from weir.client.core.batcher import PLAIN, Packing
from weir.client.producer.partition_sender import PartitionSender
from weir.client.producer.receipts import PendingBatch, Receipt, Unconfirmed
from weir.client.producer.sender import TopicSender
from weir.codec import Buffer
from weir.model.batch import parse
from weir.model.batch_builder import encode
from weir.model.columns import References, chained, extend
from weir.model.limits import VALUE_CHUNK_BYTES

O = TypeVar("O")  # noqa: E741  # gets the outcome of the batch

#: What a closing batch takes besides its columns and runs, roughly.
_CLOSING_BYTES = 256
_RUN_BYTES = 16
#: A source that gives little sends it after so long: the broker forgets values that do not grow.
_PIECE_SECONDS = 300.0


class Columns(msgspec.Struct, frozen=True):
    """What a message has besides its value; all times in µs since 1970."""

    now: int
    key: bytes | None = None
    tag: str | None = None
    time: int | None = None
    headers: Mapping[str, bytes] | None = None
    due: int | None = None
    expires: int | None = None


class Chain(msgspec.Struct, eq=False):
    """The hash of the chunks of one value that were encoded so far."""

    hash: int = 0


class Chunk(msgspec.Struct, Generic[O], eq=False):
    """One piece of a value, from byte `position` on; its hash goes to the chain."""

    owner: O
    chain: Chain
    now: int
    position: int
    piece: Buffer

    def __len__(self) -> int:
        """A chunk takes one sequence."""
        return 1

    def encode(
        self, group: int, producer: int, epoch: int, sequence: int, packing: Packing = PLAIN
    ) -> bytearray:
        """Return the sealed chunk. Raises as `weir.model.batch_builder.encode`.

        Chunks are encoded in order, each one once.
        """
        chunk = encode(
            [self.piece],
            group=group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            base_time=self.now,
            chunk_at=self.position,
            compression=packing.kind,
            level=packing.level,
        )
        # Of the bytes that go out: those of the caller may be others by now.
        self.chain.hash = chained(self.chain.hash, parse(chunk).hash)
        return chunk


class Closing(msgspec.Struct, Generic[O], eq=False):
    """The message whose value the chunks are."""

    owner: O
    columns: Columns
    references: References

    def __len__(self) -> int:
        """It is one message."""
        return 1

    def encode(
        self, group: int, producer: int, epoch: int, sequence: int, packing: Packing = PLAIN
    ) -> bytearray:
        """Return the sealed batch. Raises as `weir.model.batch_builder.encode`."""
        columns = self.columns
        return encode(
            [],
            group=group,
            producer=producer,
            epoch=epoch,
            sequence=sequence,
            base_time=columns.now if columns.time is None else columns.time,
            keys=None if columns.key is None else [columns.key],
            tags=None if columns.tag is None else [columns.tag],
            dues=None if columns.due is None else [columns.due],
            expires=None if columns.expires is None else [columns.expires],
            headers=[columns.headers] if columns.headers else None,
            references=self.references,
            schema=packing.schema,
        )


async def send_large(
    topic: TopicSender,
    sender: PartitionSender,
    unconfirmed: Unconfirmed,
    pieces: AsyncIterator[Buffer],
    columns: Columns,
) -> Receipt:
    """Send `pieces` as one message; return its receipt. Holds as much as the producer may buffer.

    What was sent before an error expires at the broker, or goes with the producer's next large
    value: nobody ever sees it. Raises `PartitionEnded` if the partition has ended meanwhile.
    """
    chain = Chain()
    position, runs, waiting = 0, list[tuple[int, int]](), deque[PendingBatch]()
    # Of one producer, a partition lets one value grow at a time.
    async with sender.large:
        async for piece in pieces:
            whole = partial(Chunk, chain=chain, now=columns.now, position=position, piece=piece)
            waiting.append(await topic.put(sender, len(piece), 1, whole, True))
            position += len(piece)
            while waiting and waiting[0].done:
                extend(runs, (await waiting.popleft()).index)
        while waiting:
            extend(runs, (await unconfirmed.confirmed(waiting.popleft())).index)
        references = References(position, chain.hash, tuple(runs))
        closing = partial(Closing, columns=columns, references=references)
        size = _CLOSING_BYTES + _RUN_BYTES * len(runs)
        batch = await topic.put(sender, size, 1, closing, True)
        done = await unconfirmed.confirmed(batch)
    return Receipt(batch.topic, sender.partition, done.offset, done.stamp, done.duplicate)


async def pieces_of(
    source: Any, now: Callable[[], float] = REAL.monotonic, size: int = VALUE_CHUNK_BYTES
) -> AsyncIterator[Buffer]:
    """Yield a value in pieces of one chunk each, of `size` bytes, the last one shorter, and what
    takes five minutes.

    `source` is bytes (yielded as views of it), a file open for reading in binary mode, or an
    iterable or async iterable of bytes of whatever sizes. Raises `TypeError` for anything else.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B")
        for at in range(0, len(view), size):
            yield view[at : at + size]
        return
    gathered, since = bytearray(), now()
    async for data in _bytes_from(source):
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"a value comes in bytes, not {type(data).__name__}: encode it")
        view = memoryview(data).cast("B")
        for at in range(0, len(view), size):
            gathered += view[at : at + size]
            if len(gathered) >= size:
                yield bytes(gathered[:size])
                del gathered[:size]
                since = now()
        if gathered and now() - since >= _PIECE_SECONDS:
            yield bytes(gathered)
            gathered.clear()
            since = now()
    if gathered:
        yield bytes(gathered)


async def _bytes_from(source: Any) -> AsyncIterator[Any]:
    if hasattr(source, "read"):
        while data := await in_daemon(partial(read_some, source, VALUE_CHUNK_BYTES)):
            yield data
    elif isinstance(source, AsyncIterable):
        async for data in source:
            yield data
    elif isinstance(source, Iterable) and not isinstance(source, str):
        for data in source:
            yield data
    else:
        raise TypeError(
            f"a value is streamed from bytes, a binary file, or an iterable of bytes, not from "
            f"{type(source).__name__}"
        )


async def first_of(pieces: AsyncIterator[Buffer]) -> tuple[bytes | None, AsyncIterator[Buffer]]:
    """Return a value that is one piece, or none, as bytes; else None, and all pieces again."""
    held = []
    async for piece in pieces:
        held.append(piece)
        if len(held) == 2:
            return None, _chained(held, pieces)
    return b"".join(held), pieces


async def _chained(held: list[Buffer], pieces: AsyncIterator[Buffer]) -> AsyncIterator[Buffer]:
    for piece in held:
        yield piece
    async for piece in pieces:
        yield piece
