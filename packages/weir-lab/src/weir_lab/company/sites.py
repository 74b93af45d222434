"""The data centres of the company, and what the links between them are like.

Xiaoyan Yu et al. (跨域环境下的实时数据分发服务, see docs/BIBLIOGRAPHY.md) name the cities and the
carriers. Delays are drawn from distances, since the paper gives none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from weir_lab.network.links import Link

#: Degrees of latitude and longitude.
CITIES = {
    "beijing": (39.90, 116.40), "tianjin": (39.13, 117.20), "shanghai": (31.23, 121.47),
    "hangzhou": (30.27, 120.16), "guangzhou": (23.13, 113.26), "shenzhen": (22.54, 114.06),
}  # fmt: skip
#: Messages with this tag are for all cities; others have the name of one.
EVERYBODY = "all"
#: The place of the program that runs the company.
OPERATOR = "operator"
_EARTH_KM = 6_371.0
#: Light in glass, and cables that are longer than the straight line.
_KM_PER_MS = 200.0
_DETOUR = 1.5
_WITHIN_CITY_MS = 0.2
#: What it takes to go from one carrier's network to another one's.
_CROSSING_MS = 2.0
_CROSSING_LOSS = 0.0005
_JITTER = 0.03
_CITY_MBIT = 1_000.0
_BACKBONE_MBIT = 200.0


class Site(msgspec.Struct, frozen=True):
    """A data centre with one BrokerSet, or a company's office with clients."""

    name: str
    city: str
    carrier: str
    tier: str
    #: The id of its set; 0 for offices.
    number: int = 0
    #: Sets that it pulls from, the preferred one first.
    upper: tuple[str, ...] = ()
    #: What is kept of messages; nothing for the core and offices, which have all.
    tags: tuple[str, ...] = ()


def _sites() -> tuple[Site, ...]:
    carriers = ("telecom", "mobile", "unicom")
    core = [f"beijing-{carrier}" for carrier in carriers]
    tandem = ("beijing", "shanghai", "guangzhou")
    cities = ("tianjin", "hangzhou", "shenzhen")
    found = [
        Site(name, "beijing", carrier, "core", at)
        for at, (name, carrier) in enumerate(zip(core, carriers, strict=True), 1)
    ]
    for at, (city, carrier, below) in enumerate(zip(tandem, carriers, cities, strict=True)):
        own, *others = core[at:] + core[:at]
        name = f"{city}-{carrier}-tandem"
        upper, tags = (own, *others), (below, EVERYBODY)
        found.append(Site(name, city, carrier, "tandem", 4 + at, upper, tags))
        for second in (0, 1):
            access = Site(
                f"{below}-{carrier}-{second + 1}", below, carrier, "access",
                7 + 2 * at + second, (name, own), tags,
            )  # fmt: skip
            found.append(access)
        found.append(Site(f"{below}-office", below, carrier, "office"))
    found.append(Site("beijing-office", "beijing", "telecom", "office"))
    return tuple(found)


#: Three core sets, three tandem sets, six access sets, and the offices.
SITES = _sites()


def sites(tier: str) -> list[Site]:
    """Return the sites of a tier: "core", "tandem", "access" or "office"."""
    return [one for one in SITES if one.tier == tier]


def distance_km(one: str, other: str) -> float:
    """Return how far apart two cities are, on a great circle."""
    (north, east), (other_north, other_east) = (
        map(math.radians, CITIES[at]) for at in (one, other)
    )
    half = (
        math.sin((other_north - north) / 2) ** 2
        + math.cos(north) * math.cos(other_north) * math.sin((other_east - east) / 2) ** 2
    )
    return 2 * _EARTH_KM * math.asin(math.sqrt(half))


def link(one: Site, other: Site) -> Link:
    """Return what one direction between two sites is like."""
    delay, loss = _WITHIN_CITY_MS, 0.0
    delay += distance_km(one.city, other.city) * _DETOUR / _KM_PER_MS
    if one.carrier != other.carrier:
        delay, loss = delay + _CROSSING_MS, _CROSSING_LOSS
    rate = _CITY_MBIT if one.city == other.city else _BACKBONE_MBIT
    return Link(delay_ms=delay, jitter_ms=delay * _JITTER, loss=loss, rate_mbit=rate)


def links() -> dict[tuple[str, str], Link]:
    """Return all links by the names of their sites. The operator is near everything."""
    found = {
        (one.name, other.name): link(one, other) for one in SITES for other in SITES if one != other
    }
    for one in SITES:
        found[one.name, OPERATOR] = found[OPERATOR, one.name] = Link()
    return found


def is_backbone(one: str, other: str) -> bool:
    """Tell whether a link leads from one city to another one."""
    cities = {site.name: site.city for site in SITES}
    return OPERATOR not in (one, other) and cities[one] != cities[other]


def topology(nodes: dict[str, list[str]], topic: str) -> str:
    """Return the topology as a file has it, with the nodes of each set as `NUMBER=HOST:PORT`."""
    text = []
    for site in SITES:
        if site.tier == "office":
            continue
        lines = [
            "[[set]]", f"id = {site.number}", f'name = "{site.name}"', f'tier = "{site.tier}"',
            f'region = "{site.city}"', f'carrier = "{site.carrier}"',
            f"nodes = {_toml(nodes[site.name])}",
        ]  # fmt: skip
        if site.upper:
            lines.append(f"upper = {_toml(site.upper)}")
            lines.append(f"tags = {{ {_toml(topic)} = {_toml(site.tags)} }}")
        text.append("\n".join(lines))
    return "\n\n".join(text) + "\n"


def _toml(value: str | Sequence[str]) -> str:
    return msgspec.json.encode(value).decode()  # JSON strings and lists of them are TOML, too
