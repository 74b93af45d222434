"""A peer as a side of a comparison."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weir.errors import WeirError
from weir_lab.bench.harness.lockstep import in_lockstep
from weir_lab.bench.harness.machine import family_cpu_seconds
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.harness.produce import Done
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.sides.own import PROCESSES_MAX, chunk_of, window_of
from weir_lab.bench.sides.peers.dialect import Client
from weir_lab.bench.sides.peers.load import Consumer, Producer, Worker, connected
from weir_lab.bench.sides.peers.produce import PeerPlan
from weir_lab.bench.sides.peers.server import Peer, PeerFailed, running_peer
from weir_lab.bench.sides.side import Take, Working
from weir_lab.bench.sides.working import GRANT_MESSAGES, Taken, ended, first_failure

#: As many messages are checked at once.
_READ_MESSAGES_MAX = 4_096


class Rival:
    """A peer that runs."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        """Take a peer that is up."""
        self.label = peer.label
        self.version = peer.version()
        self.settings = peer.settings
        self.synced = peer.synced
        self.one_thread = peer.one_thread
        self.folder = folder
        self._peer = peer

    @property
    def port(self) -> int:
        """Where clients connect: of several nodes, the one that leads the last topic made."""
        return self._peer.port

    def cpu_s(self) -> float | None:
        """Return the CPU time that its processes have used, in seconds."""
        return family_cpu_seconds(self._peer.pid)

    def running(self) -> None:
        """Raise `PeerFailed` if it has ended."""
        if not self._peer.answers():
            raise PeerFailed(f"{self.label} ended during the run: {self._peer.last_words()}")

    async def prepare(self, topic: str) -> None:
        """Make an empty topic."""
        await asyncio.get_running_loop().run_in_executor(None, self._peer.prepare, topic)

    async def share(self, topic: str) -> None:
        """Make an empty topic that workers are to share."""
        await asyncio.get_running_loop().run_in_executor(None, self._peer.share, topic)

    def crew(
        self, topic: str, counts: Sequence[int], size: int, timeout_s: float, lone: bool = False
    ) -> Crew[Done]:  # fmt: skip
        """Return producer processes: one producer for each count, which are `lone` or not."""
        shares = [*enumerate(counts)]
        # As many bytes under way as weir has.
        window = chunk_of(size) * window_of(len(counts))
        processes = min(PROCESSES_MAX, len(counts))
        plans = [
            PeerPlan(
                self.label,
                self.port,
                topic,
                shares[number::processes],
                size,
                1 if lone else chunk_of(size),
                1 if lone else window,
                timeout_s,
                lone=lone,
            )
            for number in range(processes)
        ]
        return Crew("weir_lab.bench.sides.peers.produce", plans, Done)

    def lockstep(
        self, topic: str, counts: Sequence[int], size: int, timeout_s: float
    ) -> Crew[Done] | None:
        """Return lone producers in C, where the program speaks the peer's dialect."""
        return in_lockstep(self.label, self.port, topic, counts, size, timeout_s)

    @asynccontextmanager
    async def consume(self, topic: str, size: int, take: Take) -> AsyncIterator[RivalConsuming]:
        """Consume the topic from its beginning on."""
        uniform = (np.arange(_READ_MESSAGES_MAX + 1, dtype=np.int32) * np.int32(size)).data

        def hand_on(values: list[bytes]) -> None:
            for first in range(0, len(values), _READ_MESSAGES_MAX):
                some = values[first : first + _READ_MESSAGES_MAX]
                take(uniform[: len(some) + 1], memoryview(b"".join(some)))

        consumer = Consumer(self._peer.consuming(topic, size), hand_on)
        await connected(self.port, consumer)
        consumer.begin()
        try:
            yield RivalConsuming(consumer)
        finally:
            consumer.close()

    @asynccontextmanager
    async def workers(
        self, topic: str, size: int, workers: int, taken: Taken
    ) -> AsyncIterator[Working]:
        """Return so many workers, each on a connection of its own."""
        if self._peer.client is not None:
            clients = [self._peer.client() for _ in range(workers)]
            try:
                await asyncio.gather(*(one.open(self.port) for one in clients))
                shipped = ClientWorkers(self.label, clients, topic, taken)
                try:
                    yield shipped
                finally:
                    await shipped.stop()
            finally:
                await asyncio.gather(*(one.close() for one in clients))
            return
        sides = [
            self._peer.working(topic, size, number, GRANT_MESSAGES) for number in range(workers)
        ]
        connections = [Worker(one, taken.values) for one in sides]
        try:
            await asyncio.gather(*(connected(self.port, one) for one in connections))
            yield RivalWorkers(connections)
        finally:
            for one in connections:
                one.close()

    @asynccontextmanager
    async def lone(self, topic: str, size: int) -> AsyncIterator[RivalLone]:
        """Return a producer of single messages."""
        dialect = self._peer.publishing(topic, size)
        block = Block(size, 1, dialect.head, dialect.tail)
        producer = Producer(dialect, block, 0, 1 << 20)
        await connected(self.port, producer)
        try:
            yield RivalLone(producer)
        finally:
            producer.close()


class RivalConsuming:
    """A consumer at work."""

    def __init__(self, consumer: Consumer) -> None:
        """Take a consumer that is connected."""
        self._consumer = consumer

    async def failed(self) -> None:
        """Raise what ended the consumer."""
        await asyncio.shield(self._consumer.trouble)


class RivalWorkers:
    """Workers that only move bytes."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        """Take workers that are connected."""
        self._workers = workers

    def begin(self) -> None:
        """Let each ask for its first messages."""
        for one in self._workers:
            one.begin()

    async def failed(self) -> None:
        """Raise what ended one of them."""
        await first_failure([one.trouble for one in self._workers])

    async def finish(self) -> None:
        """Return when the peer knows all acks."""
        await asyncio.gather(*(one.end() for one in self._workers))


class ClientWorkers:
    """Workers with the client that is shipped for a peer."""

    def __init__(self, label: str, clients: Sequence[Client], topic: str, taken: Taken) -> None:
        """Take clients that are connected."""
        self._label = label
        self._clients = clients
        self._topic = topic
        self._taken = taken
        self._tasks: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Let each ask for its first messages."""
        take = self._taken.values
        self._tasks = [
            asyncio.ensure_future(self._told(one.work(self._topic, number, GRANT_MESSAGES, take)))
            for number, one in enumerate(self._clients)
        ]

    async def failed(self) -> None:
        """Raise what ended one of them."""
        await first_failure(self._tasks)

    async def finish(self) -> None:
        """Return when the peer knows all acks."""
        await asyncio.gather(*(self._told(one.settled()) for one in self._clients))

    async def stop(self) -> None:
        """End them."""
        await ended(self._tasks)

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what a client does; its library raises errors of its own."""
        try:
            await work
        except (WeirError, TimeoutError):
            raise
        except Exception as error:
            raise PeerFailed(f"{self._label}: {error!r}") from error


class RivalLone:
    """Single messages of producer 0."""

    def __init__(self, producer: Producer) -> None:
        """Take a producer that is connected."""
        self._producer = producer

    async def confirmed(self) -> None:
        """Send the next message and return when it is confirmed."""
        await self._producer.send(1)

    def hand_over(self) -> None:
        """Send the next message and wait for nothing."""
        self._producer.send(1)


@contextmanager
def running_rival(peer: Peer, folder: str | None = None) -> Iterator[Rival]:
    """Run a peer while the block runs, on a folder that is removed afterwards."""
    with running_peer(peer, folder) as place:
        yield Rival(peer, place)
