"""A chaos run: rounds of one fault under load, then the ledgers against all that can be read."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from weir.client.client import Client
from weir.errors import WeirError
from weir_lab.bench.faults.chaos.faults import Fault
from weir_lab.bench.faults.chaos.ledger import Read, Verdict, judge
from weir_lab.bench.faults.chaos.load import (
    ANYBODY,
    PATIENCE_S,
    Load,
    LoadFailed,
    Login,
    read_whole,
)
from weir_lab.bench.faults.chaos.witness import Witness
from weir_lab.bench.harness.payload import SIZE_MIN

TOPIC = "chaos"
#: Columns of a drawing, and how much of it lies before the strike.
COLUMNS = 60
_BEFORE = 10
#: A drawing ends so many times as late as the gap.
_SHOWN = 1.1
#: The producer of a round's witness has this number and the round's.
_WITNESS = 1_000
_LOOK_S = 0.05
#: What a woken node may take to say all that it has to say.
_LAST_WORDS_S = 2.0


class Settings(msgspec.Struct, frozen=True):
    """`times` rounds with `calm_s` before each, under `rate` messages a second of `size` bytes."""

    times: int = 10
    rate: float = 1_000.0
    size: int = 100
    devices: int = 2
    calm_s: float = 1.0

    def check(self) -> None:
        """Raise `ValueError` for what makes no sense."""
        if self.times < 1 or not 1 <= self.rate <= 100_000 or self.calm_s < 0:
            raise ValueError("times must be 1 or more, rate 1 to 100,000, calm 0 or more")
        if self.size < SIZE_MIN or not 0 <= self.devices <= _WITNESS // 2:
            raise ValueError(f"size must be {SIZE_MIN} or more, devices 0 to {_WITNESS // 2}")


class Round(msgspec.Struct, frozen=True):
    """One round: who was struck (0: nobody knows here), who led before and after, and the longest
    gap between confirms.

    `slots` are confirms in slots of `slot_ms` each, of which `before` lie before the strike. They
    are `wider` times as long as usual where the gap would not fit otherwise.
    """

    number: int
    struck: int
    led: int
    leads: int
    gap_ms: float
    seconds: float
    slot_ms: float
    before: int
    slots: list[int]
    wider: int = 1
    #: How long after its confirm a reader in total order got a message, at most: from the first
    #: confirm on that ended the gap. What was confirmed before waits for that one as well.
    reader_lag_ms: float = 0.0
    #: Of a node that lived on: what was asked of it meanwhile, and how it answered.
    asked: int = 0
    answered: int = 0
    refused: int = 0
    stale: int = 0


class Result(msgspec.Struct, frozen=True):
    """All rounds, and what the ledgers say. `stale`: answers or messages that were not so."""

    fault: str
    rounds: int
    rto_median_ms: float
    rto_max_ms: float
    reader_lag_max_ms: float
    lost: int
    repeated: int
    reordered: int
    misplaced: int
    strange: int
    stale: int
    sent: int
    confirmed: int
    read: int
    read_live: int
    seconds: float
    each: list[Round]
    #: The longest time without a confirm that no kill explains, and the longest that one does.
    longest_gap_ms: float = 0.0
    kill_gap_ms: float = 0.0
    #: How often the fault did what else it does, by name.
    done: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether every message was there once, in order, where it was said to be."""
        wrong = self.lost, self.repeated, self.reordered, self.misplaced, self.strange, self.stale
        return not any(wrong)


Tell = Callable[[Round], None]


class Where(NamedTuple):
    """A set that runs: how to reach it, where each node is, and the topic to make there; one that
    is `passing` is deleted again if nothing was wrong. `login` is what clients come by.
    """

    url: str
    places: list[tuple[str, int]]
    topic: str = TOPIC
    passing: bool = False
    login: Login = ANYBODY


async def run(where: Where, fault: Fault, settings: Settings, tell: Tell) -> Result:
    """Strike a running set again and again; `tell` gets each round as it ends.

    Raises `WeirError` if the set does not come back, or a client of the load gives up.
    """
    settings.check()
    url, places, topic, passing, login = where
    devices = [places[number % len(places)] for number in range(settings.devices)]
    began = time.monotonic()
    async with login.connect(url, "weir-chaos") as client:
        await client.create_topic(topic)
        stage = _Stage(where, client, fault, settings)
        await stage.settled()
        async with Load(url, devices, topic, settings.rate, settings.size, login) as load:
            await load.moves(0)
            for number in range(1, settings.times + 1):
                tell(await stage.round(number, load))
            await load.finish()
            _, (end, *_) = await client.positions(topic)
            await load.caught_up(end)
        read = await read_whole(url, topic, settings.size, login)
        result = stage.result(load, read, time.monotonic() - began)
        if passing and result.clean:
            await client.delete_topic(topic)
        return result


class _Stage:
    """What the rounds of a run share."""

    def __init__(self, where: Where, client: Client, fault: Fault, settings: Settings) -> None:
        self._where = where
        self._client = client
        self._fault = fault
        self._settings = settings
        self._rounds: list[Round] = []
        self._began_ns = 0
        self._witnesses: list[Witness] = []

    async def settled(self) -> int:
        """Return who leads, once every node is up and every group is where it should be, if that is
        to come.
        """
        until, status = time.monotonic() + PATIENCE_S, None
        while time.monotonic() < until:
            try:
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + PATIENCE_S):
                    if self._fault.settles:
                        status = await self._client.nodes.status()
                    if status is None or status.settled:
                        (address, *_) = (await self._client.describe(self._where.topic)).addresses
                        return address.node
            except (WeirError, TimeoutError):
                pass  # nobody leads the registry yet
            await asyncio.sleep(_LOOK_S)
        raise LoadFailed(f"the set is not settled after {PATIENCE_S:g} s: {status}")

    async def round(self, number: int, load: Load) -> Round:
        """Wait for calm, strike, wait until all is well again."""
        fault, settings = self._fault, self._settings
        led = await self.settled()
        await load.moves(load.produced.confirmed)
        await asyncio.sleep(settings.calm_s)
        load.check()
        struck = fault.victim(led, number)
        witness = await self._witness(number, struck, load) if fault.witnessed else None
        at = time.monotonic_ns()
        self._began_ns = self._began_ns or at
        await fault.strike(struck, asyncio.sleep if witness is None else witness.ask_on)
        if witness is not None:
            await asyncio.sleep(_LAST_WORDS_S)
            await witness.end()
        had = load.produced.confirmed
        leads = await self.settled()
        await load.moves(had)
        over = time.monotonic_ns()
        await load.caught_up(load.end)
        began, ended = load.produced.gap(at, over)
        drawn_ns = int(fault.drawn_s * 1e9)
        # The first confirms behind the gap are shown, too.
        wider = max(1, -(-int(_SHOWN * (ended - at)) // drawn_ns))
        slot_ns = wider * drawn_ns // (COLUMNS - _BEFORE)
        # What has not happened yet is not drawn.
        drawn = min(COLUMNS, _BEFORE + (over - at) // slot_ns)
        found = Round(
            number=number,
            struck=struck,
            led=led,
            leads=leads,
            gap_ms=(ended - began) / 1e6,
            seconds=(over - at) / 1e9,
            slot_ms=slot_ns / 1e6,
            before=_BEFORE,
            slots=load.produced.a_slot(at - _BEFORE * slot_ns, slot_ns, drawn),
            wider=wider,
            reader_lag_ms=load.reader_lag_ms(ended, over),
            **_heard(witness),
        )
        self._rounds.append(found)
        return found

    async def _witness(self, number: int, struck: int, load: Load) -> Witness:
        (address, *_) = (await self._client.describe(self._where.topic)).addresses
        witness = Witness(
            self._where.places[struck - 1],
            address,
            _WITNESS + number,
            self._settings.size,
            lambda: load.end,
        )
        self._witnesses.append(witness)
        await witness.begin()
        return witness

    def result(self, load: Load, read: Read, seconds: float) -> Result:
        """Hold everything against what was read in the end."""
        witnesses = {_WITNESS + n: one.ledger for n, one in enumerate(self._witnesses, 1)}
        ledgers = {**load.ledgers, **witnesses}
        found, live = judge(ledgers, read), judge(ledgers, load.live)
        both = found + Verdict(repeated=live.repeated, reordered=live.reordered)
        gaps = [one.gap_ms for one in self._rounds]
        longest, own = load.produced.gaps_ms(
            self._began_ns, load.produced.last_ns, self._fault.kills
        )
        return Result(
            fault=self._fault.name,
            rounds=len(self._rounds),
            rto_median_ms=statistics.median(gaps),
            rto_max_ms=max(gaps),
            reader_lag_max_ms=max(one.reader_lag_ms for one in self._rounds),
            lost=max(found.lost, live.lost),
            repeated=both.repeated,
            reordered=both.reordered,
            misplaced=found.misplaced + live.misplaced,
            strange=found.strange + live.strange,
            stale=sum(one.stale + differing(one.read, read) for one in self._witnesses),
            sent=sum(one.sent for one in ledgers.values()),
            confirmed=sum(one.confirmed for one in ledgers.values()),
            read=len(read),
            read_live=len(load.live),
            seconds=seconds,
            each=self._rounds,
            longest_gap_ms=longest,
            kill_gap_ms=own,
            done=dict(self._fault.done),
        )


def differing(heard: Read, read: Read) -> int:
    """Return how many messages of one reader differ from those of another, which has all."""
    at = {place: who for *who, place in zip(*(c.tolist() for c in read.columns()), strict=True)}
    told = zip(*(column.tolist() for column in heard.columns()), strict=True)
    return heard.strange + sum(at.get(place) != who for *who, place in told)


def _heard(witness: Witness | None) -> dict[str, int]:
    if witness is None:
        return {}
    names = "asked", "answered", "refused", "stale"
    return {name: getattr(witness, name) for name in names}
