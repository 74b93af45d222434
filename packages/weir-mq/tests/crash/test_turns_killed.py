"""`kill -9` of who has the turn, and of the node that gave it: the cluster's one order has no hole.

WEIR_TURN_KILLS=10 for more. Each consumer is a process that writes down what it begins; one that
follows another begins at the cursor: never behind what was not done, and in the one order.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import weir
from weir.server.interpreter import environment
from weir.testing.nodes import NodeSet, Patient

KILLS = int(os.environ.get("WEIR_TURN_KILLS", "2"))
TOPIC = "ordered"
PARTITIONS = 3
CONSUMERS = 2
PER_SECOND = 300
#: Messages that are worked on between two kills.
BETWEEN = 150

CONSUMER = """
import asyncio, os, sys
import weir

async def main(url, out):
    async with weir.connect(url, request_timeout=20.0) as w:
        consumer = w.consumer("ordered", cluster="crew", mode="ordered", max_messages=8, lease=4.0)
        async with consumer:
            async for message in consumer:
                os.write(out, message.value + b"\\n")
                await message.ack()

asyncio.run(main(sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)))
"""


class Crew:
    """Consumer processes that write into one file, each line whole."""

    def __init__(self, url: str, folder: Path) -> None:
        self.file = folder / "begun"
        self.file.touch()
        self._url = url
        self._errors = folder / "consumers.log"
        self.running: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        with self._errors.open("ab") as errors:
            command = [sys.executable, "-P", "-c", CONSUMER, self._url, str(self.file)]
            self.running.append(subprocess.Popen(command, stderr=errors, env=environment()))

    def kill(self, place: int) -> None:
        one = self.running.pop(place)
        one.kill()
        one.wait(10)

    def end(self) -> None:
        while self.running:
            self.kill(0)

    def begun(self) -> list[int]:
        return [int(line) for line in self.file.read_bytes().splitlines()]

    def check(self) -> None:
        for one in self.running:
            assert one.poll() is None, self._errors.read_text(encoding="utf-8")


async def until(crew: Crew, count: int) -> None:
    """Return when so many messages were begun."""
    while len(set(crew.begun())) < count:
        crew.check()
        await asyncio.sleep(0.05)


async def play(nodes: NodeSet, crew: Crew) -> list[int]:
    """Return the messages in the one order, as a reader has them in the end."""
    enough = False

    async def produce() -> int:
        began, sent = time.monotonic(), []
        async with w.producer(TOPIC, linger="2ms") as producer:
            while not enough:
                for n in range(len(sent), int((time.monotonic() - began) * PER_SECOND)):
                    sent.append(producer.send(b"%d" % n, key=b"%d" % (n % 17)))
                await asyncio.sleep(0.005)
            await producer.flush()
        return len(sent)

    async with weir.connect(nodes.url, request_timeout=20.0) as w:
        await w.create_topic(TOPIC, PARTITIONS, order="total")
        producing = asyncio.ensure_future(produce())
        for _ in range(CONSUMERS):
            crew.begin()
        for kill in range(KILLS):
            await until(crew, len(set(crew.begun())) + BETWEEN)
            leader = (await w.describe(TOPIC)).addresses[0].node
            if kill % 2 == 0:
                nodes.kill([leader])
            crew.kill(0)  # the older one: it has, or had, the turn
            crew.begin()
            await until(crew, len(set(crew.begun())) + BETWEEN)
            if kill % 2 == 0:
                await asyncio.to_thread(nodes.restart, leader, Patient())
        enough = True
        count = await producing
        await until(crew, count)
        async with w.reader(TOPIC, follow=False) as reader:
            return [int(message.value) async for message in reader]


def test_who_follows_goes_on_in_the_one_order(
    nodes: NodeSet, tmp_path: Path, tell: Callable[..., None]
) -> None:
    crew = Crew(nodes.url, tmp_path)

    async def body() -> list[int]:
        async with asyncio.timeout(60 + 25 * KILLS):
            return await play(nodes, crew)

    try:
        order = asyncio.run(body())
        crew.check()
    finally:
        crew.end()
    place = {value: at for at, value in enumerate(order)}
    places = [place[value] for value in crew.begun()]
    assert sorted({*places}) == list(range(len(order))), "each was begun at least once"
    reached = -1
    for at in places:
        assert at <= reached + 1, f"the message at {at} was begun before the one at {reached + 1}"
        reached = max(reached, at)
    # What was begun again lies in front of where a killed one was, and is not much.
    assert len(places) - len(order) <= KILLS * 200
    tell(kills=KILLS, messages=len(order), again=len(places) - len(order))
