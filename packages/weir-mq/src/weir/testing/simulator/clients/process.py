"""A process of the world: an event loop, clocks and connections, and what may happen to it.

It can lag, stand still, be told to end, and be killed: its network is cut first, then its tasks are
dropped, so that what they do on their way out reaches nobody. The next life remembers nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from random import Random
from typing import TypeVar

import msgspec

from weir.client.connection.system import SYSTEM, System
from weir.model.limits import VALUE_CHUNK_BYTES
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.connections import Machine
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.threads import (
    VirtualBackground,
    VirtualQueue,
    VirtualThread,
    in_thread,
)
from weir.testing.simulator.world import EPOCH_MS, MS, SECOND, World

R = TypeVar("R")

_BOOT = (1 * MS, 200 * MS)
_SKEW_MS = 5_000
#: How likely a kill ends connections without a word.
_SILENTLY = 0.3
#: How long a process that was told to end has before something else befalls it.
_GRACE = (1 * MS, 1 * SECOND)


class Mishaps(msgspec.Struct, frozen=True):
    """What befalls a process while there are faults; spans are least and most, in virtual µs."""

    #: How long nothing happens to it.
    spared: tuple[int, int] = (1 * SECOND, 9 * SECOND)
    #: How long it stands still.
    stands: tuple[int, int] = (100 * MS, 4 * SECOND)
    #: How likely it is killed; else it stands still.
    killed: float = 0.35
    #: How likely it is told to end before that.
    terminated: float = 0.0


class Process(ABC):
    """One process, by its name; each start of it is another life."""

    def __init__(
        self,
        world: World,
        brokers: BrokerSet,
        name: str,
        site: int,
        mishaps: Mishaps,
        chunk_bytes: int = VALUE_CHUNK_BYTES,
    ) -> None:
        """Be at a place of the network; `start` begins."""
        self.world = world
        self.name = name
        self.site = site
        #: How many times it was started.
        self.life = 0
        #: Whether it is over, for good.
        self.retired = False
        #: Whether nothing befalls it any more.
        self.spared = False
        self._brokers = brokers
        self._mishaps = mishaps
        self._chunk_bytes = chunk_bytes
        self._loop: VirtualLoop | None = None
        self._machine: Machine | None = None
        self._threads: list[VirtualThread] = []
        #: What the first signal calls, if it wants to hear of signals.
        self._first: Callable[[], None] | None = None
        self._skew_us = 0

    @abstractmethod
    async def main(self) -> None:
        """Run one life."""

    @abstractmethod
    def failed(self, uncaught: list[str]) -> None:
        """A life is over; callbacks and tasks of it raised this, and nobody caught it."""

    @abstractmethod
    def started(self) -> None:
        """A life begins: forget the one before."""

    def start(self) -> None:
        """Start a life, unless one is under way."""
        if self.retired or self._loop is not None:
            return
        self.life += 1
        self.started()
        world = self.world
        self._skew_us = world.dice.randint(-_SKEW_MS, _SKEW_MS) * MS
        machine = Machine(world, self._brokers, self.site, self.name)
        loop = VirtualLoop(world, machine)
        self._loop, self._machine = loop, machine
        world.note("start client", self.name, self.life)
        context = copy_context()
        context.run(SYSTEM.set, self._system(loop))
        context.run(_CURRENT.set, self)
        loop.enter(lambda: loop.create_task(self.main(), name=self.name, context=context))
        if not self.spared:
            self.expose()

    def expose(self) -> None:
        """Let things befall the life that is under way, from some time on."""
        if self._loop is not None:
            self.world.after(self.world.between(*self._mishaps.spared), self._befall, self._loop)

    async def in_thread(self, call: Callable[[], R]) -> R:
        """Return what blocking code does, as calls of `weir.sync`, in a thread of the process."""
        loop = self._loop
        if loop is None:  # what is over begins nothing
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]
        return await in_thread(loop, self._threads, call)

    def _system(self, loop: VirtualLoop) -> System:
        """Return what its programs take from the system."""
        world = self.world

        def now_us() -> int:
            return EPOCH_MS * MS + world.now + self._skew_us

        return System(
            monotonic=loop.time,
            now_us=now_us,
            steady_us=now_us,
            dice=lambda: Random(world.dice.getrandbits(64)),
            secret_bytes=world.dice.randbytes,
            thread=self._start_thread,
            queue=VirtualQueue,
            background=VirtualBackground,
            chunk_bytes=self._chunk_bytes,
            signals=self._catch,
        )

    def retire(self) -> None:
        """Be over, for good."""
        self.retired = True
        self._die(silent=False)

    def kill(self) -> None:
        """Lose the process, its connections first; another one starts after a while."""
        self.world.note("kill client", self.name)
        self._die(silent=self.world.chance(_SILENTLY))
        self.world.after(self.world.between(*_BOOT), self.start)

    def stand(self, duration: int) -> None:
        """Stand still for so many virtual µs."""
        if (loop := self._loop) is not None:
            self.world.note("pause client", self.name, duration)
            loop.stand()
            self.world.after(duration, loop.go_on)

    def go_on(self) -> None:
        """Stand still no longer."""
        if self._loop is not None:
            self._loop.go_on()

    def terminate(self) -> None:
        """Send it the first signal to end, if it hears of such."""
        if self._first is not None and self._loop is not None:
            self.world.note("terminate client", self.name)
            self._loop.enter(self._first)

    def _start_thread(self, work: Callable[[], None], _: str) -> None:
        if self._loop is None:  # what is over begins nothing
            return
        self._threads = [thread for thread in self._threads if not thread.over]
        thread = VirtualThread(self._loop, work)
        self._threads.append(thread)
        self._loop.enter(thread.go_on)

    def _die(self, silent: bool) -> None:
        loop, machine, self._loop, self._machine = self._loop, self._machine, None, None
        self._first = None
        if loop is not None and machine is not None:
            machine.cut(silent)
            threads, self._threads = self._threads, []
            for thread in threads:
                thread.end()
            loop.drop()
            uncaught, loop.uncaught = loop.uncaught, []
            self.failed(uncaught)

    def _catch(self, first: Callable[[], None]) -> Callable[[], None]:
        self._first = first

        def release() -> None:
            self._first = None

        return release

    def _befall(self, loop: VirtualLoop) -> None:
        if loop is not self._loop or self.spared:
            return
        if (likely := self._mishaps.terminated) and self.world.chance(likely):
            self.terminate()
            self.world.after(self.world.between(*_GRACE), self._kill_or_pause, loop)
        else:
            self._kill_or_pause(loop)

    def _kill_or_pause(self, loop: VirtualLoop) -> None:
        if loop is not self._loop or self.spared:
            return
        mishaps = self._mishaps
        if self.world.chance(mishaps.killed):
            self.kill()
            return
        duration = self.world.between(*mishaps.stands)
        self.stand(duration)
        self.world.after(duration + self.world.between(*mishaps.spared), self._befall, loop)


_CURRENT: ContextVar[Process] = ContextVar("weir process of a world")


def current() -> Process:
    """Return the process whose code asks. Raises `RuntimeError` outside of a world."""
    process = _CURRENT.get(None)
    if process is None:
        raise RuntimeError("no process of a world is running: ask in what `World.run` runs")
    return process
