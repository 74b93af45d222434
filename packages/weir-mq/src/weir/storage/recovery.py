"""Opening a log after a stop, a kill or a power cut (DESIGN §4 Log and Damage).

Every segment is scanned, every frame verified. The highest sound MARK found anywhere is the
*durable mark*. The first place that holds no sound frame is

* the torn tail, if it lies at or above the mark: everything from there on is dropped, sound-looking
  frames behind it included. A flush holds many frames and a disk writes its sectors in any order,
  so after an ordinary power cut a torn frame can well be followed by sound ones of the same flush,
  which was never synced and of which nothing was promised. To call that damage ("a torn tail only
  if nothing valid follows") would keep a lone node from starting after a power cut;
* damage, if it lies below: those bytes had been durable. Nothing is changed then.

What lies between the mark and the tail was perhaps read from a page cache that never reached the
disk (counterexample 9), so it is rewritten in place, and everything behind the tail is zeroed, and
synced, before any of it counts. Zeroed, because the next frames get the positions and the
generation of the dropped ones: where boundaries align, a dropped frame would be believed after the
next power cut.

The mark lies in the log, so a tail that vanishes takes it along. The durable position file says in
a second place how far the log had been synced: a log that ends below that is damaged there.

A checkpoint bounds the work: of segments below its `replay` position only the index files are read,
and no frame is verified before somebody reads it. What has to be applied again is verified here, so
that a group which lost some of it is known before it takes part in anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec
from msgspec.structs import replace

from weir.errors import Damaged
from weir.storage.disk import Disk, Readable
from weir.storage.errors import BadIndexFile, ForeignSegment, LogDamaged
from weir.storage.format.checkpoint import CHECKPOINT, COPY, Checkpoint, load, save
from weir.storage.format.frame import HEADER_SIZE, BadFrame, place
from weir.storage.format.index_file import IndexFile, closed_use, index_name, is_index, read_index
from weir.storage.format.record import HardState, Installed
from weir.storage.format.segment import BLOCK, Segment, segment_number, unpack_header
from weir.storage.group_index import GroupIndex, GroupTable
from weir.storage.group_scan import FoundCopies, GroupScan
from weir.storage.log import Log
from weir.storage.segment_files import Segments, Settings, SpareFiles
from weir.storage.segment_lifecycle import SegmentLifecycle
from weir.storage.segment_scan import Scan

_ZEROS = memoryview(bytes(1 << 20))


class RecoveredGroup(msgspec.Struct, frozen=True):
    """One group as the log held it at start; where its entries lie, `LogReader.stored` knows.

    `last_index` is that of its last entry, superseded ones left out; `base_index`, behind which its
    log begins, if it has none. It lies below the index of an installed state while entries are
    still being filled in. `base_term` is the term of entry `base_index`, 0 where it is not known.
    `snapshot` is an installed state that is newer than what the checkpoint holds, if there is one.
    One that is `anew` began again behind the checkpoint, whose body holds what it was before.

    `damage` says what a group lost that it needs to go on: it may neither vote nor lead.
    `hard_state_lost` says that this may be a vote. `unreadable` counts entries that are needed and
    known to be lost, also of a group that can go on: requests for them are refused. Of those in
    `rotten` only the payload is lost: with these filled in, nothing is `damage` any more. Those in
    `doubtful` may have been superseded by what is lost, if the group has other voters.
    """

    hard_state: HardState | None
    last_index: int
    damage: LogDamaged | None = None
    base_index: int = 0
    base_term: int = 0
    snapshot: Installed | None = None
    hard_state_lost: bool = False
    unreadable: int = 0
    rotten: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()
    anew: bool = False


class Recovered(msgspec.Struct, frozen=True):
    """A log ready to go on, and its groups. `mark` and `tail` are positions, for diagnosis.

    `body` is the broker's part of the checkpoint. `holes` are the places below the mark that were
    found damaged; entries that lay there cannot be read.
    """

    log: Log
    groups: dict[int, RecoveredGroup]
    mark: int
    tail: int
    body: bytes = b""
    holes: tuple[LogDamaged, ...] = ()


class Files(msgspec.Struct, frozen=True):
    """What lies in the folder: segments in use by base; those the checkpoint misses; other files of
    a segment's name, and whether their headers are sound; class segments' files that are there; the
    names of those in the row of which index files say that they were closed, and all durable.
    """

    row: list[Segment]
    missing: list[Segment]
    rest: dict[str, bool]
    copies: set[str]
    closed: set[str]


def recover(disk: Disk, settings: Settings, durable: int = 0) -> Recovered:
    """Open the log in a folder, or begin one in an empty folder; blocks.

    All below position `durable` had been synced, as a second file says
    (`weir.storage.format.durable_position`); 0 where nothing says so. A log that ends below it is
    damaged.

    When it returns, everything in the groups is durable; the first flush makes the mark current.
    Raises `LogDamaged`, `ForeignSegment`, `UnknownKind`, `BadSettings`, `OSError`, `DiskFailed`.
    """
    settings.validate()
    found = _checkpoint(disk, settings)
    files = find_files(disk, settings, found)
    copies = FoundCopies(settings.log, found.groups if found else {})
    copies.read(disk, found.copies if found else (), files.copies)
    scan = Scan(settings.log, found, copies)
    unwritten = _scan(disk, files, scan, found, durable)
    groups = scan.groups
    found = _amended(disk, settings, found, scan)
    # Their blocks stay ours on a disk that is full by now; the host zeroes them off the loop.
    whole = (name for name in sorted(files.rest) if disk.size(name) == settings.segment_bytes)
    kept = list(islice(whole, settings.spares))
    _make_durable(disk, files.row, [name for name in files.rest if name not in kept], scan)
    _remove_orphans(disk, (*scan.live, *(one.segment for one in copies.segments)))
    there = set(disk.names())
    used = (*scan.live, *(one.segment for one in copies.segments))
    names = there.union(segment.name for segment in used)
    numbers = [number for n in names if (number := segment_number(n)) is not None]
    # Where files of an earlier life wait, the first segment of all takes one of them.
    small = settings.first_segment_bytes if not kept else 0
    is_new = small > 0 and (not scan.live or scan.live[-1].size < settings.segment_bytes)
    segments = Segments(scan.live, settings.segment_bytes, small)
    spares = SpareFiles(kept, numbers, settings.segment_bytes, settings.spares, is_new)
    if found is not None and found.lost_at and found.durable < scan.tail:
        # Else a later tail could lie below the place where frames were lost.
        found = _again(disk, replace(found, durable=scan.tail))
    short = {one.name for one in used if one.name in there and disk.size(one.name) < one.size}
    table = GroupTable(
        groups.index,
        groups.hard_states,
        groups.floors(scan.tail),
        groups.installed(),
        groups.lost,
        groups.lost_at,
    )
    lifecycle = SegmentLifecycle(settings, segments, spares, table, found, copies.segments, short)
    for file in unwritten:
        lifecycle.closed(file)
    log = Log(disk, settings, segments, spares, table, lifecycle, scan.tail, scan.bound)
    log.mark_idle()
    body = found.body if found else b""
    assert isinstance(body, bytes)  # it was read from a file
    return Recovered(log, _groups(groups), scan.mark, scan.tail, body, tuple(scan.holes))


def _groups(scan: GroupScan) -> dict[int, RecoveredGroup]:
    found = {}
    for group in sorted(scan.index.keys() | scan.hard_states.keys() | scan.damage.keys()):
        index, whole = scan.index.get(group, GroupIndex(1)), scan.snapshots.get(group)
        found[group] = RecoveredGroup(
            scan.hard_states.get(group),
            index.last,
            scan.damage.get(group),
            index.first - 1,
            index.before,
            whole.state if whole and whole.state.index else None,
            group in scan.states_lost,
            scan.joining.unreadable(group),
            scan.rotten(group),
            scan.joining.doubts.of(group, scan.index.get(group)),
            whole is not None,
        )
    return found


def _amended(
    disk: Disk, settings: Settings, found: Checkpoint | None, scan: Scan
) -> Checkpoint | None:
    """Save the checkpoint again where the next start has to know what this one found.

    A power cut may have taken what began a group, though the checkpoint knows of it: what comes at
    the tail now must count. And where nobody knows whose frames were lost, none may be trusted even
    when the place has been written over.
    """
    saved = found or Checkpoint(settings.log, settings.system, 0, 0, 0, {}, (), b"")
    late = {
        g: kept._replace(floor=scan.tail)
        for g, kept in saved.groups.items()
        if kept.floor > scan.tail
    }
    lost_at = scan.groups.lost_at
    if not late and lost_at == saved.lost_at:
        return found
    groups = {**saved.groups, **late}
    return _again(disk, replace(saved, groups=groups, lost_at=lost_at))


def _again(disk: Disk, found: Checkpoint) -> Checkpoint:
    found = replace(found, serial=found.serial + 1)
    save(disk, found)
    return found


def _checkpoint(disk: Disk, settings: Settings) -> Checkpoint | None:
    """Return the checkpoint to go on from; None to read the whole log.

    Raises `LogDamaged` where none is sound and the log no longer begins at its beginning.
    """
    try:
        found = load(disk)
    except Damaged as bad:
        bases = [one.base for one in _opened(disk, settings).values() if not one.class_]
        if bases and min(bases) > 0:
            reason = f"{bad}; and segments from before position {min(bases):,} were used again"
            raise LogDamaged(settings.log, f"{CHECKPOINT} and {COPY}", 0, reason) from bad
        return None
    if found and (found.log, found.system) != (settings.log, settings.system):
        raise _foreign(CHECKPOINT, found.log, found.system, settings)
    return found


def find_files(disk: Readable, settings: Settings, found: Checkpoint | None) -> Files:
    """Tell segments in use from files that wait for their next use. Raises `ForeignSegment`."""
    opened = _opened(disk, settings)
    every = disk.names()
    names = [name for name in every if segment_number(name) is not None]
    row: list[Segment] = []
    missing: list[Segment] = []
    listed = found.segments if found else ()
    for segment in listed:
        # An unreadable header is no loss here: the checkpoint says what it said.
        there = segment.name in names and opened.get(segment.name, segment) == segment
        (row if there else missing).append(segment)
    end = listed[-1].end if listed else 0
    unread = (name for name in names if name not in opened and index_name(name) in every)
    told = (use for name in unread if (use := _told(disk, name)) is not None)
    row += [one for one in (*opened.values(), *told) if one.base >= end and not one.class_]
    named = [segment for segment, _ in found.copies] if found else []
    copies = {one.name for one in named if one.name in names and opened.get(one.name, one) == one}
    # The name of a class segment stays its own, whatever lies there.
    used = {segment.name for segment in (*row, *named)}
    rest = {name: name in opened for name in names if name not in used}
    row.sort(key=lambda segment: segment.base)
    replay = found.replay if found else 0
    young = [one for one in row if one.end > replay and index_name(one.name) in every]
    closed = {one.name for one in young if closed_use(disk, one.name) == one}
    return Files(row, missing, rest, copies, closed)


def _opened(disk: Readable, settings: Settings) -> dict[str, Segment]:
    """Return what files with a sound segment header were used for last, by name."""
    opened = {}
    for name in disk.names():
        if segment_number(name) is None:
            continue
        block = disk.read(name, 0, BLOCK)
        try:
            segment, log, system = unpack_header(name, block)
        except BadFrame as bad:
            if len(block) < BLOCK and any(block):  # no unfinished file: those are zeros
                raise LogDamaged(settings.log, name, 0, str(bad)) from bad
            continue  # a spare, or the index file or the scan will tell
        if (log, system) != (settings.log, settings.system):
            raise _foreign(name, log, system, settings)
        opened[name] = segment
    return opened


def _told(disk: Readable, name: str) -> Segment | None:
    """Return what the index file says of a closed segment whose header rotted, which costs nothing
    then. The first frame must say the same, for the index file may be of an earlier use.
    """
    use = closed_use(disk, name)
    try:
        generation, position, _ = place(memoryview(disk.read(name, BLOCK, HEADER_SIZE)), 0)
    except BadFrame:
        return None
    return use if use and (generation, position) == (use.generation, use.first) else None


def _foreign(name: str, log: int, system: int, settings: Settings) -> ForeignSegment:
    return ForeignSegment(
        f"{name} belongs to log {log} of system {system:#x}; here is log {settings.log} of "
        f"system {settings.system:#x}: give this node its own folder, or move the file away"
    )


def _scan(
    disk: Disk, files: Files, scan: Scan, found: Checkpoint | None, durable: int
) -> list[IndexFile]:
    """Let the scan take all segments; return the index files that are still to be written."""
    replay = found.replay if found else 0
    unwritten: list[IndexFile] = []

    def read(segment: Segment) -> bytes:
        return disk.read(segment.name, 0, segment.size).ljust(segment.size, b"\0")

    for segment in files.missing:
        scan.missing(segment)
    for segment in files.row:
        if segment.end <= replay and segment is not files.row[-1]:
            try:
                scan.known(segment, read_index(disk, segment).sections)
                continue
            except BadIndexFile:
                pass
        if segment.name in files.closed:
            scan.closed(segment)
        scan.take(segment, read(segment), disk.size(segment.name))
        if not scan.stopped:
            unwritten.append(IndexFile(segment, scan.rows(segment)))
    for name, sound in files.rest.items():
        if not sound:  # one with a sound header is not needed, or the checkpoint would name it
            scan.take_unnamed(name, disk.read(name, 0, disk.size(name)))
    scan.reach(durable)
    scan.judge(read)
    # What is lost may be filled in, and the next start is to see it then: it reads these again.
    damaged = {hole.segment for hole in scan.holes}
    whole = [segment for segment in scan.live[:-1] if segment.name not in damaged]
    return [file for file in unwritten if file.segment in whole]


def _remove_orphans(disk: Disk, live: Iterable[Segment]) -> None:
    used = {index_name(segment.name) for segment in live}
    for name in disk.names():
        if is_index(name) and name not in used:
            disk.remove(name)


def _make_durable(disk: Disk, row: list[Segment], rest: list[str], scan: Scan) -> None:
    """Make the disk hold exactly what the scan believed, whatever a cache says."""
    live = {segment.name for segment in scan.live}
    # The latest first, so that a power cut in between leaves no hole in the row.
    for segment in reversed(row):
        if segment.name not in live:
            disk.remove(segment.name)
    # More than is kept, or begun and not finished.
    for name in rest:
        disk.remove(name)
    for segment, start, data in scan.unsure():
        if disk.size(segment.name) < segment.size:  # no write may reach past the end of a file
            whole = disk.read(segment.name, 0, start).ljust(start, b"\0") + data
            disk.replace(segment.name, whole.ljust(segment.size, b"\0"))
            continue
        behind, part = divmod(segment.size - start - len(data), len(_ZEROS))
        disk.write(segment.name, start, [data, *[_ZEROS] * behind, _ZEROS[:part]])
        disk.sync(segment.name)
