"""`python -m weir_lab.bench.consumers.lag`: does `weir cluster lag` agree with a full count after
kills?

A node that leads is killed with -9 while messages are published, delayed, acked one by one in any
order, and given back. It is started again; then the command says how many messages are not done,
and a consumer takes every one of them, and counts. What it counts is held against the ledger, too:
no message of which an ack was confirmed before, and all of which none was sent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from weir.client.client import Client, connect
from weir.client.consumer.consumer import Consumer, LeasedBatch
from weir.errors import WeirError
from weir.model.message import Message
from weir.server.interpreter import environment, python
from weir.testing.nodes import NodeSet, Patient, running_set
from weir_lab.bench.harness.machine import Machine, this_machine

_TOPIC = "unlocks"
_CLUSTER = "ledger"
_PARTITIONS = 2
_PUBLISHED_AT_ONCE = 100
_PAUSE_SECONDS = 0.05
_PULLED = 200
_COUNTED = 10_000
#: Of the worker, so that what is granted and lost on the way comes soon.
_LEASE = "1s"
#: What is delayed, or given back, comes while the count still waits for more.
_DELAY = "500ms"
_SILENCE_SECONDS = 2.0
_COUNT_SECONDS = 60.0
#: What a node may take to come back, where there is little time for it.
_PATIENCE_SECONDS = 120.0
#: Of one grant: acked, given back for a while; the others go back when the consumer ends.
_ACKED, _GIVEN_BACK = 0.5, 0.7

#: A message's place: partition and offset.
Place = tuple[int, int]


class Shape(msgspec.Struct, frozen=True):
    """So many restarts of one of the `nodes`, each after about `work_s` seconds of work."""

    restarts: int = 20
    nodes: int = 1
    work_s: float = 1.0
    deadline_s: float = 900.0
    seed: int = 1


class Round(msgspec.Struct, frozen=True):
    """After one restart: what the command said, and what was counted.

    `published` and `acked` are the ledger's; of `unsure` messages an ack was sent that nobody
    confirmed. `wrong` messages were counted though they were acked, or not though no ack was sent.
    """

    lag: int
    counted: int
    published: int
    acked: int
    unsure: int
    wrong: int


class Result(msgspec.Struct, frozen=True):
    """All rounds; in `disagreed` of them the command said another number than was counted."""

    shape: Shape
    machine: Machine
    seconds: float
    restarts: int
    disagreed: int
    wrong: int
    most_left: int
    published: int
    rounds: list[Round]

    @property
    def clean(self) -> bool:
        """Whether the command was right each time."""
        return not (self.disagreed or self.wrong)


def measure(shape: Shape) -> Result:
    """Run it all. Raises `WeirError` if it does not come to an end."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="weir-lag-") as name,
        running_set(Path(name), shape.nodes) as nodes,
    ):
        rounds = asyncio.run(_rounds(shape, nodes))
    return Result(
        shape,
        this_machine(),
        round(time.monotonic() - began, 1),
        len(rounds),
        sum(one.lag != one.counted for one in rounds),
        sum(one.wrong for one in rounds),
        max(one.lag for one in rounds),
        rounds[-1].published,
        rounds,
    )


async def _rounds(shape: Shape, nodes: NodeSet) -> list[Round]:
    dice, ledger, rounds = Random(shape.seed), Ledger(), list[Round]()
    try:
        connecting = connect(nodes.url, request_timeout=_PATIENCE_SECONDS)
        async with asyncio.timeout(shape.deadline_s), connecting as client:
            await client.create_topic(_TOPIC, partitions=_PARTITIONS)
            for number in range(shape.restarts):
                await _work(client, nodes, ledger, dice, number, shape.work_s)
                rounds.append(await _judged(client, nodes.url, ledger))
    except TimeoutError:
        raise WeirError(
            f"{len(rounds)} of {shape.restarts} restarts within {shape.deadline_s:g} s"
        ) from None
    return rounds


@dataclass(slots=True)
class Ledger:
    """What clients know of: acks that were confirmed, and all that were sent."""

    acked: set[Place] = field(default_factory=set)
    sent: set[Place] = field(default_factory=set)


async def _work(
    client: Client, nodes: NodeSet, ledger: Ledger, dice: Random, number: int, seconds: float
) -> None:
    """Publish and consume, while a node is killed and comes back."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_publish(client, stop))
        group.create_task(_consume(client, ledger, dice, stop))
        await asyncio.sleep(seconds * dice.uniform(0.5, 1.5))
        places = (await client.describe(_TOPIC)).addresses
        leader = places[number % len(places)].node
        nodes.kill([leader])
        await asyncio.to_thread(nodes.restart, leader, Patient(), _PATIENCE_SECONDS)
        await asyncio.sleep(seconds / 2)
        stop.set()


async def _publish(client: Client, stop: asyncio.Event) -> None:
    async with client.producer(_TOPIC) as producer:
        while not stop.is_set():
            await producer.send_many([b"now"] * _PUBLISHED_AT_ONCE)
            await producer.send_many([b"later"], delay=_DELAY)
            await producer.flush()
            await asyncio.sleep(_PAUSE_SECONDS)


async def _consume(client: Client, ledger: Ledger, dice: Random, stop: asyncio.Event) -> None:
    consumer = client.consumer(_TOPIC, cluster=_CLUSTER, max_messages=_PULLED, lease=_LEASE)
    stopped = asyncio.ensure_future(stop.wait())
    async with consumer, _pulling(consumer) as pull, asyncio.TaskGroup() as settling:
        while not stop.is_set():
            await asyncio.wait((pull.next, stopped), return_when=asyncio.FIRST_COMPLETED)
            for grant in pull.taken():
                for message in grant.messages():
                    settling.create_task(_settle(grant, message, ledger, dice))


class _Pull:
    """Grants of a consumer, one after the other; nobody has to wait for the next."""

    def __init__(self, consumer: Consumer) -> None:
        self._grants = consumer.batches()
        self.next = asyncio.ensure_future(anext(self._grants))

    def taken(self) -> list[LeasedBatch]:
        """Return what has come."""
        if not self.next.done():
            return []
        grant = self.next.result()
        self.next = asyncio.ensure_future(anext(self._grants))
        return [grant]


@contextlib.asynccontextmanager
async def _pulling(consumer: Consumer) -> AsyncIterator[_Pull]:
    pull = _Pull(consumer)
    try:
        yield pull
    finally:
        pull.next.cancel()
        await asyncio.wait((pull.next,))


async def _settle(grant: LeasedBatch, message: Message, ledger: Ledger, dice: Random) -> None:
    chance, place = dice.random(), (message.partition, message.offset)
    if chance < _ACKED:
        ledger.sent.add(place)
        if await _told(grant.ack([message], confirmed=True)):
            ledger.acked.add(place)
    elif chance < _GIVEN_BACK:
        await _told(grant.nack(_DELAY, [message], confirmed=True))


async def _told(answer: Awaitable[object]) -> bool:
    """Return whether it was confirmed; what nobody answers was not."""
    try:
        return bool(await answer)
    except WeirError:
        return False


async def _judged(client: Client, url: str, ledger: Ledger) -> Round:
    """Ask the command, count, and compare."""
    lag = await asyncio.to_thread(said, url)
    counted = await _counted(client, lag)
    async with client.reader(_TOPIC, follow=False) as reader:
        published = {(one.partition, one.offset) async for one in reader}
    missed = published - ledger.sent - counted
    again = counted & ledger.acked
    unsure = len(ledger.sent - ledger.acked)
    wrong = len(missed) + len(again) + len(counted - published)
    found = Round(lag, len(counted), len(published), len(ledger.acked), unsure, wrong)
    ledger.acked |= published
    ledger.sent |= published
    return found


def said(url: str) -> int:
    """Return the lag that `weir cluster lag` prints. Raises `WeirError`."""
    words = python("weir.cli", "cluster", "lag", _TOPIC, _CLUSTER, "--json", "--url", url)
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise WeirError(f"weir cluster lag: {done.stderr.strip()}")
    lag: int = json.loads(done.stdout)["lag"]
    return lag


async def _counted(client: Client, expected: int) -> set[Place]:
    """Take everything that is not done, and ack it.

    While fewer came than are expected, more may yet come, until it has lasted too long.
    """
    found = set[Place]()
    deadline = time.monotonic() + _COUNT_SECONDS
    consumer = client.consumer(_TOPIC, cluster=_CLUSTER, max_messages=_COUNTED)
    async with consumer, _pulling(consumer) as pull:
        while True:
            await asyncio.wait((pull.next,), timeout=_SILENCE_SECONDS)
            grants = pull.taken()
            for grant in grants:
                found |= {(one.partition, one.offset) for one in grant.messages()}
                await grant.ack(confirmed=True)
            if not grants and (len(found) >= expected or time.monotonic() > deadline):
                return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if the command was right each time, 1 if not, 2 if it could not be tried."""
    parser = argparse.ArgumentParser(
        prog="python -m weir_lab.bench.consumers.lag", description=__doc__
    )
    for name in Shape.__struct_fields__:
        value = getattr(Shape(), name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    try:
        result = measure(Shape(**vars(parser.parse_args(arguments))))
    except (WeirError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.encode(result).decode())
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main())
