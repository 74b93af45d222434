"""One broker that is measured: what a measurement needs of it, be it weir or a peer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from weir_lab.bench.harness.produce import Done
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.sides.working import Taken

#: Takes a value column: int32 offsets [n + 1] and the data they point into.
Take = Callable[[memoryview, memoryview], None]


class Lone(Protocol):
    """One producer that sends message by message, from sequence 0 of producer 0 on."""

    def confirmed(self) -> Awaitable[None]:
        """Send the next message and return when it is confirmed."""

    def hand_over(self) -> None:
        """Send the next message and wait for nothing."""


class Consuming(Protocol):
    """A consumer that is at work."""

    async def failed(self) -> None:
        """Return never; raise what ended the consumer."""


class Working(Protocol):
    """Workers that are connected, and share a topic."""

    def begin(self) -> None:
        """Let each ask for its first messages."""

    async def failed(self) -> None:
        """Return never; raise what ended a worker."""

    async def finish(self) -> None:
        """Return when the broker knows all acks; what was taken must be acked by then."""


class Side(Protocol):
    """A broker that runs."""

    label: str
    version: str
    settings: str
    #: Whether what is confirmed survives the loss of power.
    synced: bool
    one_thread: bool
    folder: Path

    @property
    def port(self) -> int:
        """Where clients and devices connect."""

    def cpu_s(self) -> float | None:
        """Return the CPU time that its processes have used, in seconds."""

    def running(self) -> None:
        """Raise `WeirError` if it has ended."""

    async def prepare(self, topic: str) -> None:
        """Make an empty topic."""

    async def share(self, topic: str) -> None:
        """Make an empty topic that workers are to share."""

    def crew(
        self, topic: str, counts: Sequence[int], size: int, timeout_s: float, lone: bool = False
    ) -> Crew[Done]:  # fmt: skip
        """Return producer processes: one producer for each count, on a connection of its own. Those
        that are `lone` send message by message, and await each before the next.
        """

    def lockstep(
        self, topic: str, counts: Sequence[int], size: int, timeout_s: float
    ) -> Crew[Done] | None:
        """Return lone producers whose messages a program in C sends: see `weir_lab.bench.lockstep`.
        None where there is no compiler, or the program cannot speak to this side.
        """

    def consume(self, topic: str, size: int, take: Take) -> AbstractAsyncContextManager[Consuming]:
        """Return a consumer that hands to `take` all there is from the beginning on."""

    def workers(
        self, topic: str, size: int, workers: int, taken: Taken
    ) -> AbstractAsyncContextManager[Working]:
        """Return so many workers, which ack all they take and note it in `taken`."""

    def lone(self, topic: str, size: int) -> AbstractAsyncContextManager[Lone]:
        """Return a producer on a connection of its own."""


#: A topic for each measurement on one side; the number keeps them apart.
def topic_name(number: int) -> str:
    """Return the name of the `number`-th topic."""
    return f"bench-{number}"
