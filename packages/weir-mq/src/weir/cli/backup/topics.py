"""Topics of a running node: their settings and batches, read and published through a client."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from heapq import merge
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

import weir
from weir.cli.backup import manifest as m
from weir.cli.backup.sealing import Seal
from weir.client.client import Client
from weir.client.producer.producer import Producer
from weir.client.reader.reader import Reader
from weir.errors import BadBatch, DamagedRange, OffsetOutOfRange, UnknownOpcode, UnknownTopic
from weir.model.batch import HEADER_SIZE, Batch, Columns
from weir.model.ids import group_of
from weir.model.limits import BATCH_BYTES_MAX
from weir.model.message import LargeMessage, Message
from weir.model.topic import (
    FOREVER,
    RESERVED_NAMESPACE,
    TopicSettings,
    check_order,
    full_name_of,
    split_name,
)
from weir.protocol.client.messages import TopicInfo

_TOTAL_SIZE = struct.Struct("<I")

_SETTINGS = TopicSettings.__struct_fields__

#: Told how many messages are done.
Show = Callable[[int], None]


async def back_up(
    client: Client, names: Sequence[str], to: Path, show: Show, seal: Seal | None = None
) -> m.Manifest:
    """Write what topics hold now, all of them unless some are named; what comes later is not in it.

    Raises `UnknownTopic`, `BadBackup`, `OSError`.
    """
    infos = [await client.describe(name) for name in names] if names else await client.topics()
    with m.new_folder(to):
        files: list[m.File] = []
        topics = []
        done = 0
        for info in infos:
            parts = []
            for partition in range(len(info.addresses)):
                copy = _Copy(client, info, partition, to, seal)
                part = await copy.run()
                part = msgspec.structs.replace(part, ended=partition in info.closed)
                parts.append(part)
                files += copy.files
                done += part.messages
                show(done)
            settings = msgspec.structs.asdict(info.settings)
            named = info.id, info.namespace, info.name, info.order
            topics.append(m.Topic(*named, settings, parts, info.key_by))
        made = datetime.now(UTC).isoformat(timespec="seconds")
        system = f"{client.welcome.system:x}"
        manifest = m.Manifest(
            "topics", weir.__version__, made, system, files, topics,
            encrypted=seal is not None and seal.encrypts,
        )  # fmt: skip
        m.verify(to, manifest)
        m.write(to, manifest if seal is None else m.hashed(to, manifest), seal)
    return manifest


class _Copy:
    """Writes the files of one partition; `files` says which. Damaged places are stepped over."""

    def __init__(
        self, client: Client, info: TopicInfo, partition: int, to: Path, seal: Seal | None
    ) -> None:
        self._seal = seal
        self.files: list[m.File] = []
        self._client = client
        self._name = f"{info.namespace}/{info.name}"
        self._partition = partition
        self._path = f"topics/{self._name}/{partition}"
        self._to = to
        self._batches = 0
        self._holes: list[tuple[int, int]] = []
        self._voids: list[tuple[int, int]] = []
        #: All below was read, or is known not to be there.
        self._at = 0

    async def run(self) -> m.Partition:
        starts, ends = await self._client.positions(self._name)
        first, end = starts[self._partition], ends[self._partition]
        at = first
        with m.Writing(self._to, f"{self._path}.batches", self._seal) as file:
            while at < end:
                reader, self._at = self._reader(at, end), at
                try:
                    async with reader:
                        await self._write(reader, file)
                except OffsetOutOfRange as error:  # retention was faster
                    first, at = self._moved(first, at, error)
                    continue
                except DamagedRange as error:
                    at = reader.positions[self._partition]
                    self._reached(at, at)
                    behind = await self._behind(at, end, error)
                    self._hole(at, behind)
                    at = behind
                    continue
                self._reached(end, end)
                at = end
        written = file.made()
        self.files.insert(0, written)
        return m.Partition(
            self._partition, first, max(first, end), self._batches, written.path, self._holes,
            self._voids,
        )  # fmt: skip

    def _reached(self, first: int, behind: int) -> None:
        """Note that [first, behind) comes next: what lies between was aborted."""
        if first > self._at:
            self._voids.append((self._at, first))
        self._at = max(self._at, behind)

    def _hole(self, first: int, behind: int) -> None:
        if self._holes and self._holes[-1][1] == first:
            first, _ = self._holes.pop()
        self._holes.append((first, behind))

    def _moved(self, first: int, at: int, error: OffsetOutOfRange) -> tuple[int, int]:
        """Return where the copy begins and goes on; what went in the middle of it is a hole."""
        if at == first:
            return error.detail, error.detail
        self._hole(at, error.detail)
        return first, error.detail

    def _reader(self, at: int, end: int) -> Reader:
        partition = self._partition
        return self._client.reader(
            self._name, start={partition: at}, until={partition: end}, partitions=[partition],
            follow=False, value_bytes_max=0,
        )  # fmt: skip

    async def _write(self, reader: Reader, file: m.Writing) -> None:
        async for delivered in reader.batches():
            self._reached(delivered.offset, delivered.next_offset)
            if delivered.batch.header.columns & Columns.REFERENCES:
                (message,) = delivered.messages()
                if not await self._value(message):
                    continue
            self._batches += 1
            file.put(delivered.batch.view)

    async def _value(self, message: Message) -> bool:
        """Write a value that lies in chunks to a file of its own, a piece at a time.

        Return False where one of its chunks cannot be read.
        """
        assert isinstance(message, LargeMessage)  # the reader was told to load none
        path = f"{self._path}/{message.offset}"
        with m.Writing(self._to, path, self._seal) as file:
            try:
                async for piece in message.chunks():
                    file.put(piece)
            except DamagedRange:
                (self._to / path).unlink()
                self._hole(message.offset, message.offset + 1)
                return False
        self.files.append(file.made())
        return True

    async def _behind(self, at: int, end: int, found: DamagedRange) -> int:
        """Return the first offset behind a damaged place that begins at `at`.

        All messages of one place are refused with its position in the log, and lie in a row.
        """
        step, bad = 1, at
        while bad + step < end and await self._same(bad + step, end, found):
            bad, step = bad + step, 2 * step
        good = min(bad + step, end)
        while bad + 1 < good:
            middle = (bad + good) // 2
            if await self._same(middle, end, found):
                bad = middle
            else:
                good = middle
        return good

    async def _same(self, at: int, end: int, found: DamagedRange) -> bool:
        async with self._reader(at, end) as reader:
            try:
                await anext(reader.batches(), None)
            except DamagedRange as error:
                return error.detail == found.detail
        return False


class _Target:
    """What the topics of a backup are called where they are restored: as they were, or by the same
    names in one `namespace`.
    """

    def __init__(self, manifest: m.Manifest, namespace: str) -> None:
        self._namespace = namespace
        self.names: dict[str, str] = {}
        for topic in manifest.topics:
            if _is_reserved(topic):
                continue
            name = f"{namespace}/{topic.name}" if namespace else topic.full_name
            if name in self.names.values():
                raise m.BadBackup(
                    f"the backup has two topics {topic.name}, and both would be {name}: restore "
                    "without --namespace"
                )
            self.names[topic.full_name] = name

    def of(self, topic: m.Topic) -> str:
        return self.names[topic.full_name]

    def settings(self, topic: m.Topic) -> TopicSettings:
        """Return the settings of a topic, as far as this release knows them. Topics that it was
        scattered with have their new names.
        """
        known = {name: topic.settings[name] for name in _SETTINGS if name in topic.settings}
        clusters = tuple(known.pop("until_done", ()))
        others = ("/".join(split_name(other)) for other in known.pop("scatter_with", ()))
        together = tuple(full_name_of(*split_name(self.names.get(one, one))) for one in others)
        return TopicSettings(**known, scatter_with=together, until_done=clusters)


async def refuse_if_there(client: Client, target: _Target) -> None:
    """Raise `BadBackup` if one of the topics exists: nothing is mixed with what is there."""
    for name in target.names.values():
        try:
            await client.describe(name)
        except UnknownTopic:
            continue
        raise m.BadBackup(
            f"topic {name} is there already: restore to another node, or delete it first"
        )


async def restore(
    client: Client, backup: Path, manifest: m.Manifest, show: Show, namespace: str = ""
) -> list[str]:
    """Make the topics and publish all messages; return what is not as it was, a line each.

    Keys, tags, times and headers stay, and the order in each partition; the one order of all
    partitions, where the topic has one. Offsets begin at 0, so they stay where the backup's do.
    Stamps are new; clusters, producers and devices' origins are not in the backup. Topics of the
    brokers' own namespace stay in the backup, since nobody else may write there. With a `namespace`
    all topics are made in that one. Raises `BadBackup` and what a client raises.
    """
    target = _Target(manifest, namespace)
    await refuse_if_there(client, target)
    changes = []
    done = 0
    for topic in manifest.topics:
        if _is_reserved(topic):
            changes.append(
                f"{topic.full_name}: not restored, since only brokers write there: its messages "
                "stay in the backup"
            )
            continue
        name = target.of(topic)
        await _create(client, manifest, topic, target)
        async with client.producer(name) as producer:
            before = None
            for part, batch in _in_order(topic, backup):
                if topic.order == "total" and part is not before and before is not None:
                    await producer.flush()  # what is confirmed gets the lower stamps
                before = part
                done += await _publish(producer, part, batch, backup / part.file)
                show(done)
        for part in topic.partitions:
            if part.ended:
                await client.end_partition(name, part.partition)
        changes += await _differences(client, topic, name)
    return changes


def _is_reserved(topic: m.Topic) -> bool:
    return topic.namespace == RESERVED_NAMESPACE


async def _create(client: Client, manifest: m.Manifest, topic: m.Topic, target: _Target) -> None:
    name, order = target.of(topic), check_order(topic.order)
    settings = target.settings(topic)
    try:
        await client.restore_topic(
            name, topic.full_name, int(manifest.system or "0", 16), len(topic.partitions), order,
            settings=settings, key_by=topic.key_by,
        )  # fmt: skip
    except UnknownOpcode:  # a broker of a release before, which has no such right
        ms, size = settings.retention_ms, settings.retention_bytes
        await client.create_topic(
            name,
            len(topic.partitions),
            order,
            if_absent=False,
            retention="forever" if ms == FOREVER else ms / 1_000,
            retention_bytes="forever" if size == FOREVER else size,
            scatter_with=settings.scatter_with,
            until_done=settings.until_done,
            key_by=topic.key_by,
        )


def _in_order(topic: m.Topic, backup: Path) -> Iterator[tuple[m.Partition, Batch]]:
    """Yield all batches: those of one partition after those of another, or in the one order."""
    each = [_batches(topic, part, backup / part.file) for part in topic.partitions]
    if topic.order != "total":
        return chain.from_iterable(each)
    return merge(*each, key=lambda one: (one[1].header.stamp, one[0].partition))


def _batches(topic: m.Topic, part: m.Partition, path: Path) -> Iterator[tuple[m.Partition, Batch]]:
    for batch in read_batches(path, group_of(topic.id, part.partition)):
        yield part, batch


async def _publish(producer: Producer, part: m.Partition, batch: Batch, path: Path) -> int:
    """Publish a batch, as far as it belongs to the backup; return how many messages that are."""
    place = part.partition
    skip = max(part.first_offset - batch.header.first_offset, 0)
    take = part.next_offset - batch.header.first_offset
    if batch.header.columns & (Columns.HEADERS | Columns.REFERENCES):
        messages = [*batch.messages()][skip:take]
        for message in messages:
            if batch.header.columns & Columns.REFERENCES:
                with (path.with_suffix("") / str(message.offset)).open("rb") as value:
                    await producer.publish_from(value, **_told(message), partition=place)
                continue
            await producer.ready()
            producer.send(message.value, **_told(message), partition=place)
        return len(messages)
    keys = batch.keys() if batch.header.columns & Columns.KEY else None
    tags = batch.tags() if batch.header.columns & Columns.TAG else None
    values = batch.values()[skip:take]
    await producer.send_many(
        values,
        keys=keys and keys[skip:take],
        tags=tags and tags[skip:take],
        times=batch.times()[skip:take],
        partition=place,
    )
    return len(values)


def _told(message: Message) -> dict[str, Any]:
    """Return all of a message but its value and place, as a producer takes it."""
    return {
        "key": message.key,
        "tag": message.tag,
        "time": message.time,
        "headers": message.headers,
    }


async def _differences(client: Client, topic: m.Topic, restored: str) -> list[str]:
    starts, ends = await client.positions(restored)
    found = []
    for part, start, end in zip(topic.partitions, starts, ends, strict=True):
        name = f"{restored}/{part.partition}"
        wanted, there = part.messages, end - start
        if there != wanted:
            found.append(f"{name}: {wanted:,} messages in the backup, {there:,} restored")
        elif start != part.first_offset and wanted:
            found.append(f"{name}: offsets begin at {start:,}, before at {part.first_offset:,}")
        if part.holes:
            first = min(hole[0] for hole in part.holes)
            found.append(f"{name}: messages were missing, so from {first:,} on offsets are lower")
        elif part.voids:
            first = part.voids[0][0]
            found.append(f"{name}: some were never there, so from {first:,} on offsets are lower")
    return found


def read_batches(path: Path, group: int) -> Iterator[Batch]:
    """Yield the batches of a partition's file, each checked. Raises `BadBackup` with the place."""
    at = 0
    with path.open("rb") as file:
        while head := file.read(HEADER_SIZE):
            # Only this field, for the rest wants to see the whole batch; it may be anything yet.
            (size,) = _TOTAL_SIZE.unpack_from(head.ljust(HEADER_SIZE, b"\0"), 8)
            body = file.read(min(max(size - HEADER_SIZE, 0), BATCH_BYTES_MAX))
            try:
                batch = Batch(head + body).check(group)
            except BadBatch as error:
                raise m.BadBackup(f"{path} is damaged at byte {at:,}: {error}") from None
            at += size
            yield batch
