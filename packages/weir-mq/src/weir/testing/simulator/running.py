"""A simulated process as its parts see it: its disks, its sockets, and who watches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from weir.broker.api import events as ev
from weir.broker.shard import Shard
from weir.host.logs import FlushSchedule
from weir.testing.simulator.disk import SimDisk
from weir.testing.simulator.network import End
from weir.testing.simulator.world import World


class RunningProcess(End, Protocol):
    """What a part may ask of the process that it belongs to."""

    world: World
    #: The id of its node, and a number drawn for this life of it.
    node: int
    run: int
    #: By log.
    disks: Mapping[int, SimDisk]
    #: None before it serves and when it has ended.
    shard: Shard | None
    flushes: FlushSchedule
    #: Whether its loop waits for its disk.
    stands: bool

    @property
    def name(self) -> str:
        """What it is called in the trace."""

    def handle(self, event: ev.Event) -> None:
        """Take an event of the shard."""

    def asleep(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Return whether the process stands still; then `do(*arguments)` is called later."""

    def behind(self, act: Callable[[], None]) -> None:
        """Call `act` behind what the process does now."""

    def flush_began(self) -> None:
        """A flush begins for which the process waits."""

    def flush_ended(self, then: Callable[[], None]) -> None:
        """That flush is over: call `then` and go on."""

    def disk_failed(self) -> None:
        """A disk failed: the process ends."""
