"""A process of a test: `python worker.py URL NAME COUNT OTHERS VICTIMS [RACK]`.

It sends COUNT scatterings of both services to all, then goes on by the reliable one until it is
told that all VICTIMS have failed, and ends when it has what all others sent last. It prints what it
sent and what it delivered as lines of JSON, "ready" once it has the first messages of all, and
"excluded" if it was taken for dead.
"""

from __future__ import annotations

import asyncio
import json
import sys

import weir_toc
from weir_toc import Fenced, Member, Message, NotSent, ProcessFailed


def say(*facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Worker:
    """One process; all of them do the same."""

    def __init__(self, me: Member, count: int, ids: dict[str, int], victims: list[str]) -> None:
        self.me = me
        self.count = count
        self.ids = ids
        self.victims = {ids[victim] for victim in victims}
        self.missing = {*self.victims}
        self.failed = asyncio.Event()
        self.done = asyncio.Event()

    async def best_effort(self) -> None:
        async for event in self.me.best_effort:
            if isinstance(event, Message):
                say("be", event.stamp, event.source, event.payload.decode())
            else:
                say("be-failed", *event)

    async def reliable(self) -> None:
        first, last = set(), set()
        others = {*self.ids.values()} - self.victims
        async for event in self.me.reliable:
            if isinstance(event, Message):
                say("r", event.stamp, event.source, event.payload.decode())
                if event.payload == b"last":
                    last.add(event.source)
                elif int(event.payload.split()[1]) < self.count:
                    first.add(event.payload)
                    if len(first) == self.count * len(self.ids):
                        say("ready")
            elif isinstance(event, ProcessFailed):
                say("failed", *event)
                self.missing.discard(event.process)
                if not self.missing:
                    self.failed.set()
            else:
                say("r-failed", *event)
            if last == others:
                self.done.set()

    async def send(self) -> None:
        me, number = self.me, 0
        while number < self.count or not self.failed.is_set():
            text = f"{me.name} {number}"
            parts = [(to, text.encode()) for to in self.ids.values()]
            try:
                if number < self.count:
                    say("be-sent", await me.send(parts), text)
                say("r-sent", await me.send_reliable(parts), text)
            except NotSent:
                say("not-sent", text)
            if number >= self.count:
                await asyncio.sleep(0.1)
            number += 1
        await me.send_reliable(
            [(to, b"last") for to in self.ids.values() if to not in self.victims]
        )


async def main(
    url: str, name: str, count: int, names: list[str], victims: list[str], rack: int | None
) -> None:
    async with weir_toc.join(url, name=name, rack=rack, timeout=60) as me:
        try:
            await work(me, count, names, victims)
        except* Fenced:
            say("excluded")
            await asyncio.sleep(3_600)  # the test ends it


async def work(me: Member, count: int, names: list[str], victims: list[str]) -> None:
    await me.wait_for(*names)
    ids = {one: me.names[one] for one in names}
    say("ids", ids)
    worker = Worker(me, count, ids, victims)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.best_effort())
        tasks.create_task(worker.reliable())
        await worker.send()
        await worker.done.wait()
        await me.drain()
        say("done")  # the test ends it: its end would be a failure to the others


if __name__ == "__main__":
    url, name, count, names, victims, *rack = sys.argv[1:]
    asyncio.run(main(url, name, int(count), names.split(","), victims.split(","),
                     int(rack[0]) if rack else None))  # fmt: skip
