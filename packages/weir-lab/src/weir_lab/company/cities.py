"""How many bytes go from the core to cities whose readers read at a relay, or at the core itself.

A core of one node is written to; each city is a place of its own on an emulated network, with one
access relay and readers that all want what is for their city and for everybody. First they read at
the core, then the same messages are sent once more and read at the relay. Bytes are counted on the
links between the core and the cities: packets in both directions, with all that is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from weir.client.client import Client, connect
from weir.testing.nodes import READY, Berth, NodeSet, Patient, RelayProcess, free_ports
from weir_lab.bench.bounds import check_bounds
from weir_lab.bench.faults.chaos.relay_tree import raise_level
from weir_lab.company.nodes import CompanyFailed, Grid, OfficeProcess
from weir_lab.company.office import (
    REQUEST_S,
    VALUE_BYTES_MIN,
    Await,
    Read,
    Report,
    Send,
    Stop,
    unpacked,
)
from weir_lab.company.run import Times, Topic, times
from weir_lab.company.sites import EVERYBODY, OPERATOR
from weir_lab.network.links import Link

#: One topic for readers at the core, and one for those at relays.
DIRECT, TIERS = "direct", "tiers"
CORE = "core"
_PARTITIONS = 3
_CAUGHT_UP_S = 120.0
#: Between the core and a city.
_BACKBONE = Link(delay_ms=10, jitter_ms=0.3, rate_mbit=200)
_NEAR = Link(delay_ms=0.1)
_NS_PER_MS = 1e6
Tell = Callable[[str], None]


class Settings(msgspec.Struct, frozen=True):
    """So many cities with `readers` each; `rate` messages a second of `size` bytes, of which each
    city wants two of `cities` + 1.
    """

    cities: int = 3
    readers: int = 20
    rate: int = 200
    seconds: int = 20
    size: int = 1_000
    folder: str | None = None

    def check(self) -> None:
        """Raise `ValueError` for what cannot be measured."""
        check_bounds(
            cities=(self.cities, 1, 20), readers=(self.readers, 1, 200),
            rate=(self.rate, self.cities + 1, 10_000), seconds=(self.seconds, 2, 600),
            size=(self.size, VALUE_BYTES_MIN, 100_000),
        )  # fmt: skip


class Side(msgspec.Struct, frozen=True):
    """What came of readers at one tier. `moved` is bytes of packets between the core and cities;
    `matching` is bytes of values that readers of one reader a city were to be given.
    """

    moved: int
    matching: int
    delivery: Times


class Result(msgspec.Struct, frozen=True):
    """What was measured. `ratio` is what moved with relays, over what moved without."""

    cities: int
    readers: int
    messages: int
    ratio: float
    direct: Side
    relays: Side
    lost: int
    repeated: int
    out_of_order: int
    differing: int
    examples: list[str]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.lost + self.repeated + self.out_of_order + self.differing


def places(settings: Settings) -> list[str]:
    """Return the places that the network needs, that of this process first."""
    return [OPERATOR, CORE, *_cities(settings)]


def links(settings: Settings) -> dict[tuple[str, str], Link]:
    """Return the links that the network needs."""
    found = {(OPERATOR, CORE): _NEAR, (CORE, OPERATOR): _NEAR}
    for city in _cities(settings):
        found[CORE, city] = found[city, CORE] = _BACKBONE
    return found


def measure(settings: Settings, network: Grid, folder: Path, tell: Tell) -> Result:
    """Measure on a network of such places and links. Raises `ValueError`, and `WeirError` where
    processes do not start.
    """
    settings.check()
    at = Berth(network.address(CORE), network.before(CORE))
    given = {**READY, "WEIR__ACCESS__INSECURE": "true"}
    core = NodeSet(folder / "core", 1, 1, berths=[at], settings=given)
    core.listen(1, network.listen(CORE, core.port))
    with ExitStack() as stack:
        stack.callback(core.stop)
        core.start(Patient())
        offices = {}
        for name in (CORE, *_cities(settings)):
            log = folder / f"{name}-office.log"
            offices[name] = OfficeProcess(name, network.before(name), log)
            stack.callback(offices[name].close)
        relays = {city: _relay(core.url, network, folder, city) for city in _cities(settings)}
        for relay in relays.values():
            stack.callback(relay.kill)
        return asyncio.run(_measured(settings, network, core, offices, relays, tell))


def _cities(settings: Settings) -> list[str]:
    return [f"city-{number}" for number in range(1, settings.cities + 1)]


def _relay(core: str, network: Grid, folder: Path, city: str) -> RelayProcess:
    at = Berth(network.address(city), network.before(city))
    (port,) = free_ports(1)
    options = ("--topics", TIERS, "--tags", f"{city},{EVERYBODY}", "--insecure")
    number = 1 + int(city.rpartition("-")[2])
    listens = network.listen(city, port)
    return RelayProcess(
        core, folder / f"relay-{city}", port, *options, number=number, at=at, listens=listens
    )


async def _measured(
    settings: Settings, network: Grid, core: NodeSet, offices: Mapping[str, OfficeProcess],
    relays: Mapping[str, RelayProcess], tell: Tell,
) -> Result:  # fmt: skip
    found: dict[str, Topic] = {}
    sides: dict[str, Side] = {}
    async with connect(core.url, name="weir-bench", request_timeout=REQUEST_S) as client:
        await raise_level(client)
        for topic in (DIRECT, TIERS):
            await client.create_topic(topic, _PARTITIONS, order="total")
        for topic in (DIRECT, TIERS):
            urls = dict.fromkeys(relays, core.url)
            if topic == TIERS:
                tell(f"starts {len(relays)} relays")
                await asyncio.gather(*(asyncio.to_thread(one.start) for one in relays.values()))
                urls = {city: relay.url for city, relay in relays.items()}
            tell(f"writes for {settings.seconds} s; readers are at the "
                 f"{'core' if topic == DIRECT else 'relays'}")  # fmt: skip
            one = _Phase(settings, network, offices, core.url)
            found[topic], moved = await one.run(client, topic, urls)
            sides[topic] = _side(settings, found[topic], moved)
    judged = [topic.judged() for topic in found.values()]
    readings = [one for some, _ in judged for one in some]
    return Result(
        cities=settings.cities,
        readers=settings.readers,
        messages=len(found[TIERS].truth),
        ratio=sides[TIERS].moved / sides[DIRECT].moved,
        direct=sides[DIRECT],
        relays=sides[TIERS],
        lost=sum(one.lost for one in readings),
        repeated=sum(one.repeated for one in readings),
        out_of_order=sum(one.out_of_order for one in readings),
        differing=sum(one.differing for one in readings),
        examples=[one for _, some in judged for one in some][:10],
    )


class _Phase:
    """One topic that is written and read."""

    def __init__(
        self, settings: Settings, network: Grid, offices: Mapping[str, OfficeProcess], core: str
    ) -> None:  # fmt: skip
        self._settings = settings
        self._network = network
        self._offices = offices
        self._core = core

    async def run(
        self, client: Client, topic: str, urls: Mapping[str, str]
    ) -> tuple[Topic, int]:  # fmt: skip
        """Write the topic while readers read at these addresses; return what came of it, and the
        bytes that moved between the core and cities.
        """
        settings, offices, found = self._settings, self._offices, Topic()
        before = self._moved()
        await asyncio.gather(*(
            offices[city].ask(Read([url], topic, [city, EVERYBODY], settings.readers))
            for city, url in urls.items()
        ))  # fmt: skip
        tags = [*urls, EVERYBODY]
        sending = Send(
            self._core, topic, tags, settings.rate, settings.seconds, settings.size
        )  # fmt: skip
        found.confirmed({CORE: await offices[CORE].ask(sending)})
        waiting = [
            offices[city].ask(Await(found.wanted(city), _CAUGHT_UP_S)) for city in urls
        ]  # fmt: skip
        if not all(one.is_complete for one in await asyncio.gather(*waiting)):
            raise CompanyFailed(f"after {_CAUGHT_UP_S:g} s, readers lack messages of {topic}")
        moved = self._moved() - before
        for city in urls:
            found.given[city] = (await offices[city].ask(Report())).given
            await offices[city].ask(Stop())
        await found.read(client, topic)
        return found, moved

    def _moved(self) -> int:
        counts = self._network.counts()
        return sum(one.bytes for pair, one in counts.items() if OPERATOR not in pair)


def _side(settings: Settings, found: Topic, moved: int) -> Side:
    rows: Sequence[tuple[str, int]] = [
        (row.value, row.given_ns)
        for readers in found.given.values() for some in readers.values() for row in some
    ]  # fmt: skip
    matching = sum(found.wanted(city) for city in found.given) * settings.size
    delivery = times([(given - unpacked(value).sent_ns) / _NS_PER_MS for value, given in rows])
    return Side(moved, matching, delivery)
