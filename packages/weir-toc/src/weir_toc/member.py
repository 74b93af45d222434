"""What a program uses: it joins a network, sends scatterings, and takes events in their order.

    SET = "toc://localhost:7001,localhost:7002,localhost:7003"
    async with weir_toc.join(SET, name="a") as me:
        await me.wait_for("b", "c")
        stamp = await me.send_reliable([("b", b"hello"), ("c", b"hello")])
        async for event in me.reliable:
            ...

The process of the network runs in a thread of its own, so that it sends beacons while the program
is busy. `weir_toc.sync` has the same for programs without asyncio.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import repeat
from operator import itemgetter
from time import monotonic_ns
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from weir_toc.endpoint import events as endpoint_events
from weir_toc.endpoint.events import EndpointConfig, Service
from weir_toc.endpoint.making import RUN_MIN, Alike, Scatterings
from weir_toc.errors import (
    InvalidScattering,
    InvalidUse,
    Refused,
    SendBufferFull,
    TocError,
    first_error,
)
from weir_toc.hosts.control_link import RawClock
from weir_toc.hosts.frames import addresses_of
from weir_toc.hosts.process import REORDER_BYTES, Process, ProgramEvent
from weir_toc.hosts.scheduling import promptly
from weir_toc.hosts.udp import OpenSocket, UdpSocket
from weir_toc.packet import PACKET_COST
from weir_toc.topology import PROCESS_MAX, RACK_VARIABLE, rack_of

#: A receiver by its name or its id, and what it is sent.
Part = tuple[str | int, bytes]
#: How long `join` waits for the controller and the aggregator, and the end for what was sent.
JOIN_SECONDS, DRAIN_SECONDS = 30.0, 5.0
#: The characters of a name.
NAME_MAX = 255
#: What calls may have handed over that has not left, in bytes. One call alone may be larger: the
#: endpoint says then why not.
UNSENT_MAX = EndpointConfig().send_buffer
#: The least memory for messages that wait, in bytes, has a window for one sender's largest part.
REORDER_BYTES_MIN, REORDER_BYTES_MAX = EndpointConfig().window_min, 1 << 30

_T = TypeVar("_T")


class Message(NamedTuple):
    """A message in its place: pairs of stamp and source rise. A stamp is in nanoseconds."""

    stamp: int
    #: The id of the process that sent it.
    source: int
    payload: bytes


class SendFailed(NamedTuple):
    """A scattering that has left was not delivered.

    Of best effort the part to `to` was not; of a reliable one no part is, as `to` has failed.
    `reason` is "late", "lost", "process failed", "unreachable" or "no memory at the receiver".
    """

    stamp: int
    to: int
    reason: str


class ProcessFailed(NamedTuple):
    """A process has failed: nothing of it above `stamp` is delivered to anybody.

    It comes in the reliable order behind all that lies at or below its stamp, everywhere.
    """

    process: int
    stamp: int


Event = Message | SendFailed | ProcessFailed
#: The three values of a message in a row of the endpoint.
_shown: Callable[[endpoint_events.Row], tuple[int, int, bytes]] = itemgetter(0, 1, 3)


def events_of(batch: Iterable[ProgramEvent]) -> list[Event]:
    """Return events of the endpoint as programs see them."""
    found: list[Event] = []
    for event in batch:
        if isinstance(event, endpoint_events.Delivered):
            # `Message(...)` would run a function of Python for each: this takes two thirds of that.
            found += map(tuple.__new__, repeat(Message), map(_shown, event.rows))
        elif isinstance(event, endpoint_events.SendFailed):
            found.append(SendFailed(event.stamp, event.to, event.reason.value))
        else:
            found.append(ProcessFailed(event.process, event.stamp))
    return found


def check_use(name: str, rack: int | None, reorder_bytes: int) -> None:
    """Raise InvalidUse for a name that no process can have, what is no number of a rack, or memory
    that is none, too little for one sender, or too much.
    """
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise InvalidUse(f"name={name!r:.40}: a name is a text of 1 to {NAME_MAX} characters")
    if rack is not None and (not isinstance(rack, int) or isinstance(rack, bool) or rack < 0):
        raise InvalidUse(f"rack={rack!r:.40}: racks have numbers from 0 on")
    is_number = isinstance(reorder_bytes, int) and not isinstance(reorder_bytes, bool)
    if not is_number or not REORDER_BYTES_MIN <= reorder_bytes <= REORDER_BYTES_MAX:
        raise InvalidUse(
            f"reorder_bytes={reorder_bytes!r:.40}: a whole number of {REORDER_BYTES_MIN:,} to "
            f"{REORDER_BYTES_MAX:,} is possible; each sender takes {REORDER_BYTES_MIN:,} at least"
        )


def rack_of_host() -> int | None:
    """Return the rack to which the environment says that this host is linked; None if it does not.

    Raises InvalidUse for what is no number of a rack.
    """
    told = os.environ.get(RACK_VARIABLE, "")
    if not told:
        return None
    if not told.isdecimal():
        raise InvalidUse(f"{RACK_VARIABLE}={told!r:.40}: racks have numbers from 0 on")
    return int(told)


def size_of(scatterings: Sequence[Sequence[Part]]) -> int:
    """Return what scatterings take of the send buffer. Raises InvalidScattering for others."""
    size = 0
    try:
        for parts in scatterings:
            for to, payload in parts:
                if not isinstance(payload, bytes | bytearray | memoryview):
                    kind = type(payload).__name__
                    raise InvalidScattering(f"a payload is bytes, and that to {to!r} is {kind}")
                size += len(payload) + PACKET_COST
    except (TypeError, ValueError) as error:
        raise InvalidScattering(f"a scattering has pairs of receiver and payload: {error}") from (
            error
        )
    return size


class ProcessThread:
    """A thread with the loop in which the process runs; calls reach it from any other thread."""

    def __init__(
        self,
        url: str,
        name: str,
        rack: int | None,
        open_socket: OpenSocket = UdpSocket,
        raw_clock: RawClock = monotonic_ns,
        reorder_bytes: int = REORDER_BYTES,
    ) -> None:
        addresses = addresses_of(url)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        #: Whether calls find nobody any more: the loop is about to close, or is closed.
        self._is_over = False
        #: Bytes that calls have handed over and that have not left.
        self._unsent = 0
        self._lock = threading.Lock()
        rack = rack_of_host() if rack is None else rack
        self.process = Process(addresses, name, rack, open_socket, raw_clock, reorder_bytes)
        self._thread = threading.Thread(target=self._run, name=f"toc {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with promptly(), asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the process by an error of a timer or of its socket: it sends no beacons any more."""
        loop.default_exception_handler(context)
        if "handle" in context:
            self.process.end(_trouble(context.get("exception")))

    async def _serve(self) -> None:
        self._loop.set_exception_handler(self._failed)
        running = asyncio.ensure_future(self.process.run())
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            self.process.end(_trouble(running.exception()))
            await stopping  # calls are answered by that until then
        else:
            running.cancel()
            await asyncio.wait((running,))
            stopping.cancel()
        self.process.end(TocError("this process has left the network"))
        with self._lock:
            self._is_over = True
        for _ in range(3):  # calls that were made before that begin, see the end, and answer
            await asyncio.sleep(0)

    def call(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine there; return the future of its result."""
        with self._lock:
            if not self._is_over:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise TocError("this process has left the network: join again")

    def stop(self) -> None:
        """End the thread, and wait for that."""
        with self._lock:
            if not self._is_over:
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def describe(self) -> Mapping[str, object]:
        """Return what the process says of itself, read in the thread that changes it."""

        async def described() -> Mapping[str, object]:
            return self.process.describe()

        try:
            return self.call(described()).result()
        except TocError:
            return self.process.describe()

    async def joined(self, timeout: float) -> None:
        """Wait in the thread until the process has joined. Raises TocError after `timeout` s."""
        try:
            async with asyncio.timeout(timeout):
                await self.process.wait_until_joined()
        except TimeoutError:
            if not self.process.process and self.process.refused:
                raise Refused(self.process.refused) from None
            why = self.process.link.trouble or self._unanswered()
            raise TocError(f"could not join in {timeout:g} s: {why}") from None

    def _unanswered(self) -> str:
        switch = self.process.switch
        if switch is None:
            return "the controller did not answer"
        rack = rack_of(self.process.process)
        return (
            f"the aggregator of rack-{rack} at {switch[0]}:{switch[1]} did not answer. If this "
            "host is linked to another rack, say so with rack="
        )

    async def drained(self, timeout: float) -> bool:
        """Wait in the thread until all that was sent is settled; return whether it was in time."""
        try:
            async with asyncio.timeout(timeout):
                await self.process.drain()
        except TimeoutError:
            return False
        return True

    async def now(self) -> int:
        """Return the synchronised time, read in the thread: its clock is in use there."""
        return self.process.link.now()

    def send_many(
        self, service: Service, scatterings: Sequence[Sequence[Part]]
    ) -> Future[list[int]]:
        """Hand over scatterings; return the future of their stamps.

        Raises SendBufferFull at once if too much has not left, also if the thread has not come to
        it yet: a program may call faster than that.
        """
        alike = alike_of(scatterings)
        if alike is not None:
            size = len(alike[1]) * (len(alike[1][0]) + PACKET_COST)
        else:
            size = size_of(scatterings)
        with self._lock:
            if self._unsent and self._unsent + size > UNSENT_MAX:
                raise SendBufferFull(
                    f"{self._unsent} bytes wait to be sent: wait until some have left"
                )
            self._unsent += size

        try:
            return self.call(self._sent(service, scatterings, alike, size))
        except TocError:
            self._left(size)
            raise

    async def _sent(
        self,
        service: Service,
        scatterings: Sequence[Sequence[Part]],
        alike: tuple[str | int, Sequence[bytes]] | None,
        size: int,
    ) -> list[int]:
        """Send scatterings, in the thread. Room is made before the caller learns the stamps."""
        try:
            if alike is not None:
                found: Scatterings = Alike(self._process_of(alike[0]), alike[1])
            else:
                found = [[(self._process_of(to), bytes(payload)) for to, payload in parts]
                         for parts in scatterings]  # fmt: skip
            return await self.process.send_many(service, found)
        finally:
            self._left(size)

    def _left(self, size: int) -> None:
        with self._lock:
            self._unsent -= size

    def _process_of(self, to: str | int) -> int:
        """Return the id of a receiver. Raises InvalidScattering if nobody has this name, or if it
        is neither a name nor the id that a process can have.
        """
        process = self.process.names.get(to, 0) if isinstance(to, str) else to
        if type(process) is int and 0 < process <= PROCESS_MAX:
            return process
        if isinstance(to, str):
            raise InvalidScattering(f"no process named {to!r} is here: wait_for() it first")
        raise InvalidScattering(f"a receiver is a name or the id of a process, and not {to!r:.40}")


def alike_of(scatterings: Sequence[Sequence[Part]]) -> tuple[str | int, Sequence[bytes]] | None:
    """Return the receiver and the payloads of scatterings that differ in nothing else, and whose
    payloads have one size; None for others.

    A program that sends much sends such ones. Here all of them are handled by a few calls, so that
    nothing is done for one of them on the way to the network, or nearly so.
    """
    if len(scatterings) < RUN_MIN:
        return None
    try:
        receivers, payloads = zip(*[part for (part,) in scatterings], strict=True)
        is_of_one_size = len({*map(len, payloads)}) == 1
    except (TypeError, ValueError):  # one has several parts, or none, or is no scattering
        return None
    to = receivers[0]
    is_alike = receivers.count(to) == len(receivers) and is_of_one_size
    # Others are copied: a program may change them meanwhile.
    return (to, payloads) if is_alike and {*map(type, payloads)} == {bytes} else None


def _trouble(error: BaseException | None) -> TocError:
    """Return what ended the process as one error."""
    first = first_error(error) if error is not None else None
    return first if isinstance(first, TocError) else TocError(f"the process ended: {first!r}")


class EventStream:
    """The events of one service, in order: an asynchronous iterator that ends with `Fenced`."""

    def __init__(self, thread: ProcessThread, service: Service) -> None:
        self._thread = thread
        self._service = service
        self._batch: deque[Event] = deque()
        #: The next batch, once it is asked for: a cancelled wait must not lose it.
        self._asked: Future[list[ProgramEvent]] | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        await self._filled()
        return self._batch.popleft()

    async def batch(self) -> list[Event]:
        """Return the next events, as many as are here: one at least. Cheaper than one by one."""
        await self._filled()
        found = [*self._batch]
        self._batch.clear()
        return found

    async def _filled(self) -> None:
        while not self._batch:
            if self._asked is None:
                self._asked = self._thread.call(self._thread.process.take(self._service))
            asked = self._asked
            batch = await asyncio.shield(asyncio.wrap_future(asked))
            if self._asked is asked:  # else another task that waited has taken it
                self._asked = None
                self._batch.extend(events_of(batch))


class Member:
    """A process of the network; see `join`."""

    def __init__(
        self,
        url: str,
        name: str,
        rack: int | None,
        timeout: float,
        open_socket: OpenSocket = UdpSocket,
        raw_clock: RawClock = monotonic_ns,
        reorder_bytes: int = REORDER_BYTES,
    ) -> None:
        check_use(name, rack, reorder_bytes)
        self._arguments = url, name, rack, open_socket, raw_clock, reorder_bytes
        self._timeout = timeout
        self._thread: ProcessThread | None = None
        self.name = name

    async def __aenter__(self) -> Self:
        thread = ProcessThread(*self._arguments)
        try:
            await asyncio.wrap_future(thread.call(thread.joined(self._timeout)))
        except BaseException:
            await asyncio.to_thread(thread.stop)
            raise
        self._thread = thread
        self._best_effort = EventStream(thread, Service.BEST_EFFORT)
        self._reliable = EventStream(thread, Service.RELIABLE)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.drain()
        await asyncio.to_thread(self._running.stop)

    @property
    def _running(self) -> ProcessThread:
        if self._thread is None:
            raise TocError("use `async with weir_toc.join(...) as me`")
        return self._thread

    @property
    def process(self) -> int:
        """The id of this process, by which ties of stamps are broken."""
        return self._running.process.process

    @property
    def names(self) -> Mapping[str, int]:
        """The processes that are here, by name, as the controller told it last."""
        return self._running.process.names

    @property
    def best_effort(self) -> EventStream:
        """Messages of `send`, and `SendFailed` for those sent from here."""
        self._running  # noqa: B018  before it has joined this raises
        return self._best_effort

    @property
    def reliable(self) -> EventStream:
        """Messages of `send_reliable`, `ProcessFailed`, and `SendFailed`."""
        self._running  # noqa: B018
        return self._reliable

    async def wait_for(self, *names: str) -> None:
        """Wait until processes of these names are here."""
        thread = self._running
        await asyncio.wrap_future(thread.call(thread.process.wait_for(names)))

    async def send(self, parts: Sequence[Part]) -> int:
        """Send a scattering by best effort; return its stamp once it has left.

        Raises InvalidScattering, SendBufferFull, Fenced, or NotSent.
        """
        (stamp,) = await self._sent(Service.BEST_EFFORT, (parts,))
        return stamp

    async def send_reliable(self, parts: Sequence[Part]) -> int:
        """Send a scattering that all of its receivers deliver, or none; as `send`."""
        (stamp,) = await self._sent(Service.RELIABLE, (parts,))
        return stamp

    async def send_many(self, scatterings: Sequence[Sequence[Part]]) -> list[int]:
        """Send scatterings by best effort in this order; return their stamps once all have left.

        Many at once cost far less than calls of `send`. Raises as `send` before any is sent, but
        the stamp of one that never leaves, as its receiver has failed, is 0.
        """
        return await self._sent(Service.BEST_EFFORT, scatterings)

    async def send_reliable_many(self, scatterings: Sequence[Sequence[Part]]) -> list[int]:
        """Send scatterings by the reliable service in this order; as `send_many`."""
        return await self._sent(Service.RELIABLE, scatterings)

    async def _sent(self, service: Service, scatterings: Sequence[Sequence[Part]]) -> list[int]:
        return await asyncio.wrap_future(self._running.send_many(service, scatterings))

    async def now(self) -> int:
        """Return the synchronised time in nanoseconds, which stamps are taken from.

        It never goes back, and what is sent from here later has no lower stamp. `describe` states
        how far it may be off.
        """
        return await asyncio.wrap_future(self._running.call(self._running.now()))

    async def drain(self, timeout: float = DRAIN_SECONDS) -> bool:
        """Wait until all that was sent is acknowledged or given up, and nothing of the reliable
        part would be lost if this process failed now; False after `timeout` s.
        """
        thread = self._running
        return await asyncio.wrap_future(thread.call(thread.drained(timeout)))

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
    """Join the network whose controller is at `url`: `toc://host:port,host:port,host:port`.

    One member that runs is enough: it names the leader. Name all, so that any of them may be down.
    `name` has 1 to 255 characters, else InvalidUse is raised at once, and is unique among the
    processes that are here. Without a `rack`, `WEIR_TOC_RACK` of the environment is taken, or else
    the rack with the fewest processes; a host that is linked to one switch alone needs its own one.
    After `timeout` s `async with` raises Refused, with what the controller said, or TocError. On
    leaving, it waits up to 5 s for what was sent; the others are told `ProcessFailed` then.

    `reorder_bytes` is the memory for messages that wait here for their turn, or for the program:
    42,368 to 2^30, else InvalidUse is raised. Each sender gets 42,368 of it at least, and keeps
    them while it goes on: of 3,500,000 there is room for 82 senders.
    """
    return Member(url, name, rack, timeout, reorder_bytes=reorder_bytes)
