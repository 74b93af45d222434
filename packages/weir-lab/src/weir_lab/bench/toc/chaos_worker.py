"""One process of a chaos run: it sends to all that are here, and joins again when it is excluded.

`chaos_worker.py SETTINGS`, a JSON object of `Orders`. Each time that it joins it begins another
log, with a JSON array a line. Times are nanoseconds of the clock that all processes share:

    ["joined", process, now]
    ["sent", service, stamp, number, [process, ...]]   a scattering has left
    ["got", service, stamp, source, number, called, [process, ...], now]
    ["lost", service, stamp, to, reason]               SendFailed
    ["failed", process, stamp, now]                    ProcessFailed
    ["excluded", now, why]
    ["end"]                                            all that was sent by anybody is here

A payload says the number of its scattering, when it was called, and who gets a part. A line on
standard input ends the load.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from pathlib import Path
from time import monotonic_ns
from typing import IO

import msgspec

import weir_toc
from weir_toc import Fenced, Member, Message, NotSent, SendFailed
from weir_toc.endpoint.events import Service
from weir_toc.errors import SendBufferFull
from weir_toc.member import EventStream

#: What is added to payloads: some take several packets.
SIZES = (0, 0, 0, 200, 3_000)
#: The number of the last scattering of a process.
LAST = 0
_JOIN_SECONDS = 300.0


class Orders(msgspec.Struct, frozen=True):
    """What one process does."""

    url: str
    name: str
    rack: int
    folder: str
    #: How often this worker was started before; its logs are `NAME.START.JOIN.log`.
    start: int
    pause_s: float


class Worker:
    """A process from its joining to its exclusion, or to the end of the run."""

    def __init__(self, me: Member, orders: Orders, log: IO[str]) -> None:
        self.me = me
        self.orders = orders
        self._log = log
        self._dice = random.Random(f"{orders.name} {me.process}")
        self._number = LAST
        self._failed: set[int] = set()
        self._ended: set[int] = set()
        self._news = asyncio.Event()
        #: Why nothing will come any more, once a stream has ended.
        self._fenced: Fenced | None = None

    def note(self, *facts: object) -> None:
        """Write a line, at once: this process may be killed."""
        self._log.write(json.dumps(facts) + "\n")
        self._log.flush()

    @property
    def here(self) -> list[int]:
        """The processes that have joined, and have not failed as far as this one was told."""
        return sorted({*self.me.names.values()} - self._failed)

    async def take(self, stream: EventStream, service: Service) -> None:
        """Note all events of a service, also those that come behind the exclusion."""
        try:
            await self._take(stream, service)
        except Fenced as why:
            self._fenced = why
            self._news.set()

    async def _take(self, stream: EventStream, service: Service) -> None:
        async for event in stream:
            if isinstance(event, Message):
                number, called, to = json.loads(event.payload)
                self.note("got", service.value, event.stamp, event.source, number, called, to,
                          monotonic_ns())  # fmt: skip
                if number == LAST:
                    self._ended.add(event.source)
            elif isinstance(event, SendFailed):
                self.note("lost", service.value, event.stamp, event.to, event.reason)
            else:
                self._failed.add(event.process)
                self.note("failed", event.process, event.stamp, monotonic_ns())
            self._news.set()

    async def send(self, service: Service, number: int, to: list[int]) -> bool:
        """Send a scattering; return whether it left."""
        body = json.dumps([number, monotonic_ns(), to]).encode()
        body += b" " * self._dice.choice(SIZES)
        call = self.me.send if service is Service.BEST_EFFORT else self.me.send_reliable
        try:
            stamp = await call([(one, body) for one in to])
        except (NotSent, SendBufferFull):
            return False
        self.note("sent", service.value, stamp, number, to)
        return True

    async def load(self, stop: asyncio.Event) -> None:
        """Send both services by turns, mostly to all, until told to stop."""
        while not stop.is_set():
            here = self.here
            count = len(here) if self._dice.random() < 0.6 else self._dice.randint(1, len(here))
            self._number += 1
            service = self._dice.choice([*Service])
            await self.send(service, self._number, self._dice.sample(here, count))
            await asyncio.sleep(self._dice.uniform(0, 2 * self.orders.pause_s))

    async def run(self, stop: asyncio.Event) -> None:
        """Do all of it. Raises a group with `Fenced` when this process is excluded, once all is
        noted that it delivers.
        """
        self.note("joined", self.me.process, monotonic_ns())
        async with asyncio.TaskGroup() as tasks:
            takers = [tasks.create_task(self.take(self.me.best_effort, Service.BEST_EFFORT)),
                      tasks.create_task(self.take(self.me.reliable, Service.RELIABLE))]  # fmt: skip
            try:
                await self._work(stop)
            except Fenced:
                await asyncio.wait(takers)  # what others deliver of what it holds comes yet
                raise self._fenced or Fenced("the streams have ended without a word") from None
            for taker in takers:
                taker.cancel()

    async def _work(self, stop: asyncio.Event) -> None:
        await self.load(stop)
        await self.me.drain(60.0)
        while not await self.send(Service.RELIABLE, LAST, self.here):
            await asyncio.sleep(self.orders.pause_s)
        while not self._ended.issuperset(self.here):
            self._news.clear()
            if self._fenced is not None:
                raise self._fenced
            await self._news.wait()
        self.note("end")


async def main(orders: Orders) -> None:
    """Join again and again, until a run ends well; then wait to be killed."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    async def listen() -> None:
        await loop.run_in_executor(None, sys.stdin.readline)
        stop.set()

    listening = asyncio.create_task(listen())
    listening.add_done_callback(lambda done: done.result())
    join = 0
    while True:
        join += 1
        path = Path(orders.folder) / f"{orders.name}.{orders.start}.{join}.log"
        with contextlib.suppress(Fenced):  # as it joined: it joins again
            await live(orders, path, stop)


async def live(orders: Orders, path: Path, stop: asyncio.Event) -> None:
    """Join, and go on until this process is excluded; after the end, wait to be killed."""
    member = weir_toc.join(orders.url, name=orders.name, rack=orders.rack, timeout=_JOIN_SECONDS)
    async with member as me:
        with path.open("w", encoding="utf-8") as log:
            worker = Worker(me, orders, log)
            try:
                await worker.run(stop)
                await asyncio.Event().wait()  # its leaving would be a failure to the others
            except* Fenced as group:
                worker.note("excluded", monotonic_ns(), str(group.exceptions[0]))


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Orders)))
