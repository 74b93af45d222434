"""How fast consumers of a cluster are: handlers message by message, and pulls of whole batches.

Both drain a topic that was filled before, in this one process, every message checked and acked.
Pulls are set beside a plain reader of the same topic, which asks nobody and acks nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from weir.app.app import App
from weir.client.client import Client, connect
from weir.client.consumer.delivery import AckResult
from weir.model.limits import BATCH_BYTES_MAX, MIB
from weir.model.message import Message
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.flow import FlowFailed, Sink
from weir_lab.bench.harness.machine import filesystem_of
from weir_lab.bench.harness.payload import SIZE_MIN, Checker
from weir_lab.bench.sides.own import Own, check_replicas
from weir_lab.bench.sides.side import topic_name

_PULL_MESSAGES = 1 << 20
_PULL_BYTES = 4 * MIB
#: Acks under way, each of a whole pull.
_ACKS = 4
_LOOK_S = 0.005
_HANDLERS = "handlers"
_PULLS = "pulls"


class Settings(msgspec.Struct, frozen=True):
    """`messages` are handled one by one, `pulled` in whole batches; `deadline_s` is for each."""

    messages: int = 400_000
    pulled: int = 4_000_000
    size: int = 100
    concurrency: int = 16
    deadline_s: float = 300.0
    folder: str | None = None
    replicas: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        check_bounds(
            messages=(self.messages, 1, 1 << 40),
            pulled=(self.pulled, 0, 1 << 40),
            size=(self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
        )


class Result(msgspec.Struct, frozen=True):
    """Rates of messages that were handled, or pulled, and acked; and of the plain reader.

    `lost`, `repeated`, `reordered` and `corrupt` are sums over all three; handlers that run beside
    each other reorder nothing here, since none of them waits.
    """

    messages: int
    seconds: float
    messages_per_s: float
    handler_cpu_s: float
    pulled: int
    pulled_per_s: float | None
    read_per_s: float | None
    pulled_of_read: float | None
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    filesystem: str | None

    @property
    def clean(self) -> bool:
        """Whether every message was handled exactly once, unchanged."""
        return not (self.lost or self.repeated or self.corrupt)


async def measure(side: Own, settings: Settings, say: Callable[[str], None]) -> Result:
    """Measure a node of weir. Raises `FlowFailed` if it takes longer than it may."""
    settings.check()
    run = _Run(side, settings)
    await run.fill(topic_name(1), settings.messages)
    cpu = time.process_time()
    seconds = await run.timed(topic_name(1), settings.messages, run.handle)
    cpu = time.process_time() - cpu
    say(f"handlers: {settings.messages / seconds:,.0f} messages/s")
    read = pulled = None
    if settings.pulled:
        await run.fill(topic_name(2), settings.pulled)
        read = settings.pulled / await run.timed(topic_name(2), settings.pulled, run.read)
        say(f"a plain reader: {read:,.0f} messages/s")
        pulled = settings.pulled / await run.timed(topic_name(2), settings.pulled, run.pull)
        say(f"pulls of a cluster: {pulled:,.0f} messages/s")
    return Result(
        settings.messages,
        seconds,
        settings.messages / seconds,
        cpu,
        settings.pulled,
        pulled,
        read,
        pulled / read if pulled is not None and read is not None else None,
        sum(checker.lost for checker in run.checkers),
        sum(checker.repeated for checker in run.checkers),
        sum(checker.reordered for checker in run.checkers),
        sum(checker.corrupt for checker in run.checkers),
        filesystem_of(side.folder),
    )


class _Run:
    """One way after the other to drain a topic."""

    def __init__(self, side: Own, settings: Settings) -> None:
        self.checkers: list[Checker] = []
        self._side = side
        self._settings = settings

    async def fill(self, topic: str, messages: int) -> None:
        """Publish what is to be drained."""
        await self._side.prepare(topic)
        counts, deadline_s = [messages], self._settings.deadline_s
        async with self._side.crew(topic, counts, self._settings.size, deadline_s) as crew:
            await crew.ready()
            crew.go()
            await crew.done()

    async def timed(
        self, topic: str, messages: int, drain: Callable[[str, Sink], Awaitable[None]]
    ) -> float:
        """Return how many seconds a drain of all took, its last ack included."""
        sink = Sink([messages], self._settings.size)
        self.checkers.append(sink.checker)
        began = time.monotonic()
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                await drain(topic, sink)
        except TimeoutError:
            self._side.running()
            raise FlowFailed(
                f"{sink.checker.received:,} of {messages:,} messages came within "
                f"{self._settings.deadline_s:g} s: give a longer --deadline, or fewer messages"
            ) from None
        return time.monotonic() - began

    async def handle(self, topic: str, sink: Sink) -> None:
        """Let an application handle each message, and wait until all are acked."""
        app = App(self._side.node.url, name="weir-bench")
        take, checker, wanted = sink.checker.take_one, sink.checker, self._settings.messages

        @app.subscribe(topic, cluster=_HANDLERS, concurrency=self._settings.concurrency)
        async def handler(message: Message) -> None:
            take(message.value)
            if checker.received >= wanted:
                sink.complete.set()

        async with app.running() as running:
            await sink.complete.wait()
            await self._all_acked(running.client, topic, _HANDLERS)

    async def read(self, topic: str, sink: Sink) -> None:
        """Read all of the topic."""
        async with self._side.consume(topic, self._settings.size, sink.take):
            await sink.complete.wait()

    async def pull(self, topic: str, sink: Sink) -> None:
        """Pull all of the topic in whole grants, ack each, and wait until all are acked."""
        acks: set[asyncio.Task[AckResult]] = set()
        async with (
            connect(self._side.node.url, name="weir-bench") as client,
            client.consumer(
                topic, cluster=_PULLS, max_messages=_PULL_MESSAGES, max_bytes=_PULL_BYTES
            ) as consumer,
        ):
            async for grant in consumer.batches():
                for delivered in grant.batches:
                    column, first = delivered.batch.value_column, delivered.skip
                    sink.take(column.offsets[first : first + len(delivered) + 1], column.data)
                acks.add(asyncio.ensure_future(grant.ack(confirmed=True)))
                if sink.complete.is_set():
                    break
                if len(acks) >= _ACKS:
                    _, acks = await asyncio.wait(acks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*acks)
            await self._all_acked(client, topic, _PULLS)

    async def _all_acked(self, client: Client, topic: str, cluster: str) -> None:
        while (await client.clusters(topic, cluster))[0].lag:
            await asyncio.sleep(_LOOK_S)
