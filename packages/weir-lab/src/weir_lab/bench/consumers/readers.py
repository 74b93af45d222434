"""How fast many readers of one topic read all of it, each by itself.

The topic has one partition and is filled before. Readers are plain ones, each with a connection of
its own, in as many processes as there are cores, two at most. The time is from the first reader's
start to the last message of the slowest one.
"""

from __future__ import annotations

import msgspec

from weir.model.limits import BATCH_BYTES_MAX
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.consumers.reading import Plan, Read
from weir_lab.bench.flow import flow, shared_out
from weir_lab.bench.harness.machine import Foreign
from weir_lab.bench.harness.payload import SIZE_MIN
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.sides.own import PROCESSES_MAX, Own
from weir_lab.bench.sides.side import topic_name


class Settings(msgspec.Struct, frozen=True):
    """So many `readers` read `messages` of `size` bytes; `deadline_s` is for each part."""

    readers: int = 16
    messages: int = 2_000_000
    size: int = 100
    deadline_s: float = 120.0
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            readers=(self.readers, 1, 1_000),
            messages=(self.messages, 1, 1 << 30),
            size=(self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
        )


class Result(msgspec.Struct, frozen=True):
    """`messages_per_s` is what the slowest reader had; processor time is of each message that a
    reader was given, of the broker and of the readers.
    """

    readers: int
    messages: int
    seconds: float
    messages_per_s: float
    fastest_per_s: float
    all_per_s: float
    server_ns: float | None
    client_ns: float
    foreign_cores: float | None
    lost: int
    repeated: int
    reordered: int
    corrupt: int

    @property
    def clean(self) -> bool:
        """Whether every reader got every message once, unchanged and in order."""
        return not (self.lost or self.repeated or self.reordered or self.corrupt)


async def measure(side: Own, settings: Settings) -> Result:
    """Measure a node of weir. Raises `WeirError` for what takes longer than it may."""
    settings.check()
    topic, counts = topic_name(1), shared_out(settings.messages, 1)
    await flow(side, topic, "produce", counts, settings.size, settings.deadline_s)
    processes = min(PROCESSES_MAX, settings.readers)
    plans = [
        Plan(side.url, topic, readers, counts, settings.size, settings.deadline_s)
        for readers in shared_out(settings.readers, processes)
    ]
    async with Crew("weir_lab.bench.consumers.reading", plans, Read) as crew:
        await crew.ready()
        server, foreign = side.cpu_s(), Foreign()
        crew.go()
        done = await crew.done()
        foreign_s, used = foreign.cpu_s(), side.cpu_s()
    side.running()
    began = min(one.began_ns for one in done)
    ended = [at for one in done for at in one.ended_ns]
    seconds, given = (max(ended) - began) / 1e9, settings.messages * settings.readers
    return Result(
        settings.readers,
        settings.messages,
        seconds,
        settings.messages / seconds,
        settings.messages / ((min(ended) - began) / 1e9),
        given / seconds,
        None if used is None or server is None else (used - server) / given * 1e9,
        sum(one.cpu_s for one in done) / given * 1e9,
        None if foreign_s is None else foreign_s / seconds,
        lost=sum(one.lost for one in done),
        repeated=sum(one.repeated for one in done),
        reordered=sum(one.reordered for one in done),
        corrupt=sum(one.corrupt for one in done),
    )
