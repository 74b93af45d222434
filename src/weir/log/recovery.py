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
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from weir.log.disk import Disk
from weir.log.errors import ForeignSegment, LogDamaged
from weir.log.frame import BadFrame
from weir.log.log import Log
from weir.log.record import HardState
from weir.log.reserve import Reserve
from weir.log.scan import Scan
from weir.log.segment import BLOCK, Segment, segment_number, unpack_header
from weir.log.segments import Segments
from weir.log.settings import Settings

_ZEROS = memoryview(bytes(1 << 20))


@dataclass(frozen=True, slots=True)
class RecoveredGroup:
    """One group as the log held it at start; where its entries lie, `Log.stored` knows.

    `last_index` is that of its last entry, superseded ones left out; 0 if it has none.
    """

    hard_state: HardState | None
    last_index: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """A log ready to go on, and its groups. `mark` and `tail` are positions, for diagnosis."""

    log: Log
    groups: dict[int, RecoveredGroup]
    mark: int
    tail: int


def recover(disk: Disk, settings: Settings) -> Recovered:
    """Open the log in a folder, or begin one in an empty folder; blocks.

    When it returns, everything in the groups is durable; the first flush makes the mark current.
    Raises `LogDamaged`, `ForeignSegment`, `UnknownKind`, `BadSettings`, `OSError`, `DiskFailed`.
    """
    settings.validate()
    names = [name for name in disk.names() if segment_number(name) is not None]
    row = sorted(_opened(disk, names, settings), key=lambda segment: segment.base)
    used = {segment.name for segment in row}
    rest = [name for name in names if name not in used]
    scan = Scan(settings.log)
    for segment in row:
        scan.take(segment, disk.read(segment.name, 0, segment.size))
    for name in rest:
        scan.take_unnamed(name, disk.read(name, 0, disk.size(name)))
    scan.judge()
    # Their blocks stay ours on a disk that is full by now; the host zeroes them off the loop.
    whole = (name for name in sorted(rest) if disk.size(name) == settings.segment_bytes)
    kept = list(islice(whole, settings.spares))
    _settle(disk, row, [name for name in rest if name not in kept], scan)
    numbers = [number for name in names if (number := segment_number(name)) is not None]
    segments = Segments(scan.live, settings.segment_bytes)
    reserve = Reserve(kept, numbers, settings.segment_bytes, settings.spares)
    groups = {
        group: RecoveredGroup(
            scan.hard_states.get(group),
            scan.index[group].last if group in scan.index else 0,
        )
        for group in sorted(scan.index.keys() | scan.hard_states.keys())
    }
    log = Log(disk, settings, segments, reserve, scan.index, scan.tail)
    log.mark_idle()
    return Recovered(log, groups, scan.mark, scan.tail)


def _opened(disk: Disk, names: list[str], settings: Settings) -> Iterator[Segment]:
    """Yield the segments in use: those with a sound header."""
    for name in names:
        try:
            segment, log, system = unpack_header(name, disk.read(name, 0, BLOCK))
        except BadFrame:
            continue  # a spare, or the scan will tell
        if (log, system) != (settings.log, settings.system):
            raise ForeignSegment(
                f"{name} belongs to log {log} of system {system:#x}; here is log {settings.log} of "
                f"system {settings.system:#x}: give this node its own folder, or move the file away"
            )
        if (size := disk.size(name)) != segment.size:
            reason = f"the file has {size:,} of its {segment.size:,} bytes"
            raise LogDamaged(settings.log, name, segment.base, reason)
        yield segment


def _settle(disk: Disk, row: list[Segment], rest: list[str], scan: Scan) -> None:
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
        behind, part = divmod(segment.size - start - len(data), len(_ZEROS))
        disk.write(segment.name, start, [data, *[_ZEROS] * behind, _ZEROS[:part]])
        disk.sync(segment.name)
