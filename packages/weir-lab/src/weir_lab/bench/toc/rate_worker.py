"""One process of the rate run: `rate_worker.py SETTINGS`, a JSON object of `RateOrders`.

The sender sends numbered messages to the receiver, which compares what it is given. An idle process
does nothing. Each payload begins with a number and the monotonic time at which it was handed in.
"""

from __future__ import annotations

import asyncio
import json
import random
import struct
import sys
import time
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


class Sender:
    """Sends as fast as windows allow, and then one message at a time."""

    def __init__(self, me: Member, orders: RateOrders) -> None:
        self.me = me
        self.orders = orders
        self._rest = bytes(orders.size - HEAD.size)
        self._to = me.names["receiver"]

    async def flood(self, service: Service) -> dict[str, Any]:
        """Send all messages; return how many were not delivered, as far as is known."""
        send = (
            self.me.send_many if service is Service.BEST_EFFORT else self.me.send_reliable_many
        )  # fmt: skip
        slots = asyncio.Semaphore(CALLS)
        unsent = 0

        async def hand_in(first: int, count: int) -> None:
            nonlocal unsent
            try:
                now = time.monotonic_ns()
                batch = [((self._to, HEAD.pack(number, now) + self._rest),)
                         for number in range(first, first + count)]  # fmt: skip
                unsent += (await send(batch)).count(0)
            finally:
                slots.release()

        begun = time.monotonic_ns()
        async with asyncio.TaskGroup() as tasks:
            for first in range(0, self.orders.messages, BATCH):
                await slots.acquire()
                count = min(BATCH, self.orders.messages - first)
                tasks.create_task(hand_in(first, count))
        await self.me.drain(60.0)
        seconds = (time.monotonic_ns() - begun) / 1e9
        await self.me.send_reliable([(self._to, b"end")])
        return {"unsent": unsent, "seconds": seconds, "cpu_s": time.process_time()}

    async def lone(self, service: Service) -> None:
        """Send messages one by one, at any place between two beacons."""
        send = self.me.send if service is Service.BEST_EFFORT else self.me.send_reliable
        dice = random.Random(1)
        for number in range(self.orders.lone):
            await asyncio.sleep(dice.uniform(8, 12) * self.orders.interval_ms / 1e3)
            await send([(self._to, HEAD.pack(number, time.monotonic_ns()) + self._rest)])
        await self.me.drain(60.0)
        await self.me.send_reliable([(self._to, b"end")])

    async def lost(self) -> int:
        """Return how many messages it was told that they were not delivered, so far."""
        count = 0
        for stream in (self.me.best_effort, self.me.reliable):
            try:
                async with asyncio.timeout(0.05):
                    while True:
                        count += sum(isinstance(one, SendFailed) for one in await stream.batch())
            except TimeoutError:
                continue
        return count


class Receiver:
    """Counts, compares and times what it is given."""

    def __init__(self, me: Member, orders: RateOrders) -> None:
        self.me = me
        self.orders = orders
        self.received = self.misplaced = 0
        self.first = self.last = 0
        self.latencies: list[int] = []
        self._number = -1

    async def count(self, service: Service) -> dict[str, Any]:
        """Take the messages of one service until the sender says that it is done."""
        taking = asyncio.ensure_future(self._take(service))
        if service is Service.RELIABLE:
            await taking
        else:
            while all(
                getattr(one, "payload", b"") != b"end" for one in await self.me.reliable.batch()
            ):
                pass
            await asyncio.sleep(50 * self.orders.interval_ms / 1e3)  # the rest passes its barrier
            taking.cancel()
        return {
            "received": self.received, "misplaced": self.misplaced,
            "seconds": (self.last - self.first) / 1e9, "latencies": self.latencies,
            "cpu_s": time.process_time(),
        }  # fmt: skip

    async def _take(self, service: Service) -> None:
        stream = self.me.best_effort if service is Service.BEST_EFFORT else self.me.reliable
        unpack, keeps = HEAD.unpack_from, self.orders.lone
        number, last_stamp = -1, 0
        while True:
            batch = await stream.batch()
            now = self.last = time.monotonic_ns()
            if not self.received:
                self.first = now
            for one in batch:
                if not isinstance(one, Message):
                    continue
                payload = one.payload
                if payload == b"end":
                    return
                told, sent_at = unpack(payload)
                if told <= number or one.stamp <= last_stamp:
                    self.misplaced += 1
                number, last_stamp = told, one.stamp
                self.received += 1
                if len(self.latencies) < keeps:
                    self.latencies.append(now - sent_at)


def say(*facts: object) -> None:
    """Tell the bench."""
    print(json.dumps(facts), flush=True)


async def main(orders: RateOrders) -> None:
    """Do each step of the run when the bench gives a line."""
    loop = asyncio.get_running_loop()
    async with weir_toc.join(orders.url, name=orders.name, rack=0, timeout=120) as me:
        await me.wait_for(*orders.names)
        say("ready", me.process)
        for service in (Service.BEST_EFFORT, Service.RELIABLE):
            for is_flood in (True, False):
                await loop.run_in_executor(None, sys.stdin.readline)
                found: dict[str, Any] = {}
                before = time.process_time()
                if orders.role == "receiver":
                    found = await Receiver(me, orders).count(service)
                elif orders.role == "sender":
                    sender = Sender(me, orders)
                    if is_flood:
                        found = await sender.flood(service)
                    else:
                        await sender.lone(service)
                    found["failed"] = await sender.lost()
                if found and "cpu_s" in found:
                    found["cpu_s"] -= before
                say("done", found)
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    try:
        asyncio.run(main(msgspec.json.decode(sys.argv[1], type=RateOrders)))
    except ExceptionGroup as group:
        raise first_error(group) from group
