"""What a log folder holds, found by reading alone: no file is opened for writing, none is made.

The judgement is that of a node's start (`weir.storage.segment_scan`), without what a start
repairs.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from weir.broker.metadata.catalog import Catalog
from weir.broker.records import entries
from weir.broker.records.registry import TopicCreated
from weir.broker.replica.checkpoints import decode_checkpoint
from weir.errors import Damaged, WeirError
from weir.model.ids import REGISTRY_GROUP, partition_of, topic_of
from weir.server.disk.file_disk import FolderInUse
from weir.server.disk.node_folder import LIFE, NodeFolder, generation_of
from weir.storage.errors import ForeignSegment, UnknownKind
from weir.storage.format import checkpoint, durable_position
from weir.storage.format.durable_position import Owner
from weir.storage.format.frame import HEADER_SIZE, BadFrame, Frame, Kind, frame_size, verify
from weir.storage.format.record import HardState
from weir.storage.format.segment import BLOCK, Segment, segment_number, unpack_header
from weir.storage.group_index import GroupIndex
from weir.storage.group_scan import FoundCopies
from weir.storage.recovery import find_files
from weir.storage.segment_files import Settings
from weir.storage.segment_scan import Scan

_LOCK = "lock"


class NotALog(WeirError):
    """The folder is neither a node's nor a log's."""


class SegmentSurvey(msgspec.Struct):
    """One use of a file. `frames` counts by kind; `closed` where its END stands."""

    segment: Segment
    frames: Counter[Kind] = msgspec.field(default_factory=Counter)
    used_bytes: int = 0
    closed: bool = False


class GroupSurvey(msgspec.Struct, frozen=True):
    """One group, as far as the sound frames tell; `index` None where it has only a hard state."""

    group: int
    name: str
    index: GroupIndex | None
    hard_state: HardState | None


class LogSurvey(msgspec.Struct):
    """A log folder. `mark` is how far it was durable for certain, `tail` where frames end.

    `torn` says what stands behind the tail where that is neither nothing nor damage, `damage` what
    a node would refuse to start with.
    """

    folder: Path
    log: int = 0
    system: int = 0
    mark: int = 0
    tail: int = 0
    torn: str | None = None
    damage: str | None = None
    segments: list[SegmentSurvey] = msgspec.field(default_factory=list)
    spares: list[str] = msgspec.field(default_factory=list)
    unreadable: list[str] = msgspec.field(default_factory=list)
    groups: list[GroupSurvey] = msgspec.field(default_factory=list)
    entries: list[Frame] = msgspec.field(default_factory=list)
    #: Full names of topics by id, which only the log of the registry knows.
    topics: dict[int, str] = msgspec.field(default_factory=dict)
    #: By group, the index that the checkpoint holds its state of.
    checkpoint: dict[int, int] | None = None


def log_folders(folder: Path) -> list[Path]:
    """Return the log folders of a node's folder, or the folder itself. Raises `NotALog`."""
    if not folder.is_dir():
        raise NotALog(f"{folder} is no folder: give a node's data folder, or one log of it")
    founded = NodeFolder(folder).founded()
    elsewhere = [Path(place) for place in founded.folders.values()] if founded else []
    logs = [path for path in (*folder.glob("log-*"), *elsewhere) if path.is_dir()]
    if logs:
        return sorted(logs)
    if any(segment_number(path.name) is not None for path in folder.iterdir()):
        return [folder]
    if founded:
        raise NotALog(
            f"{folder} is a node's folder in which nothing is written yet: "
            f"weir serve --data {folder}"
        )
    raise NotALog(f"{folder} holds no log: give a node's data folder, or one log of it")


def survey_all(folder: Path, group: int | None = None, limit: int = 20) -> list[LogSurvey]:
    """Survey every log of a node's folder, or one log; names that one knows go to all.

    Raises `NotALog`, `FolderInUse`.
    """
    found = [survey(path, group, limit) for path in log_folders(folder)]
    topics = {number: name for one in found for number, name in one.topics.items()}
    for one in found:
        one.groups = [replace(g, name=_group_name(g.group, topics)) for g in one.groups]
    return found


def _group_name(group: int, topics: Mapping[int, str]) -> str:
    if group == REGISTRY_GROUP:
        return "registry"
    topic = topic_of(group)
    return f"{topics.get(topic, f'topic {topic}')}/{partition_of(group)}"


def survey(
    folder: Path, group: int | None = None, limit: int = 20, positions: Path | None = None
) -> LogSurvey:
    """Read a log folder; list the last `limit` entries of `group`. The durable position lies in
    the folder `positions`, or beside the log. Raises `FolderInUse`.
    """
    with held(folder):
        return _Surveyor(folder, group, limit, positions).run()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep nodes off the folder while it is read, by a shared lock on a handle that cannot write.

    A folder without a lock file was never opened by a node here: a copy.
    """
    try:
        handle = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise FolderInUse(
            f"{folder} is in use by a running node: stop that one first, or inspect a copy"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


class Folder:
    """A log folder that is only read: no handle of it could write."""

    def __init__(self, path: Path) -> None:
        """Look into the folder at `path`."""
        self._path = path

    def names(self) -> list[str]:
        """Return the names of all files."""
        there = self._path.iterdir() if self._path.is_dir() else ()
        return [path.name for path in there if path.is_file()]

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""
        return (self._path / name).stat().st_size

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on; fewer only where the file ends."""
        with (self._path / name).open("rb") as file:
            file.seek(offset)
            return file.read(length)


def owner(disk: Folder) -> tuple[int, int]:
    """Return log and system of the first segment with a sound header, (0, 0) if none has."""
    for name in sorted(disk.names()):
        if segment_number(name) is not None:
            with suppress(BadFrame):
                return unpack_header(name, disk.read(name, 0, BLOCK))[1:]
    return 0, 0


def position_owner(disk: Folder, log: int, system: int) -> Owner | None:
    """Return of which log a durable position must be; None where any may be, in an old folder."""
    if LIFE not in disk.names():
        return None
    life = disk.read(LIFE, 0, disk.size(LIFE)).decode(errors="replace")
    return Owner(log, system, generation_of(life))


class _Surveyor:
    """Reads one log folder, segment by segment."""

    def __init__(self, folder: Path, group: int | None, limit: int, positions: Path | None) -> None:
        self._found = LogSurvey(folder)
        self._disk = Folder(folder)
        self._positions = Folder(positions) if positions is not None else self._disk
        self._group = group
        self._entries: deque[Frame] = deque(maxlen=limit)
        self._catalog = Catalog()
        self._catalog_index = 0

    def run(self) -> LogSurvey:
        found = self._found
        try:
            self._scan()
        except (Damaged, ForeignSegment, UnknownKind) as error:
            found.damage = str(error)
        found.entries = list(self._entries)
        return found

    def _scan(self) -> None:
        found, disk = self._found, self._disk
        found.log, found.system = owner(disk)
        saved = self._saved()
        files = find_files(disk, Settings(found.log, found.system), saved)
        copies = FoundCopies(found.log, saved.groups if saved else {})
        copies.read(disk, saved.copies if saved else (), files.copies)
        scan = Scan(found.log, saved, copies)
        try:
            for segment in files.missing:
                scan.missing(segment)
            for segment, end in saved.copies if saved else ():
                if segment.name in files.copies:
                    data = disk.read(segment.name, 0, end)
                    found.segments.append(self._tally(segment, memoryview(data)))
            for segment in files.row:
                if segment.name in files.closed:
                    scan.closed(segment)
                scan.take(segment, self._read(segment), disk.size(segment.name))
            for name, sound in sorted(files.rest.items()):
                data = disk.read(name, 0, disk.size(name))
                if not sound:
                    scan.take_unnamed(name, data)
                spare = sound or not any(data[:BLOCK])
                (found.spares if spare else found.unreadable).append(name)
            whose = position_owner(disk, found.log, found.system)
            scan.reach(durable_position.look(self._positions, whose).position)
            scan.judge(
                lambda segment: disk.read(segment.name, 0, segment.size).ljust(segment.size, b"\0")
            )
            if scan.holes:
                found.damage = "; ".join(str(hole) for hole in scan.holes)
        finally:
            found.mark, found.tail = scan.mark, scan.tail
            found.topics = {topic.id: topic.full_name for topic in self._catalog.topics()}
            found.groups = [
                GroupSurvey(
                    group,
                    _group_name(group, found.topics),
                    scan.groups.index.get(group),
                    scan.groups.hard_states.get(group),
                )
                for group in sorted(scan.groups.index.keys() | scan.groups.hard_states.keys())
            ]

    def _read(self, segment: Segment) -> bytes:
        data = self._disk.read(segment.name, 0, segment.size)
        self._found.segments.append(self._tally(segment, memoryview(data)))
        return data.ljust(segment.size, b"\0")

    def _tally(self, segment: Segment, data: memoryview) -> SegmentSurvey:
        """Count the frames of a segment up to its END, or to where none is sound."""
        tally = SegmentSurvey(segment)
        at = BLOCK
        while not tally.closed and not (segment.class_ and at == len(data)):
            position = None if segment.class_ else segment.base + at
            try:
                frame = verify(data, at, generation=segment.generation, position=position)
            except BadFrame as bad:
                told = segment.class_ or self._found.torn is not None
                if not told and any(data[at : at + HEADER_SIZE]):
                    self._found.torn = f"{segment.name} at byte {at:,}: {bad}"
                break
            tally.frames[frame.kind] += 1
            tally.closed = frame.kind is Kind.END
            if not tally.closed and frame.group == self._group and frame.index:
                self._entries.append(frame)
            if frame.group == REGISTRY_GROUP and frame.kind is Kind.CONTROL:
                self._apply(frame, data[at + HEADER_SIZE :][: frame.length])
            at += frame_size(frame.length)
        tally.used_bytes = at
        return tally

    def _saved(self) -> checkpoint.Checkpoint | None:
        """Read the checkpoint, and the names of topics in it."""
        saved, _ = checkpoint.look(self._disk)
        if saved is not None:
            assert isinstance(saved.body, bytes)  # it was read from a file
            snapshots = decode_checkpoint(saved.body)
            self._found.checkpoint = {group: one.index for group, one in sorted(snapshots.items())}
            registry = snapshots.get(REGISTRY_GROUP)
            if registry is not None:
                self._catalog = Catalog.decode(registry.data)
                self._catalog_index = registry.index
        return saved

    def _apply(self, frame: Frame, payload: memoryview) -> None:
        """Learn the names of topics as the registry does."""
        if frame.index > self._catalog_index:
            record = entries.decode_control(payload)
            if isinstance(record, TopicCreated):
                self._catalog.create(record)
