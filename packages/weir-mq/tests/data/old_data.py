"""What `scripts/write-old-data` packs and what tests unpack: old folders, and what they held.

before/old-data.tar.xz holds these folders and files, written by an earlier release and
left as kill -9 leaves them:

node/        the data folder of a node with two shards
set/         the folders of three nodes, `node-1` to `node-3`, as `NodeSet` lays them out
inbox.db     the SQLite database of an application with an inbox
checkpoint/  the checkpoint of a Spark query over a topic of the node

manifest.json beside it says what was confirmed: `seen` and `progress` of then, and what is left.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from weir.client.sync import client as sync

BEFORE = Path(__file__).parent / "before"
ARCHIVE = BEFORE / "old-data.tar.xz"
MANIFEST = BEFORE / "manifest.json"
#: How the nodes were set up: small segments, none in reserve.
SETTINGS: dict[str, Any] = {"segment_mib": 32, "spares": 0, "shards": 2}
_BLOCK = 64 * 1024
_SHORT = 64
_LARGE = 32 << 20


def manifest() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return found


def pack(folder: Path, names: Iterable[str], into: Path = ARCHIVE) -> None:
    """Write the archive: the same bytes whoever packs the same files."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if info.name.endswith("endpoint.json"):
            return None  # it names a process of the past
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        return info

    with (
        lzma.open(into, "wb") as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            archive.add(folder / name, name, filter=plain)


def unpack(folder: Path, *names: str, archive: Path = ARCHIVE) -> None:
    """Write some of what is archived into a folder; zeros become holes, which cost no disk."""
    left = {*names}
    with lzma.open(archive) as file, tarfile.open(fileobj=file, mode="r|") as packed:
        for info in packed:
            name = info.name.partition("/")[0]
            left.discard(name)
            if name not in names:
                if not left:
                    break  # what lies behind it would only be read
                continue
            path = folder / info.name
            if info.isdir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            source = packed.extractfile(info)
            assert source is not None, f"{info.name} is neither a file nor a folder"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as target:
                while block := source.read(_BLOCK):
                    if block.strip(b"\0"):
                        target.write(block)
                    else:
                        target.seek(len(block), io.SEEK_CUR)
                target.truncate(info.size)


def files(folder: Path) -> list[str]:
    """The names of all files of a stopped node, with N for the number of a segment."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted({re.sub(r"\d{8,}", "N", name) for name in found})


def seen(w: sync.Client, topic: str) -> list[list[Any]]:
    """Every message of a topic, by partition and offset, as JSON has it."""
    reader = w.reader(topic, follow=False, order="partition", value_bytes_max=_LARGE)
    found = [
        [
            message.partition,
            message.offset,
            message.stamp,
            message.time,
            None if message.key is None else message.key.decode(),
            message.tag,
            {name: value.decode() for name, value in sorted(message.headers.items())},
            told(message.value),
        ]
        for message in reader
    ]
    return sorted(found, key=lambda row: row[:2])


def told(value: bytes) -> str:
    """A value as text; of a long one its size and hash."""
    if len(value) <= _SHORT:
        return value.decode()
    return f"{len(value)} bytes {hashlib.sha256(value).hexdigest()}"


def in_order(w: sync.Client, topic: str) -> list[list[int]]:
    """Where the messages of a topic are, in the one order of its partitions."""
    return [[one.partition, one.offset] for one in w.reader(topic, follow=False, order="total")]


def progress(w: sync.Client, topic: str) -> dict[str, Any]:
    """How far each cluster of a topic is, without what changes while nobody works.

    What was granted may be again, what was held back or delayed may be due by now.
    """
    fields = ("partition", "start", "end", "cursor", "lag", "skipped", "paused", "mode")
    return {
        cluster.name: {
            "order": cluster.order,
            "shares": [
                {name: value for name, value in asdict(share).items() if name in fields}
                for share in cluster.shares
            ],
        }
        for cluster in w.clusters(topic)
    }


def devices(w: sync.Client, topic: str) -> list[dict[str, int]]:
    return [asdict(one) for one in w.hubs(topic)]


def read_in(
    spark: Any, url: str, topic: str | dict[str, str], checkpoint: Path, **options: object
) -> list[Any]:
    """Run a query to today's end under a checkpoint; return the rows of each micro-batch.

    `topic` is a name, or options that name topics.
    """
    batches: list[list[list[Any]]] = []

    def keep(frame: Any, _: int) -> None:
        rows = frame.select("partition", "offset", "value").collect()
        batches.append(
            sorted([row.partition, row.offset, bytes(row.value).decode()] for row in rows)
        )

    given = {"topic": topic} if isinstance(topic, str) else topic
    reader = spark.readStream.format("weir").option("url", url)
    for name, value in {**given, **options}.items():
        reader = reader.option(name, str(value))
    writer = reader.load().writeStream.foreachBatch(keep).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(100), "the query does not end"
    return [rows for rows in batches if rows]
