"""Sinks: batches of a query's result, staged by many writers and published once (docs/adr/0075).

    sink = w.sink("nightly")
    writer = sink.writer(7)
    await writer.write("report", record_batch)
    await sink.publish(7, await writer.finish())

What was published last of a query is remembered, so the same batch adds nothing a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from weir.client.arguments import whole_number
from weir.client.connection.metadata import Places
from weir.client.connection.network_client import NetworkClient
from weir.client.scattering import ProducerId, Scatterings
from weir.client.staging import SinkWriter, StagedPart
from weir.errors import (
    BadRequest,
    BatchPublished,
    PartitionEnded,
    StagedRunGone,
    TooLarge,
    UnknownTopic,
)
from weir.model.batch_builder import encode
from weir.model.columns import Publication, Scattered, StagedRun
from weir.model.ids import Address, acks_part, batch_part, group_of, topic_of
from weir.model.limits import (
    NAME_CHARACTERS_MAX,
    PUBLICATION_BYTES_MAX,
    PUBLICATION_PARTS_MAX,
    STAGED_RUNS_MAX,
    TOPICS_TOGETHER_MAX,
)
from weir.protocol.client import order as o
from weir.protocol.client import sinks as s


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
