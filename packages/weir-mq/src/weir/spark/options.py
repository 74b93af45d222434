"""The options of `format("weir")`: text from the user, checked once, then plain fields.

topic               required: `topic` or `namespace/topic`
url                 weir://host:port[,host2:port2]; or host and port
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
maxRowsPerBatch     most messages in a micro-batch (default: all there are)
maxBytesPerFetch    most bytes asked for at once (default 8 MiB)
minPartitions       split ranges until there are so many tasks (default: one a partition)
maxRowsPerPartition most messages in one task
maxValueBytes       most bytes of one value (default 64 MiB; up to 1 GiB): larger ones, which lie in
                    chunks, end the query
largeValues         null: such a value is null instead (default: error)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weir.client.core.url import PORT, parse_url
from weir.errors import BadName, BadRequest
from weir.model.limits import FETCH_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX, VALUE_BYTES_LOADED_MAX
from weir.model.topic import check_order, split_name
from weir.spark.bounds import EARLIEST, Bound, parse_ending, parse_starting
from weir.spark.errors import BadOption
from weir.spark.large_values import LARGE_VALUES, LargeValues
from weir.spark.selection import Selection

Hosts = tuple[tuple[str, int], ...]

#: Spelt as users write them; Spark compares option names without case, and so do we.
NAMES = (
    "topic",
    "url",
    "host",
    "port",
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
    "maxRowsPerBatch",
    "maxBytesPerFetch",
    "minPartitions",
    "maxRowsPerPartition",
    "maxValueBytes",
    "largeValues",
)
_ROWS_MAX = (1 << 63) - 1
#: No option leaves messages out.
EVERYTHING = Selection()
#: A record batch holds offsets of 32 bits.
VALUE_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class Options:
    """What a query reads, from where, and in which portions; None means no limit."""

    topic: str
    hosts: Hosts
    starting: Bound = EARLIEST
    ending: Bound | None = None
    selection: Selection = EVERYTHING
    batch_rows_max: int | None = None
    fetch_bytes_max: int = FETCH_BYTES_MAX
    partitions_min: int = 1
    partition_rows_max: int | None = None
    large: LargeValues = LARGE_VALUES
    order: str | None = None

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
        # A misspelt limit or start that is silently ignored would show only in production.
        if unknown := sorted(options.keys() - known):
            raise BadOption(f"format('weir') has no option {unknown[0]!r}: it has {_list(NAMES)}")
        return cls(
            topic=_topic(options),
            hosts=_hosts(options),
            starting=parse_starting(options),
            ending=parse_ending(options),
            selection=Selection.parse(options),
            batch_rows_max=_number(options, "maxRowsPerBatch", _ROWS_MAX),
            fetch_bytes_max=_number(options, "maxBytesPerFetch", FETCH_BYTES_MAX)
            or FETCH_BYTES_MAX,
            partitions_min=_number(options, "minPartitions", PARTITIONS_PER_TOPIC_MAX) or 1,
            partition_rows_max=_number(options, "maxRowsPerPartition", _ROWS_MAX),
            large=_large(options),
            order=_order(options),
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


def _hosts(options: Mapping[str, str]) -> Hosts:
    url = options.get("url")
    if url is not None and ("host" in options or "port" in options):
        raise BadOption("give either url or host and port, not both")
    if url is None:
        url = f"weir://{options.get('host', '127.0.0.1')}:{options.get('port', PORT)}"
    try:
        return tuple(parse_url(url))
    except ValueError as error:
        raise BadOption(str(error)) from None


def _number(options: Mapping[str, str], name: str, most: int) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
        raise BadOption(f"option {name} is {text!r}: give a whole number from 1 to {most:,}")
    return int(text)


def _large(options: Mapping[str, str]) -> LargeValues:
    text = options.get("largevalues", "error").strip().lower()
    if text not in ("error", "null"):
        raise BadOption(f"option largeValues is {text!r}: give error or null")
    most = _number(options, "maxValueBytes", VALUE_BYTES_MAX) or VALUE_BYTES_LOADED_MAX
    return LargeValues(most, text == "null")


def _order(options: Mapping[str, str]) -> str | None:
    text = options.get("order")
    if text is None:
        return None
    try:
        check_order(text.strip().lower())
    except BadRequest as error:
        raise BadOption(f"option {error}") from None
    return text.strip().lower()
