"""What readers at access relays see while nodes of every tier are killed, paused and cut off.

A producer writes tagged messages to the core, which has three nodes. Below it are two tandem relays
and three access relays, one of which keeps some tags alone. One reader stays at each access relay;
another one moves from one to the next, and goes on where it was. At the end what each of them was
given is compared with what the core holds, in the order of the core. Beside each reader there is a
consumer of one cluster: each message is done by one of them, once.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir.client.producer.producer import Producer
from weir.errors import WeirError
from weir.testing.nodes import Patient
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.faults.chaos import crew
from weir_lab.bench.faults.chaos.relay_tree import ACCESS, TAGS, TANDEM, RelayTree

TOPIC = "chaos"
_PARTITIONS = 3
_REQUEST_S = 120.0
#: A reader that moves gives a relay up that does not let it in for so long.
_MOVE_S = 5.0
_STAY_S = (0.5, 3.0)
_CAUGHT_UP_S = 120.0
_LOOK_S = 0.02
_EXAMPLES_MAX = 10
#: What happens, by turns: a way to fail, and the tier.
FAULTS = (
    ("kill", "tandem"), ("kill", "core"), ("kill", "access"), ("pause", "tandem"),
    ("cut", "tandem"), ("pause", "core"), ("pause", "access"),
)  # fmt: skip
#: Partition, offset, stamp, value.
Row = tuple[int, int, int, bytes]
#: A reader, by its name.
MOVING = "moving"


class Settings(msgspec.Struct, frozen=True):
    """So many faults, under so many messages a second."""

    times: int = 100
    rate: float = 300.0
    #: Seconds of load before each fault, and how long it lasts.
    calm_s: float = 1.0
    down_s: float = 5.0
    seed: int = 1

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(times=(self.times, 1, 10_000))
        if not 1 <= self.rate <= 5_000:
            raise ValueError("the rate must be 1 to 5,000 messages a second")
        if not (0 <= self.calm_s <= 60 and 0 < self.down_s <= 60):
            raise ValueError("a fault lasts up to 60 s, and so does the calm before it")


class Strike(msgspec.Struct, frozen=True):
    """One fault. By the number of each access set, for how long its reader was given no message
    while there was one, at most, from the fault until it had caught up, in ms.
    """

    number: int
    kind: str
    tier: str
    victim: int
    stalls_ms: dict[int, float]


class Reading(msgspec.Struct, frozen=True):
    """What one reader was given, beside what the core holds for its tags."""

    reader: str
    messages: int
    lost: int
    repeated: int
    out_of_order: int
    differing: int


class Result(msgspec.Struct, frozen=True):
    """All faults, and what came of them. `city_stall_ms` is the longest stall at an access relay
    whose preferred upper was struck; `moves` is how often the moving reader was given messages by
    another relay than before, `cluster_moves` the same of the moving consumer. `granted_again` are
    deliveries to consumers of messages that had been handed out before: an inbox passes them by.
    """

    faults: int
    messages: int
    lost: int
    repeated: int
    out_of_order: int
    differing: int
    city_stall_median_ms: float
    city_stall_ms: float
    moves: int
    cluster_moves: int
    granted_again: int
    #: Exit codes of relays that did not end well when they were told to stop.
    failed: list[int]
    seconds: float
    readings: list[Reading]
    strikes: list[Strike]
    examples: list[str]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.lost + self.repeated + self.out_of_order + self.differing
        return not wrong and not self.failed


class Ledger:
    """What was written and confirmed, and what each reader was given."""

    def __init__(self) -> None:
        """Begin with nothing."""
        #: By its value, when each message was confirmed, in monotonic seconds.
        self.confirmed: dict[bytes, float] = {}
        self.given: dict[str, list[Row]] = {}
        #: By reader, when it was given each message.
        self.given_at: dict[str, list[float]] = {}
        self.moves = 0
        #: What became of messages in the cluster.
        self.crew = crew.CrewLedger()

    def give(self, reader: str, row: Row) -> None:
        """A reader was given a message."""
        self.given.setdefault(reader, []).append(row)
        self.given_at.setdefault(reader, []).append(time.monotonic())

    def stall_ms(self, reader: str, since: float) -> float:
        """Return how late the latest message was that a reader was given after `since`."""
        rows, times = self.given.get(reader, []), self.given_at.get(reader, [])
        worst = 0.0
        for at in range(len(rows) - 1, -1, -1):
            if times[at] < since:
                break
            confirmed = self.confirmed.get(rows[at][3])
            if confirmed is not None:
                worst = max(worst, times[at] - max(confirmed, since))
        return worst * 1e3


def judge(reader: str, given: Sequence[Row], truth: Sequence[Row]) -> tuple[Reading, list[str]]:
    """Compare what a reader was given with what it should have been given, in this order; return
    examples of what is wrong, too.
    """
    places = {row[:2]: at for at, row in enumerate(truth)}
    seen: set[tuple[int, int]] = set()
    repeated = out_of_order = differing = 0
    last, examples = -1, list[str]()
    for row in given:
        at = places.get(row[:2])
        if row[:2] in seen:
            repeated += 1
            examples.append(f"{reader}: {row[0]}/{row[1]} came twice")
        elif at is None or truth[at] != row:
            differing += 1
            examples.append(f"{reader}: {row} came, the core has {at and truth[at]}")
        elif at < last:
            out_of_order += 1
            examples.append(f"{reader}: {row[0]}/{row[1]} came behind what follows it")
        seen.add(row[:2])
        last = max(last, -1 if at is None else at)
    missing = [row for row in truth if row[:2] not in seen]
    examples += [f"{reader}: {row[0]}/{row[1]} did not come" for row in missing[:_EXAMPLES_MAX]]
    found = Reading(reader, len(given), len(missing), repeated, out_of_order, differing)
    return found, examples


def measure(settings: Settings, folder: Path, tell: Callable[[Strike], None]) -> Result:
    """Run all faults in a folder. Raises `WeirError` where processes do not start."""
    tree = RelayTree(folder)
    try:
        tree.core.start(Patient())
        return asyncio.run(_measured(settings, tree, tell))
    finally:
        for relay in tree.relays.values():
            relay.kill()
        tree.core.stop()


async def _measured(settings: Settings, tree: RelayTree, tell: Callable[[Strike], None]) -> Result:
    began, ledger, dice = time.monotonic(), Ledger(), random.Random(settings.seed)
    async with connect(tree.core.url, name="weir-chaos", request_timeout=_REQUEST_S) as client:
        await client.create_topic(TOPIC, _PARTITIONS, order="total")
        await tree.start(client)
        stop = asyncio.Event()
        writing = asyncio.ensure_future(_write(client, settings, ledger, stop))
        readers = [
            asyncio.ensure_future(_stay(tree.relays[number].url, f"{number}", tag, ledger))
            for number, (_, tag) in ACCESS.items()
        ]
        readers.append(asyncio.ensure_future(_move(tree, dice, ledger)))
        urls = [tree.relays[number].url for number in ACCESS]
        consuming = (crew.stay(url, TOPIC, ledger.crew, _REQUEST_S) for url in urls)
        readers += map(asyncio.ensure_future, consuming)
        readers.append(asyncio.ensure_future(crew.move(urls, TOPIC, dice, ledger.crew)))
        try:
            strikes = [one async for one in _strikes(settings, tree, ledger, readers, tell)]
            stop.set()
            await writing
            truth = await _truth(client)
            await _caught_up(ledger, truth, readers)
            await _consumed(client, readers)
        finally:
            for task in (writing, *readers):
                task.cancel()
            await asyncio.gather(writing, *readers, return_exceptions=True)
            failed = await tree.close()
    return _result(ledger, truth, strikes, failed, time.monotonic() - began)


async def _write(
    client: Client, settings: Settings, ledger: Ledger, stop: asyncio.Event
) -> None:  # fmt: skip
    """Publish at the rate until told to stop; return once all is confirmed."""
    sent: set[asyncio.Task[None]] = set()

    async def send(producer: Producer, value: bytes, tag: str) -> None:
        await producer.send(value, tag=tag)
        ledger.confirmed[value] = time.monotonic()

    async with client.producer(TOPIC) as producer:
        number, next_at = 0, time.monotonic()
        while not stop.is_set():
            tag = TAGS[number % len(TAGS)]
            one = asyncio.create_task(send(producer, b"%d" % number, tag))
            sent.add(one)
            one.add_done_callback(sent.discard)
            number += 1
            next_at += 1 / settings.rate
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
        await asyncio.gather(*sent)


async def _stay(url: str, reader: str, tag: str, ledger: Ledger) -> None:
    """Read on at one relay for ever."""
    async with (
        connect(url, name="weir-chaos", request_timeout=_REQUEST_S) as client,
        client.reader(TOPIC, tag=tag or None) as reading,
    ):
        async for one in reading:
            ledger.give(reader, (one.partition, one.offset, one.stamp, bytes(one.value)))


async def _move(tree: RelayTree, dice: random.Random, ledger: Ledger) -> None:
    """Read on at one relay after the other that keeps all tags, for ever."""
    places = [number for number, (_, tag) in ACCESS.items() if not tag]
    positions: Mapping[int, int] = {}
    turn, last = 0, -1
    while True:
        turn += 1
        place = places[turn % len(places)]
        url, was_given = tree.relays[place].url, False
        with suppress(WeirError, TimeoutError):
            async with (
                connect(url, name="weir-chaos", request_timeout=_MOVE_S) as client,
                client.reader(TOPIC, start=positions or "earliest") as reading,
            ):
                until = time.monotonic() + dice.uniform(*_STAY_S)
                async with asyncio.timeout(until - time.monotonic() + _MOVE_S):
                    async for one in reading:
                        row = one.partition, one.offset, one.stamp, bytes(one.value)
                        ledger.give(MOVING, row)
                        if not was_given:
                            was_given = True
                            ledger.moves += last not in (-1, place)
                            last = place
                        positions = {**positions, one.partition: one.offset + 1}
                        if time.monotonic() >= until:
                            break
        if not was_given:
            await asyncio.sleep(_LOOK_S)  # it is down, perhaps: the next one, then this again


async def _strikes(
    settings: Settings, tree: RelayTree, ledger: Ledger, readers: Sequence[asyncio.Future[None]],
    tell: Callable[[Strike], None],
) -> AsyncIterator[Strike]:  # fmt: skip
    """Yield what each fault did."""
    turns = {"tandem": _cycle(TANDEM), "access": _cycle([*ACCESS]), "core": _cycle((1, 2, 3))}
    await _flowing(ledger, readers, time.monotonic())
    for number in range(1, settings.times + 1):
        await asyncio.sleep(settings.calm_s)
        kind, tier = FAULTS[(number - 1) % len(FAULTS)]
        victim = next(turns[tier])
        struck = time.monotonic()
        await _strike(tree, kind, tier, victim, settings.down_s)
        await _flowing(ledger, readers, time.monotonic())
        stalls = {one: ledger.stall_ms(f"{one}", struck) for one in ACCESS}
        told = Strike(number, kind, tier, victim, stalls)
        tell(told)
        yield told


def _cycle(numbers: Sequence[int]) -> Iterator[int]:
    while True:
        yield from numbers


async def _strike(tree: RelayTree, kind: str, tier: str, victim: int, down_s: float) -> None:
    """Let a node fail for some time; return once it is started again, or goes on."""
    if kind == "cut":
        tree.proxies[victim].cut()
        await asyncio.sleep(down_s)
        tree.proxies[victim].heal()
    elif tier == "core":
        if kind == "kill":
            await asyncio.to_thread(tree.core.kill, [victim])
            await asyncio.sleep(down_s)
            await tree.restart_core(victim)
        else:
            pid = tree.core.node(victim).pid
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(down_s)
            os.kill(pid, signal.SIGCONT)
    elif kind == "kill":
        await asyncio.to_thread(tree.relays[victim].strike)
        await asyncio.sleep(down_s)
        await asyncio.to_thread(tree.relays[victim].start)
    else:
        tree.relays[victim].signal(signal.SIGSTOP)
        await asyncio.sleep(down_s)
        tree.relays[victim].signal(signal.SIGCONT)


async def _flowing(
    ledger: Ledger, readers: Sequence[asyncio.Future[None]], since: float
) -> None:  # fmt: skip
    """Return once each reader that stays was given a message that was confirmed after `since`.
    Raises `WeirError` if that takes too long, and what a reader raised.
    """
    until = time.monotonic() + _CAUGHT_UP_S
    while True:
        for one in readers:
            if one.done():
                one.result()
        if all(_is_flowing(ledger, f"{number}", since) for number in ACCESS):
            return
        if time.monotonic() > until:
            raise WeirError(f"a reader was given nothing new for {_CAUGHT_UP_S:g} s")
        await asyncio.sleep(_LOOK_S)


def _is_flowing(ledger: Ledger, reader: str, since: float) -> bool:
    rows = ledger.given.get(reader)
    return rows is not None and ledger.confirmed.get(rows[-1][3], 0.0) > since


async def _truth(client: Client) -> list[Row]:
    """Return what the core holds, in its order."""
    rows: list[Row] = []
    async with client.reader(TOPIC, follow=False) as reader:
        async for one in reader:
            rows.append((one.partition, one.offset, one.stamp, bytes(one.value)))
    return rows


def judge_core(confirmed: Collection[bytes], truth: Sequence[Row]) -> tuple[Reading, list[str]]:
    """Compare what the core holds with what it confirmed: each message once; return examples of
    what is wrong, too.
    """
    held = Counter(row[3] for row in truth)
    lost = [value for value in confirmed if not held[value]]
    twice = [value for value, count in held.items() if count > 1]
    examples = [f"core: {value!r} was confirmed, and is lost" for value in lost[:_EXAMPLES_MAX]]
    examples += [f"core: {value!r} is there twice" for value in twice[:_EXAMPLES_MAX]]
    repeated = sum(held[value] - 1 for value in twice)
    return Reading("core", len(truth), len(lost), repeated, 0, 0), examples


def _wanted(truth: Sequence[Row], tag: str) -> Sequence[Row]:
    return [row for row in truth if not tag or TAGS[int(row[3]) % len(TAGS)] == tag]


def _tags() -> dict[str, str]:
    """Return the tag of each reader."""
    return {MOVING: ""} | {f"{number}": tag for number, (_, tag) in ACCESS.items()}


async def _caught_up(
    ledger: Ledger, truth: Sequence[Row], readers: Sequence[asyncio.Future[None]]
) -> None:  # fmt: skip
    """Return once each reader was given as much as there is, or after a while."""
    wanted = {reader: len(_wanted(truth, tag)) for reader, tag in _tags().items()}
    until = time.monotonic() + _CAUGHT_UP_S
    while time.monotonic() < until:
        for one in readers:
            if one.done():
                one.result()
        if all(len(ledger.given.get(one, ())) >= count for one, count in wanted.items()):
            return
        await asyncio.sleep(_LOOK_S)


async def _consumed(client: Client, readers: Sequence[asyncio.Future[None]]) -> None:
    """Return once the cluster is done with all messages, or after a while."""
    until = time.monotonic() + _CAUGHT_UP_S
    while time.monotonic() < until and await crew.left(client, TOPIC):
        for one in readers:
            if one.done():
                one.result()
        await asyncio.sleep(_LOOK_S)


def _result(
    ledger: Ledger, truth: Sequence[Row], strikes: list[Strike], failed: Sequence[int],
    seconds: float,
) -> Result:  # fmt: skip
    core, examples = judge_core(ledger.confirmed.keys(), truth)
    readings = [core]
    for reader, tag in _tags().items():
        found, wrong = judge(reader, ledger.given.get(reader, []), _wanted(truth, tag))
        readings.append(found)
        examples += wrong
    lost, again, wrong = ledger.crew.judge([row[:2] for row in truth])
    readings.append(Reading("cluster", len(ledger.crew.given), lost, again, 0, 0))
    examples += wrong
    stalls = [
        one.stalls_ms[number]
        for one in strikes
        if one.tier == "tandem"
        for number, (uppers, _) in ACCESS.items()
        if uppers[0] == one.victim
    ]
    return Result(
        faults=len(strikes),
        messages=len(truth),
        lost=sum(one.lost for one in readings),
        repeated=sum(one.repeated for one in readings),
        out_of_order=sum(one.out_of_order for one in readings),
        differing=sum(one.differing for one in readings),
        city_stall_median_ms=statistics.median(stalls) if stalls else 0.0,
        city_stall_ms=max(stalls, default=0.0),
        moves=ledger.moves,
        cluster_moves=ledger.crew.moves,
        granted_again=ledger.crew.given_again,
        failed=[*failed],
        seconds=seconds,
        readings=readings,
        strikes=strikes,
        examples=examples[:_EXAMPLES_MAX],
    )
