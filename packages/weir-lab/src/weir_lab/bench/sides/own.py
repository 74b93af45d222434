"""weir as a side of a comparison: a node of its own, its client, its device dialect."""

from __future__ import annotations

import asyncio
import os
import tempfile
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import accumulate
from pathlib import Path

import weir
from weir.client.client import Client, connect
from weir.client.producer.producer import Producer
from weir.client.reader.reader import Reader
from weir.model.limits import KIB, MIB
from weir.testing.nodes import NodeFailed, Serving, running_node, running_set
from weir_lab.bench.harness.lockstep import OWN, in_lockstep
from weir_lab.bench.harness.machine import families_cpu_seconds
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.harness.produce import Done, Plan
from weir_lab.bench.harness.producers import Crew, Producers
from weir_lab.bench.sides.device_logins import Login
from weir_lab.bench.sides.side import Take
from weir_lab.bench.sides.working import Mode, OwnWorkers, Taken, opened

PROCESSES_MAX = 2
#: A batch of one producer, as far as that stays well under a MiB.
CHUNK_MESSAGES = 1_000
_CHUNK_BYTES_MAX = 512 * KIB
#: Batches under way from all producers together: enough to keep every part busy.
_UNDER_WAY = 64
_WINDOW = 32
#: Lone messages that are ready before they are sent: making one is no part of its latency.
_MADE_AT_ONCE = 256
REPLICAS_MAX = 9
_LED_WITHIN_SECONDS = 30.0
_LOOK_SECONDS = 0.02
_USED_TOPIC = "bench-used"
#: What weir is called where it is handed one message at a time.
BY_MESSAGE = "weir:messages"
QUIET = {"WEIR__STATUS__LEVEL": "warning"}


def check_replicas(replicas: int) -> None:
    """Raise `ValueError` for a number of nodes that nobody starts here."""
    if not 1 <= replicas <= REPLICAS_MAX:
        raise ValueError(f"replicas={replicas}: it must be 1 to {REPLICAS_MAX}")


def chunk_of(size: int) -> int:
    """Return how many messages of `size` bytes a batch holds."""
    return max(1, min(CHUNK_MESSAGES, _CHUNK_BYTES_MAX // size))


def window_of(producers: int) -> int:
    """Return how many batches each of `producers` has under way."""
    return max(1, min(_WINDOW, _UNDER_WAY // producers))


class Own:
    """A running node of weir, or a set of nodes."""

    label = "weir"
    synced = True
    #: A process for each of several shards, by default.
    one_thread = False

    #: What devices prove their identity by.
    login = Login()

    def __init__(
        self, node: Serving, replicas: int = 1, url: str = "", *, by_message: bool = False
    ) -> None:
        """Take a node that is up, or a set of them with a replica on each; clients connect to `url`
        if there is one, and else as the node says. They hand over, and take, one message at a time
        if it is `by_message`.
        """
        if by_message:
            self.label = BY_MESSAGE
        self._by_message = by_message
        self.version = weir.__version__
        where = "one node" if replicas == 1 else f"a majority of {replicas} nodes"
        self.settings = f"{where}, fdatasync before each confirm (there is no switch for that)"
        self.port = node.port
        self.folder = node.folder
        self.node = node
        self.url = url or node.url
        self._alone = replicas == 1
        #: Whether something was written to each log, as to one that is in use.
        self._is_used = False

    def cpu_s(self) -> float | None:
        """Return the CPU time that the node's processes have used, in seconds."""
        return families_cpu_seconds(self.node.pids)

    def running(self) -> None:
        """Raise `NodeFailed` if the node has ended."""
        if not self.node.running:
            raise NodeFailed(f"the node ended during the run: {self.node.last_words()}")

    async def prepare(self, topic: str) -> None:
        """Make a topic of one partition; devices are to connect to the node that leads it. Before
        the first one, each log is used enough to get its files in reserve.
        """
        async with connect(self.url, name="weir-bench") as client:
            if not self._is_used:
                await _use(client)
                self._is_used = True
            (address, *_) = (await client.create_topic(topic)).addresses
            async with asyncio.timeout(_LED_WITHIN_SECONDS):
                while client.welcome.nodes and not address.node:
                    await asyncio.sleep(_LOOK_SECONDS)
                    (address, *_) = (await client.describe(topic)).addresses
            ports = {node: port for node, _, port in client.welcome.nodes}
            self.port = ports.get(address.node, self.port)

    def crew(
        self, topic: str, counts: Sequence[int], size: int, timeout_s: float, lone: bool = False
    ) -> Crew[Done]:  # fmt: skip
        """Return producer processes: one producer for each count, which are `lone` or not."""
        shares = [(producer, messages, 0) for producer, messages in enumerate(counts)]
        processes = min(PROCESSES_MAX, len(counts))
        return Producers(
            [
                Plan(
                    self.url,
                    topic,
                    shares[number::processes],
                    size,
                    1 if lone else chunk_of(size),
                    1 if lone else window_of(len(counts)),
                    timeout_s,
                    lone=lone,
                    by_message=self._by_message,
                )
                for number in range(processes)
            ]
        )

    def lockstep(
        self, topic: str, counts: Sequence[int], size: int, timeout_s: float
    ) -> Crew[Done] | None:
        """Return lone producers in C, of a single node."""
        return in_lockstep(OWN, self.port, topic, counts, size, timeout_s) if self._alone else None

    @asynccontextmanager
    async def consume(self, topic: str, size: int, take: Take) -> AsyncIterator[Receiving]:
        """Read the topic from its beginning on."""
        async with (
            connect(self.url, name="weir-bench") as client,
            client.reader(topic, max_bytes=4 * MIB) as reader,
        ):
            receiving = Receiving(reader, take, by_message=self._by_message)
            try:
                yield receiving
            finally:
                await receiving.stop()

    async def share(self, topic: str) -> None:
        """Make a topic; any can be shared."""
        await self.prepare(topic)

    @asynccontextmanager
    async def workers(
        self, topic: str, size: int, workers: int, taken: Taken
    ) -> AsyncIterator[OwnWorkers]:
        """Return so many workers, which ack message by message, or grants as a whole."""
        async with connect(self.url, name="weir-bench") as client:
            mode: Mode = "shared"
            consumers = await opened(client, topic, workers, mode)
            working = OwnWorkers(client, mode, consumers, taken, by_message=self._by_message)
            try:
                yield working
            finally:
                await working.stop()
                await asyncio.gather(*(one.close() for one in consumers))

    @asynccontextmanager
    async def lone(self, topic: str, size: int) -> AsyncIterator[OwnLone]:
        """Return a producer of single messages."""
        async with (
            connect(self.url, name="weir-bench") as client,
            client.producer(topic, linger=0, partition=0, window=32) as producer,
        ):
            yield OwnLone(producer, size)


async def _use(client: Client) -> None:
    """Write 1 MiB to each log of each node, or more. The partitions of a topic are shared out."""
    partitions = 2 * max(2, os.cpu_count() or 1)
    await client.create_topic(_USED_TOPIC, partitions=partitions)
    async with asyncio.timeout(_LED_WITHIN_SECONDS):
        for partition in range(partitions):
            async with client.producer(_USED_TOPIC, partition=partition) as producer:
                await producer.publish(bytes(MIB // 2))


class Receiving:
    """A reader at work in a task of its own."""

    def __init__(self, reader: Reader, take: Take, *, by_message: bool = False) -> None:
        """Begin to read."""
        run = self._run_by_message if by_message else self._run
        self._task = asyncio.ensure_future(run(reader, take))

    async def _run_by_message(self, reader: Reader, take: Take) -> None:
        """Take each message by itself, as an application does. What comes without a wait is
        checked together, for checking is no part of that.
        """
        loop = asyncio.get_running_loop()
        values: list[bytes] = []

        def check() -> None:
            if values:
                data = b"".join(values)
                offsets = array("i", [0, *accumulate(map(len, values))])
                take(memoryview(offsets), memoryview(data))
                values.clear()

        async for message in reader:
            if not values:
                loop.call_soon(check)  # once the reader has to wait
            values.append(message.value)
            if len(values) == CHUNK_MESSAGES:
                check()

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
def running_own(
    folder: str | None = None, replicas: int = 1, *, by_message: bool = False
) -> Iterator[Own]:
    """Run a node of weir while the block runs, on a folder that is removed afterwards.

    With `replicas` above 1 so many nodes, a process each, which hold and sync everything. Clients
    are those of `Own`.
    """
    with running_nodes(folder, replicas) as nodes:
        yield Own(nodes, replicas, by_message=by_message)


@contextmanager
def running_nodes(folder: str | None, replicas: int) -> Iterator[Serving]:
    """Run one node with a shard for each core, or a set of nodes with one shard each."""
    with (
        tempfile.TemporaryDirectory(prefix="weir-bench-", dir=folder) as name,
        ExitStack() as stack,
    ):
        place = Path(name) / "data"
        if replicas == 1:
            yield stack.enter_context(running_node(place))
        else:
            place.mkdir()
            yield stack.enter_context(running_set(place, replicas, settings=QUIET))
