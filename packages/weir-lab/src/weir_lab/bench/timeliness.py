"""The timeliness test: how long until the last of many messages is received (Minos §4).

One node or a set of them, producers in at most two processes, one consumer in this one. The clock
runs from the first send to the moment when the last message has been checked. Everything is fsynced
before it is confirmed, as always: there is no switch for that.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from weir.client.client import connect
from weir.client.reader.reader import Reader
from weir.errors import WeirError
from weir.model.limits import BATCH_BYTES_MAX, MIB, PARTITIONS_PER_TOPIC_MAX
from weir.testing.nodes import Serving
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.harness.led import Ready
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import families_cpu_seconds, filesystem_of
from weir_lab.bench.harness.payload import SIZE_MIN, Checker
from weir_lab.bench.harness.produce import Done, Plan
from weir_lab.bench.harness.producers import Producers
from weir_lab.bench.revocations import raise_level
from weir_lab.bench.sides.certified import certified_nodes
from weir_lab.bench.sides.own import (
    PROCESSES_MAX,
    check_replicas,
    chunk_of,
    running_nodes,
    window_of,
)

TOPIC = "timeliness"
PRODUCERS_MAX = 10_000
_USER = "bench"
Progress = Callable[[int], None]


class BenchFailed(WeirError):
    """A measurement came to no figure; the message says how far it got."""


class Settings(msgspec.Struct, frozen=True):
    """What to measure. `size` is the bytes of a value, `deadline_s` ends a run that hangs.

    The node's folder is made in `folder`, by default where temporary files go. With `tls` clients
    connect by TLS, and nodes are linked by mutual TLS. With `closed` the set is closed, and clients
    log in.
    """

    messages: int = 4_000_000
    size: int = 100
    producers: int = 1
    partitions: int = 1
    deadline_s: float = 300.0
    folder: str | None = None
    replicas: int = 1
    tls: bool = False
    closed: bool = False

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        check_bounds(
            producers=(self.producers, 1, PRODUCERS_MAX),
            messages=(self.messages, self.producers, 1 << 40),
            size=(self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
            # A producer keeps to one partition, so that its sequence has one order.
            partitions=(self.partitions, 1, min(self.producers, PARTITIONS_PER_TOPIC_MAX)),
        )
        if self.deadline_s <= 0:
            raise ValueError(f"deadline={self.deadline_s:g} s: it must be above 0")

    @property
    def counts(self) -> list[int]:
        """How many messages each producer sends."""
        each, more = divmod(self.messages, self.producers)
        return [each + (producer < more) for producer in range(self.producers)]


class CpuSeconds(msgspec.Struct, frozen=True):
    """CPU time from the first send to the last check; None where the system does not tell."""

    server: float | None
    producers: float
    consumer: float


class Result(msgspec.Struct, frozen=True):
    """What came of it. `bytes` counts values; `made_per_s` is payload making alone, a process.

    On a `filesystem` that lies in memory (tmpfs) no sync costs anything, and nothing is durable.
    """

    producers: int
    messages: int
    bytes: int
    seconds: float
    messages_per_s: float
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    confirmed: int
    duplicates: int
    batches: int
    cpu_s: CpuSeconds
    made_per_s: float
    filesystem: str | None
    tls: bool = False
    #: Of a run by TLS, its messages a second over those of the run without before it.
    tls_ratio: float | None = None
    closed: bool = False
    #: Of a run on a closed set, its messages a second over those of the open run before it.
    closed_ratio: float | None = None

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order."""
        return not (self.lost or self.repeated or self.reordered or self.corrupt)


class Receiver:
    """The consumer: checks every batch the moment it arrives."""

    def __init__(self, reader: Reader, checker: Checker, progress: Progress) -> None:
        """Read with `reader`; `progress` is told how many messages came."""
        self.last_ns = 0
        self.checker = checker
        self._reader = reader
        self._progress = progress
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Receive until cancelled. Raises what the reader raises."""
        take, progress, moved = self.checker.take, self._progress, self._moved
        async for delivered in self._reader.batches():
            column = delivered.batch.value_column
            first = delivered.skip
            take(column.offsets[first : first + len(delivered) + 1], column.data)
            self.last_ns = time.monotonic_ns()
            progress(self.checker.received)
            moved.set()

    async def reach(self, ends: Mapping[int, int]) -> None:
        """Return when everything below `ends` (partition: offset) is checked."""
        positions = self._reader.positions
        while any(positions.get(partition, 0) < end for partition, end in ends.items()):
            self._moved.clear()
            await self._moved.wait()


def measure(settings: Settings, progress: Progress) -> Result:
    """Run the test on a node of its own, which is removed afterwards.

    Raises `ValueError` for settings that make no sense, and `WeirError` for a run without a figure.
    """
    settings.check()
    if settings.tls:
        with certified_nodes(settings.folder, settings.replicas) as secure:
            return _measured(settings, secure.nodes, progress, secure.url)
    with running_nodes(settings.folder, settings.replicas) as node:
        return _measured(settings, node, progress, node.url)


def median_run(runs: Sequence[Result]) -> Result:
    """Return of runs of the same settings the one in the middle, the lower of two: by its ratio to
    the plain run of its turn or, where they are plain themselves, by messages a second. A run in
    which something went wrong comes before all that are clean.
    """

    def rank(run: Result) -> float:
        ratio = run.tls_ratio or run.closed_ratio
        return run.messages_per_s if ratio is None else ratio

    middle = sorted(runs, key=rank)[(len(runs) - 1) // 2]
    return next((run for run in runs if not run.clean), middle)


def _measured(settings: Settings, node: Serving, progress: Progress, url: str) -> Result:
    if not settings.closed:
        return run(_measure(settings, node, progress, url))
    # Producers are processes, and find the password where each process finds its own.
    password, before = secrets.token_hex(16), os.environ.get("WEIR_PASSWORD")
    os.environ["WEIR_PASSWORD"] = password
    try:
        run(_close(url, password))
        return run(_measure(settings, node, progress, _as_user(url)))
    finally:
        del os.environ["WEIR_PASSWORD"]
        if before is not None:
            os.environ["WEIR_PASSWORD"] = before


def _as_user(url: str) -> str:
    return url.replace("://", f"://{_USER}@")


async def _close(url: str, password: str) -> None:
    """Create a user that may do everything, and allow nothing to all others."""
    async with connect(url, name="weir-bench") as client:
        await raise_level(client)
        await client.access.create_user(_USER, password, ["admin"])
    async with connect(_as_user(url), name="weir-bench") as client:
        await client.access.set_mode("closed")


async def _measure(settings: Settings, node: Serving, progress: Progress, url: str) -> Result:
    checker = Checker(settings.counts, settings.size)
    async with connect(url, name="weir-bench") as client:
        await client.create_topic(TOPIC, settings.partitions)
        reader = client.reader(TOPIC, max_bytes=4 * MIB)
        receiver = Receiver(reader, checker, progress)

        async def lead() -> Result:
            async with Producers(_plans(settings, url)) as producers:
                ready = await producers.ready()
                cpu = families_cpu_seconds(node.pids), time.process_time()
                producers.go()
                done = await producers.done()
                _, ends = await client.positions(TOPIC)
                await receiver.reach(dict(enumerate(ends)))
                used = families_cpu_seconds(node.pids), time.process_time()
            return _result(settings, node, receiver, ready, done, (cpu, used))

        receiving = asyncio.ensure_future(receiver.run())
        leading = asyncio.ensure_future(lead())
        try:
            finished, _ = await asyncio.wait(
                (receiving, leading),
                timeout=settings.deadline_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not node.running:
                raise BenchFailed(f"the node ended during the run: {node.last_words()}")
            if not finished:
                raise BenchFailed(
                    f"{checker.received:,} of {settings.messages:,} messages were received within "
                    f"{settings.deadline_s:g} s: give a longer --deadline, or fewer messages"
                )
            for task in finished:
                task.result()
            return leading.result()
        finally:
            for task in (receiving, leading):
                task.cancel()
            await asyncio.wait((receiving, leading))
            await reader.close()


def _plans(settings: Settings, url: str) -> list[Plan]:
    shares = [
        (producer, messages, producer % settings.partitions)
        for producer, messages in enumerate(settings.counts)
    ]
    processes = min(PROCESSES_MAX, settings.producers)
    return [
        Plan(
            url,
            TOPIC,
            shares[number::processes],
            settings.size,
            chunk_of(settings.size),
            window_of(settings.producers),
            settings.deadline_s,
        )
        for number in range(processes)
    ]


def _result(
    settings: Settings,
    node: Serving,
    receiver: Receiver,
    ready: list[Ready],
    done: list[Done],
    cpu: tuple[tuple[float | None, float], tuple[float | None, float]],
) -> Result:
    checker = receiver.checker
    (server, mine), (server_then, mine_then) = cpu
    seconds = (receiver.last_ns - min(one.first_send_ns for one in done)) / 1e9
    used = None if server is None or server_then is None else server_then - server
    return Result(
        producers=settings.producers,
        messages=settings.messages,
        bytes=settings.messages * settings.size,
        seconds=seconds,
        messages_per_s=settings.messages / seconds,
        lost=checker.lost,
        repeated=checker.repeated,
        reordered=checker.reordered,
        corrupt=checker.corrupt,
        confirmed=sum(one.confirmed for one in done),
        duplicates=sum(one.duplicates for one in done),
        batches=sum(one.batches for one in done),
        cpu_s=CpuSeconds(used, sum(one.cpu_s for one in done), mine_then - mine),
        made_per_s=min(one.made_per_s for one in ready),
        filesystem=filesystem_of(node.folder),
        tls=settings.tls,
        closed=settings.closed,
    )
