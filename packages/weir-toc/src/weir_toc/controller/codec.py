"""Entries and commands as JSON: in the controller's log, and in frames between it and the nodes.

Each is a list: the name of its class, then its fields in order. Last fields with their defaults are
left out, as earlier versions did not have them. A nested entry is such a list, a set of racks a
sorted list. All numbers are integers of 0 to 2^63 - 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import cast

from weir_toc.controller.entries import (
    Command,
    Completed,
    Decide,
    Decisions,
    Fail,
    Freeze,
    InputSilent,
    LinkJoined,
    NodeSilent,
    ProcessJoined,
    Recalled,
    Remove,
    SetRoutes,
)
from weir_toc.controller.lag import Lagging, Link, LinkReading, NodeReading
from weir_toc.controller.promises import Held, Promise, Wait
from weir_toc.controller.records import (
    Founded,
    Lapsed,
    Record,
    Registered,
    Removed,
    Report,
    Reported,
    Returned,
    SwitchStarted,
)
from weir_toc.errors import ControlError, InvalidTopology
from weir_toc.places import place_named
from weir_toc.topology import name_of_switch, switch_id

#: A longer name of a process or of a host is refused.
NAME_CHARACTERS_MAX = 255
#: So many ranges of stamps may be in one report.
RANGES_MAX = 500
_NUMBER_MAX = (1 << 63) - 1

_REPORTS = {one.__name__: one for one in (
    ProcessJoined, LinkJoined, InputSilent, Completed, Removed,
)}  # fmt: skip
_RECORDS = {one.__name__: one for one in (
    Founded, Registered, SwitchStarted, NodeSilent, Decide, Lapsed,
)}  # fmt: skip
_COMMANDS = {one.__name__: one for one in (Freeze, Remove)}


def encode_record(record: Record) -> bytes:
    """Return a record of the log as bytes."""
    return json.dumps(_listed(record), separators=(",", ":")).encode()


def decode_record(data: bytes) -> Record:
    """Return the record of these bytes. Raises ControlError for what is none."""
    try:
        row = json.loads(data)
    except ValueError as error:
        raise ControlError(f"a record that is no JSON: {error}") from error
    name, rest = _named(row)
    if name != Reported.__name__:
        return cast(Record, _made(_RECORDS, name, rest))
    if len(rest) != 4:
        raise ControlError(f"a report of {len(rest)} fields: 4 are due")
    node, incarnation, number = (_number(one) for one in rest[:3])
    return Reported(node, incarnation, number, report_from(rest[3]))


def reading_from(node: int, at: int, frame: Mapping[str, object]) -> NodeReading:
    """Return what a node read of its links. Raises ControlError for what is none."""
    rows = frame.get("links")
    if not isinstance(rows, list):
        raise ControlError("a reading of links has a list of them")
    links = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != len(LinkReading._fields):
            raise ControlError(f"a reading of a link has {len(LinkReading._fields)} numbers")
        # A barrier may be ahead of the clock of the node that read it.
        ages = row[1] if isinstance(row[1], int) and -_NUMBER_MAX < row[1] < 0 else _number(row[1])
        one = LinkReading(_number(row[0]), ages, _number(row[2]), _number(row[3]))
        links[one.neighbour] = one
    clock, late = _number(frame.get("clock")), _number(frame.get("late"))
    return NodeReading(node, at, clock, late, links)


def lagging_to(one: Lagging, names: Mapping[int, str]) -> dict[str, object]:
    """Return a lagging link as it is shown; `names` are those of processes."""

    def shown(link: Link) -> list[str]:
        return [_shown(node, names) for node in (link.neighbour, link.node)]

    return {
        "link": shown(one.link), "hop": shown(one.hop), "cause": one.cause.value,
        "behind_ms": round(one.behind / 1e6, 3), "since_ns": one.since, "over": one.is_over,
    }  # fmt: skip


def promise_to(one: Promise) -> list[int]:
    """Return what a process tells of its commit barrier as a list for JSON."""
    return [one.commit, one.age, one.wait.value, one.process]


def promise_from(row: object) -> Promise:
    """Return what a process tells of its commit barrier. Raises ControlError for what is none."""
    if not isinstance(row, list) or len(row) != len(Promise._fields):
        raise ControlError(f"a promise has {len(Promise._fields)} numbers")
    commit, age, wait, process = (_number(one) for one in row)
    if wait not in {one.value for one in Wait}:
        raise ControlError(f"{wait} is nothing that a process waits for")
    return Promise(commit, age, Wait(wait), process)


def held_to(one: Held, names: Mapping[int, str]) -> dict[str, object]:
    """Return who holds commit barriers back as it is shown; `names` are those of processes."""
    return {
        "process": _shown(one.process, names),
        "waits_for": _shown(one.waits_for, names) if one.waits_for else None,
        "cause": one.reason.value, "behind_ms": round(one.behind / 1e6, 3),
        "since_ns": one.since, "over": one.is_over,
    }  # fmt: skip


def alarm_to(
    one: Lagging | Held, names: Mapping[int, str]
) -> tuple[str, dict[str, object]]:  # fmt: skip
    """Return the name of an alarm, and it as it is shown."""
    return ("held", held_to(one, names)) if isinstance(one, Held) else (
        "lagging", lagging_to(one, names))  # fmt: skip


def _shown(node: int, names: Mapping[int, str]) -> str:
    if node >= switch_id("rack-0"):
        return name_of_switch(node)
    return names.get(node) or f"process {node}"


def report_to(report: Report) -> list[object]:
    """Return what a node reports as a list for JSON."""
    return _listed(report)


def report_from(row: object) -> Report:
    """Return what a node reports. Raises ControlError for what is no report."""
    name, rest = _named(row)
    if name == Recalled.__name__ and len(rest) == 3:
        return Recalled(_number(rest[0]), _number(rest[1]), _ranges(rest[2]))
    if name == Returned.__name__ and len(rest) == 3:
        senders = tuple(_number(one) for one in _listing(rest[2]))
        return Returned(_number(rest[0]), _number(rest[1]), senders)
    return cast(Report, _made(_REPORTS, name, rest))


def command_to(command: Command) -> list[object]:
    """Return a command as a list for JSON."""
    if isinstance(command, Fail):
        pairs = [list(pair) for pair in command.processes]
        return [Fail.__name__, command.to, command.failure, pairs]
    if isinstance(command, SetRoutes):
        routes = [[port, sorted(racks)] for port, racks in command.routes.items()]
        return [SetRoutes.__name__, command.switch, routes]
    return _listed(command)


def command_from(row: object) -> Command:
    """Return a command of the controller. Raises ControlError for what is none."""
    name, rest = _named(row)
    if name == Fail.__name__ and len(rest) == 3:
        pairs = tuple((_number(one), _number(stamp)) for one, stamp in _pairs(rest[2]))
        return Fail(_number(rest[0]), _number(rest[1]), pairs)
    if name == SetRoutes.__name__ and len(rest) == 2:
        routes = {
            _number(port): frozenset(_number(rack) for rack in _listing(racks))
            for port, racks in _pairs(rest[1])
        }
        return SetRoutes(_number(rest[0]), routes)
    return cast(Command, _made(_COMMANDS, name, rest))


def decisions_to(found: Decisions) -> dict[str, object]:
    """Return decisions as members of a frame."""
    return {"failed": [list(one) for one in found.failed],
            "recalled": [list(one) for one in found.recalled]}  # fmt: skip


def decisions_from(frame: Mapping[str, object]) -> Decisions:
    """Return the decisions in a frame. Raises ControlError if it has none."""
    failed = tuple((_number(one), _number(stamp)) for one, stamp in _pairs(frame.get("failed")))
    rows = [_listing(one) for one in _listing(frame.get("recalled"))]
    if any(len(one) != 3 for one in rows):
        raise ControlError("what was recalled is a sender with two stamps")
    recalled = tuple((_number(source), *_range((first, last))) for source, first, last in rows)
    return Decisions(failed, recalled)


def _ranges(value: object) -> tuple[tuple[int, int], ...]:
    found = tuple(_range(one) for one in _pairs(value))
    if len(found) > RANGES_MAX:
        raise ControlError(f"{len(found)} ranges of stamps: a report has {RANGES_MAX} at most")
    return found


def _range(pair: tuple[object, object]) -> tuple[int, int]:
    first, last = _number(pair[0]), _number(pair[1])
    if first > last:
        raise ControlError("a range of stamps ends before it begins")
    return first, last


def _listed(one: object) -> list[object]:
    known = fields(one)  # type: ignore[arg-type]
    values = [_plain(getattr(one, field.name)) for field in known]
    if isinstance(one, Reported):
        values[3] = _listed(one.report)
    while values and values[-1] == known[len(values) - 1].default:
        values.pop()
    return [type(one).__name__, *values]


def _plain(value: object) -> object:
    """Return tuples as lists, as JSON has them, and what is true or false as a number."""
    if isinstance(value, bool):
        return int(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _made(classes: Mapping[str, type], name: str, rest: list[object]) -> object:
    made = classes.get(name)
    if made is None:
        raise ControlError(f"{name!r} is unknown here: its sender has another version")
    due = fields(made)
    least = sum(field.default is MISSING for field in due)
    if not least <= len(rest) <= len(due):
        raise ControlError(f"a {name} of {len(rest)} fields: {len(due)} are due")
    checked = [
        _text(value)
        if field.type == "str"
        else _number(value) == 1
        if field.type == "bool"
        else _number(value)
        for field, value in zip(due, rest, strict=False)
    ]
    record = made(*checked)
    if isinstance(record, Founded):
        _check_place(record.place)
    return record


def _check_place(name: str) -> None:
    """Raise ControlError for a network whose kind of switches this version does not know."""
    try:
        place_named(name)
    except InvalidTopology as error:
        raise ControlError(f"{error}: its founder has another version") from error


def _named(row: object) -> tuple[str, list[object]]:
    listing = _listing(row)
    if not listing or not isinstance(listing[0], str):
        raise ControlError("a list that does not begin with a name")
    return listing[0], listing[1:]


def _listing(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ControlError(f"{str(value)[:80]!r} is no list")
    return value


def _pairs(value: object) -> list[tuple[object, object]]:
    found = [_listing(one) for one in _listing(value)]
    if any(len(one) != 2 for one in found):
        raise ControlError("a pair has two members")
    return [(one[0], one[1]) for one in found]


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _NUMBER_MAX:
        raise ControlError(f"{str(value)[:80]!r} is no number of 0 to 2^63 - 1")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARACTERS_MAX:
        raise ControlError(f"a name has 1 to {NAME_CHARACTERS_MAX} characters")
    return value
