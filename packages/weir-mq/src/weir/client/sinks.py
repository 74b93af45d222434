"""Sinks: batches of a query's result, staged by many writers and published once (docs/adr/0075).

    sink = w.sink("nightly")
    writer = sink.writer(7)
    await writer.write("report", record_batch)
    await sink.publish(7, await writer.finish())

What was published last of a query is remembered, so the same batch adds nothing a second time.

A writer gathers rows until batches are large, cuts them by partition, and stages them in runs: one
for each partition, with a number that is drawn at random, so that no other attempt has the same. A
few batches are under way at a time; what was not answered is sent again, and recognized by its
number. No reader sees a run before the sink has published it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from weir.client.arguments import whole_number
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.core.batcher import arrow_rows
from weir.client.scattering import ProducerId, Scatterings
from weir.errors import (
    BadChecksum,
    BadRequest,
    BatchPublished,
    PartitionEnded,
    Refused,
    SequenceGap,
    StagedRunGone,
    TooLarge,
    UnknownTopic,
    WeirError,
)
from weir.model.batch import stored_header
from weir.model.batch_builder import encode
from weir.model.columns import Publication, Scattered, StagedRun, chained, is_large
from weir.model.ids import Address, acks_part, batch_part, group_of, topic_of
from weir.model.limits import (
    BATCH_BYTES_DEFAULT,
    BATCH_BYTES_MAX,
    MIB,
    NAME_CHARACTERS_MAX,
    PUBLICATION_BYTES_MAX,
    PUBLICATION_PARTS_MAX,
    STAGED_RUNS_MAX,
    TOPICS_TOGETHER_MAX,
)
from weir.protocol.client import order as o
from weir.protocol.client import sinks as s

if TYPE_CHECKING:
    from weir.model.arrow import Rows

#: Each staged batch is an entry of the log, so batches are large.
BATCH_BYTES = BATCH_BYTES_DEFAULT
#: Rows are gathered until partitions have so many bytes each, a little less than a batch holds; but
#: of so many partitions at most.
_FILL_BYTES = BATCH_BYTES * 7 // 8
_FILL_PARTITIONS = 48
#: What is gathered for all topics, and what is sent and not answered.
_GATHERED_BYTES_MAX = 64 * MIB
_SENT_BYTES_MAX = 8 * MIB
#: How often a batch is sent again that came before the one before it, or changed on the way.
_TRIES = 8
_AGAIN_AFTER = 0.05
_NUMBER_BITS = 63


class StagedPart(NamedTuple):
    """A run that was staged: small, and what the publication needs to name it."""

    topic: str
    partition: int
    group: int
    run: StagedRun


class _Run(msgspec.Struct):
    """The run of a writer in one partition, and what was sent last of it."""

    topic: str
    places: Places
    partition: int
    number: int
    batches: int = 0
    messages: int = 0
    hash: int = 0
    last: asyncio.Task[None] | None = None


class _Gathered(msgspec.Struct):
    """Rows for one topic that are not sent: with the partition of each, -1 where any will do."""

    places: Places
    turn: Iterator[int]
    parts: list[tuple[Rows, Any]] = msgspec.field(default_factory=list)
    size: int = 0
    spread: int = 1


class SinkWriter:
    """Stages rows of one batch of a query's result; several may, each in another process.

    Nothing of it is ever seen unless `Sink.publish` is given what `finish` returns.
    """

    def __init__(
        self, network: NetworkClient, shared: Scatterings, query: str, batch_id: int, schema: int
    ) -> None:
        """Have nothing; see `Sink.writer`."""
        self._network = network
        self._shared = shared
        self._query = query
        self._batch_id = batch_id
        self._schema = schema
        self._gathered: dict[str, _Gathered] = {}
        #: By group.
        self._runs: dict[int, _Run] = {}
        self._sending: dict[asyncio.Task[None], int] = {}
        self._sent_bytes = 0
        self._rows = 0
        self._error: BaseException | None = None

    async def write(self, topic: str, data: Any, *, partition: Any = None) -> None:
        """Take a pyarrow record batch or table; return once there is room for more.

        Columns by name, as `Producer.publish_arrow` takes them. `partition` is a number, or an
        Arrow array with a number or null for each row; None and null: the partition of the key,
        else each in turn. Raises `BadRequest`, `TooLarge` for a row that no batch holds,
        `UnknownTopic`, `LevelTooLow`, and `StagedRunGone`, `PartitionEnded` and `Disconnected`:
        then the batch is to be staged again, by another writer.
        """
        self._check()
        for rows in arrow_rows(data):
            self._check_sizes(topic, rows)
            gathered = await self._topic(topic)
            chosen = await _chosen(gathered.places, topic, rows, partition)
            for first, behind, size in rows.cuts(_GATHERED_BYTES_MAX // 2):
                await self._gather(
                    topic, rows.slice(first, behind), chosen[first:behind], size, partition is None
                )
            self._rows += len(rows)
        self._check()

    async def finish(self) -> list[StagedPart]:
        """Send the rest; return the runs once all of them are durable: none without rows.

        Raises as `write`.
        """
        for topic in self._gathered:
            await self._flush(topic)
        while self._sending:
            await asyncio.wait(self._sending)
        self._check()
        found = [
            StagedPart(
                run.topic,
                run.partition,
                group,
                StagedRun(run.number, run.batches, run.messages, run.hash),
            )
            for group, run in self._runs.items()
        ]
        return sorted(found, key=lambda one: (one.topic, one.partition))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_sizes(self, topic: str, rows: Rows) -> None:
        sizes = rows.sizes()
        widest = int(sizes.argmax())
        welcome = self._network.welcome
        most = welcome.batch_bytes_max if welcome else BATCH_BYTES_MAX
        if is_large(int(sizes[widest]), most):
            raise TooLarge(
                f"row {self._rows + widest:,} for topic {topic} takes {int(sizes[widest]):,} "
                f"bytes, and a batch holds {most:,}: a sink cannot write it, so nothing of batch "
                f"{self._batch_id} of query {self._query} was published. Leave it out, or publish "
                "it by a producer",
                most,
            )

    async def _topic(self, topic: str) -> _Gathered:
        found = self._gathered.get(topic)
        if found is None:
            places = await self._shared.places(topic)
            begin = self._network.random.randrange(len(places))
            found = self._gathered[topic] = _Gathered(places, count(begin))
        return found

    async def _gather(
        self, topic: str, rows: Rows, chosen: Any, size: int, is_by_key: bool
    ) -> None:
        gathered = self._gathered[topic]
        if gathered.parts and gathered.parts[0][0].columns != rows.columns:
            await self._flush(topic)
        while (total := sum(one.size for one in self._gathered.values())) and (
            total + size > _GATHERED_BYTES_MAX
        ):
            await self._flush(max(self._gathered, key=lambda one: self._gathered[one].size))
        gathered.parts.append((rows, chosen))
        gathered.size += size
        if not is_by_key or rows.keys is not None:
            gathered.spread = min(len(gathered.places), _FILL_PARTITIONS)
        if gathered.size >= gathered.spread * _FILL_BYTES:
            await self._flush(topic)

    async def _flush(self, topic: str) -> None:
        """Send what is gathered for a topic, a batch of at most about 1 MiB after the other."""
        gathered = self._gathered[topic]
        if not gathered.parts:
            return
        rows, chosen = _joined(gathered.parts)
        gathered.parts, gathered.size = [], 0
        places = gathered.places
        taking = [number for number in range(len(places)) if number not in places.closed]
        for number, some in rows.parted(chosen):
            for first, behind, _ in some.cuts(BATCH_BYTES):
                partition = number if number >= 0 else taking[next(gathered.turn) % len(taking)]
                await self._stage(topic, places, partition, some.slice(first, behind))

    async def _stage(self, topic: str, places: Places, partition: int, rows: Rows) -> None:
        group = places[partition].group
        data = bytes(
            rows.encode(group=group, base_time=self._network.system.now_us(), schema=self._schema)
        )
        while self._sending and self._sent_bytes + len(data) > _SENT_BYTES_MAX:
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        self._check()
        run = self._runs.get(group)
        if run is None:
            number = self._network.random.getrandbits(_NUMBER_BITS)
            run = self._runs[group] = _Run(topic, places, partition, number)
        task = asyncio.get_running_loop().create_task(
            self._send(run, run.batches, data, run.last), name="weir stage"
        )
        run.batches, run.messages, run.last = run.batches + 1, run.messages + len(rows), task
        run.hash = chained(run.hash, stored_header(data).hash)
        self._sending[task] = len(data)
        self._sent_bytes += len(data)
        task.add_done_callback(self._sent)
        await asyncio.sleep(0)  # it is sent before the next one, which is still to be encoded

    async def _send(
        self, run: _Run, number: int, data: bytes, before: asyncio.Task[None] | None
    ) -> None:
        """Return once a batch of a run is durable."""
        tries = 0
        while True:
            try:
                await run.places.ask(
                    run.partition,
                    lambda address: s.Stage(
                        address, self._query, self._batch_id, run.number, number, data
                    ),
                    s.Staged,
                )
            except (SequenceGap, BadChecksum) as error:
                tries += 1
                if tries > _TRIES:
                    raise self._gone(run, error) from error
                if before is not None and not before.done():
                    await before  # it is on its way again, and this one came first
                elif isinstance(error, SequenceGap):
                    await asyncio.sleep(_AGAIN_AFTER)
            else:
                return

    def _gone(self, run: _Run, error: Refused) -> Refused:
        """Return what it means that the broker refuses a batch of a run again and again."""
        if not isinstance(error, SequenceGap):
            return error
        return StagedRunGone(
            f"run {run.number} in {run.topic}/{run.partition} is gone: it expired, an hour after "
            "its last batch, or another attempt was published. Stage the batch again",
            run.number,
        )

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sent_bytes -= self._sending.pop(task)
        if task.cancelled() or (error := task.exception()) is None or self._error is not None:
            return
        self._error = error
        if isinstance(error, UnknownTopic | PartitionEnded):
            self._shared.forget_places(self._gathered)
        if isinstance(error, WeirError):
            error.add_note(f"while batch {self._batch_id} of query {self._query} was staged")
        for other in self._sending:
            other.cancel()


def _joined(parts: list[tuple[Rows, Any]]) -> tuple[Rows, Any]:
    import numpy as np

    from weir.model.arrow import Rows

    rows = Rows.joined([some for some, _ in parts])
    return rows, parts[0][1] if len(parts) == 1 else np.concatenate([one for _, one in parts])


async def _chosen(places: Places, topic: str, rows: Rows, partition: Any) -> Any:
    """Return the partition of each row, int64 [n], -1 where any will do. Raises `BadRequest` for
    what is no number of a partition, and `UnknownTopic` for one that is not there.
    """
    import numpy as np
    import pyarrow as pa

    if partition is None:
        return rows.partitions(len(places), places.closed)
    if isinstance(partition, int):
        await places.find_these([partition])
        return np.full(len(rows), partition, np.int64)
    if not isinstance(partition, pa.Array) or not pa.types.is_integer(partition.type):
        raise BadRequest("partition: give a number, or an Arrow array of a number for each row")
    if len(partition) != len(rows):
        raise BadRequest(f"{len(partition):,} partitions for {len(rows):,} rows: give one for each")
    given = np.asarray(partition.cast(pa.int64()).fill_null(-1))
    named = np.asarray(partition.is_valid())
    if bad := [int(one) for one in given[named & (given < 0)][:1]]:
        raise BadRequest(
            f"partition {bad[0]} of topic {topic}: give 0 to {len(places) - 1}, or null"
        )
    await places.find_these([int(given.max(initial=-1))] if named.any() else [])
    return (
        given
        if named.all()
        else np.where(named, given, rows.partitions(len(places), places.closed))
    )


class Published(msgspec.Struct, frozen=True):
    """What became of a batch: the one `stamp` of all its messages, and the first offset of them by
    topic and partition. A `duplicate` was published before; then neither may be known, and they are
    0 and empty. So it is with a batch of no rows.
    """

    stamp: int = 0
    offsets: dict[tuple[str, int], int] | None = None
    duplicate: bool = False


class Sink:
    """Publishes the batches of one query's result, each of them once; see `Client.sink`."""

    def __init__(self, network: NetworkClient, shared: Scatterings, query: str) -> None:
        """Take the connections. Raises `BadRequest` for what is no name."""
        if not 1 <= len(query) <= NAME_CHARACTERS_MAX:
            raise BadRequest(f"query of {len(query):,} characters: give 1 to {NAME_CHARACTERS_MAX}")
        self.query = query
        self._network = network
        self._shared = shared

    def writer(self, batch_id: int, *, schema: int = 0) -> SinkWriter:
        """Return a writer of one batch of the result: numbers rise from batch to batch. `schema` is
        the version of the topics' schema that all values have; 0: none.
        """
        whole_number("batch_id", batch_id, 0)
        whole_number("schema", schema, 0)
        return SinkWriter(self._network, self._shared, self.query, batch_id, schema)

    async def publish(self, batch_id: int, staged: Iterable[StagedPart]) -> Published:
        """Publish what writers have staged for a batch, in the order that is given: all of it at
        one stamp, or nothing. If that batch or a later one was published before, nothing happens.

        Topics have been told to `scatter_with` each other. Raises `StagedRunGone` for what was
        staged over an hour ago (stage the batch again), `TooLarge` for over 768 partitions or
        7 MiB of runs, `NotTogether`, `UnknownTopic`, `PartitionEnded`. `Disconnected` and
        `Unavailable`: it may have come to be or not; ask again.
        """
        whole_number("batch_id", batch_id, 0)
        groups: dict[int, list[StagedPart]] = {}
        for one in staged:
            groups.setdefault(one.group, []).append(one)
        if not groups:
            return Published()
        topics = {one.topic for some in groups.values() for one in some}
        parts = self._parts(groups, topics)
        addresses = await self._addresses(groups)
        producer = await self._shared.producers.take()
        request = self._request(batch_id, groups, parts, addresses, producer)
        try:
            confirm = await self._network.request(request, o.ScatterConfirm)
        except BatchPublished:
            return Published(duplicate=True)
        except StagedRunGone as error:
            raise self._gone(batch_id, groups, error) from error
        except (UnknownTopic, PartitionEnded):
            self._shared.forget_places(topics)
            raise
        counts = {group: sum(one.run.messages for one in some) for group, some in groups.items()}
        self._shared.producers.give_back(producer, counts)
        self._network.saw(confirm.stamp)
        offsets = {
            (groups[group][0].topic, groups[group][0].partition): first
            for group, first in confirm.offsets
            if group in groups
        }
        return Published(confirm.stamp, offsets, confirm.duplicate)

    def _parts(self, groups: dict[int, list[StagedPart]], topics: set[str]) -> tuple[int, ...]:
        """Return the parts of the scattering, which rise. Raises `TooLarge`, before all else."""
        if len(topics) > TOPICS_TOGETHER_MAX:
            raise TooLarge(
                f"a batch for {len(topics):,} topics; {TOPICS_TOGETHER_MAX} are allowed",
                TOPICS_TOGETHER_MAX,
            )
        firsts = {group_of(topic_of(group), 0) for group in groups}
        parts = sorted([*map(batch_part, groups), *map(acks_part, firsts)])
        if len(parts) > PUBLICATION_PARTS_MAX:
            most = PUBLICATION_PARTS_MAX - len(firsts)
            raise TooLarge(
                f"a batch for {len(groups):,} partitions of {', '.join(sorted(topics))}; {most} "
                "are allowed: publish to fewer at once",
                most,
            )
        for some in groups.values():
            if len(some) > STAGED_RUNS_MAX:
                raise TooLarge(
                    f"{len(some):,} runs for {some[0].topic}/{some[0].partition}; "
                    f"{STAGED_RUNS_MAX:,} are allowed: stage with fewer writers",
                    STAGED_RUNS_MAX,
                )
        return tuple(parts)

    async def _addresses(self, groups: dict[int, list[StagedPart]]) -> dict[int, Address]:
        """Return where the partitions are served now. Raises `UnknownTopic` for what is gone."""
        found: dict[int, Address] = {}
        for group, (one, *_) in groups.items():
            places = await self._shared.places(one.topic, one.partition)
            await places.find_these([one.partition])
            if places.id != topic_of(group):
                self._shared.forget_places([one.topic])
                raise UnknownTopic(
                    f"{one.topic} was deleted and created again since this was staged: stage it "
                    "again",
                    places.id,
                )
            found[group] = places[one.partition]
        return found

    def _request(
        self,
        batch_id: int,
        groups: dict[int, list[StagedPart]],
        parts: tuple[int, ...],
        addresses: dict[int, Address],
        producer: ProducerId,
    ) -> s.Publish:
        scattered, grant = Scattered(producer.number, parts), producer.grant
        found, size = [], 0
        for group, some in groups.items():
            runs = tuple(StagedRun(*one.run) for one in some)
            batch = encode(
                [],
                group=group,
                producer=grant.producer,
                epoch=grant.epoch,
                sequence=producer.sequences.get(group, 0),
                base_time=self._network.system.now_us(),
                scattered=scattered,
                publication=Publication(self.query, batch_id, runs),
            )
            size += len(batch)
            if size > PUBLICATION_BYTES_MAX:
                raise TooLarge(
                    f"the names of what was staged for batch {batch_id} of query {self.query} "
                    f"take over {PUBLICATION_BYTES_MAX:,} bytes: stage with fewer writers, or for "
                    "fewer partitions",
                    PUBLICATION_BYTES_MAX,
                )
            found.append(s.PublicationPart(addresses[group], bytes(batch)))
        return s.Publish(
            grant.producer,
            grant.epoch,
            producer.number,
            self._network.seen,
            self.query,
            batch_id,
            found,
        )

    def _gone(
        self, batch_id: int, groups: dict[int, list[StagedPart]], error: StagedRunGone
    ) -> StagedRunGone:
        where = next(
            (
                f" in {one.topic}/{one.partition}"
                for some in groups.values()
                for one in some
                if one.run.number == error.detail
            ),
            "",
        )
        return StagedRunGone(
            f"run {error.detail}{where}, staged for batch {batch_id} of query {self.query}, is "
            f"gone, so nothing was published ({error}). Stage the batch again; Spark does so when "
            "the query is started again",
            error.detail,
        )


async def list_sinks(places: Places) -> list[s.Sink]:
    """Return which queries have published to a topic, by their names."""
    found: list[s.Sink] = []
    while True:
        after = found[-1].query if found else ""
        reply = await places.ask(0, partial(s.ListSinks, after=after), s.SinkList)
        found += reply.sinks
        if not reply.more or not reply.sinks:
            return found


async def forget(places: Places, query: str) -> bool:
    """Forget what a query has published to a topic; return whether anything was known of it."""
    reply = await places.ask(0, partial(s.ForgetSink, query=query), s.SinkReleased)
    return reply.was_known
