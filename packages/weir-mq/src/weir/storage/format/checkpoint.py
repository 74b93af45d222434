"""The checkpoint: all that lets a start leave most of the log unread, and segments be used again.

It holds every group's hard state, log start and applied index, the segments that are needed, the
position from which a scan is needed, and the broker's snapshots, which are opaque here. A file,
little-endian:

    magic "WCKP", u16 version, u16 0, u32 log, u64 system, u64 serial, u64 replay, u64 durable,
    u64 lost at, u64 bound, u32 groups, u32 segments, u32 class segments, u64 bytes of the broker's
    part
    a group:    u64 group, term, vote, fence, start, applied; i64 base, behind; u64 floor, last,
                before
    a segment:  u32 number in the file's name, u32 generation, u64 base, u64 size
    a class segment: as a segment, then u32 class, u64 bytes of the file up to where copies end
    the broker's part, then the CRC-32C of everything before

Once segments are used again the log alone cannot say what the checkpoint says. So there are two
files of the same content, and no segment is given up before both are durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple, Protocol

import msgspec

from weir.codec import U32, crc32c
from weir.errors import Damaged
from weir.storage.disk import Disk, Readable
from weir.storage.errors import UnknownKind
from weir.storage.format.record import HardState
from weir.storage.format.segment import Segment, segment_name, segment_number

CHECKPOINT = "checkpoint"
COPY = "checkpoint-copy"
MAGIC = b"WCKP"
VERSION = 4

#: The CRC-32C of a file is taken in pieces: what is large must not keep others waiting.
_PIECE_BYTES = 1 << 20
_HEAD = struct.Struct("<4sHHIQQQQQQIIIQ")
_GROUP = struct.Struct("<QQQQQQqqQQQ")
_SEGMENT = struct.Struct("<IIQQ")
_COPIES = struct.Struct("<IIQQIQ")
#: Before the first frame that any log holds.
_BEFORE_ALL = 1


class Body(Protocol):
    """The broker's part of a checkpoint, before it is packed."""

    def write(self, out: bytearray) -> None:
        """Append it."""


class Kept(NamedTuple):
    """What a checkpoint says of one group.

    Entries below `start` are not needed, and `base` is the offset behind them; those through
    `applied` are in the broker's snapshot, and `behind` is the offset behind them; -1 where no
    messages came yet. Frames of the group below log position `floor` do not count: a snapshot was
    installed there, or the group was gone. One that still is has `start` `GONE`. Of the entries
    through `applied` the log held those through `last`: an installed state may be ahead of it.
    `before` is the term of the entry before `start`, 0 where it is not known.
    """

    term: int
    vote: int
    fence: int
    start: int
    applied: int
    base: int
    behind: int
    floor: int = 0
    last: int = 0
    before: int = 0

    @property
    def hard_state(self) -> HardState:
        """Its term, vote and fence."""
        return HardState(self.term, self.vote, self.fence)


#: What a checkpoint says of a group that it does not know.
UNKNOWN = Kept(0, 0, 0, 0, 0, -1, -1)


class Checkpoint(msgspec.Struct, frozen=True):
    """One checkpoint. Frames from position `replay` on are needed to go on from it, and all below
    `durable` were durable when it was made. `serial` rises with each. `copies` are class segments,
    each with the byte where its copies end: what lies behind is not believed. Up to position
    `lost_at`, 0 if there was no such place, frames were lost of which nobody knows whose they were.
    `bound` is how far promises were allowed to go.
    """

    log: int
    system: int
    serial: int
    replay: int
    durable: int
    groups: Mapping[int, Kept]
    segments: tuple[Segment, ...]
    body: bytes | Body
    copies: tuple[tuple[Segment, int], ...] = ()
    lost_at: int = 0
    bound: int = 0

    def pack(self) -> bytearray:
        """Return the file; takes long where the body is large, and not all of it at once."""
        body = self.body
        out = bytearray(_HEAD.size)
        out += b"".join(self._rows())
        start = len(out)
        if isinstance(body, bytes):
            out += body
        else:
            body.write(out)
        _HEAD.pack_into(
            out,
            0,
            MAGIC,
            VERSION,
            0,
            self.log,
            self.system,
            self.serial,
            self.replay,
            self.durable,
            self.lost_at,
            self.bound,
            len(self.groups),
            len(self.segments),
            len(self.copies),
            len(out) - start,
        )
        crc = 0
        with memoryview(out) as view:
            for at in range(0, len(view), _PIECE_BYTES):
                crc = crc32c(view[at : at + _PIECE_BYTES], crc)
        out += U32.pack(crc)
        return out

    def _rows(self) -> Iterator[bytes]:
        groups = (_GROUP.pack(group, *kept) for group, kept in self.groups.items())
        segments = (
            _SEGMENT.pack(segment_number(one.name), one.generation, one.base, one.size)
            for one in self.segments
        )
        copies = (
            _COPIES.pack(
                segment_number(one.name), one.generation, one.base, one.size, one.class_, end
            )
            for one, end in self.copies
        )
        return chain(groups, segments, copies)


def unpack(data: bytes) -> Checkpoint:
    """Read a checkpoint file. Raises `Damaged`, or `UnknownKind` for a newer release's."""
    body = data[: -U32.size]
    if len(body) < _HEAD.size or U32.unpack_from(data, len(body))[0] != crc32c(body):
        raise Damaged("it fails its CRC-32C")
    magic, version, _, log, system, serial, *fields = _HEAD.unpack_from(body)
    replay, durable, lost_at, bound, groups, segments, copied, _ = fields
    if magic != MAGIC or version != VERSION:
        raise UnknownKind(
            f"the checkpoint has version {version}, and this release knows {VERSION}: start this "
            "node with the release that wrote it, or a newer one"
        )
    at = _HEAD.size
    kept = {}
    for group, *fields in _GROUP.iter_unpack(body[at : at + groups * _GROUP.size]):
        kept[group] = Kept(*fields)
    at += groups * _GROUP.size
    row = tuple(
        Segment(segment_name(number), *fields)
        for number, *fields in _SEGMENT.iter_unpack(body[at : at + segments * _SEGMENT.size])
    )
    at += segments * _SEGMENT.size
    copies = tuple(
        (Segment(segment_name(number), *fields), end)
        for number, *fields, end in _COPIES.iter_unpack(body[at : at + copied * _COPIES.size])
    )
    at += copied * _COPIES.size
    rest = body[at:]
    return Checkpoint(log, system, serial, replay, durable, kept, row, rest, copies, lost_at, bound)


def save(disk: Disk, found: Checkpoint) -> int:
    """Pack a checkpoint and make it the durable one, in both places; blocks. Returns the bytes
    written. Raises `OSError` for want of room: the log has everything then that it had.
    """
    data = found.pack()
    disk.replace(CHECKPOINT, data)
    disk.replace(COPY, data)
    return 2 * len(data)


def load(disk: Disk) -> Checkpoint | None:
    """Return the newest sound checkpoint, None where there never was one; blocks.

    Where the two files do not say the same, saving was cut short, and the name of the newer one may
    be only the cache's: it is saved again, before a segment is given up for it. Raises what `look`
    and `save` raise.
    """
    newest, sound = look(disk)
    if newest is not None and not sound:
        save(disk, newest)
    return newest


def look(disk: Readable) -> tuple[Checkpoint | None, bool]:
    """Return the newest sound checkpoint and whether both files say the same; changes nothing.

    Raises `Damaged` where files are there and none is sound.
    """
    found: list[Checkpoint] = []
    reasons: list[str] = []
    names = disk.names()
    for name in (CHECKPOINT, COPY):
        if name in names:
            try:
                found.append(unpack(disk.read(name, 0, disk.size(name))))
            except Damaged as bad:
                reasons.append(f"{name}: {bad}")
    if reasons and not found:
        raise Damaged("; ".join(reasons))
    newest = max(found, key=lambda one: one.serial, default=None)
    return newest, newest is not None and [one.serial for one in found] == [newest.serial] * 2


def begin_lost(disk: Disk, log: int, system: int) -> None:
    """Say in an empty folder that the log was lost that it held: `recover` finds it damaged for
    each group that anybody knows of, until that begins anew. Durable when it returns; blocks.

    Such a log must not be taken for one that never held votes: a voter that may have lost one takes
    part again only as another voter (DESIGN §4 Damage).
    Raises `OSError`, `DiskFailed`.
    """
    save(disk, Checkpoint(log, system, 0, 0, 0, {}, (), b"", lost_at=_BEFORE_ALL))
