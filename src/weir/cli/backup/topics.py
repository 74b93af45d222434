"""Topics of a running node: their settings and batches, read and published through a client."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

import weir
from weir.cli.backup import manifest as m
from weir.client.client import Client
from weir.client.producer import Producer
from weir.errors import BadBatch, UnknownTopic
from weir.model.batch import Batch
from weir.model.header import HEADER_SIZE, Columns
from weir.model.ids import group_of
from weir.model.limits import BATCH_BYTES_MAX
from weir.model.message import LargeMessage, Message
from weir.model.topic import FOREVER
from weir.wire.messages import TopicInfo

_TOTAL_SIZE = struct.Struct("<I")

#: Told how many messages are done.
Show = Callable[[int], None]


async def back_up(client: Client, names: Sequence[str], to: Path, show: Show) -> m.Manifest:
    """Write what topics hold now, all of them unless some are named; what comes later is not in it.

    Raises `UnknownTopic`, `BadBackup`, `OSError`.
    """
    infos = [await client.describe(name) for name in names] if names else await client.topics()
    m.empty_folder(to)
    files: list[m.File] = []
    topics = []
    done = 0
    for info in infos:
        parts = []
        for partition in range(len(info.addresses)):
            part, written = await _partition(client, info, partition, to)
            parts.append(part)
            files += written
            done += part.next_offset - part.first_offset
            show(done)
        settings = msgspec.structs.asdict(info.settings)
        topics.append(m.Topic(info.id, info.namespace, info.name, info.order, settings, parts))
    made = datetime.now(UTC).isoformat(timespec="seconds")
    system = f"{client.welcome.system:x}"
    manifest = m.Manifest("topics", weir.__version__, made, system, files, topics)
    m.verify(to, manifest)
    m.write(to, manifest)
    return manifest


async def _partition(
    client: Client, info: TopicInfo, partition: int, to: Path
) -> tuple[m.Partition, list[m.File]]:
    name = f"{info.namespace}/{info.name}"
    path = f"topics/{name}/{partition}"
    values: list[m.File] = []
    first: int | None = None
    behind = batches = 0
    with m.Writing(to, f"{path}.batches") as file:
        async with client.reader(
            name, partitions=[partition], follow=False, value_bytes_max=0
        ) as reader:
            async for delivered in reader.batches():
                first = delivered.offset if first is None else first
                behind = delivered.next_offset
                batches += 1
                file.put(delivered.batch.view)
                if delivered.batch.header.columns & Columns.REFERENCES:
                    (message,) = delivered.messages()
                    values.append(await _value(message, to, f"{path}/{delivered.offset}"))
            begin = reader.positions[partition]
    first, behind = (begin, begin) if first is None else (first, behind)
    written = file.made()
    return m.Partition(partition, first, behind, batches, written.path), [written, *values]


async def _value(message: Message, to: Path, path: str) -> m.File:
    """Write a value that lies in chunks to a file of its own, a piece at a time."""
    assert isinstance(message, LargeMessage)  # the reader was told to load none
    with m.Writing(to, path) as file:
        async for piece in message.chunks():
            file.put(piece)
    return file.made()


async def refuse_if_there(client: Client, manifest: m.Manifest) -> None:
    """Raise `BadBackup` if one of the topics exists: nothing is mixed with what is there."""
    for topic in manifest.topics:
        try:
            await client.describe(topic.full_name)
        except UnknownTopic:
            continue
        raise m.BadBackup(
            f"topic {topic.full_name} is there already: restore to another node, or delete it first"
        )


async def restore(client: Client, backup: Path, manifest: m.Manifest, show: Show) -> list[str]:
    """Make the topics and publish all messages; return what is not as it was, a line each.

    Keys, tags, times and headers stay, and the order in each partition. Offsets begin at 0, so they
    stay where the backup's do. Stamps are new; clusters, producers and devices' origins are not
    in the backup. Raises `BadBackup` and what a client raises.
    """
    await refuse_if_there(client, manifest)
    changes = []
    done = 0
    for topic in manifest.topics:
        await _create(client, topic)
        async with client.producer(topic.full_name) as producer:
            for part in topic.partitions:
                await _publish(producer, topic, part, backup / part.file)
                done += part.next_offset - part.first_offset
                show(done)
        changes += await _differences(client, topic)
    return changes


async def _create(client: Client, topic: m.Topic) -> None:
    ms = topic.settings.get("retention_ms")
    await client.create_topic(
        topic.full_name,
        len(topic.partitions),
        topic.order,
        if_absent=False,
        retention="forever" if ms == FOREVER else None if ms is None else ms / 1_000,
        retention_bytes=topic.settings.get("retention_bytes"),
    )


async def _publish(producer: Producer, topic: m.Topic, part: m.Partition, path: Path) -> None:
    place = part.partition
    for batch in read_batches(path, group_of(topic.id, place)):
        skip = max(part.first_offset - batch.header.first_offset, 0)
        take = part.next_offset - batch.header.first_offset
        if batch.header.columns & (Columns.HEADERS | Columns.REFERENCES):
            for message in [*batch.messages()][skip:take]:
                if batch.header.columns & Columns.REFERENCES:
                    with (path.with_suffix("") / str(message.offset)).open("rb") as value:
                        await producer.publish_from(value, **_told(message), partition=place)
                    continue
                await producer.ready()
                producer.send(message.value, **_told(message), partition=place)
            continue
        keys = batch.keys() if batch.header.columns & Columns.KEY else None
        tags = batch.tags() if batch.header.columns & Columns.TAG else None
        await producer.send_many(
            batch.values()[skip:take],
            keys=keys and keys[skip:take],
            tags=tags and tags[skip:take],
            times=batch.times()[skip:take],
            partition=place,
        )


def _told(message: Message) -> dict[str, Any]:
    """Return all of a message but its value and place, as a producer takes it."""
    return {
        "key": message.key,
        "tag": message.tag,
        "time": message.time,
        "headers": message.headers,
    }


async def _differences(client: Client, topic: m.Topic) -> list[str]:
    starts, ends = await client.positions(topic.full_name)
    found = []
    for part, start, end in zip(topic.partitions, starts, ends, strict=True):
        name = f"{topic.full_name}/{part.partition}"
        wanted, there = part.next_offset - part.first_offset, end - start
        if there != wanted:
            found.append(f"{name}: {wanted:,} messages in the backup, {there:,} restored")
        elif start != part.first_offset and wanted:
            found.append(f"{name}: offsets begin at {start:,}, before at {part.first_offset:,}")
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
