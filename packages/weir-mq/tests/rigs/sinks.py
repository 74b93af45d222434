"""A writer and a driver of a sink, by requests alone: stages batches, and publishes them."""

from __future__ import annotations

from typing import Any

from weir.model.batch import Batch, parse
from weir.model.batch_builder import encode
from weir.model.columns import Publication, Scattered, StagedRun, chained
from weir.model.ids import acks_part, batch_part, group_of
from weir.protocol.client import messages as m
from weir.protocol.client.sinks import PublicationPart, Publish, Stage, Staged


class Sink:
    """A query that writes to a topic, session 1."""

    def __init__(self, rig: Any, partitions: int = 1, query: str = "q", **topic: Any) -> None:
        self.rig = rig
        self.query = query
        rig.connect()
        self.info = rig.answer(1, m.CreateTopic("t", partitions, **topic))
        assert isinstance(self.info, m.TopicInfo), self.info
        self.begin()

    def begin(self) -> None:
        """Open a producer: a driver begins."""
        self.grant = self.rig.answer(1, m.OpenProducer())
        self.number = 0
        self.sequences: dict[int, int] = {}

    def group(self, partition: int) -> int:
        return int(self.info.addresses[partition].group)

    def request(
        self, partition: int, batch_id: int, run: int, number: int, values: list[bytes], **more: Any
    ) -> Stage:
        data = encode(values, group=self.group(partition), **more)
        address = self.info.addresses[partition]
        return Stage(address, self.query, batch_id, run, number, bytes(data))

    def stage(
        self, run: int, *batches: list[bytes], partition: int = 0, batch_id: int = 0
    ) -> StagedRun:
        """Stage batches as one run; return what a publication says of it."""
        hash_, messages = 0, 0
        for number, values in enumerate(batches):
            request = self.request(partition, batch_id, run, number, values)
            reply = self.rig.answer(1, request)
            assert reply == Staged(number + 1), reply
            hash_ = chained(hash_, parse(request.batch).hash)
            messages += len(values)
        return StagedRun(run, len(batches), messages, hash_)

    def publication(self, batch_id: int, runs: dict[int, list[StagedRun]]) -> Publish:
        parts = [batch_part(self.group(p)) for p in runs] + [acks_part(group_of(self.info.id, 0))]
        scattered = Scattered(self.number, tuple(sorted(parts)))
        found = []
        for partition, rows in runs.items():
            publication = Publication(self.query, batch_id, tuple(rows))
            data = encode(
                [], group=self.group(partition), producer=self.grant.producer,
                epoch=self.grant.epoch, sequence=self.sequences.get(partition, 0),
                scattered=scattered, publication=publication,
            )  # fmt: skip
            found.append(PublicationPart(self.info.addresses[partition], bytes(data)))
        return Publish(
            self.grant.producer, self.grant.epoch, self.number, 0, self.query, batch_id, found
        )

    def publish(self, batch_id: int, runs: dict[int, list[StagedRun]]) -> Any:
        """Publish runs by partition; return the answer."""
        reply = self.ask(self.publication(batch_id, runs))
        if isinstance(reply, m.ScatterConfirm):
            self.number += 1
            for partition, rows in runs.items():
                more = sum(run.messages for run in rows)
                self.sequences[partition] = self.sequences.get(partition, 0) + more
        return reply

    def ask(self, request: m.Request) -> Any:
        """Ask, and let time pass until there is an answer."""
        number = self.rig.ask(1, request)
        for _ in range(300):
            self.rig.settle()
            for found, reply in self.rig.replies[1]:
                if found == number:
                    return reply
            self.rig.tick()
        raise AssertionError("no answer")

    def fetch(self, partition: int = 0, offset: int = 0, most: int = 1 << 20) -> m.Fetched:
        reply = self.rig.answer(
            1, m.Fetch(self.info.addresses[partition], offset, most, equal_stamps=True)
        )
        assert isinstance(reply, m.Fetched), reply
        return reply

    def read(self, partition: int = 0, most: int = 1 << 20) -> list[tuple[int, int, bytes]]:
        """Return (offset, stamp, value) of all messages, fetched `most` bytes at a time."""
        rows: list[tuple[int, int, bytes]] = []
        offset = 0
        while True:
            fetched = self.fetch(partition, offset, most)
            for batch in opened(fetched, self.group(partition)):
                h = batch.header
                rows += [(h.first_offset + i, h.stamp, v) for i, v in enumerate(batch.values())]
            if fetched.next_offset == offset:
                return rows
            offset = fetched.next_offset


def opened(fetched: m.Fetched, group: int) -> list[Batch]:
    """Return the batches of an answer, each checked as a client does."""
    data, found, at = b"".join(fetched.batches), [], 0
    while at < len(data):
        found.append(Batch(data, at).check(group))
        at += found[-1].header.total_size
    return found
