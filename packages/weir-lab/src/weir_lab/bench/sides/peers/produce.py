"""The producer process of a peer: `python -m weir_lab.bench.sides.peers.produce`, led over its
pipes.

It takes a `PeerPlan`, reports `Ready`, waits for the order to go, and reports `Done`.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from weir_lab.bench.harness.led import Orders, Ready, be_led, report
from weir_lab.bench.harness.payload import Block
from weir_lab.bench.harness.produce import Done, rehearse
from weir_lab.bench.sides.peers.dialect import Client
from weir_lab.bench.sides.peers.load import CONNECT_SECONDS, Producer, connected
from weir_lab.bench.sides.peers.peers import peer
from weir_lab.bench.sides.peers.server import Peer

#: Connecting many at once would only make them wait for each other.
_OPENING_AT_ONCE = 64


class PeerPlan(msgspec.Struct, frozen=True):
    """How much each producer sends: `shares` holds (producer, messages) each; `window` counts
    messages.
    """

    peer: str
    port: int
    topic: str
    shares: list[tuple[int, int]]
    size: int
    chunk: int
    window: int
    timeout_s: float
    lone: bool = False


class ClientProducer:
    """Sends one message after the other with the client that is shipped for a peer."""

    def __init__(self, client: Client, topic: str, size: int, number: int) -> None:
        """Send as producer `number`."""
        self.confirmed = 0
        self._client = client
        self._topic = topic
        self._block = Block(size, 1)
        self._number = number

    async def open(self, port: int) -> None:
        """Connect."""
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._client.open(port)

    async def send(self, messages: int) -> None:
        """Send so many, each once the one before is confirmed."""
        for sequence in range(messages):
            (value,) = self._block.values_of(self._number, sequence, 1)
            await self._client.publish(self._topic, value)
            self.confirmed += 1

    async def close(self) -> None:
        """Disconnect."""
        await self._client.close()


class RawProducer:
    """Sends with a connection that only moves bytes."""

    def __init__(self, producer: Producer) -> None:
        """Take one that is not connected."""
        self._producer = producer

    @property
    def confirmed(self) -> int:
        """How many messages were confirmed."""
        return self._producer.confirmed

    async def open(self, port: int) -> None:
        """Connect."""
        await connected(port, self._producer)

    async def send(self, messages: int) -> None:
        """Send so many, with a window under way."""
        await self._producer.send(messages)

    async def close(self) -> None:
        """Disconnect."""
        self._producer.close()


async def produce(plan: PeerPlan, orders: Orders) -> Done:
    """Open every producer on a connection of its own, wait for the order, send, await confirms."""
    (server,) = peer(plan.peer)
    rows = max(1, min(plan.chunk, plan.window // 2))
    made_per_s = rehearse(Block(plan.size, rows).bytes_of, rows)
    producers = [_producer(server, plan, number, rows) for number, _ in plan.shares]
    for first in range(0, len(producers), _OPENING_AT_ONCE):
        some = producers[first : first + _OPENING_AT_ONCE]
        await asyncio.gather(*(producer.open(plan.port) for producer in some))
    report(Ready(made_per_s))
    await orders.get()
    cpu = time.process_time()
    began_ns = time.monotonic_ns()
    shares = zip(producers, plan.shares, strict=True)
    waiting = [producer.send(messages) for producer, (_, messages) in shares if messages]
    try:
        async with asyncio.timeout(plan.timeout_s):
            await asyncio.gather(*waiting)
    except TimeoutError:
        raise TimeoutError(
            f"{sum(producer.confirmed for producer in producers):,} messages were confirmed "
            f"within {plan.timeout_s:g} s, which is not all"
        ) from None
    done_ns = time.monotonic_ns()
    confirmed = sum(producer.confirmed for producer in producers)
    cpu = time.process_time() - cpu
    await asyncio.gather(*(producer.close() for producer in producers))
    return Done(began_ns, confirmed, 0, 0, cpu, done_ns)


def _producer(
    server: Peer, plan: PeerPlan, number: int, rows: int
) -> ClientProducer | RawProducer:  # fmt: skip
    """Return producer `number`: with the shipped client if it is lone and there is one."""
    if plan.lone and server.client is not None:
        return ClientProducer(server.client(), plan.topic, plan.size, number)
    dialect = server.publishing(plan.topic, plan.size)
    # What stands around a value may name the connection.
    block = Block(plan.size, rows, dialect.head, dialect.tail)
    return RawProducer(Producer(dialect, block, number, plan.window))


if __name__ == "__main__":
    be_led(PeerPlan, produce)
