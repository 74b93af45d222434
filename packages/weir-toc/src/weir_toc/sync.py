"""The blocking twin of `weir_toc.join`, for programs without asyncio.

    SET = "toc://localhost:7001,localhost:7002,localhost:7003"
    with weir_toc.sync.join(SET, name="a") as me:
        me.wait_for("b")
        me.send_reliable([("b", b"hello")])
        event = next(me.reliable)

Its calls may come from several threads; one thread at a time takes the events of a service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from weir_toc.endpoint.events import Service
from weir_toc.errors import TocError
from weir_toc.hosts.process import REORDER_BYTES, ProgramEvent
from weir_toc.member import (
    DRAIN_SECONDS,
    JOIN_SECONDS,
    Event,
    Part,
    ProcessThread,
    check_use,
    events_of,
)


class EventStream:
    """The events of one service, in order: an iterator that waits, and ends with `Fenced`."""

    def __init__(self, thread: ProcessThread, service: Service) -> None:
        self._thread = thread
        self._service = service
        self._batch: deque[Event] = deque()
        self._asked: Future[list[ProgramEvent]] | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return self.next(None)

    def next(self, timeout: float | None) -> Event:
        """Return the next event; TimeoutError after so many seconds without one."""
        self._fill(timeout)
        return self._batch.popleft()

    def batch(self, timeout: float | None = None) -> list[Event]:
        """Return the next events, as many as are here: one at least. Raises as `next`."""
        self._fill(timeout)
        found = [*self._batch]
        self._batch.clear()
        return found

    def _fill(self, timeout: float | None) -> None:
        while not self._batch:
            if self._asked is None:
                self._asked = self._thread.call(self._thread.process.take(self._service))
            batch = self._asked.result(timeout)
            self._asked = None
            self._batch.extend(events_of(batch))


class Member:
    """A process of the network; see `join`."""

    def __init__(
        self, url: str, name: str, rack: int | None, timeout: float, reorder_bytes: int
    ) -> None:
        check_use(name, rack, reorder_bytes)
        self._arguments = url, name, rack
        self._reorder_bytes = reorder_bytes
        self._timeout = timeout
        self._thread: ProcessThread | None = None
        self.name = name

    def __enter__(self) -> Self:
        thread = ProcessThread(*self._arguments, reorder_bytes=self._reorder_bytes)
        try:
            thread.call(thread.joined(self._timeout)).result()
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        #: Messages of `send`, and `SendFailed` for those sent from here.
        self.best_effort = EventStream(thread, Service.BEST_EFFORT)
        #: Messages of `send_reliable`, `ProcessFailed`, and `SendFailed`.
        self.reliable = EventStream(thread, Service.RELIABLE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.drain()
        self._running.stop()

    @property
    def _running(self) -> ProcessThread:
        if self._thread is None:
            raise TocError("use `with weir_toc.sync.join(...) as me`")
        return self._thread

    @property
    def process(self) -> int:
        """The id of this process, by which ties of stamps are broken."""
        return self._running.process.process

    @property
    def names(self) -> Mapping[str, int]:
        """The processes that are here, by name, as the controller told it last."""
        return self._running.process.names

    def wait_for(self, *names: str, timeout: float | None = None) -> None:
        """Wait until processes of these names are here; TimeoutError after so many seconds."""
        self._running.call(self._running.process.wait_for(names)).result(timeout)

    def send(self, parts: Sequence[Part]) -> int:
        """Send a scattering by best effort; return its stamp once it has left.

        Raises InvalidScattering, SendBufferFull, Fenced, or NotSent.
        """
        (stamp,) = self._running.send_many(Service.BEST_EFFORT, (parts,)).result()
        return stamp

    def send_reliable(self, parts: Sequence[Part]) -> int:
        """Send a scattering that all of its receivers deliver, or none; as `send`."""
        (stamp,) = self._running.send_many(Service.RELIABLE, (parts,)).result()
        return stamp

    def send_many(self, scatterings: Sequence[Sequence[Part]]) -> list[int]:
        """Send scatterings by best effort in this order; return their stamps once all have left.

        Many at once cost far less than calls of `send`. Raises as `send` before any is sent, but
        the stamp of one that never leaves, as its receiver has failed, is 0.
        """
        return self._running.send_many(Service.BEST_EFFORT, scatterings).result()

    def send_reliable_many(self, scatterings: Sequence[Sequence[Part]]) -> list[int]:
        """Send scatterings by the reliable service in this order; as `send_many`."""
        return self._running.send_many(Service.RELIABLE, scatterings).result()

    def now(self) -> int:
        """Return the synchronised time in nanoseconds, which stamps are taken from.

        It never goes back, and what is sent from here later has no lower stamp. `describe` states
        how far it may be off.
        """
        return self._running.call(self._running.now()).result()

    def drain(self, timeout: float = DRAIN_SECONDS) -> bool:
        """Wait until all that was sent is acknowledged or given up, and nothing of the reliable
        part would be lost if this process failed now; False after `timeout` s.
        """
        return self._running.call(self._running.drained(timeout)).result()

    def describe(self) -> Mapping[str, object]:
        """Return what waits, what was counted, and how far the clock may be off, in ns."""
        return self._running.describe()


def join(
    url: str,
    *,
    name: str,
    rack: int | None = None,
    timeout: float = JOIN_SECONDS,
    reorder_bytes: int = REORDER_BYTES,
) -> Member:
    """Join a network as `weir_toc.join` does, by `with`."""
    return Member(url, name, rack, timeout, reorder_bytes)
