"""The common part of lakes of both formats: the topic, its files, and their readers.

<folder>/day=2026-01-31/*.parquet   messages by the day of their stamps, in UTC
<folder>/_delta_log or _manifest    which files belong to the table, and what was added
<folder>/_weir/checkpoint           the checkpoint of the query that archives
<folder>/_weir/cut.json             up to which stamp a pipeline's next step may read
<folder>/_weir/readers              a file for each reader whose files must stay
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from weir.errors import BadOption, LakeMismatch, NotWritable

Format = Literal["delta", "parquet"]
FORMATS: tuple[str, ...] = get_args(Format)

_CUT = "_weir/cut.json"
#: What Hadoop's globs and URLs give a meaning to.
_ODD = frozenset("*?[]{}\\%#")
#: Below it files wait for compaction, which makes files of up to so many bytes.
COMPACT_BYTES = 128 << 20
#: Vacuum never deletes what was replaced, or written by nobody, for less than this.
KEEP_MS_MIN = 3_600_000
#: A reader says how long it reads, at most so long: one that was killed must not hold files.
READ_HOURS_MAX = 24 * 31


@dataclass(frozen=True, slots=True)
class Home:
    """The topic that a lake keeps: its name, and the id of this life of it; 0 where not known."""

    topic: str
    id: int

    def check(self, kept: Home, folder: Path) -> None:
        """Raise `LakeMismatch` if a lake keeps another topic than this one."""
        if self.topic != kept.topic:
            raise LakeMismatch(f"{folder} keeps topic {kept.topic!r}: give another folder")
        if self.id and kept.id and self.id != kept.id:
            raise LakeMismatch(
                f"{folder} keeps an earlier topic {kept.topic!r}, which was deleted and created "
                "again since: give another folder"
            )


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file that an executor wrote, not yet part of a lake.

    `path` is relative to the lake. `bad` rows have no value, because it was too large. `spans` are
    [first offset, offset behind the last, rows] by partition. `stats` is Delta's JSON.
    """

    path: str
    day: str
    rows: int
    bad: int
    size: int
    modified_ms: int
    spans: Mapping[int, tuple[int, int, int]]
    stats: str
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of a lake: its path relative to it, its day, rows and bytes.

    `stamps` are the least and the most of its rows, where the lake knows them.
    """

    path: str
    day: str
    rows: int
    size: int
    stamps: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A lake as of one version: its files, and the offset behind the last one, by partition."""

    version: int
    files: Sequence[KeptFile]
    positions: Mapping[int, int]

    @property
    def rows(self) -> int:
        """Messages in the lake."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Cut:
    """How far a table is whole: it has all rows up to `stamp`, which are `rows`, and maybe more."""

    stamp: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of one micro-batch, to be added under (application, number) in one transaction."""

    application: str
    number: int
    files: Sequence[NewFile]
    #: [first offset, offset behind the last] by partition, of all files together.
    spans: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, application: str, number: int, files: Sequence[NewFile], may_lack: bool = False
    ) -> Batch:
        """Put files together. Raises `LakeMismatch` if offsets between them are missing or twice.

        A range that holds fewer rows `may_lack` them where a stream of weir was read: offsets of
        scatterings that were aborted hold no message, and the source says what else is missing.
        """
        spans: dict[int, tuple[int, int]] = {}
        rows: dict[int, int] = {}
        for file in files:
            for partition, (first, behind, count) in file.spans.items():
                before = spans.get(partition, (first, behind))
                spans[partition] = (min(first, before[0]), max(behind, before[1]))
                rows[partition] = rows.get(partition, 0) + count
        for partition, (first, behind) in spans.items():
            if rows[partition] > behind - first or (
                rows[partition] < behind - first and not may_lack
            ):
                raise LakeMismatch(
                    f"partition {partition}: offsets {first:,} to {behind - 1:,} came as "
                    f"{rows[partition]:,} rows: archive whole topics, without the options keys and "
                    "tags, and write no row twice"
                )
        return cls(application, number, files, spans)

    @property
    def messages(self) -> int:
        """How many messages the micro-batch has."""
        return sum(file.rows for file in self.files)

    def check(self, home: Home, positions: Mapping[int, int], folder: Path) -> None:
        """Raise `LakeMismatch` if these are messages of another topic than the lake's, or some that
        it has already, or if a file that an executor wrote is not there.
        """
        for file in self.files:
            if others := [topic for topic in file.topics if topic != home.topic]:
                raise LakeMismatch(
                    f"{folder} keeps topic {home.topic!r}, and these are messages of {others[0]!r}"
                )
            path = folder / file.path
            if not path.is_file() or path.stat().st_size != file.size:
                raise LakeMismatch(
                    f"{path} is not there as an executor wrote it: the driver and all executors "
                    "must see the lake under one path, and nobody else may delete files there"
                )
        for partition, (first, _) in self.spans.items():
            if first < (at := positions.get(partition, 0)):
                raise LakeMismatch(
                    f"{folder} has partition {partition} up to offset {at - 1:,} already, and this "
                    f"micro-batch begins at {first:,}: another query archives there, or this one's "
                    "checkpoint is older than the lake; go on with a new checkpoint folder"
                )


def check_folder(folder: str) -> Path:
    """Return a lake's folder as an absolute path. Raises `BadOption` for what is no local path."""
    scheme, colon, rest = folder.partition("://")
    if colon and scheme != "file":
        raise BadOption(
            f"{folder}: a lake is a folder that the driver and all executors see under one path, "
            "such as one on a shared file system"
        )
    path = Path(rest if colon else folder).expanduser().absolute()
    if odd := _ODD.intersection(str(path)):
        raise BadOption(
            f"{folder}: Spark and Delta Lake read {min(odd)!r} in a path as something else: give "
            "a folder without it"
        )
    if path.exists() and not path.is_dir():
        raise BadOption(f"{folder} is no folder: give a folder for the lake")
    return path


def write_cut(folder: Path, cut: Cut) -> None:
    """Say durably how far a lake is whole."""
    path = folder / _CUT
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part")
    with writing(path):
        with part.open("w", encoding="utf-8") as file:
            json.dump({"stamp": cut.stamp, "rows": cut.rows}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync(path.parent)


def read_cut(folder: Path) -> Cut | None:
    """Return how far a lake is whole; None where nothing says so. Raises `LakeMismatch`."""
    path = folder / _CUT
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return Cut(int(told["stamp"]), int(told["rows"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise LakeMismatch(
            f"{path} was not written by a pipeline: delete it, and run the bronze step"
        ) from None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise `NotWritable`, which names the path, for what the system refuses in the block."""
    try:
        yield
    except OSError as error:
        # Arrow and Delta word the system's error themselves, on one line or several.
        reason = " ".join((error.strerror or str(error)).split())
        raise NotWritable(
            f"{error.filename or path} cannot be written ({reason}): make room there, or let this "
            "user write there, then start again with the same folders: nothing is added twice"
        ) from error


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def crowded(files: Iterable[KeptFile], least: int) -> dict[str, list[KeptFile]]:
    """Return by day the files that are to be compacted: `least` or more small ones of a day."""
    small: dict[str, list[KeptFile]] = {}
    for file in files:
        if file.size < COMPACT_BYTES // 2:
            small.setdefault(file.day, []).append(file)
    return {day: found for day, found in sorted(small.items()) if len(found) >= max(least, 2)}


@contextlib.contextmanager
def reading(folder: Path, hours: float) -> Iterator[None]:
    """Keep all files of a lake that are there now from vacuum, in the block or for `hours`.

    Raises `BadOption` if that is no time, or is over `READ_HOURS_MAX`.
    """
    if not 0 < hours <= READ_HOURS_MAX:
        raise BadOption(f"hours={hours}: give more than 0 and at most {READ_HOURS_MAX}")
    readers = folder / "_weir" / "readers"
    readers.mkdir(parents=True, exist_ok=True)
    now = time.time()
    mine = readers / f"{secrets.token_hex(8)}.json"
    told = {"since_ms": int(now * 1_000), "until_ms": int((now + hours * 3_600) * 1_000)}
    part = mine.with_suffix(".part")
    part.write_text(json.dumps(told), encoding="utf-8")
    part.rename(mine)
    try:
        yield
    finally:
        mine.unlink(missing_ok=True)


def least_kept_ms(folder: Path, keep_ms: int, now_ms: int) -> int:
    """Return how old what vacuum deletes must be: `keep_ms`, or more if a reader began before.

    Forgets readers whose time is over. One that cannot be read holds its files until it is deleted.
    """
    keep = max(keep_ms, KEEP_MS_MIN)
    for path in (folder / "_weir" / "readers").glob("*.json"):
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            since, until = int(told["since_ms"]), int(told["until_ms"])
        except FileNotFoundError:  # it has just ended
            continue
        except (ValueError, KeyError, TypeError):
            since, until = int(path.stat().st_mtime * 1_000), now_ms + 1
        if until < now_ms:
            path.unlink(missing_ok=True)
            continue
        # A minute more: the clocks of machines that share the folder differ.
        keep = max(keep, now_ms - since + 60_000)
    return keep
