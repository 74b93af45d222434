"""One process of the conformance run, which writes down all that it sends and is given.

`conformance_worker.py SETTINGS`, a JSON object of `Orders`. It says `ready` with its id, and begins
once it is told the ids of all processes, in a line of JSON. Its log has a JSON array a line, in the
order in which things happened to the program:

    ["call", number]                             a scattering is about to be sent
    ["sent", service, number, stamp, {process: crc, ...}]
    ["refused", service, number, why]            it never left
    ["got", service, stamp, source, crc]
    ["lost", service, stamp, to, reason]         SendFailed
    ["failed", process, stamp]                   ProcessFailed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import IO
from zlib import crc32

import msgspec

from weir_lab.bench.toc.lossy import opener
from weir_toc import Fenced, Member, Message, NotSent, SendFailed
from weir_toc.endpoint.events import Service
from weir_toc.errors import SendBufferFull, TocError, first_error
from weir_toc.member import EventStream

#: Sizes of payloads: empty, of one packet, and of several.
SIZES = (0, 1, 64, 64, 64, 1_400, 1_401, 6_000)
#: So many of all calls send many scatterings of one size to one receiver, and how many.
RUNS, RUN = 0.15, (4, 24)
#: How long the end of a run waits: less than the bench, which is told then what is missing.
SETTLE_SECONDS = 100.0
#: What begins the payloads that end a run.
_END, _MARK = b"end", b"mark"


class Orders(msgspec.Struct, frozen=True):
    """What one process does."""

    url: str
    name: str
    rack: int
    names: list[str]
    seconds: float
    #: Scatterings a second of each service.
    pace: float
    interval_ms: float
    loss: float
    seed: int
    log: str


class Worker:
    """Sends both services and takes what comes."""

    def __init__(self, me: Member, orders: Orders, ids: Sequence[int], log: IO[str]) -> None:
        """`ids` are those of all processes: one that has failed by now has no name any more."""
        self.me = me
        self.orders = orders
        self.ids = [*ids]
        self.failed: set[int] = set()
        self._log = log
        self._random = random.Random(orders.seed)
        self._number = 0
        self._ended: set[int] = set()
        self._all_ended = asyncio.Event()
        #: Whether a best effort message to itself came that was sent behind all others' ACKs.
        self._marked = False
        #: The stamps of best effort messages to itself, and of those that have come or failed. One
        #: may do both: its sender takes it for lost if all ACKs of it are. An event may come before
        #: its stamp is known here.
        self._own: set[int] = set()
        self._own_over: set[int] = set()
        self._own_told = asyncio.Event()
        #: Why the last scattering that never left did not.
        self._refused = ""

    def note(self, *facts: object) -> None:
        """Write a line."""
        self._log.write(json.dumps(facts) + "\n")

    async def take(self, stream: EventStream, service: Service) -> None:
        """Note all events of a service."""
        async for event in stream:
            if isinstance(event, Message):
                body = event.payload
                self.note("got", service.value, event.stamp, event.source, crc32(body))
                if body == _END:
                    self._end(event.source)
                elif body == _MARK:
                    self._marked = True
                self._note_own(service, event.source, event.stamp)
            elif isinstance(event, SendFailed):
                self.note("lost", service.value, event.stamp, event.to, event.reason)
                self._note_own(service, event.to, event.stamp)
            else:
                self.failed.add(event.process)
                self.note("failed", event.process, event.stamp)
                self._end(event.process)

    def _note_own(self, service: Service, process: int, stamp: int) -> None:
        if service is Service.BEST_EFFORT and process == self.me.process:
            self._own_over.add(stamp)
            self._own_told.set()

    def _end(self, process: int) -> None:
        self._ended.add(process)
        if self._ended.issuperset(self.ids):
            self._all_ended.set()

    async def send(self, service: Service, parts: list[tuple[str | int, bytes]]) -> bool:
        """Send one scattering and note it; return whether it left."""
        self._number += 1
        number = self._number
        self.note("call", number)
        call = self.me.send if service is Service.BEST_EFFORT else self.me.send_reliable
        try:
            stamp = await call(parts)
        except (NotSent, SendBufferFull) as error:
            self._refused = str(error)
            self.note("refused", service.value, number, self._refused)
            return False
        crcs = {to: crc32(body) for to, body in parts}
        self.note("sent", service.value, number, stamp, crcs)
        if service is Service.BEST_EFFORT and self.me.process in crcs:
            self._own.add(stamp)
        return True

    async def send_many(self, service: Service, to: int, bodies: list[bytes]) -> None:
        """Send scatterings to one process in one call, and note each."""
        numbers = range(self._number + 1, self._number + 1 + len(bodies))
        self._number += len(bodies)
        for number in numbers:
            self.note("call", number)
        is_reliable = service is Service.RELIABLE
        call = self.me.send_reliable_many if is_reliable else self.me.send_many
        why = "its receiver has failed"
        try:
            stamps = await call([[(to, body)] for body in bodies])
        except SendBufferFull as error:
            stamps, why = [0] * len(bodies), str(error)
        for number, stamp, body in zip(numbers, stamps, bodies, strict=True):
            if stamp:
                self.note("sent", service.value, number, stamp, {to: crc32(body)})
                if service is Service.BEST_EFFORT and to == self.me.process:
                    self._own.add(stamp)
            else:
                self.note("refused", service.value, number, why)

    async def load(self, service: Service) -> None:
        """Send at a pace, to some processes each time."""
        loop = asyncio.get_running_loop()
        begin = due = loop.time()
        while due < begin + self.orders.seconds:
            count = self._random.randint(1, len(self.ids))
            to = self._random.sample(self.ids, count)
            size = self._random.choice(SIZES)
            if self._random.random() < RUNS:
                bodies = [self._random.randbytes(size) for _ in range(self._random.randint(*RUN))]
                await self.send_many(service, to[0], bodies)
            else:
                await self.send(service, [(one, self._random.randbytes(size)) for one in to])
            due += self._random.uniform(0, 2 / self.orders.pace)
            await asyncio.sleep(due - loop.time())

    async def run(self) -> None:
        """Do all of it. Raises a group of `Fenced` if this process is taken for dead."""
        async with asyncio.TaskGroup() as tasks:
            takers = [tasks.create_task(self.take(self.me.best_effort, Service.BEST_EFFORT)),
                      tasks.create_task(self.take(self.me.reliable, Service.RELIABLE))]  # fmt: skip
            async with asyncio.TaskGroup() as loads:
                for service in Service:
                    loads.create_task(self.load(service))
            await self.settle()
            for taker in takers:
                taker.cancel()

    async def settle(self) -> None:
        """Wait until all that anybody has sent to this process is here. Raises TocError if it does
        not come, with what is known of that.
        """
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._settle()
        except TimeoutError:
            missing = sorted({*self.ids} - self._ended)
            raise TocError(
                f"{missing} have neither ended nor failed after {SETTLE_SECONDS:g} s. The last "
                f"refusal: {self._refused or 'none'}. {dict(self.me.describe())}"
            ) from None

    async def _settle(self) -> None:
        await self.me.drain(60.0)
        while not await self.send(
            Service.RELIABLE, [(one, _END) for one in self.ids if one not in self.failed]
        ):
            await asyncio.sleep(0.01)  # a receiver has failed, and its failure is not read yet
        await self._all_ended.wait()
        # All others have the ACKs of what they sent here. A message to itself comes behind that;
        # where it is lost, another follows once its loss is told.
        while not self._marked:
            if not await self.send(Service.BEST_EFFORT, [(self.me.process, _MARK)]):
                await asyncio.sleep(0.01)  # the send buffer is full
            while not self._own <= self._own_over:
                self._own_told.clear()
                await self._own_told.wait()


def say(*facts: object) -> None:
    """Tell the bench."""
    print(json.dumps(facts), flush=True)


@contextlib.asynccontextmanager
async def all_joined(
    join: Callable[[], Member], names: Sequence[str]
) -> AsyncIterator[tuple[Member, int]]:
    """Join until all processes of these names are here; leave at the end.

    Yields the process, and how often it was excluded before: each time it has joined again.
    """
    excluded = 0
    while True:
        async with contextlib.AsyncExitStack() as joining:
            try:
                me = await joining.enter_async_context(join())
                await me.wait_for(*names)
            except Fenced:
                excluded += 1
                continue
            joined = joining.pop_all()
            break
    async with joined:
        yield me, excluded


async def begin() -> list[int]:
    """Wait until the bench says that all are ready; return their ids."""
    line = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    return msgspec.json.decode(line, type=list[int])


async def main(orders: Orders) -> None:
    """Join, exchange messages, settle, and wait for the end of standard input."""
    loop = asyncio.get_running_loop()

    def join() -> Member:
        return Member(orders.url, orders.name, orders.rack, 120.0,
                      opener(orders.loss, orders.seed))  # fmt: skip

    async with all_joined(join, orders.names) as (me, excluded):
        say("ready", me.process)
        ids = await begin()
        fenced = 0
        with open(orders.log, "w", encoding="utf-8") as log:
            worker = Worker(me, orders, ids, log)
            try:
                await worker.run()
            except* Fenced:
                fenced = 1
        say("done", {"fenced": fenced, "failed": len(worker.failed), "excluded": excluded,
                     **me.describe()})  # fmt: skip
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    try:
        asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Orders)))
    except ExceptionGroup as group:
        raise first_error(group) from group
