"""What a set's live traffic pays while one node catches up, or an old topic is read:
`python -m weir_lab.bench.faults.catch_up --json`.

Three nodes on loopback. Lone messages go to one topic at a rate, and their latencies count from
when each was due. A follower is stopped, so many MiB are written to another topic meanwhile, and it
is started again: once without live traffic, once with it. Then a process of its own reads that
topic from its beginning, once without and once with live traffic. Nodes keep little in memory, so
what is old comes from their files. All share this machine's cores and its disk: figures are worth
something beside each other, and less by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from weir.client.client import connect
from weir.client.producer.producer import Producer
from weir.errors import WeirError
from weir.model.limits import MIB
from weir.server.interpreter import environment, python
from weir.testing.nodes import READY, NodeSet, Patient, running_set
from weir_lab.bench.harness.loop import run
from weir_lab.bench.harness.machine import Foreign, Machine, family, this_machine
from weir_lab.bench.harness.spread import percentiles

R = TypeVar("R")

_NODES = 3
_LIVE, _OLD = "live", "old"
#: Far below what is written: what is asked for later lies in files alone.
_CACHE_MIB = 8
_SETTINGS = {**READY, "WEIR__MEMORY__CACHE_MIB": str(_CACHE_MIB)}
#: The last of what was missed comes from memory.
_KEPT_BYTES = (_CACHE_MIB + 2) * MIB
_VALUE_BYTES = 100_000
_LIVE_BYTES = 100
_LOOK_S = 0.01
_SETTLE_S = 1.0
_STUCK_S = 120.0
_PATIENCE_S = 30.0


class Settings(msgspec.Struct, frozen=True):
    """`mib` are written while a node is away; `rate` lone messages a second are live."""

    mib: int = 256
    rate: int = 200
    #: For how long live traffic is measured by itself, before and after.
    seconds: float = 8.0


class Latency(msgspec.Struct, frozen=True):
    """Milliseconds from when messages were due to their confirms; `messages` of them."""

    p50_ms: float
    p99_ms: float
    messages: int


class Result(msgspec.Struct, frozen=True):
    """What it came to. `times` are the latencies over those of live traffic by itself (`alone`,
    `cold_alone`), just before and just after; `mb_s` are 10^6 bytes that a leader
    or a reader read a second: `catch_up_mb_s` and `cold_mb_s` with live traffic.
    """

    settings: Settings
    machine: Machine
    alone: Latency
    catching_up: Latency
    cold_alone: Latency
    cold_reads: Latency
    p50_times: float
    p99_times: float
    cold_p50_times: float
    cold_p99_times: float
    catch_up_mb_s: float
    catch_up_alone_mb_s: float
    cold_mb_s: float
    cold_alone_mb_s: float
    #: What others used meanwhile, in cores.
    foreign_cores: float | None


class CatchUpFailed(WeirError):
    """A node or a reader got nowhere; the message says how far it came."""


class Live:
    """Messages one by one, each at its time, however long those before it take."""

    def __init__(self, producer: Producer, rate: int) -> None:
        """Send by `producer`."""
        self._producer = producer
        self._every_s = 1 / rate
        #: When each message was due, and how long it took from then, in seconds.
        self.samples: list[tuple[float, float]] = []

    async def go_on(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set, and return when all is confirmed."""
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as under_way:
            while not stop.is_set():
                due = began + number * self._every_s
                await asyncio.sleep(max(due - time.monotonic(), 0))
                under_way.create_task(self._one(due))
                number += 1

    async def _one(self, due: float) -> None:
        await self._producer.publish(bytes(_LIVE_BYTES))
        self.samples.append((due, time.monotonic() - due))

    def within(self, since: float, until: float) -> list[float]:
        """Return in milliseconds what those took that were due from `since` to `until`."""
        return [took * 1e3 for due, took in self.samples if since <= due < until]


def latency(took_ms: Sequence[float]) -> Latency:
    """Return what samples are like. Raises `CatchUpFailed` where there are none."""
    p50, p99 = percentiles(took_ms, 0.5, 0.99)
    if p50 is None or p99 is None:
        raise CatchUpFailed("no message was due meanwhile: give more --mib, or a higher --rate")
    return Latency(round(p50, 3), round(p99, 3), len(took_ms))


class Progress(msgspec.Struct, frozen=True):
    """So many bytes from one time to another."""

    size: int
    since: float
    until: float

    @property
    def mb_s(self) -> float:
        """In 10^6 bytes a second."""
        return round(self.size / 1e6 / (self.until - self.since), 1)


def _bytes_read(pids: Sequence[int]) -> int:
    """Return how many bytes processes have read by now, of files above all."""
    size = 0
    for pid in pids:
        first = Path(f"/proc/{pid}/io").read_text(encoding="ascii").partition("\n")[0]
        size += int(first.removeprefix("rchar: "))
    return size


async def _catch_up(nodes: NodeSet, number: int, leader: int, size: int) -> Progress:
    """Start a node; return how its leader reads for it, from the first piece of `size` bytes to the
    last: each is acknowledged before those a window behind it are read.
    """
    pids = family(nodes.node(leader).pid)
    known = _bytes_read(pids)
    nodes.start_again([number])
    began, since, first = time.monotonic(), 0.0, 0
    while (now := time.monotonic()) < began + _STUCK_S:
        found = _bytes_read(pids) - known
        if not since and found >= MIB:
            since, first = now, found
        if found >= size - _KEPT_BYTES:
            return Progress(found - first, since, now)
        await asyncio.sleep(_LOOK_S)
    raise CatchUpFailed(f"node {number} has not caught up after {_STUCK_S:g} s")


async def _read_cold(url: str) -> Progress:
    """Let another process read the old topic; return from when to when it did."""
    process = await asyncio.create_subprocess_exec(
        *python("weir_lab.bench.faults.catch_up", "--read", url),
        stdout=asyncio.subprocess.PIPE, env=environment(),
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), _STUCK_S)
    if process.returncode:
        raise CatchUpFailed(f"the reader ended with {process.returncode}")
    return msgspec.json.decode(said, type=Progress)


async def _read(url: str) -> Progress:
    async with (
        connect(url, name="weir-bench") as client,
        client.reader(_OLD, follow=False) as reader,
    ):
        size, since = 0, time.monotonic()
        async for message in reader:
            size += len(message.value)
        return Progress(size, since, time.monotonic())


class Measurement:
    """A set with its two topics, and what is done to it, step by step."""

    def __init__(self, nodes: NodeSet, settings: Settings, old: Producer, live: Live) -> None:
        """Write by `old`, while `live` sends."""
        self._nodes = nodes
        self._settings = settings
        self._old = old
        self._live = live

    async def alone(self) -> list[float]:
        """Return what live messages take by themselves."""
        began = time.monotonic()
        await self._beside(lambda: asyncio.sleep(self._settings.seconds))
        return self._live.within(began, time.monotonic())

    def within(self, progress: Progress) -> list[float]:
        """Return what live messages took meanwhile."""
        return self._live.within(progress.since, progress.until)

    async def regain(self, number: int, leader: int, is_live: bool) -> Progress:
        """Stop a node, write what it misses, and start it again; return how it caught up with its
        leader.
        """
        count = self._settings.mib * MIB // _VALUE_BYTES
        await asyncio.to_thread(self._nodes.node(number).stop)
        for _ in range(count):
            await self._old.ready()
            self._old.send(bytes(_VALUE_BYTES))
        await self._old.flush()
        await asyncio.sleep(_SETTLE_S)

        async def caught_up() -> Progress:
            return await _catch_up(self._nodes, number, leader, count * _VALUE_BYTES)

        found = await (self._beside(caught_up) if is_live else caught_up())
        await asyncio.to_thread(self._nodes.wait, [number], Patient())
        await asyncio.sleep(_SETTLE_S)
        return found

    async def read(self, is_live: bool) -> Progress:
        """Read the old topic; return how that went."""

        async def is_read() -> Progress:
            return await _read_cold(self._nodes.url)

        return await (self._beside(is_read) if is_live else is_read())

    async def _beside(self, act: Callable[[], Awaitable[R]]) -> R:
        stop = asyncio.Event()
        live = asyncio.create_task(self._live.go_on(stop))
        try:
            return await act()
        finally:
            stop.set()
            await asyncio.wait_for(live, _PATIENCE_S)


async def measure(nodes: NodeSet, settings: Settings) -> Result:
    """Measure a set that is up. Raises `CatchUpFailed` and what the client raises."""
    foreign = Foreign()
    async with connect(nodes.url, name="weir-bench", request_timeout=_PATIENCE_S) as client:
        for topic in (_LIVE, _OLD):
            await client.create_topic(topic, retention="forever", retention_bytes="forever")
        leaders = [at.node for topic in (_LIVE, _OLD)
                   for at in (await client.describe(topic)).addresses]  # fmt: skip
        number = next(one.node for one in nodes.members if one.node not in leaders)
        leader = leaders[-1]
        async with (
            client.producer(_LIVE, linger=0) as lone,
            client.producer(_OLD) as old,
        ):
            steps = Measurement(nodes, settings, old, Live(lone, settings.rate))
            quiet = await steps.regain(number, leader, False)
            cold_quiet = await steps.read(False)
            # Each is held against what is live by itself just before and just after.
            before = await steps.alone()
            busy = await steps.regain(number, leader, True)
            between = await steps.alone()
            cold = await steps.read(True)
            after = await steps.alone()
    alone, meanwhile = latency(before + between), latency(steps.within(busy))
    beside, reading = latency(between + after), latency(steps.within(cold))
    return Result(
        settings, this_machine(), alone, meanwhile, beside, reading,
        round(meanwhile.p50_ms / alone.p50_ms, 2), round(meanwhile.p99_ms / alone.p99_ms, 2),
        round(reading.p50_ms / beside.p50_ms, 2), round(reading.p99_ms / beside.p99_ms, 2),
        busy.mb_s, quiet.mb_s, cold.mb_s, cold_quiet.mb_s, foreign.cores(),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, or 2 if it cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m weir_lab.bench.faults.catch_up")
    parser.add_argument("--mib", type=int, default=Settings().mib)
    parser.add_argument("--rate", type=int, default=Settings().rate)
    parser.add_argument("--seconds", type=float, default=Settings().seconds)
    parser.add_argument("--folder", help="where the nodes' folders are to lie for the moment")
    parser.add_argument("--json", action="store_true", help="JSON, as it is printed in any case")
    parser.add_argument("--read", metavar="URL", help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.read:
        print(msgspec.json.encode(run(_read(wanted.read))).decode())
        return 0
    settings = Settings(wanted.mib, wanted.rate, wanted.seconds)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="weir-bench-", dir=wanted.folder) as folder,
            running_set(Path(folder), _NODES, settings=_SETTINGS) as nodes,
        ):
            result = run(measure(nodes, settings))
    except WeirError as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.format(msgspec.json.encode(result)).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
