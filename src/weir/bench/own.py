"""weir as a side of a comparison: a node of its own, its client, its device dialect."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import weir
from weir.bench.machine import family_cpu_seconds
from weir.bench.node import Node, NodeFailed, running_node
from weir.bench.payload import Block
from weir.bench.produce import Done, Plan
from weir.bench.producers import Crew, Producers
from weir.bench.side import Take
from weir.client.connect import connect
from weir.client.producer import Producer
from weir.client.reader import Reader
from weir.model.limits import KIB, MIB

PROCESSES_MAX = 2
#: A batch of one producer, as far as that stays well under a MiB.
CHUNK_MESSAGES = 1_000
_CHUNK_BYTES_MAX = 512 * KIB
#: Batches under way from all producers together: enough to keep every part busy.
_UNDER_WAY = 64
_WINDOW = 32
#: Lone messages that are ready before they are sent: making one is no part of its latency.
_MADE_AT_ONCE = 256


def chunk_of(size: int) -> int:
    """Return how many messages of `size` bytes a batch holds."""
    return max(1, min(CHUNK_MESSAGES, _CHUNK_BYTES_MAX // size))


def window_of(producers: int) -> int:
    """Return how many batches each of `producers` has under way."""
    return max(1, min(_WINDOW, _UNDER_WAY // producers))


class Own:
    """A running node of weir."""

    label = "weir"
    settings = "one node, fdatasync before each confirm (there is no switch for that)"
    synced = True
    #: A process for each of several shards, by default.
    one_thread = False

    def __init__(self, node: Node) -> None:
        """Take a node that is up."""
        self.version = weir.__version__
        self.port = node.port
        self.folder = node.folder
        self.node = node

    def cpu_s(self) -> float | None:
        """Return the CPU time that the node's processes have used, in seconds."""
        return family_cpu_seconds(self.node.pid)

    def running(self) -> None:
        """Raise `NodeFailed` if the node has ended."""
        if not self.node.running:
            raise NodeFailed(f"the node ended during the run: {self.node.last_words()}")

    async def prepare(self, topic: str) -> None:
        """Make a topic of one partition."""
        async with connect(self.node.url, name="weir-bench") as client:
            await client.create_topic(topic)

    def crew(self, topic: str, counts: Sequence[int], size: int, timeout_s: float) -> Crew[Done]:
        """Return producer processes: one producer for each count."""
        shares = [(producer, messages, 0) for producer, messages in enumerate(counts)]
        processes = min(PROCESSES_MAX, len(counts))
        return Producers(
            [
                Plan(
                    self.node.url,
                    topic,
                    shares[number::processes],
                    size,
                    chunk_of(size),
                    window_of(len(counts)),
                    timeout_s,
                )
                for number in range(processes)
            ]
        )

    @asynccontextmanager
    async def consume(self, topic: str, size: int, take: Take) -> AsyncIterator[Receiving]:
        """Read the topic from its beginning on."""
        async with (
            connect(self.node.url, name="weir-bench") as client,
            client.reader(topic, max_bytes=4 * MIB) as reader,
        ):
            receiving = Receiving(reader, take)
            try:
                yield receiving
            finally:
                await receiving.stop()

    @asynccontextmanager
    async def lone(self, topic: str, size: int) -> AsyncIterator[OwnLone]:
        """Return a producer of single messages."""
        async with (
            connect(self.node.url, name="weir-bench") as client,
            client.producer(topic, linger=0, partition=0, window=32) as producer,
        ):
            yield OwnLone(producer, size)


class Receiving:
    """A reader at work in a task of its own."""

    def __init__(self, reader: Reader, take: Take) -> None:
        """Begin to read."""
        self._task = asyncio.ensure_future(self._run(reader, take))

    async def _run(self, reader: Reader, take: Take) -> None:
        async for delivered in reader.batches():
            column = delivered.batch.value_column
            first = delivered.skip
            take(column.offsets[first : first + len(delivered) + 1], column.data)

    async def failed(self) -> None:
        """Raise what ended the reader."""
        await asyncio.shield(self._task)

    async def stop(self) -> None:
        """End reading."""
        self._task.cancel()
        await asyncio.wait((self._task,))


class OwnLone:
    """Single messages of producer 0, with the client that users have."""

    def __init__(self, producer: Producer, size: int) -> None:
        """Take an open producer."""
        self._producer = producer
        self._block = Block(size, _MADE_AT_ONCE)
        self._made: Iterator[bytes] = iter(())
        self._sequence = 0

    async def confirmed(self) -> None:
        """Send the next message and return when it is confirmed."""
        await self._producer.publish(self._next())

    def hand_over(self) -> None:
        """Send the next message and wait for nothing."""
        self._producer.send(self._next())

    def _next(self) -> bytes:
        value = next(self._made, None)
        if value is None:
            self._made = iter(self._block.values_of(0, self._sequence, _MADE_AT_ONCE))
            self._sequence += _MADE_AT_ONCE
            value = next(self._made)
        return value


@contextmanager
def running_own(folder: str | None = None) -> Iterator[Own]:
    """Run a node of weir while the block runs, on a folder that is removed afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as place,
        running_node(Path(place) / "data") as node,
    ):
        yield Own(node)
