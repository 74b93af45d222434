"""Measure and judge the company: with readers at the core, with tiers, and while data centres fail.

All offices publish to the core: Beijing for each city and for everybody, the others for everybody.
The readers of a city want what is for it and for everybody, in total order. First they read at the
core, with no relays; then at the access sets of their city; at last one data centre after the other
is cut off, and comes back. What each was given is compared with the core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.faults.chaos.tiers import Reading, judge, judge_core
from weir_lab.company.nodes import Company, CompanyFailed, Grid
from weir_lab.company.office import (
    REQUEST_S,
    VALUE_BYTES_MIN,
    Await,
    Command,
    Confirm,
    Read,
    Reply,
    Report,
    Row,
    Send,
    Stop,
    unpacked,
)
from weir_lab.company.sites import EVERYBODY, SITES, Site, is_backbone, sites
from weir_lab.network.links import Count

#: One topic for readers at the core, and one for those at access sets.
DIRECT, TIERS = "direct", "tiers"
_PARTITIONS = 3
_CAUGHT_UP_S = 120.0
_CALM_S = 1.0
_EXAMPLES_MAX = 10
_NS_PER_MS = 1e6
Tell = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True):
    """`brokers` nodes of each set; `readers` at each access set; each topic is written for so many
    seconds; each of `cuts` is cut off for `down_s`.
    """

    brokers: int = 1
    readers: int = 3
    rate: float = 100.0
    seconds: float = 10.0
    size: int = 200
    cuts: tuple[str, ...] = (
        "beijing-mobile", "shanghai-mobile-tandem", "tianjin-telecom-1",
    )  # fmt: skip
    down_s: float = 5.0

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            brokers=(self.brokers, 1, 8), readers=(self.readers, 1, 100),
            size=(self.size, VALUE_BYTES_MIN, 100_000),
        )  # fmt: skip
        if not 4 <= self.rate <= 5_000:
            raise ValueError("the rate must be 4 to 5,000 messages a second")
        if not (1 <= self.seconds <= 600 and 0.1 <= self.down_s <= 120):
            raise ValueError("it takes 1 to 600 s, and a cut 0.1 to 120 s")
        known = [one.name for one in SITES if one.tier != "office"]
        for name in self.cuts:
            if name not in known:
                raise ValueError(f"there is no data centre {name!r}: {', '.join(known)}")


class Times(msgspec.Struct, frozen=True):
    """Milliseconds, of so many messages."""

    messages: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class City(msgspec.Struct, frozen=True):
    """What clients in a city saw: how long until their messages were confirmed, and how long until
    readers were given what others had sent. In Beijing nobody reads.
    """

    city: str
    confirm: Times
    delivery_direct: Times | None
    delivery: Times | None


class LinkBytes(msgspec.Struct, frozen=True):
    """Bytes of packets from one site to another while each topic was written and read."""

    source: str
    target: str
    direct: int
    tiers: int


class CutOff(msgspec.Struct, frozen=True):
    """A data centre that was cut off. By city, the longest time until a message of that time was
    confirmed, or given to a reader, in ms.
    """

    site: str
    tier: str
    seconds: float
    confirm_ms: dict[str, float]
    delivery_ms: dict[str, float]


class Result(msgspec.Struct, frozen=True):
    """What was measured. `backbone_ratio` is bytes between cities with tiers, over those without.
    `network` says what delays and counts: "tun", or "proxies".
    """

    network: str
    messages: int
    lost: int
    repeated: int
    out_of_order: int
    differing: int
    backbone_direct: int
    backbone_tiers: int
    backbone_ratio: float
    cities: list[City]
    #: How many data centres were cut off.
    cut_off: int
    cuts: list[CutOff]
    links: list[LinkBytes]
    readings: list[Reading]
    #: Processes that did not end well when they were told to.
    failed: list[str]
    seconds: float
    examples: list[str]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        wrong = self.lost + self.repeated + self.out_of_order + self.differing
        return not wrong and not self.failed


class Topic:
    """What was sent to a topic, what readers were given, and what the core holds."""

    def __init__(self) -> None:
        """Begin with nothing."""
        #: By office.
        self.confirms: dict[str, list[Confirm]] = {}
        #: By city, then by reader.
        self.given: dict[str, dict[str, list[Row]]] = {}
        self.truth: list[tuple[int, int, int, bytes]] = []

    def confirmed(self, replies: Mapping[str, Reply]) -> None:
        """Add what offices have sent."""
        for name, reply in replies.items():
            self.confirms.setdefault(name, []).extend(reply.confirms)

    async def read(self, client: Client, topic: str) -> None:
        """Read what the core holds, in its order."""
        async with client.reader(topic, follow=False) as reader:
            async for one in reader:
                value = bytes(one.value).rstrip()
                self.truth.append((one.partition, one.offset, one.stamp, value))

    def wanted(self, city: str) -> int:
        """Return how many messages readers of a city are to be given."""
        tags = (city, EVERYBODY)
        sent = (one for some in self.confirms.values() for one in some)
        return sum(unpacked(one.value).tag in tags for one in sent)

    def judged(self) -> tuple[list[Reading], list[str]]:
        """Compare all with the core, which is compared with what was confirmed."""
        sent = [one.value.encode() for some in self.confirms.values() for one in some]
        core, examples = judge_core(sent, self.truth)
        readings = [core]
        for city, readers in self.given.items():
            tags = (city, EVERYBODY)
            truth = [row for row in self.truth if unpacked(row[3].decode()).tag in tags]
            for reader, rows in readers.items():
                given = [(one.partition, one.offset, one.stamp, one.value.encode()) for one in rows]
                found, wrong = judge(f"{city} at {reader}", given, truth)
                readings.append(found)
                examples += wrong
        return readings, examples


class Measuring:
    """All phases of one run."""

    def __init__(
        self, settings: Settings, network: Grid, company: Company, client: Client, tell: Tell
    ) -> None:  # fmt: skip
        """Begin with a core that runs."""
        self._settings = settings
        self._network = network
        self._company = company
        self._client = client
        self._tell = tell
        self.topics = {DIRECT: Topic(), TIERS: Topic()}
        self.bytes: dict[str, dict[tuple[str, str], int]] = {}
        self.cuts: list[CutOff] = []
        #: When the first data centre was cut off, in monotonic nanoseconds.
        self.calm_until_ns = 0

    async def run(self) -> None:
        """Run all phases. Raises `WeirError`."""
        await self._company.settle(self._client)
        for topic in (DIRECT, TIERS):
            await self._client.create_topic(topic, _PARTITIONS, order="total")
        core = [self._company.core.url]
        await self._phase(DIRECT, {one.city: core * 2 for one in _readers()})
        await self._all(dict.fromkeys(_readers(), Stop()))
        self._tell("starts 3 tandem and 6 access sets")
        await self._company.start_relays(self._client)
        await self._phase(TIERS, {
            one.city: [url for at in sites("access") if at.city == one.city
                       for url in self._company.urls(at)]
            for one in _readers()
        })  # fmt: skip
        self.calm_until_ns = time.monotonic_ns()
        for name in self._settings.cuts:
            self.cuts.append(await self._cut(name))
        await self._report(TIERS)

    async def _phase(self, topic: str, urls: Mapping[str, Sequence[str]]) -> None:
        """Write and read a topic; count the bytes of all links meanwhile."""
        self._tell(f"writes for {self._settings.seconds:g} s; readers are at the "
                   f"{'core' if topic == DIRECT else 'access sets'}")  # fmt: skip
        before = self._network.counts()
        await self._all({
            one: Read([*urls[one.city]], topic, [one.city, EVERYBODY], self._settings.readers)
            for one in _readers()
        })  # fmt: skip
        await self._write(topic, self._settings.seconds)
        await self._caught_up(topic)
        self.bytes[topic] = _difference(before, self._network.counts())
        if topic == DIRECT:
            await self._report(topic)

    async def _cut(self, name: str) -> CutOff:
        """Cut a data centre off while all write; return once all readers have caught up."""
        (site,) = (one for one in SITES if one.name == name)
        seconds = self._settings.down_s
        self._tell(f"cuts {name} off for {seconds:g} s")
        writing = asyncio.ensure_future(self._write(TIERS, _CALM_S + seconds + _CALM_S))
        try:
            await asyncio.sleep(_CALM_S)
            began = time.monotonic_ns()
            await asyncio.to_thread(self._network.isolate, name)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self._network.rejoin, name)
            await writing
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        await self._caught_up(TIERS)
        ended = began + round(seconds * 1e9)
        replies = await self._all(dict.fromkeys(_readers(), Report()))
        confirms = {
            one.city: _worst(
                (row.sent_ns, row.confirmed_ns)
                for row in self.topics[TIERS].confirms[one.name] if began <= row.sent_ns < ended
            )
            for one in sites("office")
        }  # fmt: skip
        deliveries = {
            one.city: _worst(
                (sent, row.given_ns)
                for rows in replies[one.name].given.values() for row in rows
                if began <= (sent := unpacked(row.value).sent_ns) < ended
            )
            for one in _readers()
        }  # fmt: skip
        return CutOff(name, site.tier, seconds, confirms, deliveries)

    async def _write(self, topic: str, seconds: float) -> None:
        """Let all offices publish; return once all is confirmed."""
        url, settings = self._company.core.url, self._settings
        cities = [one.city for one in _readers()]
        commands: dict[Site, Command] = {}
        for one in sites("office"):
            tags = [*cities, EVERYBODY] if one.city == "beijing" else [EVERYBODY]
            rate = settings.rate if one.city == "beijing" else settings.rate / 10
            commands[one] = Send(url, topic, tags, rate, seconds, settings.size)
        self.topics[topic].confirmed(await self._all(commands))

    async def _caught_up(self, topic: str) -> None:
        """Return once each reader was given all that was confirmed. Raises `CompanyFailed`."""
        found = await self._all({
            one: Await(self.topics[topic].wanted(one.city), _CAUGHT_UP_S) for one in _readers()
        })  # fmt: skip
        if late := [name for name, reply in found.items() if not reply.is_complete]:
            self._tell(f"after {_CAUGHT_UP_S:g} s, readers of {', '.join(late)} lack messages")

    async def _report(self, topic: str) -> None:
        """Fetch what readers were given, and what the core holds."""
        replies = await self._all(dict.fromkeys(_readers(), Report()))
        found = self.topics[topic]
        found.given = {one.city: replies[one.name].given for one in _readers()}
        await found.read(self._client, topic)

    async def _all(self, commands: Mapping[Site, Command]) -> dict[str, Reply]:
        """Ask offices at the same time; return their answers by their names."""
        offices = self._company.offices
        asking = [offices[one.name].ask(command) for one, command in commands.items()]
        replies = await asyncio.gather(*asking)
        return {one.name: reply for one, reply in zip(commands, replies, strict=True)}


def measure(settings: Settings, network: Grid, kind: str, folder: Path, tell: Tell) -> Result:
    """Run the company in a folder on a network. Raises `WeirError` where something does not start,
    or an office fails.
    """
    began = time.monotonic()
    company = Company(folder, network, settings.brokers, TIERS)
    failed: list[str] = []
    try:
        tell(f"starts a core of 3 sets with {settings.brokers} node(s) each")
        company.start_core()
        measuring = asyncio.run(_measured(settings, network, company, tell))
    finally:
        failed += company.close()
    return _result(measuring, kind, failed, time.monotonic() - began)


async def _measured(
    settings: Settings, network: Grid, company: Company, tell: Tell
) -> Measuring:  # fmt: skip
    async with connect(company.core.url, name="weir-world", request_timeout=REQUEST_S) as client:
        measuring = Measuring(settings, network, company, client, tell)
        await measuring.run()
        return measuring


def _readers() -> list[Site]:
    """Return the offices with readers."""
    return [one for one in sites("office") if one.city != "beijing"]


def _difference(
    before: Mapping[tuple[str, str], Count], after: Mapping[tuple[str, str], Count]
) -> dict[tuple[str, str], int]:
    return {pair: count.bytes - before[pair].bytes for pair, count in after.items()}


def _worst(spans: Iterable[tuple[int, int]]) -> float:
    """Return the longest of spans of nanoseconds, in ms."""
    return max(((end - begin) / _NS_PER_MS for begin, end in spans), default=0.0)


def times(found: Sequence[float]) -> Times:
    """Return what a list of milliseconds comes to."""
    if not found:
        raise CompanyFailed("nothing was measured")
    ordered = sorted(found)
    middle, late = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return Times(len(ordered), middle, late, ordered[-1])


def _city(one: Site, topics: Mapping[str, Topic], since_ns: int) -> City:
    """Return what a city saw while no data centre was cut off."""

    def delivery(topic: str) -> Times | None:
        readers = topics[topic].given.get(one.city)
        if readers is None:
            return None
        rows = [row for some in readers.values() for row in some]
        sent = [(unpacked(row.value).sent_ns, row.given_ns) for row in rows]
        return times([(end - at) / _NS_PER_MS for at, end in sent if at < since_ns])

    confirms = [row for topic in topics.values() for row in topic.confirms[one.name]]
    confirm = [
        (row.confirmed_ns - row.sent_ns) / _NS_PER_MS for row in confirms if row.sent_ns < since_ns
    ]
    return City(one.city, times(confirm), delivery(DIRECT), delivery(TIERS))


def _result(measuring: Measuring, kind: str, failed: list[str], seconds: float) -> Result:
    topics = measuring.topics
    judged = [topic.judged() for topic in topics.values()]
    readings = [one for found, _ in judged for one in found]
    direct, tiers = (measuring.bytes[topic] for topic in (DIRECT, TIERS))
    backbone = {
        topic: sum(size for pair, size in found.items() if is_backbone(*pair))
        for topic, found in measuring.bytes.items()
    }
    return Result(
        network=kind,
        messages=sum(len(topic.truth) for topic in topics.values()),
        lost=sum(one.lost for one in readings),
        repeated=sum(one.repeated for one in readings),
        out_of_order=sum(one.out_of_order for one in readings),
        differing=sum(one.differing for one in readings),
        backbone_direct=backbone[DIRECT],
        backbone_tiers=backbone[TIERS],
        backbone_ratio=backbone[TIERS] / backbone[DIRECT],
        cities=[_city(one, topics, measuring.calm_until_ns) for one in sites("office")],
        cut_off=len(measuring.cuts),
        cuts=measuring.cuts,
        links=[
            LinkBytes(*pair, direct[pair], tiers[pair])
            for pair in direct if direct[pair] or tiers[pair]
        ],
        readings=readings,
        failed=failed,
        seconds=seconds,
        examples=[one for _, some in judged for one in some][:_EXAMPLES_MAX],
    )  # fmt: skip
