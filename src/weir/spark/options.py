"""The options of `format("weir")`: text from the user, checked once, then plain fields.

topic               required: `topic` or `namespace/topic`
url                 weir://host:port[,host2:port2]; or host and port
startingOffsets     earliest (default), latest, or {"0": 12, "1": 7}; a partition that is not
                    named begins at its earliest. Only a query without a checkpoint looks at it
maxRowsPerBatch     most messages in a micro-batch (default: all there are)
maxBytesPerFetch    most bytes asked for at once (default 8 MiB)
minPartitions       split ranges until there are so many tasks (default: one a partition)
maxRowsPerPartition most messages in one task
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from weir.client.url import PORT, parse_url
from weir.errors import BadName
from weir.model.limits import FETCH_BYTES_MAX, PARTITIONS_PER_TOPIC_MAX
from weir.model.topic import split_name
from weir.spark.errors import BadOption

StartingOffsets = Literal["earliest", "latest"] | dict[int, int]
Hosts = tuple[tuple[str, int], ...]

#: Spelt as users write them; Spark compares option names without case, and so do we.
NAMES = (
    "topic",
    "url",
    "host",
    "port",
    "startingOffsets",
    "maxRowsPerBatch",
    "maxBytesPerFetch",
    "minPartitions",
    "maxRowsPerPartition",
)
_ROWS_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Options:
    """What a query reads, from where, and in which portions; None means no limit."""

    topic: str
    hosts: Hosts
    starting: StartingOffsets = "earliest"
    batch_rows_max: int | None = None
    fetch_bytes_max: int = FETCH_BYTES_MAX
    partitions_min: int = 1
    partition_rows_max: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Read the user's options, names in any case. Raises `BadOption`."""
        options = {name.lower(): str(value) for name, value in given.items()}
        known = {name.lower() for name in NAMES}
        # A misspelt limit or start that is silently ignored would show only in production.
        if unknown := sorted(options.keys() - known):
            raise BadOption(f"format('weir') has no option {unknown[0]!r}: it has {_list(NAMES)}")
        return cls(
            topic=_topic(options),
            hosts=_hosts(options),
            starting=_starting(options.get("startingoffsets", "earliest")),
            batch_rows_max=_number(options, "maxRowsPerBatch", _ROWS_MAX),
            fetch_bytes_max=_number(options, "maxBytesPerFetch", FETCH_BYTES_MAX)
            or FETCH_BYTES_MAX,
            partitions_min=_number(options, "minPartitions", PARTITIONS_PER_TOPIC_MAX) or 1,
            partition_rows_max=_number(options, "maxRowsPerPartition", _ROWS_MAX),
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


def _starting(text: str) -> StartingOffsets:
    match text.strip().lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    try:
        given = json.loads(text)
        offsets = {int(partition): offset for partition, offset in given.items()}
    except (ValueError, AttributeError):
        offsets = None
    # bool is an int to isinstance, and true is no offset.
    if offsets is None or any(type(o) is not int or o < 0 for o in offsets.values()):
        raise BadOption(
            f"option startingOffsets is {text!r}: give earliest, latest, or offsets by partition "
            'such as {"0": 12, "1": 7}'
        )
    return offsets
