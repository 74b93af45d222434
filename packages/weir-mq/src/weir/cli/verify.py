"""`weir inspect --verify`: read every byte of a stopped node's logs, and say what is sound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from weir.cli.survey import Folder, held, owner, position_owner
from weir.errors import Damaged
from weir.model.limits import MIB
from weir.storage.errors import BadIndexFile, UnknownKind
from weir.storage.format import checkpoint, durable_position
from weir.storage.format.index_file import index_name, read_index
from weir.storage.format.segment import Segment
from weir.storage.recovery import Files, find_files
from weir.storage.scrub import ScrubPiece
from weir.storage.segment_files import Settings
from weir.storage.segment_scan import highest_mark

_SPARE = "waits for its next use"


class Verdict(msgspec.Struct, frozen=True):
    """What was found in one file: `bad` says each damaged place, and is empty where it is sound.

    `size` are the bytes that were read and verified in `seconds`.
    """

    file: str
    says: str
    size: int
    seconds: float
    bad: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """MB a second."""
        return self.size / self.seconds / 1e6 if self.seconds else 0.0


def verify(folder: Path) -> Iterator[Verdict]:
    """Yield a verdict on each file of a log folder. Raises `FolderInUse`, `ForeignSegment`."""
    with held(folder):
        disk = Folder(folder)
        log, system = owner(disk)
        names = set(disk.names())
        saved_in = names.intersection((checkpoint.CHECKPOINT, checkpoint.COPY))
        yield from (_checkpoint(disk, name) for name in sorted(saved_in))
        try:
            saved, _ = checkpoint.look(disk)
        except Damaged:
            saved = None
        files = find_files(disk, Settings(log, system), saved)
        position = durable_position.look(disk, position_owner(disk, log, system))
        if durable_position.NAME in names:
            yield _position(disk, position, files)
        for segment in files.missing:
            text = "missing, though the checkpoint needs it"
            yield Verdict(segment.name, text, 0, 0.0, (text,))
        end = saved.segments[-1].end if saved and saved.segments else 0
        yield from _gaps(files, end)
        for segment in files.row:
            durable = segment.end
            if segment is files.row[-1]:  # what lies behind the marks may be torn, and is no loss
                data = disk.read(segment.name, 0, segment.size)
                marks = highest_mark(data, 0, segment), saved.durable if saved else 0
                durable = max(*marks, position.position)
            yield _segment(disk, log, segment, durable)
            if index_name(segment.name) in names and segment is not files.row[-1]:
                yield _index(disk, segment)
        for segment, upto in saved.copies if saved else ():
            if segment.name not in files.copies:
                text = "missing, though the checkpoint needs it"
                yield Verdict(segment.name, text, 0, 0.0, (text,))
                continue
            yield _segment(disk, log, segment, segment.end, upto)
            if index_name(segment.name) in names:
                yield _index(disk, segment)
        end = max(end, files.row[-1].end if files.row else 0)
        for name, sound in sorted(files.rest.items()):
            yield Verdict(name, _SPARE, 0, 0.0) if sound else _spare(disk, name, end)


def _position(disk: Folder, found: durable_position.Found, files: Files) -> Verdict:
    """Judge the durable position file, and whether the segments reach as far as it says."""
    name, end = durable_position.NAME, max((one.end for one in files.row), default=0)
    bad: tuple[str, ...] = ()
    says = f"sound: all below position {found.position:,} had been synced"
    if found.position > end:
        says = "DAMAGED"
        bad = (
            f"says that all below position {found.position:,} had been synced, and the segments "
            f"end at {end:,}: what was written last is missing",
        )
    elif found.bad:  # an older release, or a crash before the first save
        says = f"not to be believed: {found.bad}" if not found.count else f"one block: {found.bad}"
    return Verdict(name, says, disk.size(name), 0.0, bad)


def _gaps(files: Files, end: int) -> Iterator[Verdict]:
    """Yield a verdict for each place in the row, behind what the checkpoint names, through `end`,
    where segments are missing.
    """
    for segment in files.row:
        if segment.base > end:
            text = "the segment before this one is missing or unreadable"
            yield Verdict(segment.name, text, 0, 0.0, (text,))
        end = max(end, segment.end)
    last = files.row[-1].name if files.row else ""
    if last in files.closed:  # its index file was written when the next one was there
        text = "what was written behind this segment is missing or unreadable"
        yield Verdict(last, text, 0, 0.0, (text,))


def _spare(disk: Folder, name: str, end: int) -> Verdict:
    """Judge a file without a sound header, of a log whose other segments reach to `end`: one that
    rotted holds a mark that tells of more.
    """
    started = time.perf_counter()
    data = disk.read(name, 0, disk.size(name))
    if highest_mark(data, 0, None) <= end:
        return Verdict(name, _SPARE, 0, 0.0)
    bad = ("its header is unreadable, and what it holds had been durable",)
    return Verdict(name, "DAMAGED", len(data), time.perf_counter() - started, bad)


def _segment(disk: Folder, log: int, segment: Segment, durable: int, end: int = 0) -> Verdict:
    started = time.perf_counter()
    size = 0
    bad: list[str] = []
    piece: ScrubPiece | None = ScrubPiece(log, segment, end=end)
    while piece is not None:
        found = piece.run(disk)
        size += found.size
        bad += [f"at {b.position:,}: {b.reason}" for b in found.bad if b.position < durable]
        piece = found.next_piece
    if (left := disk.size(segment.name)) < segment.size:  # a log's own files never are
        bad.append(f"cut short: {left:,} of {segment.size:,} bytes are left")
    seconds = time.perf_counter() - started
    return Verdict(segment.name, "sound" if not bad else "DAMAGED", size, seconds, tuple(bad))


def _index(disk: Folder, segment: Segment) -> Verdict:
    started = time.perf_counter()
    name = index_name(segment.name)
    says = "sound"
    try:
        read_index(disk, segment)
    except BadIndexFile:
        says = "not to be believed: the next start makes it again"
    return Verdict(name, says, disk.size(name), time.perf_counter() - started)


def _checkpoint(disk: Folder, name: str) -> Verdict:
    started = time.perf_counter()
    size = disk.size(name)
    bad: tuple[str, ...] = ()
    try:
        checkpoint.unpack(disk.read(name, 0, size))
    except (Damaged, UnknownKind) as error:
        bad = (str(error),)
    seconds = time.perf_counter() - started
    return Verdict(name, "DAMAGED" if bad else "sound", size, seconds, bad)


def report(folder: Path, as_json: bool) -> bool:
    """Verify all logs of a node's folder and print it; return whether all is sound."""
    from weir.cli.output import print_json, print_table
    from weir.cli.survey import log_folders

    logs = [(path, list(verify(path))) for path in log_folders(folder)]
    found = [one for _, verdicts in logs for one in verdicts]
    if as_json:
        rows = [
            {
                "folder": str(path),
                "files": [
                    {"file": v.file, "says": v.says, "bytes": v.size, "bad": list(v.bad)}
                    for v in verdicts
                ],
            }
            for path, verdicts in logs
        ]
        print_json("weir.verify/1", {"folder": str(folder)}, {"logs": rows})
        return not any(one.bad for one in found)
    for path, verdicts in logs:
        print(path)
        print_table(
            ("FILE", "MIB", "MB/S", "VERDICT"),
            [(v.file, f"{v.size / MIB:.1f}", f"{v.rate:,.0f}", v.says) for v in verdicts],
        )
        for v in verdicts:
            for place in v.bad:
                print(f"DAMAGED: {v.file} {place}")
    size, seconds = sum(v.size for v in found), sum(v.seconds for v in found)
    print(f"\n{size / MIB:,.1f} MiB verified, {size / max(seconds, 1e-9) / 1e6:,.0f} MB/s")
    return not any(one.bad for one in found)
