"""Readers and clusters of some tags on three nodes under faults: each gets what all get, less what
has other tags, in the same order, and clusters are done with all of it in the end.

Writers publish long runs of one tag, and mixed batches. Readers in both orders go on where they
were, or where a process before them was. Each mode has a cluster with tags, and several consumers.
What is there is read once, without tags, when everything is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from weir.client.arguments import ConsumerMode
from weir.client.client import Client, connect
from weir.errors import WeirError
from weir.model.limits import FORMAT_LEVEL_FILTERS
from weir.model.message import Message
from weir.model.topic import Order
from weir.testing.worlds import World, world
from weir_lab.sim.outcome import CRASH, Outcome
from weir_lab.sim.shape import Shape

# Leases that end are what is played: nobody wants to read what consumers tell of them.
logging.getLogger("weir.client").addHandler(logging.NullHandler())

_NODES, _PARTITIONS = 3, 2
_TOPIC = "t"
_FAULTS = ("kill", "depose", "kill shard", "part", "cut", "slow", "pause")
_TAGS = ("", "a", "b", "c")
_KEYS = 5
_MODES: tuple[ConsumerMode, ...] = ("shared", "keyed", "ordered")
_ORDERS: tuple[Order, ...] = ("partition", "total")
#: How long writers publish, and how long all may take then, in virtual seconds.
_WRITES, _SETTLES, _WITHIN = 8.0, 40.0, 600.0
_BATCH, _WRITERS, _CONSUMERS = (1, 40), 2, 2
_PAUSE = (0.02, 0.5)
#: How likely a batch has one tag, a reader begins anew, and a consumer fails at a message.
_ALIKE, _ANEW, _FAILS = 0.6, 0.05, 0.03
R = TypeVar("R")


class Got(NamedTuple):
    """A message as somebody got it."""

    stamp: int
    partition: int
    offset: int
    tag: str
    key: bytes
    value: bytes


def got(message: Message) -> Got:
    """Return a message in few words."""
    where = message.stamp, message.partition, message.offset
    return Got(*where, message.tag or "", message.key or b"", message.value)


class Following:
    """A reader of some tags, over all processes that it was."""

    def __init__(self, tags: frozenset[str], order: Order) -> None:
        """Begin at the beginning."""
        self.tags = tags
        self.order = order
        self.positions: dict[int, int] = {}
        self.rows: list[Got] = []


class Filters:
    """One world: what was confirmed, what each reader got, and what each cluster handled."""

    def __init__(self, seed: int) -> None:
        """Draw the tags of each reader and of each cluster."""
        self.world = world(seed, nodes=_NODES, faults=_FAULTS)
        self._dice = random.Random(f"filters {seed}")
        self.readers = [Following(self._some(), order) for order in _ORDERS for _ in range(2)]
        self.tags = {mode: self._some() for mode in _MODES}
        self.confirmed: set[tuple[int, int]] = set()
        #: By mode, what was handled, and acked, in this order.
        self.handled: dict[ConsumerMode, list[Got]] = {mode: [] for mode in _MODES}
        self.found: list[tuple[str, str]] = []
        self._serial = 0
        self._writes = self._goes_on = True

    def _some(self) -> frozenset[str]:
        return frozenset(self._dice.sample(_TAGS, self._dice.randint(1, 2)))

    def play(self) -> list[tuple[str, str]]:
        """Let all of it happen; return the broken promises."""
        try:
            self.world.run(self._scenario, _WITHIN)
        except TimeoutError as error:
            return [*self.found, ("Live", f"it did not end: {error}")]
        except AssertionError as error:
            return [*self.found, (CRASH, str(error))]
        return self.found

    # -- what happens --------------------------------------------------------------------------

    async def _scenario(self, surroundings: World) -> None:
        surroundings.faults.stop()
        async with surroundings.connect() as w:
            while (await _until(w.nodes.raise_level)).level < FORMAT_LEVEL_FILTERS:
                await asyncio.sleep(0.1)
            await _until(lambda: w.create_topic(_TOPIC, partitions=_PARTITIONS))
            surroundings.faults.start()
            for number in range(_WRITERS):
                surroundings.start(self._again(self._write), f"writer {number}")
            for number, reader in enumerate(self.readers):
                surroundings.start(self._again(self._reading(reader)), f"reader {number}")
            for mode in _MODES:
                for number in range(_CONSUMERS):
                    work = self._again(self._consuming(mode))
                    surroundings.start(work, f"consumer {mode} {number}")
            await asyncio.sleep(_WRITES)
            self._writes = False
            surroundings.heal()
            try:
                async with asyncio.timeout(_SETTLES):
                    await self._settled(w)
            except TimeoutError:
                lags = {one.name: one.lag for one in await _until(lambda: w.clusters(_TOPIC))}
                read = [dict(one.positions) for one in self.readers]
                self.found.append(("Live", f"clusters lag by {lags}, readers are at {read}"))
            self._goes_on = False
            everything = [got(one) async for one in w.reader(_TOPIC, follow=False, order="total")]
            self.found += judged(self, everything)

    async def _settled(self, w: Client) -> None:
        """Return once all clusters are done with everything, and all readers have read it."""
        while True:
            ends = dict.fromkeys(range(_PARTITIONS), 0)
            clusters = await _until(lambda: w.clusters(_TOPIC))
            for one in clusters:
                ends |= {share.partition: share.end for share in one.shares}
            read = all(
                reader.positions.get(p, 0) >= end
                for reader in self.readers
                for p, end in ends.items()
            )
            if read and len(clusters) == len(_MODES) and not any(one.lag for one in clusters):
                return
            await asyncio.sleep(0.5)

    def _again(self, work: Callable[[Client], Awaitable[None]]) -> Callable[[], Awaitable[object]]:
        async def visit() -> None:
            while self._goes_on:
                try:
                    async with connect(self.world.url) as w:
                        await work(w)
                except (WeirError, OSError, TimeoutError):
                    pass  # a fault of this world: the next visit goes on
                await self._pause()

        return visit

    async def _write(self, w: Client) -> None:
        async with w.producer(_TOPIC, linger=0) as producer:
            while self._writes:
                count, dice = self._dice.randint(*_BATCH), self._dice
                alike = dice.choice(_TAGS) if dice.random() < _ALIKE else None
                tags = [dice.choice(_TAGS) if alike is None else alike for _ in range(count)]
                values = [b"%d" % (self._serial + at) for at in range(count)]
                self._serial += count
                keys = [b"k%d" % dice.randrange(_KEYS) for _ in range(count)]
                sent = await producer.send_many(
                    values, keys=keys, tags=[tag or None for tag in tags]
                )
                for one in sent:
                    receipt = await one
                    self.confirmed.add((receipt.partition, receipt.offset))
                await self._pause()

    def _reading(self, reader: Following) -> Callable[[Client], Awaitable[None]]:
        async def read(w: Client) -> None:
            source = w.reader(
                _TOPIC,
                start=reader.positions or "earliest",
                tag=sorted(reader.tags),
                order=reader.order,
                read_from=self._dice.choice(("leader", "any")),
                max_bytes=self._dice.choice((1, 300, 100_000)),
            )
            async with source:
                while self._goes_on:
                    try:
                        async with asyncio.timeout(0.5):
                            message = await anext(source)
                    except TimeoutError:
                        reader.positions = dict(source.positions)
                        continue
                    reader.rows.append(got(message))
                    reader.positions = dict(source.positions)
                    if self._dice.random() < _ANEW:
                        return

        return read

    def _consuming(self, mode: ConsumerMode) -> Callable[[Client], Awaitable[None]]:
        async def consume(w: Client) -> None:
            tags = sorted(self.tags[mode])
            most = self._dice.choice((1, 7, 1_000))
            async with w.consumer(
                _TOPIC, cluster=mode, mode=mode, tags=tags, lease=2.0, max_messages=most
            ) as consumer:
                while self._goes_on:
                    try:
                        async with asyncio.timeout(0.5):
                            message = await anext(consumer)
                    except TimeoutError:
                        continue
                    if self._dice.random() < _FAILS:
                        await message.nack(0.1)
                        continue
                    self.handled[mode].append(got(message))
                    await message.ack(confirmed=self._dice.random() < 0.2)

        return consume

    async def _pause(self) -> None:
        await asyncio.sleep(self._dice.uniform(*_PAUSE))


def judged(filters: Filters, everything: list[Got]) -> Iterable[tuple[str, str]]:
    """Yield the broken promises: compare all that was got with all there is."""
    offsets = {(one.partition, one.offset) for one in everything}
    lost = sorted(filters.confirmed - offsets)
    if lost:
        yield "Durable", f"{len(lost)} confirmed messages are not there, the first at {lost[0]}"
    for reader in filters.readers:
        wanted = [one for one in everything if one.tag in reader.tags]
        yield from _compared(reader, wanted)
    for mode, handled in filters.handled.items():
        there = {one for one in everything if one.tag in filters.tags[mode]}
        if unwanted := [one for one in handled if one not in there]:
            yield "ReadWhole", f"the {mode} cluster was given {unwanted[0]}, which it did not want"
        if missing := there - set(handled):
            yield "Handled", f"the {mode} cluster was never given {min(missing)}"
        if mode != "shared":
            yield from _in_turn(mode, handled)


def _compared(reader: Following, wanted: list[Got]) -> Iterable[tuple[str, str]]:
    """Compare what a reader got, in its order, with what it wanted."""
    what = f"a reader of {sorted(reader.tags)} in {reader.order} order"
    for mine, theirs in (
        [(reader.rows, wanted)]
        if reader.order == "total"
        else [(_of(reader.rows, p), _of(wanted, p)) for p in range(_PARTITIONS)]
    ):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            if one != other:
                yield "OneOrder", f"{what} got {one} as number {number}, where {other} belongs"
                break
        else:
            if len(mine) != len(theirs):
                yield "ReadWhole", f"{what} got {len(mine)} of {len(theirs)} messages"


def _of(rows: list[Got], partition: int) -> list[Got]:
    return [one for one in rows if one.partition == partition]


def _in_turn(mode: str, handled: list[Got]) -> Iterable[tuple[str, str]]:
    """Messages that are first handled out of turn: in a keyed cluster, of a key."""
    last: Mapping[tuple[int, bytes], int]
    seen: set[tuple[int, int]] = set()
    last = defaultdict(lambda: -1)
    for one in handled:
        line = one.partition, one.key if mode == "keyed" else b""
        place = one.partition, one.offset
        if place not in seen and one.offset < last[line]:
            yield "InTurn", f"the {mode} cluster was given {one} behind offset {last[line]}"
            return
        seen.add(place)
        last[line] = max(last[line], one.offset)


async def _until(do: Callable[[], Awaitable[R]]) -> R:
    while True:
        try:
            return await do()
        except (WeirError, OSError):
            await asyncio.sleep(0.2)


def play_filters(seed: int, shape: Shape) -> Outcome:
    """Play one world; its shape is always the same one."""
    began, filters = time.perf_counter(), Filters(seed)
    violations, played = filters.play(), filters.world
    done = sum(map(len, filters.handled.values()))
    return Outcome(
        seed, shape, f"{_NODES} nodes", played.faults.count, done, violations,
        played.trace_hash, time.perf_counter() - began, played.time,
        promises=frozenset({"Durable", "OneOrder", "ReadWhole", "Handled", "InTurn", "Live"}),
    )  # fmt: skip
