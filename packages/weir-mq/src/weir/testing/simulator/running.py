"""A simulated process while it runs: what its parts see of it, and when it stands still."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weir.broker.api import events as ev
from weir.broker.shard import Shard
from weir.host.logs import FlushSchedule
from weir.testing.simulator.disk import SimDisk
from weir.testing.simulator.network import Link
from weir.testing.simulator.world import World


class Standstill:
    """When a process does nothing: while it is paused, or waits for a flush that it runs itself.

    What happens meanwhile waits, and is handled when the process goes on.
    """

    def __init__(self, world: World) -> None:
        """Do not stand still."""
        #: Whether the process stands still, for any reason; and whether somebody has paused it.
        self.lasts = self.is_paused = False
        self._world = world
        self._flushing = False
        self._backlog: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def asleep(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Return whether the process stands still; then `do(*arguments)` is called later."""
        if self.lasts:
            self._backlog.append((do, arguments))
        return self.lasts

    def pause(self) -> None:
        """Stand still: time goes on, and what happens is handled by `go_on`."""
        self.lasts = self.is_paused = True

    def go_on(self) -> None:
        """Be paused no longer."""
        self.is_paused = False
        self._wake()

    def flush_began(self) -> None:
        """Wait for the disk: nothing else is done until `flush_ended`."""
        self.lasts = self._flushing = True

    def flush_ended(self, then: Callable[[], None]) -> None:
        """The disk is done: `then` comes before what has happened meanwhile."""
        self._flushing = False
        if self.is_paused:
            self._backlog.appendleft((then, ()))
        else:
            self.lasts = False
            then()
            self.lasts = True
            self._wake()

    def forget(self) -> None:
        """Handle nothing of what has happened: the process has ended."""
        self._backlog.clear()

    def _wake(self) -> None:
        """Handle all that has happened in the meantime.

        What came on one connection keeps its order; which connection is read first is anybody's
        guess, and so is whether timers are heard of before.
        """
        if not self.lasts or self.is_paused or self._flushing:
            return
        self.lasts = False
        backlog, self._backlog = self._backlog, deque()
        sources: dict[object, list[tuple[Callable[..., object], tuple[Any, ...]]]] = {}
        for do, arguments in backlog:
            source = arguments[0] if arguments and isinstance(arguments[0], Link) else do
            sources.setdefault(source, []).append((do, arguments))
        order = list(sources.values())
        if self._world.chance(0.7):
            self._world.dice.shuffle(order)
        for happened in order:
            for do, arguments in happened:
                do(*arguments)


class RunningProcess(Protocol):
    """What a part may ask of the process that it belongs to."""

    world: World
    #: A number drawn for this life of it.
    run: int
    #: None once it has ended.
    shard: Shard | None
    flushes: FlushSchedule
    standstill: Standstill

    @property
    def node(self) -> int:
        """The id of its node."""

    @property
    def name(self) -> str:
        """What it is called in the trace."""

    @property
    def disks(self) -> Mapping[int, SimDisk]:
        """Those of its node, by log."""

    def handle(self, event: ev.Event) -> None:
        """Take an event of the shard."""

    def behind(self, act: Callable[[], None]) -> None:
        """Call `act` behind what the process does now."""

    def disk_failed(self) -> None:
        """A disk failed: the process ends."""
