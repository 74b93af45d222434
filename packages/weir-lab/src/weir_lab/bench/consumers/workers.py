"""How fast workers of one process take a topic that they share, and ack all of it: message by
message and in batches, shared and by key; and how soon they are at full speed.

A topic of one partition is filled before. Its messages have their producer's number as the key, so
that the order of each key can be checked. Workers are consumers of one cluster, each with a
connection of its own. The time is from the moment at which all of them are connected and ask for
their first message, to the moment at which a majority knows the last ack.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from weir.client.client import connect
from weir.model.limits import BATCH_BYTES_MAX
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.flow import FlowFailed, shared_out
from weir_lab.bench.harness.machine import Foreign, Machine, this_machine
from weir_lab.bench.harness.payload import SIZE_MIN, Block
from weir_lab.bench.sides.own import CHUNK_MESSAGES, Own, check_replicas
from weir_lab.bench.sides.side import topic_name
from weir_lab.bench.sides.working import MODES, Mode, OwnWorkers, Taken, opened, unless

_LOOK_S = 0.01
#: A rate is taken over so long, and is full from so much of the steady one on.
_RATE_S, _FULL = 0.05, 0.8
#: Between these shares of all messages their rate counts as steady.
_STEADY = (0.25, 0.9)

Sample = tuple[float, int]


class Settings(msgspec.Struct, frozen=True):
    """So many `workers` take `messages` one by one, and `batched` ones in batches, of so many
    `keys`; `deadline_s` is for each part.
    """

    workers: int = 16
    messages: int = 400_000
    batched: int = 1_600_000
    size: int = 100
    keys: int = 1_000
    deadline_s: float = 120.0
    folder: str | None = None
    replicas: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_replicas(self.replicas)
        check_bounds(
            workers=(self.workers, 1, 256),
            keys=(self.keys, 1, 1 << 20),
            messages=(self.messages, self.keys, 1 << 26),
            batched=(self.batched, self.keys, 1 << 26),
            size=(self.size, SIZE_MIN, BATCH_BYTES_MAX // 2),
        )


class Part(msgspec.Struct, frozen=True):
    """One way to take a topic. Processor time is of each message, of the one process of all workers
    and of the broker; `full_speed_s` is None where a run is too short to tell.
    """

    mode: Mode
    by_message: bool
    messages: int
    seconds: float
    messages_per_s: float
    client_us: float
    server_us: float | None
    first_message_s: float
    full_speed_s: float | None
    foreign_cores: float | None
    lost: int
    repeated: int
    #: Messages that came behind a later one of their key, which only a keyed cluster forbids.
    reordered: int
    corrupt: int
    #: Acks that came after their lease had ended; those messages come again.
    stale: int

    @property
    def cpu_us(self) -> float:
        """What a message costs in all."""
        return self.client_us + (self.server_us or 0.0)


class Result(msgspec.Struct, frozen=True):
    """All parts. `keyed_times` and `keyed_batches_times` say how many times the processor time of a
    shared message a keyed one costs; `full_speed_s` is the longest of all parts.
    """

    settings: Settings
    machine: Machine
    shared: Part
    shared_batches: Part
    keyed: Part
    keyed_batches: Part
    messages_per_s: float
    batched_per_s: float
    keyed_times: float
    keyed_batches_times: float
    full_speed_s: float | None
    foreign_cores: float | None
    lost: int
    repeated: int
    reordered: int
    corrupt: int

    @property
    def clean(self) -> bool:
        """Whether each message was taken once, unchanged, and in order where that is promised."""
        return not (self.lost or self.repeated or self.reordered or self.corrupt)


async def measure(side: Own, settings: Settings, say: Callable[[str], None]) -> Result:
    """Measure a node of weir, or a set. Raises `FlowFailed` if it takes longer than it may."""
    settings.check()
    parts: dict[tuple[Mode, bool], Part] = {}
    for number, by_message in enumerate((True, False)):
        topic = topic_name(number)
        counts = shared_out(settings.messages if by_message else settings.batched, settings.keys)
        await fill(side, topic, counts, settings.size)
        for mode in MODES:
            part = await work(side, topic, counts, settings, mode, by_message)
            parts[mode, by_message] = part
            say(line(part))
    shared, keyed = parts["shared", True], parts["keyed", True]
    shared_batches, keyed_batches = parts["shared", False], parts["keyed", False]
    each = [*parts.values()]
    return Result(
        settings, this_machine(), shared, shared_batches, keyed, keyed_batches,
        messages_per_s=shared.messages_per_s,
        batched_per_s=shared_batches.messages_per_s,
        keyed_times=keyed.cpu_us / shared.cpu_us,
        keyed_batches_times=keyed_batches.cpu_us / shared_batches.cpu_us,
        full_speed_s=_most(one.full_speed_s for one in each),
        foreign_cores=_most(one.foreign_cores for one in each),
        lost=sum(one.lost for one in each),
        repeated=sum(one.repeated for one in each),
        reordered=keyed.reordered + keyed_batches.reordered,
        corrupt=sum(one.corrupt for one in each),
    )  # fmt: skip


def _most(numbers: Iterable[float | None]) -> float | None:
    return max((one for one in numbers if one is not None), default=None)


def line(part: Part) -> str:
    """Return what a part says, for a reader."""
    way = "message by message" if part.by_message else "in batches"
    return f"{part.mode}, {way}: {part.messages_per_s:,.0f} messages/s"


async def fill(side: Own, topic: str, counts: Sequence[int], size: int) -> None:
    """Publish `counts[k]` messages of each key k, whose turns come one after the other."""
    await side.prepare(topic)
    blocks = [Block(size, 1) for _ in counts]
    keys = [b"%d" % key for key in range(len(counts))]
    rows = [(key, n) for n in range(max(counts)) for key, count in enumerate(counts) if n < count]
    async with connect(side.url) as client, client.producer(topic) as producer:
        for first in range(0, len(rows), CHUNK_MESSAGES):
            some = rows[first : first + CHUNK_MESSAGES]
            values = [blocks[key].values_of(key, n, 1)[0] for key, n in some]
            await producer.send_many(values, keys=[keys[key] for key, _ in some])
        await producer.flush()


async def work(
    side: Own, topic: str, counts: Sequence[int], settings: Settings, mode: Mode, by_message: bool
) -> Part:  # fmt: skip
    """Let workers take all of a topic. Raises `FlowFailed` if it takes longer than it may."""
    messages = sum(counts)
    taken = Taken(messages)
    async with connect(side.url, name="weir-bench") as client:
        consumers = await opened(client, topic, settings.workers, mode)
        server, foreign, cpu = side.cpu_s(), Foreign(), time.process_time()
        began, samples = time.monotonic(), list[Sample]()
        workers = OwnWorkers(client, mode, consumers, taken, by_message=by_message)
        workers.begin()
        looking = asyncio.ensure_future(_look(taken, began, samples))
        try:
            async with asyncio.timeout(settings.deadline_s):
                await unless(workers.failed(), taken.complete.wait())
                samples.append((time.monotonic() - began, taken.received))
                await unless(workers.failed(), workers.finish())
        except TimeoutError:
            side.running()
            raise FlowFailed(
                f"{taken.received:,} of {messages:,} messages were taken within "
                f"{settings.deadline_s:g} s: give a longer --deadline, or fewer messages"
            ) from None
        finally:
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            foreign_s, used = foreign.cpu_s(), side.cpu_s()
            looking.cancel()
            await workers.stop()
            await asyncio.gather(*(one.close() for one in consumers))
    checker = taken.check(counts, settings.size)
    return Part(
        mode,
        by_message,
        messages,
        seconds,
        messages / seconds,
        cpu / messages * 1e6,
        None if used is None or server is None else (used - server) / messages * 1e6,
        next((at for at, count in samples if count), seconds),
        full_speed(samples),
        None if foreign_s is None else foreign_s / seconds,
        checker.lost,
        checker.repeated,
        checker.reordered,
        checker.corrupt,
        sum(one.stale for one in consumers),
    )


def full_speed(samples: Sequence[Sample]) -> float | None:
    """Return after how many seconds messages came at their steady rate, or nearly; None if samples
    (seconds, messages so far) are too few to tell.
    """
    if not samples:
        return None
    messages = samples[-1][1]
    least, most = (share * messages for share in _STEADY)
    steady = [one for one in samples if least <= one[1] <= most]
    if len(steady) < 2 or steady[-1][0] - steady[0][0] < 2 * _RATE_S:
        return None
    full = _FULL * (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])
    known = [(0.0, 0), *samples]
    ahead = 0
    for at, count in known:
        while known[ahead][0] < at + _RATE_S:
            ahead += 1
            if ahead == len(known):
                return None
        later, then = known[ahead]
        if (then - count) / (later - at) >= full:
            return at
    return None


async def _look(taken: Taken, began: float, samples: list[Sample]) -> None:
    while True:
        samples.append((time.monotonic() - began, taken.received))
        await asyncio.sleep(_LOOK_S)
