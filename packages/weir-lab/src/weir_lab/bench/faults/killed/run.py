"""The measurement: messages flow, handlers and leaders are killed, and the ledgers are compared."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
from sqlalchemy import Engine, create_engine, func, select, text

from weir.app import inbox as t
from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.testing.nodes import NodeSet, Patient, running_set
from weir_lab.bench.consumers import postgres
from weir_lab.bench.faults.killed.crew import Crew
from weir_lab.bench.faults.killed.worker import CLUSTER, TOPIC, Orders
from weir_lab.bench.harness.machine import Machine, this_machine

_PARTITIONS = 2
_PUBLISHED_AT_ONCE = 250
_LOOK_SECONDS = 0.1
#: So many processes on few cores take their time.
_PATIENCE_SECONDS = 120.0
#: Kills happen while this part of the messages is handled.
_FROM, _TO = 0.05, 0.9
#: Seconds between two rounds of pruning of one process; at most so many rounds a second of all.
_PRUNE_SECONDS = 0.3
_PRUNES_PER_SECOND = 10.0


class Shape(msgspec.Struct, frozen=True):
    """So many `consumers` in so many `processes`; `kills` of processes, `leader_kills` of nodes.

    `backlog`: no more is published while so many messages wait. `work_ms` are of each message.
    """

    consumers: int = 100
    processes: int = 20
    kills: int = 30
    leader_kills: int = 1
    nodes: int = 1
    messages: int = 100_000
    concurrency: int = 2
    backlog: int = 5_000
    work_ms: float = 0.0
    deadline_s: float = 900.0
    seed: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be tried."""
        if self.processes < 1 or self.consumers % self.processes or not self.consumers:
            raise ValueError("each process has as many consumers: give a multiple of --processes")
        if min(self.kills, self.leader_kills) < 0 or min(self.messages, self.concurrency) < 1:
            raise ValueError("a number is too small")


class Result(msgspec.Struct, frozen=True):
    """What the ledgers say.

    `lost` and `repeated` are messages without an effect in the database, and effects too many.
    `begun` times a handler began, `begun_again` of them with a message that had been begun before:
    so often an effect without an inbox is repeated. `never_begun` should be none either. `least`
    and `most`: what one consumer, with those that took its place, began, in parts of the mean.
    """

    shape: Shape
    machine: Machine
    database: str
    seconds: float
    consumers_seen: int
    handlers_killed: int
    leaders_killed: int
    messages: int
    lost: int
    repeated: int
    never_begun: int
    begun: int
    begun_again: int
    least: float
    most: float
    inbox_rows_left: int

    @property
    def clean(self) -> bool:
        """Whether each message has its effect once."""
        return not (self.lost or self.repeated or self.never_begun)


def measure(shape: Shape) -> Result:
    """Run it all. Raises `WeirError` if it does not come to an end, `ValueError`."""
    shape.check()
    with tempfile.TemporaryDirectory(prefix="weir-killed-") as name, _database(shape, name) as url:
        folder = Path(name)
        notes = folder / "notes.txt"
        notes.touch()
        (folder / "nodes").mkdir()
        began = time.monotonic()
        with running_set(folder / "nodes", shape.nodes) as nodes:
            run = _Run(shape, nodes, _crew(shape, nodes.url, url, folder))
            run.run()
        seconds = time.monotonic() - began
        return _judged(shape, run, seconds, create_engine(url), notes)


@contextlib.contextmanager
def _database(shape: Shape, folder: str) -> Iterator[str]:
    """A server where there is one, for it is quicker with so many who write; else a file."""
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{folder}/effects.db?timeout=60"
        if postgres.installed():
            connections = shape.consumers * shape.concurrency + 2 * shape.processes + 20
            # Nobody cuts its power here: it need not sync.
            server = postgres.running_postgres(fsync="off", max_connections=connections)
            url = stack.enter_context(server).url
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("create table effects (value text)"))
        engine.dispose()
        yield url


def _crew(shape: Shape, url: str, database: str, folder: Path) -> Crew:
    orders = Orders(
        url,
        database,
        str(folder / "notes.txt"),
        0,
        shape.consumers // shape.processes,
        shape.concurrency,
        max(_PRUNE_SECONDS, shape.processes / _PRUNES_PER_SECOND),
        shape.work_ms,
    )
    return Crew(orders, shape.processes, folder)


class _Run:
    """Messages that flow, and the processes that are killed meanwhile."""

    def __init__(self, shape: Shape, nodes: NodeSet, crew: Crew) -> None:
        self.consumers_seen = 0
        self.leaders_killed = 0
        self.crew = crew
        self._shape = shape
        self._nodes = nodes
        self._dice = Random(shape.seed)
        #: How many messages are to be done when a process, or a leader, is killed; the last first.
        self._kills_at = self._moments(shape.kills)
        self._leaders_at = self._moments(shape.leader_kills)
        self._waiting = 0

    def run(self) -> None:
        """Let all messages be handled."""
        try:
            asyncio.run(self._flow())
            self.crew.stop()
        finally:
            self.crew.end()

    def _moments(self, count: int) -> list[float]:
        found = [self._dice.uniform(_FROM, _TO) * self._shape.messages for _ in range(count)]
        return sorted(found, reverse=True)

    async def _flow(self) -> None:
        async with connect(self._nodes.url, request_timeout=_PATIENCE_SECONDS) as client:
            await client.create_topic(TOPIC, partitions=_PARTITIONS)
            self.crew.fill()
            publishing = asyncio.ensure_future(self._publish(client))
            try:
                async with asyncio.timeout(self._shape.deadline_s):
                    while not await self._look(client):
                        if publishing.done():
                            publishing.result()  # it may have failed
                        await asyncio.sleep(_LOOK_SECONDS)
            except TimeoutError:
                raise WeirError(
                    f"{self._waiting:,} messages wait after {self._shape.deadline_s:g} s: {self!r}"
                ) from None
            finally:
                publishing.cancel()
                await asyncio.wait((publishing,))

    async def _publish(self, client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            # A cluster is there from its first grant on. All consumers may have their share of
            # what comes then.
            await producer.send(b"0")
            while self.consumers_seen < self._shape.consumers:
                await asyncio.sleep(_LOOK_SECONDS)
            for first in range(1, self._shape.messages, _PUBLISHED_AT_ONCE):
                behind = min(first + _PUBLISHED_AT_ONCE, self._shape.messages)
                await producer.send_many([b"%d" % number for number in range(first, behind)])
                await producer.flush()
                self._waiting += behind - first
                while self._waiting > self._shape.backlog:
                    await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self, client: Client) -> bool:
        """Kill processes that are due; return whether all is over."""
        self.crew.fill()
        for one in await client.clusters(TOPIC, CLUSTER):
            self._waiting = one.lag
            self.consumers_seen = max(self.consumers_seen, one.consumers)
            done = sum(share.end for share in one.shares) - one.lag
            some_live = self.crew.dying < self._shape.processes
            if some_live and self._kills_at and done >= self._kills_at[-1]:
                self._kills_at.pop()
                self.crew.kill(
                    self._dice.randrange(self._shape.processes), len(self._kills_at) % 2 > 0
                )
            if self._leaders_at and done >= self._leaders_at[-1]:
                self._leaders_at.pop()
                await self._kill_leader(client)
            left = self._kills_at or self._leaders_at or self.crew.dying or one.lag
            return not left and done >= self._shape.messages
        return False

    async def _kill_leader(self, client: Client) -> None:
        places = (await client.describe(TOPIC)).addresses
        leader = places[self.leaders_killed % len(places)].node
        self._nodes.kill([leader])
        self.leaders_killed += 1
        await asyncio.to_thread(self._nodes.restart, leader, Patient(), _PATIENCE_SECONDS)

    def __repr__(self) -> str:
        return (
            f"{self.crew.kills} of {self._shape.kills} processes and {self.leaders_killed} of "
            f"{self._shape.leader_kills} leaders were killed"
        )


def _judged(shape: Shape, run: _Run, seconds: float, engine: Engine, notes: Path) -> Result:
    with engine.connect() as connection:
        effects = Counter(connection.scalars(text("select value from effects")))
        rows = connection.execute(select(func.count()).select_from(t.ROWS)).scalar_one()
    engine.dispose()
    lines = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    begun = Counter(value for value, _ in lines)
    by_consumer = Counter(int(consumer) for _, consumer in lines)
    shares = [
        by_consumer[number] * shape.consumers / len(lines) for number in range(shape.consumers)
    ]
    wanted = [str(number) for number in range(shape.messages)]
    return Result(
        shape,
        this_machine(),
        engine.dialect.name,
        round(seconds, 1),
        run.consumers_seen,
        run.crew.kills,
        run.leaders_killed,
        shape.messages,
        sum(value not in effects for value in wanted),
        effects.total() - len(effects),
        sum(value not in begun for value in wanted),
        len(lines),
        len(lines) - len(begun),
        round(min(shares), 3),
        round(max(shares), 3),
        rows,
    )
