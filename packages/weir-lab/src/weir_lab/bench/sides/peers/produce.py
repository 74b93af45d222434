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
from weir_lab.bench.sides.peers.load import Producer, connected
from weir_lab.bench.sides.peers.peers import peer

#: Connecting many at once would only make them wait for each other.
_OPENING_AT_ONCE = 64


class PeerPlan(msgspec.Struct, frozen=True):
    """Who sends how much: `shares` holds (producer, messages) each; `window` counts messages."""

    peer: str
    port: int
    topic: str
    shares: list[tuple[int, int]]
    size: int
    chunk: int
    window: int
    timeout_s: float


async def produce(plan: PeerPlan, orders: Orders) -> Done:
    """Open every producer on a connection of its own, wait for the order, send, await confirms."""
    (server,) = peer(plan.peer)
    rows = max(1, min(plan.chunk, plan.window // 2))
    made_per_s = rehearse(Block(plan.size, rows).bytes_of, rows)
    producers = []
    for number, _ in plan.shares:
        dialect = server.publishing(plan.topic, plan.size)
        # What stands around a value may name the connection.
        block = Block(plan.size, rows, dialect.head, dialect.tail)
        producers.append(Producer(dialect, block, number, plan.window))
    for first in range(0, len(producers), _OPENING_AT_ONCE):
        some = producers[first : first + _OPENING_AT_ONCE]
        await asyncio.gather(*(connected(plan.port, producer) for producer in some))
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
    for producer in producers:
        producer.close()
    return Done(began_ns, confirmed, 0, 0, time.process_time() - cpu, done_ns)


if __name__ == "__main__":
    be_led(PeerPlan, produce)
