"""The crew: consumers that share the flights as one cluster, check each, and keep the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import numpy as np

from weir.client.client import connect
from weir_lab.demo.flights import ORIGINS, TOPIC
from weir_lab.demo.ledger import NEVER, Received
from weir_lab.demo.processes.worker import Stage, now_us, work
from weir_lab.demo.tasks import CrewTask

CLUSTER = "crew"
CONSUMERS = 3
GRANT_MESSAGES = 2_000
_POLL_SECONDS = 0.02


class Seen(msgspec.Struct, frozen=True):
    """What the crew reads of a flight."""

    origin: str
    n: int


_decode = msgspec.json.Decoder(list[Seen]).decode


def numbers_of(values: Sequence[bytes], origin: str) -> list[int]:
    """Return the flights' numbers; `NEVER` for one that is another airport's.

    Raises `msgspec.DecodeError` for what is no flight.
    """
    seen = _decode(b"[%b]" % b",".join(values))
    return [flight.n if flight.origin == origin else NEVER for flight in seen]


class Crew:
    """The consumers' common ledger: by airport what came, by consumer how much."""

    def __init__(self, stage: Stage) -> None:
        """Begin with nothing received."""
        self.received = [Received() for _ in ORIGINS]
        self.shares = [0] * CONSUMERS
        self.stale = 0
        self._stage = stage

    async def consume(self, url: str, place: int, pulling: asyncio.Barrier) -> None:
        """Be one consumer: pull a grant, check it, note it, ack it, until cancelled."""
        async with (
            connect(url, name=f"{CLUSTER}-{place + 1}") as client,
            client.consumer(TOPIC, cluster=CLUSTER, max_messages=GRANT_MESSAGES) as consumer,
        ):
            await pulling.wait()
            try:
                async for grant in consumer.batches():
                    now = now_us()
                    for part in grant.batches:
                        values = part.values()
                        numbers = numbers_of(values, ORIGINS[part.partition])
                        self.received[part.partition].receive(part.offset, numbers, values, now)
                        self.shares[place] += len(values)
                    self._stage.tell_now_and_then("pulls", sum(self.shares))
                    await grant.ack(confirmed=True)
            finally:
                self.stale += consumer.stale


async def run_crew(task: CrewTask, stage: Stage) -> Crew:
    """Let all consumers pull until the cue."""
    crew = Crew(stage)
    pulling = asyncio.Barrier(CONSUMERS + 1)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(crew.consume(task.url, place, pulling)) for place in range(CONSUMERS)
        ]
        await pulling.wait()
        stage.tell("pulls")
        while not stage.cue.is_set():
            await asyncio.sleep(_POLL_SECONDS)
            stage.tell_now_and_then("pulls", sum(crew.shares))
        for consumer in tasks:
            consumer.cancel()
    return crew


def pull(task: CrewTask, stage: Stage) -> None:
    """Run the crew, then write its ledger."""
    crew = asyncio.run(run_crew(task, stage))
    columns = {"shares": np.array(crew.shares), "stale": np.array([crew.stale])}
    for origin, received in zip(ORIGINS, crew.received, strict=True):
        columns |= {f"{origin}.{name}": column for name, column in received.columns().items()}
    np.savez(task.ledger, allow_pickle=False, **columns)
    stage.tell("done", sum(crew.shares))


if __name__ == "__main__":
    work(CrewTask, pull)
