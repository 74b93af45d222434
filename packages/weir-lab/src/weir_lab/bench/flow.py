"""Many messages through a broker as fast as it takes them: in, out, or both at once.

The same work for weir and for its peers: producers in processes of their own, one consumer in this
one, every message checked.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from weir.errors import WeirError
from weir_lab.bench.harness.machine import Foreign
from weir_lab.bench.harness.payload import Checker
from weir_lab.bench.harness.produce import Done
from weir_lab.bench.harness.producers import Crew
from weir_lab.bench.sides.side import Side

Shape = Literal["produce", "consume", "both", "singles"]

#: Shares of a core and of the machine from which on it counts as used up.
_CORE_FULL = 0.88
_MACHINE_FULL = 0.9
_SERVER_FULL = 0.95
_POLL_S = 0.005

R = TypeVar("R")


class FlowFailed(WeirError):
    """A flow did not come to its end; the message says how far it got."""


class Cpu(msgspec.Struct, frozen=True):
    """CPU seconds of the measured time; None where the system does not tell. What others used
    meanwhile is `foreign`.
    """

    server: float | None
    producers: float
    consumer: float
    foreign: float | None = None


class Flow(msgspec.Struct, frozen=True):
    """What came of one flow. `seconds` is that of the shape; all messages were checked after all.

    produce: first send to last confirm; singles: so, too, of lone producers. consume: start of the
    consumer to last receive, of what had been produced before. both: first send to last receive.
    """

    shape: Shape
    producers: int
    messages: int
    size: int
    seconds: float
    messages_per_s: float
    lost: int
    repeated: int
    reordered: int
    corrupt: int
    cpu_s: Cpu
    bottleneck: str
    #: Of the server's CPU, for each message; and of the machine, in cores, what others used.
    server_us: float | None
    foreign_cores: float | None
    samples: list[tuple[float, int]]
    #: Singles: what sent the messages, a program in C or Python clients; and how many messages
    #: Python clients sent a second: if C did, right after it.
    generator: Literal["c", "python"] = "python"
    python_per_s: float | None = None

    @property
    def clean(self) -> bool:
        """Whether every message arrived exactly once, unchanged and in order."""
        return not (self.lost or self.repeated or self.reordered or self.corrupt)


def shared_out(messages: int, producers: int) -> list[int]:
    """Return how many messages each producer sends."""
    each, more = divmod(messages, producers)
    return [each + (producer < more) for producer in range(producers)]


class Sink:
    """Checks what a consumer gets, and notes when."""

    def __init__(self, counts: Sequence[int], size: int) -> None:
        """Expect `counts[p]` messages of producer p."""
        self.checker = Checker(counts, size)
        self.last_ns = 0
        #: Every tenth of a second: when, and how many messages were there.
        self.samples: list[tuple[int, int]] = []
        self.complete = asyncio.Event()
        self._wanted = sum(counts)

    def take(self, offsets: memoryview, data: memoryview) -> None:
        """Check a value column."""
        self.checker.take(offsets, data)
        self.last_ns = time.monotonic_ns()
        if not self.samples or self.last_ns - self.samples[-1][0] >= 100_000_000:
            self.samples.append((self.last_ns, self.checker.received))
        if self.checker.received >= self._wanted:
            self.complete.set()


async def singles(
    side: Side, topic: str, counts: Sequence[int], size: int, deadline_s: float, behind: str
) -> Flow:
    """Have lone producers send to `topic` by the program in C, if that can be, and then as many
    messages to the topic `behind` by Python clients. Raises what `flow` does.
    """
    crew = side.lockstep(topic, counts, size, deadline_s)
    if crew is None:
        alone = await flow(side, topic, "singles", counts, size, deadline_s)
        return replace(alone, python_per_s=alone.messages_per_s)
    done = await flow(side, topic, "singles", counts, size, deadline_s, crew)
    if not done.clean:
        return done
    python = await flow(side, behind, "singles", counts, size, deadline_s)
    if not python.clean:
        return python
    return replace(done, generator="c", python_per_s=python.messages_per_s)


async def flow(
    side: Side, topic: str, shape: Shape, counts: Sequence[int], size: int, deadline_s: float,
    crew: Crew[Done] | None = None,
) -> Flow:  # fmt: skip
    """Send `counts[p]` messages as producer p, receive and check all of them. `crew` sends them, if
    it is given.

    Raises `FlowFailed` for what does not end within `deadline_s`, and what the sides raise.
    """
    await side.prepare(topic)
    sink = Sink(counts, size)
    crew = crew or side.crew(topic, counts, size, deadline_s, shape == "singles")
    async with crew:
        await crew.ready()
        if shape == "both":
            async with side.consume(topic, size, sink.take) as consuming:
                meter = Meter(side)
                crew.go()
                done = await _unless(side, crew.done(), consuming.failed(), sink, deadline_s)
                await _unless(side, sink.complete.wait(), consuming.failed(), sink, deadline_s)
                cpu = meter.read(done)
            began, ended = min(one.first_send_ns for one in done), sink.last_ns
            return _flow(side, shape, counts, size, (began, ended), sink, cpu, done)
        meter = Meter(side)
        crew.go()
        done = await crew.done()
        cpu = meter.read(done)
    began = min(one.first_send_ns for one in done)
    ended = max(one.last_confirm_ns for one in done)
    meter, begin = Meter(side), time.monotonic_ns()
    async with side.consume(topic, size, sink.take) as consuming:
        await _unless(side, sink.complete.wait(), consuming.failed(), sink, deadline_s)
    if shape == "consume":
        began, ended, cpu, done = begin, sink.last_ns, meter.read([]), []
    return _flow(side, shape, counts, size, (began, ended), sink, cpu, done)


async def arrived(
    side: Side, checker: Checker, sent: int, reading: asyncio.Future[None], deadline_s: float
) -> None:
    """Return when `sent` messages have arrived; raise what ended `reading`, or `FlowFailed`."""
    deadline = time.monotonic() + deadline_s
    while checker.received < sent:
        if reading.done():
            reading.result()
        side.running()
        if time.monotonic() > deadline:
            raise FlowFailed(
                f"{checker.received:,} of {sent:,} messages arrived within {deadline_s:g} s: give "
                "a longer --deadline"
            )
        await asyncio.sleep(_POLL_S)


class Meter:
    """CPU time from its making on."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._foreign = Foreign()
        self._server, self._own = side.cpu_s(), time.process_time()

    def read(self, done: Sequence[Done]) -> Cpu:
        foreign, server = self._foreign.cpu_s(), self._side.cpu_s()
        used = None if server is None or self._server is None else server - self._server
        producers, own = sum(one.cpu_s for one in done), time.process_time() - self._own
        return Cpu(used, producers, own, foreign)


async def _unless(
    side: Side,
    work: Coroutine[Any, Any, R],
    failing: Coroutine[Any, Any, None],
    sink: Sink,
    deadline_s: float,
) -> R:
    """Return what `work` returns; raise what the other raises first, and after the deadline."""
    working, failed = asyncio.ensure_future(work), asyncio.ensure_future(failing)
    try:
        finished, _ = await asyncio.wait(
            (working, failed), timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
        )
        side.running()
        if not finished:
            raise FlowFailed(
                f"{sink.checker.received:,} messages came through {side.label} within "
                f"{deadline_s:g} s, which is not all: give a longer --deadline, or fewer messages"
            )
        for one in finished:
            one.result()
        return working.result()
    finally:
        for one in (working, failed):
            one.cancel()
        await asyncio.wait((working, failed))


def _flow(
    side: Side,
    shape: Shape,
    counts: Sequence[int],
    size: int,
    times_ns: tuple[int, int],
    sink: Sink,
    cpu: Cpu,
    done: Sequence[Done],
) -> Flow:
    began, ended = times_ns
    seconds = (ended - began) / 1e9
    checker, messages = sink.checker, sum(counts)
    return Flow(
        shape=shape,
        producers=len(counts),
        messages=messages,
        size=size,
        seconds=seconds,
        messages_per_s=messages / seconds,
        lost=checker.lost,
        repeated=checker.repeated,
        reordered=checker.reordered,
        corrupt=checker.corrupt,
        cpu_s=cpu,
        bottleneck=bottleneck(
            side.one_thread, cpu, seconds, max(one.cpu_s for one in done) if done else 0.0
        ),
        server_us=None if cpu.server is None else cpu.server / messages * 1e6,
        foreign_cores=None if cpu.foreign is None else cpu.foreign / seconds,
        samples=[((at - began) / 1e9, count) for at, count in sink.samples if at >= began],
    )


def bottleneck(one_thread: bool, cpu: Cpu, seconds: float, busiest_s: float) -> str:
    """Say what was used up: a client's core, the server's one, all cores, or none of them.

    `busiest_s` is the CPU time of the producer process that used most.
    """
    server = (cpu.server or 0.0) / seconds
    producer, consumer = busiest_s / seconds, cpu.consumer / seconds
    whole = (cpu.server or 0.0) + cpu.producers + cpu.consumer
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    shares = (
        f"server {server:.0%}, busiest producer {producer:.0%}, consumer {consumer:.0%} of a core"
    )
    if producer >= _CORE_FULL:
        return f"client: producer ({shares})"
    if consumer >= _CORE_FULL:
        return f"client: consumer ({shares})"
    if one_thread and server >= _CORE_FULL:
        return f"server: its one thread ({shares})"
    if whole / seconds >= _MACHINE_FULL * cores:
        return f"all {cores} cores ({shares})"
    if server >= _SERVER_FULL:
        return f"server ({shares})"
    return f"waiting for the disk and for replies ({shares})"
