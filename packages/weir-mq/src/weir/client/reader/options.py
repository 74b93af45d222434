"""What to read, from where to where, and in which order: what people write, checked.

    "earliest"   the first message that is still there
    "latest"     behind the last one
    "last"       the last message of each partition; `last(n)`: the last n of each. With `key=` or
                 `tag=` only messages that pass count, and with one key the last of that key
    "-1h"        stamped within the last hour; any duration with a minus
    datetime     stamped at that time or later; without a zone it is local time, as Python has it
    at(...)      the same, from text or seconds
    {0: 17}      by partition, an offset, as `Reader.positions` gives it
    {0: (17, 0)} the same with the lineage in which all below was read, as `Reader.checkpoint` does

A time is compared with a message's stamp, which is its leader's, to the millisecond. So what is
"ago", and what lies ahead, is told by the broker's clock, not by this machine's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from weir.client.arguments import ReadFrom, check_choice, key_bytes, whole_number
from weir.client.core.delivered_batches import Pick
from weir.client.core.retries import seconds
from weir.errors import BadRequest
from weir.model.ids import LINEAGE_MAX
from weir.model.limits import FETCH_BYTES_MAX, MAX_AHEAD_MS, MIB, VALUE_BYTES_LOADED_MAX
from weir.model.topic import check_order
from weir.order.clock import STAMP_MAX, milliseconds_of, stamp_at
from weir.protocol.client.messages import PositionsReply

_WORDS = '"earliest", "latest", "last", "-1h", a datetime, weir.at(...), weir.last(n)'

#: What of a reader has one order: see `Client.reader`.
ReadingOrder = Literal["partition", "total", "best-effort"]
BEST_EFFORT: Final = "best-effort"
#: An interval in which a leader that is well tells something new, in seconds, and for how long at
#: most an order of best effort waits for one that does not: a busy core is not a dead one.
_INTERVAL = 0.05
SILENT_AFTER = 10 * _INTERVAL


class At(msgspec.Struct, frozen=True):
    """The first message of each partition that is stamped `stamp` or later."""

    stamp: int

    def __post_init__(self) -> None:
        """Raise `BadRequest` for what no stamp can be."""
        if not 0 <= self.stamp <= STAMP_MAX:
            raise BadRequest(f"{self.stamp} is no stamp: give a time from 1970 on")


class Ago(msgspec.Struct, frozen=True):
    """The first message that was stamped within so many milliseconds, by the broker's clock."""

    milliseconds: int


class Last(msgspec.Struct, frozen=True):
    """The last `count` messages of each partition; fewer where there are fewer."""

    count: int = 1

    def __post_init__(self) -> None:
        """Raise `BadRequest` below 1."""
        if self.count < 1:
            raise BadRequest(
                f"last({self.count}): give 1 or more; start='latest' begins behind all"
            )


#: By partition an offset; or an offset and the lineage of the partition in which all below it was
#: read, -1 if that is not known.
Positions = Mapping[int, int] | Mapping[int, tuple[int, int]] | Mapping[int, int | tuple[int, int]]
Start = str | datetime | At | Ago | Last | Positions
Until = str | datetime | At | Ago | Mapping[int, int]


def at(time: datetime | str | float) -> At | Ago:
    """Return "stamped at this time or later" for `start=` and `until=` of a reader.

    `time`: a datetime, "2026-11-22T10:00" (ISO 8601), "-1h" (ago, as of when reading begins), or
    seconds since 1970. Without a zone a time is local, as Python has it.
    """
    if isinstance(time, str):
        moment = _moment(time)
        if isinstance(moment, Ago):
            return moment
        time = moment
    elif isinstance(time, datetime):
        time = time.timestamp()
    # By way of whole microseconds: a float of milliseconds may lie just below its own number.
    return At(stamp_at(round(time * 1_000_000) // 1_000))


def last(count: int) -> Last:
    """Return "the last `count` messages of each partition" for `start=` of a reader."""
    return Last(count)


def _ago(text: str) -> Ago:
    try:
        return Ago(round(seconds(text[1:]) * 1_000))
    except ValueError as error:
        raise BadRequest(f'{text!r} is no time as in "-1h": {error}') from None


def _moment(text: str) -> float | Ago:
    try:
        if text.startswith("-"):
            return _ago(text)
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise BadRequest(
            f'{text!r} is no time: write it as in "2026-11-22T10:00", "2026-11-22T10:00+01:00" '
            'or "-1h"'
        ) from None


class Begin(msgspec.Struct, frozen=True):
    """A checked `start=`: asked with `stamp`, it says where a partition begins."""

    word: str = "earliest"
    stamp: int = 0
    count: int = 0
    offsets: Mapping[int, int] | None = None
    ago: Ago | None = None
    #: By partition, the lineage in which all below the offset was read, as far as it is known.
    lineages: Mapping[int, int] = msgspec.field(default_factory=dict)

    @property
    def needs_clock(self) -> bool:
        """Whether it means something only once it is `settled`."""
        return self.ago is not None

    def settled(self, now_ms: int) -> Begin:
        """Return it as of the broker's clock, which says `now_ms`."""
        if self.ago is None:
            return self
        return replace(self, stamp=_stamp_of(self.ago, now_ms), ago=None)

    def offset(self, partition: int, reply: PositionsReply) -> int:
        """Return where a partition begins, by what the broker said of it for `stamp`."""
        if self.offsets is not None and partition in self.offsets:
            return self.offsets[partition]
        if self.word == "latest":
            return reply.end
        if self.word == "last":
            return max(reply.start, reply.end - self.count)
        return reply.at if self.stamp else reply.start


class End(msgspec.Struct, frozen=True):
    """A checked `until=`: offsets that are not read any more, or the stamp that is not."""

    stamp: int = STAMP_MAX
    offsets: Mapping[int, int] | None = None
    ago: Ago | None = None

    @property
    def needs_clock(self) -> bool:
        """Whether it means something only once it is `settled`."""
        return self.stamp < STAMP_MAX or self.ago is not None

    def settled(self, now_ms: int) -> End:
        """Return it as of the broker's clock. Raises `BadRequest` for a time ahead of that.

        As far as a leader stamps ahead of its clock if asked to, it may be: clocks differ.
        """
        if self.ago is not None:
            return replace(self, stamp=_stamp_of(self.ago, now_ms), ago=None)
        if self.stamp < STAMP_MAX and milliseconds_of(self.stamp) > now_ms + MAX_AHEAD_MS:
            raise BadRequest(
                "until= is a time ahead of the broker's clock: no broker knows yet which messages "
                "will be stamped before it. Give a time that has passed, or offsets, or follow and "
                "stop by yourself"
            )
        return self

    def offset(self, partition: int, reply: PositionsReply, follow: bool) -> int:
        """Return the offset that a partition ends at."""
        wanted = (self.offsets or {}).get(partition)
        if wanted is None:
            return reply.end
        return wanted if follow else min(wanted, reply.end)


def begin_of(start: Start) -> Begin:
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
        case Ago():
            return Begin(ago=start)
        case datetime():
            return begin_of(at(start))
        case str() if start.startswith("-"):
            return begin_of(at(start))
        case Mapping():
            pairs = {p: at for p, at in start.items() if not isinstance(at, int)}
            _check_pairs(start, pairs)
            offsets = {p: at if isinstance(at, int) else at[0] for p, at in start.items()}
            known = {p: lineage for p, (_, lineage) in pairs.items() if lineage >= 0}
            return Begin(offsets=_checked_offsets("start", offsets), lineages=known)
    raise BadRequest(f"start={start!r}: give {_WORDS}, or {{partition: offset}}")


def cluster_begin_of(start: Start) -> Begin:
    """Return the same for a cluster, which begins at offsets: `BadRequest` for lineages."""
    begin = begin_of(start)
    if begin.lineages:
        raise BadRequest(
            f"start={start!r}: a cluster begins at offsets: give {{partition: offset}}"
        )
    return begin


def end_of(until: Until) -> End:
    """Return what `until` means. Raises `BadRequest` naming what can be given."""
    if isinstance(until, Mapping):
        return End(offsets=_checked_offsets("until", until))
    if isinstance(until, str | datetime):
        until = at(until)
    if isinstance(until, Ago):
        return End(ago=until)
    if not isinstance(until, At):
        raise BadRequest(f"until={until!r}: give a time, or {{partition: offset}}")
    return End(stamp=until.stamp)


def _stamp_of(ago: Ago, now_ms: int) -> int:
    return stamp_at(max(now_ms - ago.milliseconds, 0))


def _check_pairs(given: Positions, pairs: Mapping[int, tuple[int, int]]) -> None:
    """Raise `BadRequest` for what is no offset with a lineage; JSON makes lists of pairs."""
    for pair in pairs.values():
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not all(isinstance(number, int) for number in pair)
            or not -1 <= pair[1] <= LINEAGE_MAX
        ):
            raise BadRequest(
                f"start={dict(given)!r}: give {{partition: offset}} in whole numbers from 0 on, or "
                "{partition: (offset, lineage)} as `Reader.checkpoint` does, with a lineage of -1 "
                f"to {LINEAGE_MAX}"
            )


def _checked_offsets(name: str, given: Mapping[int, int]) -> Mapping[int, int]:
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


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to read: see `Client.reader`."""

    start: Start = "earliest"
    partitions: Sequence[int] | None = None
    max_bytes: int = 4 * MIB
    follow: bool = True
    until: Until | None = None
    key: bytes | str | Sequence[bytes | str] | None = None
    tag: str | Sequence[str] | None = None
    #: A larger value, which lies in chunks, is not loaded: its message streams it.
    value_bytes_max: int = VALUE_BYTES_LOADED_MAX
    #: What has one order: each "partition", all together ("total"), or None: as the topic says.
    order: ReadingOrder | None = None
    read_from: ReadFrom = "leader"

    def check(self) -> None:
        """Raise `BadRequest` for options that cannot work."""
        whole_number("max_bytes", self.max_bytes, 1, FETCH_BYTES_MAX)
        whole_number("value_bytes_max", self.value_bytes_max, 0)
        if self.partitions is not None and not self.partitions:
            raise BadRequest("partitions=[]: name at least one, or leave it out for all")
        numbers = [] if self.partitions is None else self.partitions
        if not isinstance(numbers, Collection) or not all(
            isinstance(number, int) and number >= 0 for number in numbers
        ):
            raise BadRequest(f"partitions={numbers!r}: give a list of numbers from 0 on")
        if self.order is not None and self.order != BEST_EFFORT:
            check_order(self.order)
        check_choice("read_from", self.read_from, ReadFrom)

    def pick(self, begin: Begin, end: End | None) -> Pick:
        """Return which messages are wanted. Raises `BadRequest`."""
        keys = [self.key] if isinstance(self.key, bytes | str) else self.key
        tags = [self.tag] if isinstance(self.tag, str) else self.tag
        for name, wanted in (("key", keys), ("tag", tags)):
            if not isinstance(wanted, Collection | None):
                raise BadRequest(f"{name}={wanted!r}: give one, or a list of them")
        return Pick(
            None if keys is None else map(key_bytes, keys),
            tags,
            begin.stamp,
            STAMP_MAX if end is None else end.stamp,
        )
