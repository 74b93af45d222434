"""One process of the rate run: `rate_worker.py SETTINGS`, a JSON object of `RateOrders`.

The sender sends numbered messages to the receiver, which compares what it is given. An idle process
does nothing. Each payload begins with a number and the monotonic time at which it was handed in.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import struct
import sys
import time
import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

import weir_toc
from weir_toc import Member, Message, SendFailed
from weir_toc.endpoint.events import Service
from weir_toc.errors import first_error

#: A number and a time in nanoseconds.
HEAD = struct.Struct("=QQ")
#: So many messages are handed in by one call. So many calls wait at once, else no more leave.
BATCH, CALLS = 512, 4
#: What a sender sends to itself behind all failures that it is told, and to the receiver at last.
_MARK, _END = b"mark", b"end"
#: A mark of best effort is sent again after so many intervals.
_MARK_INTERVALS = 50


class RateOrders(msgspec.Struct, frozen=True):
    """What one process does."""

    url: str
    name: str
    #: "sender", "receiver", or "idle".
    role: str
    names: list[str]
    messages: int
    lone: int
    size: int
    interval_ms: float
    rack: int = 0


class Failures:
    """What the sender is told that it was not delivered, read while it sends."""

    def __init__(self, me: Member, service: Service) -> None:
        self.stamps: set[int] = set()
        self._me = me
        self._is_reliable = service is Service.RELIABLE
        self._is_marked = asyncio.Event()

    async def read(self) -> None:
        """Take the events of the service, until cancelled."""
        stream = self._me.reliable if self._is_reliable else self._me.best_effort
        while True:
            for one in await stream.batch():
                if isinstance(one, SendFailed):
                    self.stamps.add(one.stamp)
                elif isinstance(one, Message):
                    self._is_marked.set()

    async def wait_until_read(self, interval_ms: float) -> None:
        """Wait until all that was told by now is read: a message to itself comes behind it."""
        send = self._me.send_reliable if self._is_reliable else self._me.send
        while not self._is_marked.is_set():
            await send([(self._me.process, _MARK)])
            try:
                async with asyncio.timeout(_MARK_INTERVALS * interval_ms / 1e3):
                    await self._is_marked.wait()
            except TimeoutError:
                continue


class Sender:
    """Sends as fast as windows allow, or one message at a time."""

    def __init__(self, me: Member, orders: RateOrders) -> None:
        self.me = me
        self.orders = orders
        #: A payload: its head, and as many bytes more as it has to have.
        self._body = struct.Struct(f"{HEAD.format}{orders.size - HEAD.size}x")
        self._to = me.names["receiver"]

    async def run(self, service: Service, is_flood: bool) -> dict[str, Any]:
        """Send all messages of a step; return which it was told that they were not delivered."""
        failures = Failures(self.me, service)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(failures.read())
            stamps = await (self._flood(service) if is_flood else self._lone(service))
            await self.me.drain(60.0)
            cpu_s = time.process_time()
            await failures.wait_until_read(self.orders.interval_ms)
            reading.cancel()
        await self.me.send_reliable([(self._to, _END)])
        told = bytes(not stamp or stamp in failures.stamps for stamp in stamps)
        return {"told": packed(told), "cpu_s": cpu_s}

    async def _flood(self, service: Service) -> Sequence[int]:
        """Send as fast as possible; return the stamp of each message, 0 if it did not leave."""
        send = (
            self.me.send_many if service is Service.BEST_EFFORT else self.me.send_reliable_many
        )  # fmt: skip
        slots, to, pack = asyncio.Semaphore(CALLS), self._to, self._body.pack
        stamps = array("Q", bytes(8 * self.orders.messages))

        async def hand_in(first: int, count: int) -> None:
            try:
                now = time.monotonic_ns()
                batch = [((to, pack(number, now)),) for number in range(first, first + count)]
                stamps[first : first + count] = array("Q", await send(batch))
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for first in range(0, self.orders.messages, BATCH):
                await slots.acquire()
                count = min(BATCH, self.orders.messages - first)
                tasks.create_task(hand_in(first, count))
        return stamps

    async def _lone(self, service: Service) -> Sequence[int]:
        """Send messages one by one, at any place between two beacons; return their stamps."""
        send = self.me.send if service is Service.BEST_EFFORT else self.me.send_reliable
        dice = random.Random(1)
        stamps = []
        for number in range(self.orders.lone):
            await asyncio.sleep(dice.uniform(8, 12) * self.orders.interval_ms / 1e3)
            body = self._body.pack(number, time.monotonic_ns())
            stamps.append(await send([(self._to, body)]))
        return stamps


class Receiver:
    """Counts, compares and times what it is given."""

    def __init__(self, me: Member, orders: RateOrders, count: int) -> None:
        """`count` messages are sent to it."""
        self.me = me
        self.orders = orders
        self.received = self.misplaced = 0
        self.first = self.last = 0
        self.latencies: list[int] = []
        self._seen = bytearray(count)

    async def count(self, service: Service) -> dict[str, Any]:
        """Take the messages of one service until the sender says that it is done."""
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(self._take(service))
            if service is Service.BEST_EFFORT:
                while not any(is_end(one) for one in await self.me.reliable.batch()):
                    pass
                # The rest passes its barrier.
                await asyncio.sleep(50 * self.orders.interval_ms / 1e3)
                taking.cancel()
        return {
            "received": self.received, "misplaced": self.misplaced, "seen": packed(self._seen),
            "seconds": (self.last - self.first) / 1e9, "latencies": self.latencies,
            "cpu_s": time.process_time(),
        }  # fmt: skip

    async def _take(self, service: Service) -> None:
        stream = self.me.best_effort if service is Service.BEST_EFFORT else self.me.reliable
        unpack, keeps, seen = HEAD.unpack_from, self.orders.lone, self._seen
        number, last_stamp = -1, 0
        while True:
            batch = await stream.batch()
            now = time.monotonic_ns()
            messages = [one for one in batch if type(one) is Message and one.payload != _END]
            for stamp, _, payload in messages:
                told, sent_at = unpack(payload)
                if told <= number or stamp <= last_stamp:
                    self.misplaced += 1
                number, last_stamp = told, stamp
                seen[told] = 1
                if len(self.latencies) < keeps:
                    self.latencies.append(now - sent_at)
            if messages:
                self.first = self.first or now
                self.last = now
                self.received += len(messages)
            if len(messages) < len(batch) and any(map(is_end, batch)):
                return


def is_end(event: object) -> bool:
    """Whether the sender says that it is done. One that has failed ends, which the bench sees."""
    return isinstance(event, Message) and event.payload == _END


def packed(flags: bytes | bytearray) -> str:
    """Return bytes that are 0 or 1 as a short text; `unpacked` is its inverse."""
    return base64.b64encode(zlib.compress(flags, 1)).decode()


def unpacked(text: str) -> bytes:
    """Return what `packed` was given."""
    return zlib.decompress(base64.b64decode(text))


def say(*facts: object) -> None:
    """Tell the bench."""
    print(json.dumps(facts), flush=True)


async def main(orders: RateOrders) -> None:
    """Do each step of the run when the bench gives a line."""
    loop = asyncio.get_running_loop()
    async with weir_toc.join(orders.url, name=orders.name, rack=orders.rack, timeout=120) as me:
        await me.wait_for(*orders.names)
        say("ready", me.process)
        for service in (Service.BEST_EFFORT, Service.RELIABLE):
            for is_flood in (True, False):
                await loop.run_in_executor(None, sys.stdin.readline)
                found: dict[str, Any] = {}
                before = time.process_time()
                if orders.role == "receiver":
                    count = orders.messages if is_flood else orders.lone
                    found = await Receiver(me, orders, count).count(service)
                elif orders.role == "sender":
                    found = await Sender(me, orders).run(service, is_flood)
                if found:
                    found["cpu_s"] -= before
                say("done", found)
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    try:
        asyncio.run(main(msgspec.json.decode(sys.argv[1], type=RateOrders)))
    except ExceptionGroup as group:
        raise first_error(group) from group
