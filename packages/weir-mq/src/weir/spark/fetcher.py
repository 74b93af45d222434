"""From a range of offsets to Arrow record batches: fetched in portions, checked, never copied.

Every batch is checked against its CRC and hash, and the range must arrive whole and in order; what
is missing is an error, because fewer rows would be a wrong answer that nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from weir.client.core.delivered_batches import (
    Assembly,
    Delivered,
    LargeDelivered,
    check_covered,
    deliver,
)
from weir.errors import (
    BadBatch,
    Disconnected,
    NotLeader,
    OffsetOutOfRange,
    RangeLost,
    Refused,
    UnknownTopic,
)
from weir.model.arrow import record_batch
from weir.model.ids import Address
from weir.model.limits import MIB
from weir.protocol.client import messages as m
from weir.spark import planning
from weir.spark.blocking_client import (
    ANSWER_TIMEOUT,
    BlockingClient,
    ask,
    begin,
    led_first,
    nearest,
    toward,
)
from weir.spark.login import Hosts
from weir.spark.options import (
    COLUMNS,
    EVERYTHING,
    LARGE_VALUES,
    LargeValues,
    Options,
    ReadFrom,
)
from weir.spark.planning import Cut, Range
from weir.spark.selection import Selection

#: Handing a record batch to Spark costs the same whatever is in it: smaller ones are combined.
COMBINED_ROWS_MIN = 16_384
#: ... unless they are big already. A combined column must also stay far below 2 GiB of data.
COMBINED_BYTES_MIN = 4 * MIB
#: Asked for at first, to learn how large messages are, and beyond what is then expected.
_SPARE_BYTES = 1 * MIB
#: How long a replica may wait for what it has not applied yet, and be asked again, in seconds.
_REPLICA_WAIT_MS = 300
_REPLICA_PATIENCE = 1.0
#: Of one reply with chunks of a value; a single chunk may be larger.
_CHUNKS_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Source:
    """Where a partition is served: broker, topic, and the address of its leader when planned."""

    hosts: Hosts
    topic: str
    address: Address
    large: LargeValues = LARGE_VALUES
    #: Which replica is read: see the option readFrom.
    read_from: ReadFrom = "leader"
    #: Of the history that ends with this lineage of the partition it is to be read; -1: of any.
    lineage: int = -1


@dataclass(frozen=True, slots=True)
class Portion:
    """The work of one task: a range, and where it is to be had, or was until it was `lost`."""

    source: Source
    range: Range
    lost: bool = False


def portions(options: Options, info: m.TopicInfo, begin: Cut, behind: Cut) -> list[Portion]:
    """Return what reads [begin, behind), in the portions that the options ask for; and one for each
    gap before it.
    """
    gaps = planning.gaps(behind)
    parts = planning.ranges(begin, behind, options.partitions_min, options.partition_rows_max)

    def source(partition: int) -> Source:
        place, lineage = info.addresses[partition], behind.lineages.get(partition, -1)
        return Source(
            options.hosts, options.topic, place, options.large, options.read_from, lineage
        )

    return [
        Portion(source(part.partition), part, number < len(gaps))
        for number, part in enumerate([*gaps, *parts])
    ]


def record_batches(
    portion: Portion,
    fetch_bytes_max: int,
    selection: Selection = EVERYTHING,
    columns: tuple[str, ...] = COLUMNS,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted messages of a portion in offset order; `columns` of
    `weir.model.arrow.SCHEMA`.

    Raises `RangeLost` unless every offset of it arrives, once.
    """
    return combined(_opened(portion.source, portion.range, fetch_bytes_max, selection, columns))


def combined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass large record batches on as they are; join neighbours that are small (one copy)."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for batch in batches:
            small.append(batch)
            rows += batch.num_rows
            size += batch.get_total_buffer_size()  # `nbytes` takes as long as all checks together
            if rows >= COMBINED_ROWS_MIN or size >= COMBINED_BYTES_MIN:
                yield _joined(small)
                small, rows, size = [], 0, 0
    except RangeLost:  # a query may go on behind the gap, and what lies before it counts
        if small:
            yield _joined(small)
        raise
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _opened(
    source: Source,
    part: Range,
    fetch_bytes_max: int,
    selection: Selection,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    leader = _Leader(source, part.partition, selection, columns)
    at = part.first
    rows = size = 0
    max_bytes = min(_SPARE_BYTES, fetch_bytes_max)
    while at < part.behind:
        found, at = leader.fetch(at, part.behind, max_bytes)
        for delivered in found:
            rows += delivered.batch.header.count
            size += delivered.batch.header.total_size
        # A short range of a long topic must not cost the broker a full portion.
        expected = (part.behind - at) * size // rows if rows else 0
        max_bytes = min(expected + _SPARE_BYTES, fetch_bytes_max)
        if at < part.behind:  # it is on its way while Spark takes these
            leader.begin(at, max_bytes)
        for delivered in found:
            if not selection.filters_rows:
                yield leader.opened(delivered, columns)
            elif selection.wants(delivered.batch):
                wanted = leader.wanted(delivered)
                if wanted.num_rows:
                    yield wanted


class _Leader:
    """The leader of one partition, asked again where it is when it has moved."""

    def __init__(
        self, source: Source, partition: int, selection: Selection, columns: tuple[str, ...]
    ) -> None:
        self._source = source
        self._partition = partition
        self._address = source.address
        #: Where to dial, the leader first, once that was asked; and whether, and where, a replica
        #: is read from.
        self._hosts = source.hosts
        self._near: Hosts | None = None
        self._is_found = False
        self._selection = selection
        self._columns = columns
        #: What is opened to find the wanted rows: columns that the user did not ask for, too.
        self._looked_at = (*columns, *(one for one in selection.columns if one not in columns))

    def begin(self, first: int, max_bytes: int) -> None:
        """Send the request ahead that `fetch` is to make next."""
        is_near = self._near is not None
        wait_ms = _REPLICA_WAIT_MS if is_near else 0
        request = m.Fetch(
            self._address, first, max_bytes, wait_ms, is_near, True, self._selection.asked,
            self._source.lineage,
        )  # fmt: skip
        begin(self._near or self._hosts, request)

    def fetch(self, first: int, behind: int, max_bytes: int) -> tuple[list[Delivered], int]:
        """Return checked batches from `first` on, none of it at or past `behind`, and the offset up
        to which they are all there is: above `first`.
        """
        if not self._is_found:
            self._is_found = True
            if self._source.read_from != "url":
                self._hosts = toward(self._source.hosts, self._address)
            if self._source.read_from == "nearest":
                self._near = nearest(self._source.hosts)
        if self._near is not None:
            # A replica that lags, or cannot be read, is left to those who have more time.
            with suppress(Refused, Disconnected, BadBatch, RangeLost):
                return self._fetch(self._near, first, behind, max_bytes, _REPLICA_PATIENCE)
            self._near = None
        return self._fetch(self._hosts, first, behind, max_bytes, ANSWER_TIMEOUT)

    def _fetch(
        self, hosts: Hosts, first: int, behind: int, max_bytes: int, patience: float
    ) -> tuple[list[Delivered], int]:
        empty: list[tuple[int, int]] = []
        is_near, tags = hosts is self._near, self._selection.asked
        lineage = self._source.lineage
        wait_ms = _REPLICA_WAIT_MS if is_near else 0

        def question(client: BlockingClient) -> list[Delivered]:
            try:
                fetched = client.fetch(
                    self._address, first, max_bytes, wait_ms, is_near, tags, lineage
                )
                if 0 <= lineage < fetched.lineage:
                    # A later one has begun since it was planned: below its end, all has to be of
                    # both. Asked there, the broker says so, or where the later one began.
                    client.fetch(self._address, behind, 1, 0, is_near, (), lineage)
            except NotLeader:
                self._find(client)
                raise
            end = min(fetched.next_offset, behind)
            empty[:] = sorted((*fetched.voids, *fetched.skipped))
            found = deliver(
                fetched.batches,
                self._address.group,
                self._source.topic,
                self._partition,
                first,
                end,
            )
            check_covered(fetched, found, max(end, first), tags)
            return found

        try:
            delivered = ask(hosts, question, patience)
        except OffsetOutOfRange as error:
            fork = self._fork(hosts, behind)
            if fork is not None:
                raise self._forked(first, behind, fork) from error
            raise self._lost(
                first, behind, f"{error}; the nearest is {error.detail:,}", error.detail
            ) from error
        expected = first
        for part in delivered:
            expected = _past(empty, expected)
            if part.offset != expected:
                raise self._lost(expected, part.offset, "the broker left them out")
            expected = part.next_offset
        expected = min(_past(empty, expected), behind)
        if expected == first:
            raise self._lost(first, behind, "the broker has nothing there")
        return delivered, expected

    def opened(self, part: Delivered, columns: tuple[str, ...]) -> pa.RecordBatch:
        """Return messages as Arrow, a large value fetched if the query loads it."""
        value = None
        if (
            isinstance(part, LargeDelivered)
            and "value" in columns
            and self._source.large.loads(part)
        ):
            value = ask(self._hosts, lambda client: self._value(client, part))
        return record_batch(
            part.batch, part.topic, part.partition, part.skip, len(part), value, columns
        )

    def wanted(self, part: Delivered) -> pa.RecordBatch:
        """Return the rows of `part` that pass; the value of a row that does not is not fetched."""
        if isinstance(part, LargeDelivered):
            row = self._selection.filter(self.opened(part, self._selection.columns))
            if not row.num_rows:
                return row.slice(0, 0)
        return self._selection.filter(self.opened(part, self._looked_at)).select([*self._columns])

    def _value(self, client: BlockingClient, part: LargeDelivered) -> bytes:
        try:
            return load(client, self._address, part)
        except NotLeader:
            self._find(client)
            raise

    def _find(self, client: BlockingClient) -> None:
        """Ask where the partition is served now. Raises `UnknownTopic`."""
        info = client.describe(self._source.topic)
        if len(info.addresses) <= self._partition:
            info = client.await_partitions(self._source.topic, info, self._partition + 1)
        if len(info.addresses) <= self._partition:
            raise UnknownTopic(f"{self._source.topic} has no partition {self._partition} any more")
        self._address = info.addresses[self._partition]
        if self._source.read_from != "url":
            self._hosts = led_first(client, self._source.hosts, self._address)

    def _fork(self, hosts: Hosts, behind: int) -> int | None:
        """Return where a later lineage than that of a range began, if that lies before its end."""
        lineage, is_near = self._source.lineage, hosts is self._near

        def question(client: BlockingClient) -> int | None:
            try:
                client.fetch(self._address, behind, 1, 0, is_near, (), lineage)
            except OffsetOutOfRange as error:
                fork = error.detail
                if fork < behind:  # else retention has deleted all of it
                    there = client.fetch(self._address, fork, 1, 0, is_near)
                    return fork if there.lineage > lineage else None
            return None

        with suppress(Refused):  # the first refusal says what it is then
            return ask(hosts, question) if lineage >= 0 else None
        return None

    def _forked(self, first: int, behind: int, fork: int) -> OffsetOutOfRange:
        place = f"{self._source.topic}/{self._partition}"
        return OffsetOutOfRange(
            f"messages {first:,} to {behind - 1:,} of {place} were planned in lineage "
            f"{self._source.lineage}, and a later one began at {fork:,}, when a core set was "
            "promoted: other messages have these offsets now. To read those, begin again with a "
            f"new checkpointLocation and startingOffsets, with {fork} for partition "
            f"{self._partition} and those of the checkpoint for the rest",
            fork,
        )

    def _lost(self, first: int, behind: int, why: str, nearest: int = 0) -> RangeLost:
        again = min(nearest, behind) if nearest > first else 0
        return RangeLost(
            f"messages {first:,} to {behind - 1:,} of {self._source.topic}/{self._partition} are "
            f"gone ({why}): they are past retention, or the broker is another one. To go on "
            "without messages that retention deleted, set .option('onDataLoss', 'earliest')",
            first if again else 0,
            again,
        )


def _past(empty: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the first offset from `offset` on that holds something, by runs that rise."""
    for first, behind in empty:
        if first <= offset < behind:
            offset = behind
    return offset


def load(client: BlockingClient, address: Address, part: LargeDelivered) -> bytes:
    """Return a value, fetched and checked chunk by chunk. Raises what the client does."""
    assembly = Assembly(part.references, address.group)
    whole = bytearray()
    while (wanted := assembly.wanted()) is not None:
        reply = client.request(m.FetchChunks(address, *wanted, _CHUNKS_BYTES))
        assert isinstance(reply, m.FetchedChunks)  # decoded by the opcode of the request
        pieces = assembly.opened(reply.batches)
        assembly.took(pieces)
        for piece in pieces:
            whole += piece
    return bytes(whole)
