"""The load of a chaos run: an open-loop producer, devices, and a reader, each with its ledger."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType

from weir.client.client import Client, Connecting, connect
from weir.client.producer.producer import Producer
from weir.client.producer.receipts import BatchReceipt
from weir.client.reader.reader import Reader
from weir.device.client import Client as Device
from weir.device.connection import DeviceSecret
from weir.errors import WeirError
from weir.model.limits import MIB
from weir.tls.files import ClientFiles
from weir_lab.bench.faults.chaos.ledger import NOWHERE, Read, Sent, Taken
from weir_lab.bench.harness.payload import Block

#: The producer's number; devices have those that follow, and the witness has the last.
PRODUCER = 0
#: What is due is sent so often.
_TICK_S = 0.002
_AT_ONCE = 4_096
_DEVICE_A_SECOND = 20
_HUB = 0xC4A05
#: Longer than any fault lasts.
PATIENCE_S = 60.0
_CALM_S = 0.01
_OFFSET_MAX = (1 << 63) - 1


class LoadFailed(WeirError):
    """A client of the load ended by itself; the message says why."""


@dataclass(frozen=True, slots=True)
class Login:
    """What clients of the load come by: a user's password, and files for TLS; and devices: files,
    and the key of their fleet in a system.
    """

    password: str | None = field(default=None, repr=False)
    files: ClientFiles | None = None
    system: int = 0
    fleet_key: bytes = field(default=b"", repr=False)

    def connect(self, url: str, name: str) -> Connecting:
        """Return a client of a set, which waits for longer than any fault lasts."""
        return connect(url, name=name, request_timeout=PATIENCE_S, password=self.password)

    def device(self, place: tuple[str, int], hub: int, topic: str) -> Device:
        """Return a device that is connected to a node."""
        secret = DeviceSecret.derived(self.fleet_key, self.system, hub) if self.fleet_key else None
        return Device(*place, hub, 1, topic, 0, timeout=PATIENCE_S, secret=secret, tls=self.files)


#: For a set that is open, without TLS.
ANYBODY = Login()


class Pump:
    """Sends so many messages a second, whether or not anything comes back."""

    def __init__(self, ledger: Sent, rate: float, size: int) -> None:
        """Write into `ledger`; `run` needs a producer."""
        self._ledger = ledger
        self._rate = rate
        self._block = Block(size, _AT_ONCE)

    def confirmed(self, confirm: BatchReceipt) -> None:
        """Note a confirm; they come in the order of the batches."""
        self._ledger.confirm(confirm.count, confirm.offset, time.monotonic_ns())

    async def run(self, producer: Producer, stop: asyncio.Event) -> None:
        """Send until `stop`, then return once all is confirmed."""
        ledger, began = self._ledger, time.monotonic()
        while not stop.is_set():
            due = int((time.monotonic() - began) * self._rate) - ledger.sent
            count = min(due, _AT_ONCE)
            if count > 0:
                for value in self._block.values_of(PRODUCER, ledger.sent, count):
                    producer.send(value)
                ledger.sent += count
            await asyncio.sleep(_TICK_S)
        await producer.flush()


class Lock:
    """A device in a thread of its own, which sends one sequenced message after the other."""

    def __init__(
        self, number: int, place: tuple[str, int], topic: str, size: int, login: Login
    ) -> None:
        """Be producer `number`, and talk to the node at `place`."""
        self.ledger = Sent()
        self.error: Exception | None = None
        self._number = number
        self._place = place
        self._topic = topic
        self._login = login
        self._block = Block(size, 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"weir-device-{number}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """Return once what is under way is confirmed."""
        self._stop.set()
        self._thread.join(2 * PATIENCE_S)

    def _run(self) -> None:
        try:
            with self._login.device(self._place, hub_of(self._number), self._topic) as device:
                while not self._stop.wait(1 / _DEVICE_A_SECOND):
                    self._send(device)
        except Exception as error:
            self.error = error

    def _send(self, device: Device) -> None:
        ledger = self.ledger
        (value,) = self._block.values_of(self._number, ledger.sent, 1)
        ledger.sent += 1
        reply = device.publish_sequenced(value)
        # A repeat of what was answered before may not be told where that lies.
        offset = reply.offset if reply.offset <= _OFFSET_MAX else NOWHERE
        ledger.confirm(1, offset, time.monotonic_ns())


def hub_of(number: int) -> int:
    """Return the hub of the device that is producer `number`."""
    return _HUB + number


class Follower:
    """A reader at work, which notes what it is given."""

    def __init__(self, read: Read) -> None:
        """Write into `read`."""
        self._read = read
        self._moved = asyncio.Event()
        self.taken = Taken()
        self.end = 0

    async def run(self, reader: Reader) -> None:
        """Read until the reader ends."""
        async for delivered in reader.batches():
            column = delivered.batch.value_column
            first = delivered.skip
            offsets = column.offsets[first : first + len(delivered) + 1]
            self._read.take(delivered.offset, offsets, column.data)
            self.end = delivered.next_offset
            self.taken.note(self.end, time.monotonic_ns())
            self._moved.set()

    async def reach(self, end: int) -> None:
        """Return once all below `end` was read."""
        while self.end < end:
            self._moved.clear()
            await self._moved.wait()


class Load:
    """All clients of a run, at work while the block runs. `finish` ends them with all confirmed."""

    def __init__(
        self, url: str, places: Sequence[tuple[str, int]], topic: str, rate: float, size: int,
        login: Login = ANYBODY,
    ) -> None:  # fmt: skip
        """Talk to the set at `url`; a device to each of `places`."""
        self.produced = Sent()
        self.live = Read(size)
        self._url = url
        self._topic = topic
        self._login = login
        self._pump = Pump(self.produced, rate, size)
        self._follower = Follower(self.live)
        self._locks = [
            Lock(PRODUCER + 1 + at, place, topic, size, login) for at, place in enumerate(places)
        ]
        self._stop = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ledgers(self) -> dict[int, Sent]:
        """The ledger of each producer, by number."""
        locks = {PRODUCER + 1 + at: lock.ledger for at, lock in enumerate(self._locks)}
        return {PRODUCER: self.produced, **locks}

    def reader_lag_ms(self, since_ns: int, until_ns: int) -> float:
        """Return how long after its confirm the reader got a message of [since, until], at most."""
        return self.produced.lag_ms(self._follower.taken, since_ns, until_ns)

    @property
    def end(self) -> int:
        """The offset behind all that the open-loop producer knows to be confirmed."""
        return self.produced.end

    async def __aenter__(self) -> Load:
        sending = await self._client("weir-chaos-producer")
        reading = await self._client("weir-chaos-reader")
        producer = await sending.producer(
            self._topic, linger=0, window=32, partition=0, on_confirm=self._pump.confirmed
        ).open()
        self._stack.push_async_callback(producer.close)
        reader = await self._stack.enter_async_context(reading.reader(self._topic, order="total"))
        self._tasks = [
            asyncio.create_task(self._pump.run(producer, self._stop), name="weir pump"),
            asyncio.create_task(self._follower.run(reader), name="weir follower"),
        ]
        for lock in self._locks:
            lock.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await asyncio.to_thread(self._end_locks)
        await self._stack.aclose()

    def check(self) -> None:
        """Raise `LoadFailed` if a client has ended."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise LoadFailed(f"a client gave up: {error}") from error
        for lock in self._locks:
            if lock.error is not None:
                raise LoadFailed(f"a device gave up: {lock.error}") from lock.error

    async def finish(self) -> None:
        """Stop sending; return once all that was sent is confirmed. Raises `LoadFailed`."""
        self._stop.set()
        sending = self._tasks[0]
        await asyncio.wait([sending], timeout=2 * PATIENCE_S)
        await asyncio.to_thread(self._end_locks)
        self.check()
        if not sending.done():
            raise LoadFailed(f"not all that was sent is confirmed after {2 * PATIENCE_S:g} s")

    async def caught_up(self, end: int) -> None:
        """Return once the reader has got all below `end`. Raises `LoadFailed`."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._follower.reach(end)
        except TimeoutError:
            self.check()
            raise LoadFailed(
                f"the reader is at offset {self._follower.end:,} of {end:,} after {PATIENCE_S:g} s"
            ) from None

    async def moves(self, since: int) -> None:
        """Return once more than `since` messages of the producer are confirmed."""
        while self.produced.confirmed <= since:
            self.check()
            await asyncio.sleep(_CALM_S)

    async def _client(self, name: str) -> Client:
        return await self._stack.enter_async_context(self._login.connect(self._url, name))

    def _end_locks(self) -> None:
        for lock in self._locks:
            lock.end()


async def read_whole(url: str, topic: str, size: int, login: Login = ANYBODY) -> Read:
    """Read a topic of one partition from its beginning to its end, with a client of its own."""
    read = Read(size)
    async with (
        login.connect(url, "weir-chaos-check") as client,
        client.reader(topic, follow=False, max_bytes=4 * MIB) as reader,
    ):
        async for delivered in reader.batches():
            column = delivered.batch.value_column
            first = delivered.skip
            offsets = column.offsets[first : first + len(delivered) + 1]
            read.take(delivered.offset, offsets, column.data)
    return read
