"""The topology as a TOML file: what is read from it, and in which line something is wrong.

home = "beijing"

[[set]]
id = 1
name = "beijing"
tier = "core"
nodes = ["1=10.0.0.1:6800", "2=10.0.0.2:6800"]

[[set]]
id = 5
name = "tianjin"
tier = "access"
nodes = ["9=10.1.0.1:6800"]
upper = ["beijing"]
tags = { "default/orders" = ["tianjin", ""], "default/prices" = "*" }
caps = { hold_bytes = "10G", hold_hours = 24 }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from weir.errors import BadName
from weir.model.ids import LIMIT_MAX, NODE_MAX
from weir.model.limits import (
    HOLD_SECONDS_DEFAULT,
    SET_ID_MAX,
    SETS_MAX,
    TIER_LEVEL_MAX,
    TOPOLOGY_FILE_BYTES_MAX,
)
from weir.model.topic import split_name
from weir.topology.checks import Problem, check
from weir.topology.sets import Caps, SetNode, SetRow, Tier, TopicTags, Topology

_TIERS = get_args(Tier)
_KEYS = ("id", "name", "tier", "level", "region", "carrier", "nodes", "upper", "tags", "caps")
_CAPS = ("hold_bytes", "hold_hours", "disk_bytes")
_SIZE = re.compile(r"([0-9]{1,18})(?:([KMGT])(?:i?B)?)?")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NODE = re.compile(r"([0-9]{1,10})=(\[[^\]]{1,255}\]|[^:\[\]]{1,255}):([0-9]{1,5})")
_HEADER = re.compile(r"\s*\[\[\s*set\s*\]\]\s*(?:#.*)?")
_KEY = re.compile(r"\s*(?:\[\s*set\s*\.\s*)?\"?([A-Za-z_]+)\"?\s*[].=]")


class Found(NamedTuple):
    """What a file says, None where it cannot be read; what is wrong with it; where things stand."""

    topology: Topology | None
    problems: tuple[Problem, ...]
    lines: Lines


class Lines:
    """In which lines of a file its sets and their fields stand."""

    __slots__ = ("_of",)

    def __init__(self, text: str, sets: int) -> None:
        """Look for so many `sets` in `text`; if it seems to have another number, know none."""
        found: list[dict[str, int]] = []
        top: dict[str, int] = {}
        for number, line in enumerate(text.split("\n"), 1):
            if _HEADER.fullmatch(line):
                found.append({"": number})
            elif key := _KEY.match(line):
                (found[-1] if found else top).setdefault(key[1], number)
        self._of = {-1: top}
        if len(found) == sets:
            self._of |= dict(enumerate(found))

    def of(self, problem: Problem) -> int:
        """Return the line of a problem; 0 if it is not known."""
        known = self._of.get(problem.at, {})
        return known.get(problem.key, known.get("", 0))


class _Unfit(Exception):
    """A value is not what it should be; the text says what to write."""


def read(text: str) -> Found:
    """Read a file and check it. It is never raised for what somebody may have written there."""
    if len(text) > TOPOLOGY_FILE_BYTES_MAX:
        problem = Problem(f"the file is longer than {TOPOLOGY_FILE_BYTES_MAX:,} bytes")
        return Found(None, (problem,), Lines("", 0))
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return Found(None, (Problem(f"it is no TOML: {error}"),), Lines("", 0))
    tables = document.pop("set", None)
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        problem = Problem("it has no sets: begin each with a line [[set]]")
        return Found(None, (problem,), Lines(text, 0))
    if len(tables) > SETS_MAX:
        problem = Problem(f"{len(tables):,} sets: there can be {SETS_MAX:,} at most")
        return Found(None, (problem,), Lines("", 0))
    lines = Lines(text, len(tables))
    reading = _Reading(tables)
    home = reading.home(document)
    if reading.problems:
        return Found(None, tuple(reading.problems), lines)
    topology = Topology(home, tuple(reading.rows))
    return Found(topology, tuple(check(topology)), lines)


class _Reading:
    """Sets as they are read, and what is wrong with their values."""

    def __init__(self, tables: list[dict[str, Any]]) -> None:
        """Read the tables of all sets, and give those a level that have none."""
        self.problems: list[Problem] = []
        self._ids: dict[str, int] = {}
        for table in tables:
            if isinstance(name := table.get("name"), str):
                self._ids.setdefault(name, table["id"] if _is_id(table.get("id")) else 0)
        self.rows = [self._row(at, table) for at, table in enumerate(tables)]
        if not self.problems:
            self._fill_levels([at for at, one in enumerate(tables) if "level" not in one])

    def home(self, document: Mapping[str, Any]) -> int:
        """Return the id of the set that the top of the file names, or of the first core set."""
        for key in document:
            if key != "home":
                self.problems.append(
                    Problem(f"there is no {key!r}: write home, or [[set]]", -1, key)
                )
        name = document.get("home")
        if name is None:
            return next((one.id for one in self.rows if one.tier == "core"), 0)
        if not isinstance(name, str) or name not in self._ids:
            self.problems.append(Problem(f"home is {name!r}: name a core set", -1, "home"))
            return 0
        return self._ids[name]

    def _row(self, at: int, table: Mapping[str, Any]) -> SetRow:
        for key in table:
            if key not in _KEYS:
                text = f"a set has no {key!r}: there are {', '.join(_KEYS)}"
                self.problems.append(Problem(text, at, key))

        def field(key: str, read: Callable[[Any], Any], default: Any = None) -> Any:
            if key not in table:
                if default is not None:
                    return default
                text = f"it has no {key}: each set has id, name and tier"
                self.problems.append(Problem(text, at))
                return None
            try:
                return read(table[key])
            except _Unfit as error:
                self.problems.append(Problem(f"{key} {error}", at, key))
                return default

        tags = field("tags", _tags, ()) if "tags" in table else None
        row = (
            field("id", _id),
            field("name", _word),
            field("tier", _tier),
            field("level", _level, 0),
            field("region", _word, ""),
            field("carrier", _word, ""),
            field("nodes", _nodes, ()),
            tags,
            field("caps", _caps, Caps()),
            field("upper", self._upper, ()),
        )
        if any(value is None for value in row[:3]):
            return SetRow(0, "", "core")
        try:
            return msgspec.convert(row, SetRow)
        except msgspec.ValidationError as error:
            self.problems.append(Problem(f"it has a value that is too long: {error}", at))
            return SetRow(0, "", "core")

    def _upper(self, value: Any) -> tuple[int, ...]:
        found = []
        for name in _texts(value, 'names of sets, as in ["beijing"]'):
            if name not in self._ids:
                raise _Unfit(f"names {name!r}, and there is no set of that name")
            found.append(self._ids[name])
        return tuple(found)

    def _fill_levels(self, without: list[int]) -> None:
        """Give sets without a level the one behind the last of their uppers.

        In a cycle they stay at 0: what is wrong with it is found by the checks.
        """
        places = {one.id: at for at, one in enumerate(self.rows)}
        left = {at for at in without if self.rows[at].tier != "core"}
        while left:
            ready = {
                at for at in left if not any(places.get(id) in left for id in self.rows[at].upper)
            }
            for at in ready:
                above = (self.rows[places[id]].level for id in self.rows[at].upper if id in places)
                level = min(1 + max(above, default=0), TIER_LEVEL_MAX)
                self.rows[at] = msgspec.structs.replace(self.rows[at], level=level)
            left -= ready
            if not ready:
                return


# -- values ---------------------------------------------------------------------------------------


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= SET_ID_MAX


def _id(value: Any) -> int:
    if not _is_id(value):
        raise _Unfit(f"is {value!r}: give a number from 0 to {SET_ID_MAX:,}")
    return int(value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise _Unfit(f'is {value!r}: give it in quotes, as in "beijing"')
    return value


def _tier(value: Any) -> str:
    if value not in _TIERS:
        raise _Unfit(f"is {value!r}: there are {', '.join(_TIERS)}")
    return str(value)


def _level(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= TIER_LEVEL_MAX:
        raise _Unfit(f"is {value!r}: give a number from 0 to {TIER_LEVEL_MAX}")
    return value


def _texts(value: Any, like: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _Unfit(f"is no list of {like}")
    return value


def _nodes(value: Any) -> tuple[SetNode, ...]:
    found = []
    for text in _texts(value, 'nodes, as in ["1=10.0.0.1:6800"]'):
        parts = _NODE.fullmatch(text)
        if parts is None:
            raise _Unfit(f"has {text!r}: write NUMBER=HOST:PORT, as in 1=10.0.0.1:6800")
        number, port = int(parts[1]), int(parts[3])
        if not (1 <= number <= NODE_MAX and 1 <= port <= 65_535):
            raise _Unfit(f"has {text!r}: nodes are numbered from 1, and ports go to 65535")
        found.append(SetNode(number, parts[2].strip("[]"), port))
    return tuple(found)


def _tags(value: Any) -> tuple[TopicTags, ...]:
    if not isinstance(value, dict):
        raise _Unfit('is no table of topics, as in { "default/orders" = ["tianjin"] }')
    found = []
    for topic, tags in value.items():
        if tags == "*":
            kept = None
        elif isinstance(tags, list) and tags and all(isinstance(one, str) for one in tags):
            kept = tuple(tags)
        else:
            raise _Unfit(f'of topic {topic}: give a list of tags ("" for none), or "*" for all')
        try:
            found.append(TopicTags("/".join(split_name(topic)), kept))
        except BadName as error:
            raise _Unfit(f"has a {error}") from None
    return tuple(found)


def _caps(value: Any) -> Caps:
    if not isinstance(value, dict):
        raise _Unfit('is no table, as in { hold_bytes = "10G", hold_hours = 24 }')
    for key in value:
        if key not in _CAPS:
            raise _Unfit(f"has no {key!r}: there are {', '.join(_CAPS)}")
    hours = value.get("hold_hours", HOLD_SECONDS_DEFAULT // 3600)
    if type(hours) is not int or not 0 <= hours <= 24 * 365:
        raise _Unfit(f"has hold_hours = {hours!r}: give a number from 0 to 8760")
    hold, disk = (_size(key, value.get(key, 0)) for key in ("hold_bytes", "disk_bytes"))
    return Caps(hold, hours * 3600, disk)


def _size(key: str, value: Any) -> int:
    if type(value) is int and 0 <= value <= LIMIT_MAX:
        return value
    parts = _SIZE.fullmatch(value) if isinstance(value, str) else None
    found = int(parts[1]) * _UNITS[parts[2] or ""] if parts else -1
    if not 0 <= found <= LIMIT_MAX:
        raise _Unfit(f'has {key} = {value!r}: give bytes, such as 5000 or "10G"')
    return found
