"""Where a reader begins and ends: what people write, as what can be asked of a partition.

    "earliest"   the first message that is still there
    "latest"     behind the last one
    "last"       the last message of each partition; `last(n)`: the last n of each
    "-1h"        stamped within the last hour; any duration with a minus
    datetime     stamped at that time or later; without a zone it is local time, as Python has it
    at(...)      the same, from text or seconds
    {0: 17}      by partition, an offset, as `Reader.positions` gives it

A time is compared with a message's stamp, which is its leader's, to the millisecond.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from weir.client.duration import seconds
from weir.errors import BadRequest
from weir.model.stamp import STAMP_MAX, milliseconds_of, stamp_at
from weir.wire.messages import PositionsReply

_WORDS = '"earliest", "latest", "last", "-1h", a datetime, weir.at(...), weir.last(n)'


@dataclass(frozen=True, slots=True)
class At:
    """The first message of each partition that is stamped `stamp` or later."""

    stamp: int

    def __post_init__(self) -> None:
        """Raise `BadRequest` for what no stamp can be."""
        if not 0 <= self.stamp <= STAMP_MAX:
            raise BadRequest(f"{self.stamp} is no stamp: give a time from 1970 on")


@dataclass(frozen=True, slots=True)
class Last:
    """The last `count` messages of each partition; fewer where there are fewer."""

    count: int = 1

    def __post_init__(self) -> None:
        """Raise `BadRequest` below 1."""
        if self.count < 1:
            raise BadRequest(
                f"last({self.count}): give 1 or more; start='latest' begins behind all"
            )


Start = str | datetime | At | Last | Mapping[int, int]
Until = str | datetime | At | Mapping[int, int]


def at(time: datetime | str | float, now: Callable[[], float] = clock.time) -> At:
    """Return "stamped at this time or later" for `start=` and `until=` of a reader.

    `time`: a datetime, "2026-11-22T10:00" (ISO 8601), "-1h" (ago), or seconds since 1970.
    """
    if isinstance(time, str):
        time = _moment(time, now)
    elif isinstance(time, datetime):
        time = time.timestamp()
    # By way of whole microseconds: a float of milliseconds may lie just below its own number.
    return At(stamp_at(round(time * 1_000_000) // 1_000))


def last(count: int) -> Last:
    """Return "the last `count` messages of each partition" for `start=` of a reader."""
    return Last(count)


def _moment(text: str, now: Callable[[], float]) -> float:
    try:
        if text.startswith("-"):
            return now() - seconds(text[1:])
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise BadRequest(
            f'{text!r} is no time: write it as in "2026-11-22T10:00", "2026-11-22T10:00+01:00" '
            'or "-1h"'
        ) from None


@dataclass(frozen=True, slots=True)
class Begin:
    """A checked `start=`: asked with `stamp`, it says where a partition begins."""

    word: str = "earliest"
    stamp: int = 0
    count: int = 0
    offsets: Mapping[int, int] | None = None

    def offset(self, partition: int, reply: PositionsReply) -> int:
        """Return where a partition begins, by what the broker said of it for `stamp`."""
        if self.offsets is not None and partition in self.offsets:
            return self.offsets[partition]
        if self.word == "latest":
            return reply.end
        if self.word == "last":
            return max(reply.start, reply.end - self.count)
        return reply.at if self.stamp else reply.start


@dataclass(frozen=True, slots=True)
class End:
    """A checked `until=`: offsets that are not read any more, or the stamp that is not."""

    stamp: int = STAMP_MAX
    offsets: Mapping[int, int] | None = None

    def offset(self, partition: int, reply: PositionsReply, follow: bool) -> int:
        """Return the offset that a partition ends at."""
        wanted = (self.offsets or {}).get(partition)
        if wanted is None:
            return reply.end
        return wanted if follow else min(wanted, reply.end)


def begin_of(start: Start, now: Callable[[], float] = clock.time) -> Begin:
    """Return what `start` means. Raises `BadRequest` naming what can be given."""
    match start:
        case "earliest":
            return Begin()
        case "latest":
            return Begin("latest")
        case "last":
            return Begin("last", count=1)
        case Last(count):
            return Begin("last", count=count)
        case At(stamp):
            return Begin(stamp=stamp)
        case datetime():
            return Begin(stamp=at(start).stamp)
        case str() if start.startswith("-"):
            return Begin(stamp=at(start, now).stamp)
        case Mapping():
            return Begin(offsets=_offsets("start", start))
    raise BadRequest(f"start={start!r}: give {_WORDS}, or {{partition: offset}}")


def end_of(until: Until, now: Callable[[], float] = clock.time) -> End:
    """Return what `until` means. Raises `BadRequest`, for a time ahead too: see there."""
    if isinstance(until, Mapping):
        return End(offsets=_offsets("until", until))
    if isinstance(until, str | datetime):
        until = at(until, now)
    if not isinstance(until, At):
        raise BadRequest(f"until={until!r}: give a time, or {{partition: offset}}")
    if milliseconds_of(until.stamp) > now() * 1_000:
        raise BadRequest(
            "until= is a time ahead: nobody can say yet what will be stamped before it. Give a "
            "time that has passed, or offsets, or follow and stop by yourself"
        )
    return End(stamp=until.stamp)


def _offsets(name: str, given: Mapping[int, int]) -> Mapping[int, int]:
    for partition, offset in given.items():
        if (
            not (isinstance(partition, int) and isinstance(offset, int))
            or min(partition, offset) < 0
        ):
            raise BadRequest(
                f"{name}={dict(given)!r}: give {{partition: offset}} in whole numbers from 0 on "
                "(JSON makes strings of the keys: turn them back with int)"
            )
    return dict(given)
