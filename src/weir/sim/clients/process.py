"""A process that runs a program of the client as it ships, and what may happen to it.

It can lag, stand still, and be killed: its network is cut first, then its tasks are dropped, so
that what they do on their way out reaches nobody. Whoever comes back remembers nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from random import Random

from weir.client.backoff import Backoff
from weir.client.client import Client
from weir.client.connect import connect
from weir.client.system import SYSTEM, System
from weir.errors import (
    Disconnected,
    OffsetOutOfRange,
    Refused,
    StampTooFar,
    TopicExists,
    WeirError,
)
from weir.sim.history import Operation
from weir.sim.outcome import CRASH
from weir.sim.programs import TOPIC
from weir.sim.scene import Scene
from weir.testing.simulator.clients.loop import VirtualLoop, refuse_thread
from weir.testing.simulator.clients.machine import Machine
from weir.testing.simulator.world import EPOCH_MS, MS, SECOND

_BOOT = (1 * MS, 200 * MS)
_PAUSE = (0, 25 * MS)
_REST = 0.15
_REST_MAX = 2 * SECOND
#: How long nothing happens to a process, and how long it stands still: in a hurry, and where
#: programs take their time.
_SPARED = ((50 * MS, 800 * MS), (1 * SECOND, 9 * SECOND))
_STANDS = ((5 * MS, 300 * MS), (100 * MS, 4 * SECOND))
_KILLED = 0.35
_SKEW_MS = 5_000
#: As long as a piece of a large value is, on nodes whose entries are small.
CHUNK_BYTES = 1_000
_TIMEOUTS = ("1s", "2s", "30s")


class Shipped(ABC):
    """A program of the shipped client, in a process of its own."""

    def __init__(self, scene: Scene, name: str) -> None:
        """Be called `name` in the trace; `start` begins."""
        self.scene = scene
        self.world = scene.world
        self.history = scene.history
        self.name = name
        self.site = scene.a_site()
        #: The highest stamp that it was told of since it started.
        self.seen = 0
        #: How many times it was started.
        self.life = 0
        self.retired = False
        #: Whether it has done all that it was to do.
        self.finished = False
        self._ending = False
        #: Whether nothing befalls it any more.
        self.spared = False
        self._timeout = scene.world.dice.choice(_TIMEOUTS)
        self._loop: VirtualLoop | None = None
        self._machine: Machine | None = None
        self._told = asyncio.Event()
        #: What the first signal calls, if it wants to hear of signals.
        self._first: Callable[[], None] | None = None
        self._skew_us = 0
        nodes = list(scene.brokers.hosts)
        self._url = "weir://" + ",".join(f"node{node}:6800" for node in nodes)

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

    def start(self) -> None:
        """Start the process."""
        if self.retired or self._loop is not None:
            return
        self.life += 1
        self.seen = 0
        self._told = asyncio.Event()
        if self._ending:
            self._told.set()
        world, dice = self.world, self.world.dice
        self._skew_us = dice.randint(-_SKEW_MS, _SKEW_MS) * MS
        machine = Machine(world, self.scene.brokers, self.site)
        loop = VirtualLoop(world, machine)
        self._loop, self._machine = loop, machine
        world.note("start client", self.name, self.life)
        context = copy_context()
        system = System(
            monotonic=loop.time,
            now_us=lambda: EPOCH_MS * MS + world.now + self._skew_us,
            dice=lambda: Random(dice.getrandbits(64)),
            thread=refuse_thread,
            chunk_bytes=CHUNK_BYTES,
            signals=self._catch,
        )
        context.run(SYSTEM.set, system)
        loop.enter(lambda: loop.create_task(self._main(), name=self.name, context=context))
        if not self.spared:
            world.after(world.between(*_SPARED[self.scene.brokers.far]), self._befall, loop)

    def retire(self) -> None:
        """Be over, for good."""
        self.retired = True
        self._die(silent=False)

    def kill(self) -> None:
        """Lose the process, its connections first; another one starts after a while."""
        self.world.note("kill client", self.name)
        self._die(silent=self.world.chance(0.3))
        self.world.after(self.world.between(*_BOOT), self.start)

    def _die(self, silent: bool) -> None:
        loop, machine, self._loop, self._machine = self._loop, self._machine, None, None
        self._first = None
        if loop is not None and machine is not None:
            machine.cut(silent)
            loop.drop()
            self._judge(loop)

    def terminate(self) -> None:
        """Send it the first signal to end, if it hears of such."""
        if self._first is not None and self._loop is not None:
            self.world.note("terminate client", self.name)
            self._loop.enter(self._first)

    def _catch(self, first: Callable[[], None]) -> Callable[[], None]:
        self._first = first

        def release() -> None:
            self._first = None

        return release

    def _befall(self, loop: VirtualLoop) -> None:
        """Kill the process, or let it stand still for a while."""
        if loop is not self._loop or self.spared:
            return
        far = self.scene.brokers.far
        if self.world.chance(_KILLED):
            self.kill()
            return
        duration = self.world.between(*_STANDS[far])
        self.world.note("pause client", self.name, duration)
        loop.stand()
        self.world.after(duration, loop.go_on)
        self.world.after(duration + self.world.between(*_SPARED[far]), self._befall, loop)

    def _judge(self, loop: VirtualLoop) -> None:
        uncaught, loop.uncaught = loop.uncaught, []
        self.history.complaints += [(CRASH, f"{self.name}: {text}") for text in uncaught]

    # -- what runs in the loop -----------------------------------------------------------------

    async def _main(self) -> None:
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
                self._url, name=self.name, retry=retry, request_timeout=self._timeout
            ) as client:
                await self._create_topic(client)
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

    async def is_drained(self, client: Client, cluster: str, topic: str = TOPIC) -> bool:
        """Whether nothing is left for a cluster to do, of all that there is."""
        try:
            for found in await client.clusters(topic, cluster):
                left = {one.partition: one.cursor for one in found.shares if one.lag}
                self.world.note(self.name, "lag", list(left.items()))
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
