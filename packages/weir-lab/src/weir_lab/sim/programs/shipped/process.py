"""A process that runs a program of the client as it ships, and complains of broken promises."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from weir.client.client import Client, connect
from weir.client.core.retries import Backoff
from weir.errors import (
    Disconnected,
    OffsetOutOfRange,
    Refused,
    StampTooFar,
    TopicExists,
    WeirError,
)
from weir.testing.simulator.clients.process import Mishaps, Process
from weir.testing.simulator.process import PORT
from weir.testing.simulator.world import MS, SECOND
from weir_lab.sim.history import Operation
from weir_lab.sim.outcome import CRASH
from weir_lab.sim.programs.program import TOPIC
from weir_lab.sim.programs.scene import Scene

_PAUSE = (0, 25 * MS)
_REST = 0.15
_REST_MAX = 2 * SECOND
#: What befalls processes in a hurry, and where programs take their time.
_MISHAPS = (
    Mishaps(spared=(50 * MS, 800 * MS), stands=(5 * MS, 300 * MS)),
    Mishaps(spared=(1 * SECOND, 9 * SECOND), stands=(100 * MS, 4 * SECOND)),
)
#: As long as a piece of a large value is, on nodes whose entries are small.
CHUNK_BYTES = 1_000
_TIMEOUTS = ("1s", "2s", "30s")


class Shipped(Process):
    """A program of the shipped client, in a process of its own."""

    def __init__(
        self, scene: Scene, name: str, terminated: float = 0.0, relays: Sequence[str] = ()
    ) -> None:
        """Be called `name` in the trace; `start` begins. It connects to the `relays`, if any, and
        to the brokers else.
        """
        brokers = scene.brokers
        mishaps = replace(_MISHAPS[brokers.far], terminated=terminated)
        super().__init__(scene.world, brokers, name, scene.a_site(), mishaps, CHUNK_BYTES)
        self.scene = scene
        self.history = scene.history
        #: The highest stamp that it was told of since it started.
        self.seen = 0
        #: Whether it has done all that it was to do.
        self.finished = False
        self._ending = False
        self.timeout = scene.world.dice.choice(_TIMEOUTS)
        self._told = asyncio.Event()
        self._relays = relays
        places = relays or [f"node{node}" for node in brokers.hosts]
        self.url = "weir://" + ",".join(f"{place}:{PORT}" for place in places)

    @abstractmethod
    async def work(self, client: Client) -> None:
        """Do what is to be done, and return once nothing is left and it is to end."""

    # -- life and death ------------------------------------------------------------------------

    @property
    def ending(self) -> bool:
        """Whether it is to finish what it has begun, and begin nothing new."""
        return self._ending

    @ending.setter
    def ending(self, ending: bool) -> None:
        self._ending = ending
        if self._loop is not None:
            self._loop.go_on()
            self._loop.enter(self._told.set)

    def end(self) -> None:
        """Work off what is left, then end."""
        self.finished = False
        self.ending = True

    def started(self) -> None:
        """Remember nothing, but that it is to end."""
        self.seen = 0
        self._told = asyncio.Event()
        if self._ending:
            self._told.set()

    def failed(self, uncaught: list[str]) -> None:
        """Complain of what nobody caught."""
        self.history.complaints += [(CRASH, f"{self.name}: {text}") for text in uncaught]

    # -- what runs in the loop -----------------------------------------------------------------

    async def main(self) -> None:
        """Work until all is done."""
        mine = self._loop
        try:
            while not self.finished:
                await self._once()
        except Exception as error:
            if mine is not self._loop:
                return  # it was killed
            self.history.complaints.append((CRASH, f"{self.name}: {error!r}"))

    async def _once(self) -> None:
        """Connect and work; begin anew if nobody can be reached for too long."""
        retry = Backoff(most="500ms")
        try:
            async with connect(
                self.url, name=self.name, retry=retry, request_timeout=self.timeout
            ) as client:
                await (self._find_topic(client) if self._relays else self._create_topic(client))
                await self.work(client)
            self.finished = self._ending
        except Disconnected as error:
            self.world.note(self.name, "disconnected", str(error))
        except Refused as error:
            self.expect(error, "Live", "a request was refused for good")
        if not self.finished:
            await self.rest()

    async def _create_topic(self, client: Client) -> None:
        keep = self.history.retention_bytes or "forever"
        with suppress(TopicExists):  # it has grown
            await client.create_topic(
                TOPIC, self.scene.partitions, self.scene.order, retention_bytes=keep
            )

    async def _find_topic(self, client: Client) -> None:
        """Wait until the relays have heard of the topic."""
        while TOPIC not in [topic.name for topic in await client.topics()]:
            await self.rest()

    async def is_drained(self, client: Client, cluster: str, topic: str = TOPIC) -> bool:
        """Whether nothing is left for a cluster to do, of all that there is."""
        try:
            for found in await client.clusters(topic, cluster):
                left = {one.partition: one.cursor for one in found.shares if one.lag}
                self.world.note(self.name, "lag", list(left.items()))
                ends = dict(enumerate((await client.positions(topic))[1]))
                if any(ends.get(partition, 0) < cursor for partition, cursor in left.items()):
                    return False  # a relay that lags does not know what is left
                # Messages that are undecided count, too, and no reader comes by them.
                if left and await _has_messages(client, topic, left):
                    return False
        except OffsetOutOfRange:
            return False  # retention goes on
        except WeirError as error:
            self.expect(error, "Honest", "a cluster was refused")
            return False
        return True

    async def rest(self) -> None:
        """Wait as one does between two pieces of work, and now and then for long."""
        await self.sleep(self._rhythm())

    async def sleep(self, duration: int) -> None:
        """Wait so many virtual µs."""

        await asyncio.sleep(duration / SECOND)

    async def told_to_end(self) -> None:
        """Wait until it is to end."""
        await self._told.wait()

    def _rhythm(self) -> int:
        usual, rest = self.scene.pace
        if rest == 1 or self._ending:
            return self.world.between(*_PAUSE)
        slower = rest if self.world.chance(_REST) else usual
        return min(self.world.between(*_PAUSE) * slower, _REST_MAX)

    @contextmanager
    def operation(self, what: str) -> Iterator[Operation]:
        """Count something as under way, until it has an outcome or the process is killed."""
        operation = self.history.begin(f"{self.name}: {what}", self.world.now)
        try:
            yield operation
        finally:
            operation.ended = self.world.now

    def complain(self, promise: str, what: str) -> None:
        """Note a broken promise."""
        self.history.complaints.append((promise, f"{self.name}: {what}"))

    def expect(self, error: WeirError, promise: str, what: str) -> None:
        """Complain of an error that no fault explains."""
        retryable = getattr(error, "retryable", False)
        # Of wrong clocks, the client can only wait until they are near.
        if not retryable and not isinstance(error, Disconnected | StampTooFar):
            self.complain(promise, f"{what}: {error!r}")


async def _has_messages(client: Client, topic: str, start: dict[int, int]) -> bool:
    reader = client.reader(
        topic, start=start, partitions=list(start), order="partition", follow=False
    )
    try:
        return await anext(reader, None) is not None
    finally:
        await reader.close()
