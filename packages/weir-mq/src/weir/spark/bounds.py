"""Where a query begins and ends, as its options say it: by offset, by time, or at a barrier.

A time or barrier bounds by *stamp*, the time that the broker gave a message, and not by the
`time` column, which is the producer's and has no order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from weir.model.stamp import stamp_at
from weir.spark.errors import BadOption

_STAMP_MAX = (1 << 63) - 2


@dataclass(frozen=True, slots=True)
class Earliest:
    """From the first message that is still there."""


@dataclass(frozen=True, slots=True)
class Latest:
    """From, or up to, the committed end as of now."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """From, or up to but not including, these offsets; the other partitions whole."""

    by_partition: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Stamped:
    """From, or up to but not including, the first message whose stamp is `stamp` or more."""

    stamp: int


Bound = Earliest | Latest | Offsets | Stamped
EARLIEST = Earliest()


def parse_starting(options: Mapping[str, str]) -> Bound:
    """Read where to begin; `options` has names in lower case. Raises `BadOption`."""
    return _parse(options, "starting") or EARLIEST


def parse_ending(options: Mapping[str, str]) -> Bound | None:
    """Read where to end, None if nobody says; names in lower case. Raises `BadOption`."""
    return _parse(options, "ending")


def _parse(options: Mapping[str, str], side: str) -> Bound | None:
    given = [kind for kind in ("Offsets", "Time", "Barrier") if (side + kind).lower() in options]
    if len(given) > 1:
        raise BadOption(f"give either {side}{given[0]} or {side}{given[1]}, not both")
    if not given:
        return None
    name = side + given[0]
    text = options[name.lower()].strip()
    match given[0]:
        case "Offsets":
            return _offsets(name, text)
        case "Time":
            return Stamped(stamp_at(_milliseconds(name, text)))
        case _:
            return Stamped(_barrier(name, text) + 1)


def _offsets(name: str, text: str) -> Bound:
    words: dict[str, Bound] = {"earliest": EARLIEST, "latest": Latest()}
    if (word := words.get(text.lower())) is not None:
        if name.startswith("ending") and text.lower() == "earliest":
            raise BadOption(f"option {name} is 'earliest': nothing lies before it")
        return word
    try:
        offsets = {int(partition): offset for partition, offset in json.loads(text).items()}
    except (ValueError, AttributeError):
        offsets = None
    # bool is an int to isinstance, and true is no offset.
    if offsets is None or any(type(o) is not int or o < 0 for o in offsets.values()):
        words_allowed = "latest" if name.startswith("ending") else "earliest, latest"
        raise BadOption(
            f"option {name} is {text!r}: give {words_allowed}, or offsets by partition "
            'such as {"0": 12, "1": 7}'
        )
    return Offsets(offsets)


def _milliseconds(name: str, text: str) -> int:
    """Return milliseconds since 1970, rounded up: no message before the moment is from it on."""
    if text.isascii() and text.isdigit() and int(text) <= _STAMP_MAX >> 16:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    # Without a zone it would mean another moment on each machine of a Spark cluster.
    if moment is None or moment.tzinfo is None or moment.timestamp() < 0:
        raise BadOption(
            f"option {name} is {text!r}: give a moment with its zone, such as "
            "2026-01-31T12:00:00Z, or milliseconds since 1970"
        )
    whole = int(moment.timestamp()) * 1_000
    return whole - (-moment.microsecond // 1_000)


def _barrier(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= _STAMP_MAX):
        raise BadOption(f"option {name} is {text!r}: give a stamp, as the column `stamp` has it")
    return int(text)
