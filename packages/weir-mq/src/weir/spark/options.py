"""The options of `format("weir")`: text from the user, checked once, then plain fields.

topic               `topic` or `namespace/topic`
topics              instead: several topics in one query, a JSON list of names, and of prefixes that
                    end with *, such as ["orders", "locks.*"]. All are cut at one barrier. A topic
                    that begins to match enters with its first message
url                 weir://[user@]host:port[,host2:port2], or weirs:// by TLS; or host and port
user                the user, unless the url names it. The password is no option, because Spark
                    shows options: WEIR_PASSWORD or WEIR_PASSWORD_FILE has it where tasks run
passwordFile        instead: a file of mode 0600 with it, on each machine that runs tasks
ca                  a file with the CAs of brokers, on each machine, unless the url names it
certificate         a file with the user's certificate, on each machine
key                 a file with the key of that
serverName          the name in the certificates of brokers, where they are dialled by another one
startingOffsets     earliest (default), latest, or {"0": 12, "1": 7}; a partition that is not
                    named begins at its earliest. Only a query without a checkpoint looks at it
startingTime        instead: messages that the broker stamped at this moment or later, such as
                    2026-01-31T12:00:00Z, or milliseconds since 1970
startingBarrier     instead: messages stamped above this barrier, so that it goes on where a query
                    with the same endingBarrier ended
endingOffsets       latest, or {"0": 90}: up to but not including; a partition that is not named is
                    read to its end. `read` takes the end as of its planning if none is given; a
                    stream never reads past an end, and ends there with trigger(availableNow=True)
endingTime          instead: messages stamped before this moment
endingBarrier       instead: messages stamped at or below this barrier
order               total: each micro-batch ends at a barrier, the next one at least, however many
                    rows that is: what lies before it is all that was stamped up to then, in all
                    partitions; partition: each ends by itself (default: as the topic has it)
keys                only messages with one of these keys: a JSON list such as
                    ["EWR", {"hex": "00ff"}, null]; text stands for its UTF-8, hex for any bytes,
                    null for no key
tags                only messages with one of these tags: a JSON list such as ["late", ""]; ""
                    stands for no tag
partitions          only these partitions, a JSON list: [0, 2]
columns             only these columns, in this order, a JSON list: ["offset", "value"]; what is not
                    named is not opened, so fewer columns are faster. Two are there only if they are
                    named: schema, and origin, the device that sent a message
maxRowsPerBatch     most messages in a micro-batch (default: all there are)
maxIdleWaitMs       how long a query that has read all waits at the broker for more before Spark
                    looks at its other sources (default 200; 0: not at all, and Spark asks again
                    every 10 ms; at most 10,000)
maxBytesPerBatch    about the most stored bytes in a micro-batch, as messages have on average
                    (default: all there are)
minRowsPerBatch     wait until so many messages are there for a micro-batch, or maxTriggerDelay is
                    over. The first one after a start waits for nothing, nor does trigger(once=True)
                    or trigger(availableNow=True)
maxTriggerDelay     longest that a message waits for minRowsPerBatch once it is seen, such as 30s or
                    5m (default 15m)
onDataLoss          fail (default): a query whose next messages were deleted by retention ends with
                    an error that names them; earliest: it continues with the earliest that are
                    there, and a row with a number in the column lost stands for each gap
maxBytesPerFetch    most bytes asked for at once (default 8 MiB)
readFrom            leader: tasks read from the node that leads a partition (default); nearest:
                    from the node that a task reaches soonest, if it holds the partition; url: from
                    the hosts in url alone, which pass on what they do not lead
minPartitions       split ranges until there are so many tasks (default: one a partition; those with
                    few messages share one)
maxRowsPerPartition most messages in one task
maxValueBytes       most bytes of one value (default 64 MiB; up to 1 GiB): larger ones, which lie in
                    chunks, end the query
largeValues         null: such a value is null instead (default: error)

A time or barrier bounds by *stamp*, the time that the broker gave a message, and not by the
`time` column, which is the producer's and has no order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from weir.client.arguments import duration
from weir.client.core.delivered_batches import LargeDelivered
from weir.errors import BadName, BadOption, BadRequest, ValueTooLarge
from weir.model.arrow import EVERY, SCHEMA
from weir.model.limits import FETCH_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX, VALUE_BYTES_LOADED_MAX
from weir.model.topic import check_order, full_name_of, split_name
from weir.order.clock import stamp_at
from weir.spark.admission import DELAY_DEFAULT, Admission
from weir.spark.login import NAMES as LOGIN_NAMES
from weir.spark.login import Hosts, hosts_of, refuse_secrets
from weir.spark.selection import Selection

ReadFrom = Literal["leader", "nearest", "url"]

#: Spelt as users write them; Spark compares option names without case, and so do we.
NAMES = (
    "topic",
    "topics",
    *LOGIN_NAMES,
    "startingOffsets",
    "startingTime",
    "startingBarrier",
    "endingOffsets",
    "endingTime",
    "endingBarrier",
    "order",
    "keys",
    "tags",
    "partitions",
    "columns",
    "maxRowsPerBatch",
    "maxIdleWaitMs",
    "maxBytesPerBatch",
    "minRowsPerBatch",
    "maxTriggerDelay",
    "onDataLoss",
    "maxBytesPerFetch",
    "readFrom",
    "minPartitions",
    "maxRowsPerPartition",
    "maxValueBytes",
    "largeValues",
)
#: What Spark's sources for Kafka and Delta call what has another name here.
_ELSEWHERE = {
    "subscribe": "topics",
    "subscribepattern": "topics",
    "kafka.bootstrap.servers": "url",
    "startingtimestamp": "startingTime",
    "endingtimestamp": "endingTime",
    "maxoffsetspertrigger": "maxRowsPerBatch",
    "minoffsetspertrigger": "minRowsPerBatch",
    "maxbytespertrigger": "maxBytesPerBatch",
    "failondataloss": "onDataLoss",
}
_ROWS_MAX = (1 << 63) - 1
#: How long a query with nothing new waits for it, unless it says otherwise; and at most.
IDLE_WAIT_MS = 200
_IDLE_WAIT_MS_MAX = 10_000
_STAMP_MAX = (1 << 63) - 2
#: No option leaves messages out.
EVERYTHING = Selection()
#: A micro-batch takes all that is there.
UNLIMITED = Admission()
#: What every topic has.
COLUMNS = tuple(SCHEMA.names)
_ANY_COLUMN = tuple(EVERY.names)
#: A record batch holds offsets of 32 bits.
VALUE_BYTES_MAX = 1 << 30


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


@dataclass(frozen=True, slots=True)
class LargeValues:
    """What a query does with values that lie in chunks: load up to so many bytes, else null."""

    bytes_max: int = VALUE_BYTES_LOADED_MAX
    null: bool = False

    def loads(self, part: LargeDelivered) -> bool:
        """Whether a value is to be loaded. Raises `ValueTooLarge`, or returns False for null."""
        size = part.references.size
        if size <= self.bytes_max:
            return True
        if self.null:
            return False
        raise ValueTooLarge(
            f"the value of {part.topic}/{part.partition} offset {part.offset} has {size:,} bytes, "
            f"over maxValueBytes={self.bytes_max:,}: raise that option, or set "
            "largeValues='null' to get null for it"
        )


LARGE_VALUES = LargeValues()


@dataclass(frozen=True, slots=True)
class Options:
    """What a query reads, from where, and in which portions; None means no limit."""

    topic: str
    hosts: Hosts
    starting: Bound = EARLIEST
    ending: Bound | None = None
    selection: Selection = EVERYTHING
    admission: Admission = UNLIMITED
    fetch_bytes_max: int = FETCH_BYTES_MAX
    partitions_min: int = 1
    partition_rows_max: int | None = None
    large: LargeValues = LARGE_VALUES
    order: str | None = None
    columns: tuple[str, ...] = COLUMNS
    idle_wait_ms: int = IDLE_WAIT_MS
    read_from: ReadFrom = "leader"
    over_gaps: bool = False
    #: Names, and prefixes with a * behind them; then `topic` is "".
    topics: tuple[str, ...] = ()

    @property
    def of(self) -> str:
        """What is read, for errors."""
        return self.topic or ", ".join(self.topics)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read the user's options, names in any case. Raises `BadOption`."""
        options = {name.lower(): str(value) for name, value in given.items()}
        known = {name.lower() for name in NAMES}
        if "pushdown" in options:
            raise BadOption(
                "format('weir') takes no filters over from Spark, which keeps one read plan for "
                "each loaded DataFrame, so one query's filter would reach the next: instead of "
                "pushdown give the load options keys, tags or partitions, such as "
                ".option('tags', '[\"late\"]')"
            )
        refuse_secrets(options)
        # A misspelt limit or start that is silently ignored would show only in production.
        if unknown := sorted(options.keys() - known):
            other = _ELSEWHERE.get(unknown[0])
            raise BadOption(
                f"format('weir') has no option {unknown[0]!r}: "
                + (f"use {other}" if other else f"it has {_list(NAMES)}")
            )
        topics = _topics(options)
        starting, ending = parse_starting(options), parse_ending(options)
        if topics:
            _check_several(options, starting, ending)
        return cls(
            topic="" if topics else _topic(options),
            hosts=hosts_of(options),
            starting=starting,
            ending=ending,
            selection=Selection.parse(options),
            admission=_admission(options),
            idle_wait_ms=_idle_wait(options),
            fetch_bytes_max=_number(options, "maxBytesPerFetch", FETCH_BYTES_MAX)
            or FETCH_BYTES_MAX,
            read_from=_read_from(options),
            partitions_min=_number(options, "minPartitions", PARTITIONS_PER_TOPIC_MAX) or 1,
            partition_rows_max=_number(options, "maxRowsPerPartition", _ROWS_MAX),
            large=_large(options),
            order=_order(options),
            columns=_columns(options),
            over_gaps=_choice(options, "onDataLoss", ("fail", "earliest")) == "earliest",
            topics=topics,
        )


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _topic(options: Mapping[str, str]) -> str:
    topic = options.get("topic")
    if topic is None:
        raise BadOption("format('weir') needs a topic: .option('topic', 'door-events')")
    try:
        split_name(topic)
    except BadName as error:
        raise BadOption(f"option topic: {error}") from None
    return topic


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("topics")
    if text is None:
        return ()
    if "topic" in options:
        raise BadOption("give either topic or topics, not both")
    try:
        given = json.loads(text)
        sound = isinstance(given, list) and bool(given)
        names = {_matching(name) for name in given} if sound else set()
    except (ValueError, TypeError, AttributeError):
        sound = False
    except BadName as error:
        raise BadOption(f"option topics: {error}, or a * at the end for a prefix") from None
    if not sound:
        raise BadOption(
            f"option topics is {text!r}: give a JSON list of names and prefixes such as "
            '["orders", "locks.*"]'
        )
    return tuple(sorted(names))


def _matching(name: str) -> str:
    """Return a full name, or a prefix of full names with a * behind it. Raises `BadName`."""
    if not name.endswith("*"):
        return full_name_of(*split_name(name))
    namespace, prefix = split_name(name.removesuffix("*") + "x")
    return full_name_of(namespace, prefix.removesuffix("x") + "*")


def _check_several(options: Mapping[str, str], starting: Bound, ending: Bound | None) -> None:
    for side, bound in (("starting", starting), ("ending", ending)):
        if isinstance(bound, Offsets):
            raise BadOption(
                f"{side}Offsets by partition is for one topic: with topics give earliest or "
                f"latest, {side}Time or {side}Barrier"
            )
    if "partitions" in options:
        raise BadOption("option partitions is for one topic, and topics may be several")


def _number(options: Mapping[str, str], name: str, most: int, least: int = 1) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise BadOption(f"option {name} is {text!r}: give a whole number from {least} to {most:,}")
    return int(text)


def _idle_wait(options: Mapping[str, str]) -> int:
    given = _number(options, "maxIdleWaitMs", _IDLE_WAIT_MS_MAX, least=0)
    return IDLE_WAIT_MS if given is None else given


def _read_from(options: Mapping[str, str]) -> ReadFrom:
    match _choice(options, "readFrom", ("leader", "nearest", "url")):
        case "nearest":
            return "nearest"
        case "url":
            return "url"
    return "leader"


def _large(options: Mapping[str, str]) -> LargeValues:
    text = _choice(options, "largeValues", ("error", "null"))
    most = _number(options, "maxValueBytes", VALUE_BYTES_MAX) or VALUE_BYTES_LOADED_MAX
    return LargeValues(most, text == "null")


def _choice(options: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return one of these words; the first if none is given."""
    text = options.get(name.lower(), words[0]).strip().lower()
    if text not in words:
        raise BadOption(f"option {name} is {text!r}: give {' or '.join(words)}")
    return text


def _admission(options: Mapping[str, str]) -> Admission:
    rows_max = _number(options, "maxRowsPerBatch", _ROWS_MAX)
    rows_min = _number(options, "minRowsPerBatch", _ROWS_MAX)
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise BadOption(
            f"option minRowsPerBatch is {rows_min:,}, and maxRowsPerBatch {rows_max:,}: no "
            "micro-batch has as many"
        )
    text = options.get("maxtriggerdelay")
    if text is not None and rows_min is None:
        raise BadOption("option maxTriggerDelay bounds how long minRowsPerBatch waits: give both")
    try:
        delay = DELAY_DEFAULT if text is None else duration("option maxTriggerDelay", text)
    except ValueError as error:
        raise BadOption(str(error)) from None
    return Admission(rows_max, _number(options, "maxBytesPerBatch", _ROWS_MAX), rows_min, delay)


def _order(options: Mapping[str, str]) -> str | None:
    text = options.get("order")
    if text is None:
        return None
    try:
        check_order(text.strip().lower())
    except BadRequest as error:
        raise BadOption(f"option {error}") from None
    return text.strip().lower()


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("columns")
    if text is None:
        return COLUMNS
    try:
        given = json.loads(text)
        sound = isinstance(given, list) and bool(given) and set(given) <= {*_ANY_COLUMN}
    except (ValueError, TypeError):
        sound = False
    if not sound or len(set(given)) != len(given):
        raise BadOption(
            f"option columns is {text!r}: give a JSON list of different names out of "
            f"{_list(_ANY_COLUMN)}"
        )
    return tuple(given)


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
