"""The durable position file: how far a log had been durable, told in a second place.

A tail that vanishes takes the marks with it that tell of it. This file names a position that a
flush made durable, after that flush returned: it is never ahead of the log, and a log that ends
below it has lost something. It may lie on another disk than the log does.

Two blocks of 4,096 bytes are written by turns, so that a write that is cut short leaves the block
before it. A block, little-endian:

    offset size field
    0      4    magic "WDUR"        16    8  system id
    4      2    version             24    8  generation: which log of this number it is
    6      2    0                   32    8  count: the block of the higher one is newer
    8      4    log id              40    8  position
    12     4    0                   4,092 4  CRC-32C of all bytes before it
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import msgspec

from weir.codec import U32, crc32c
from weir.storage.disk import Disk, Readable

NAME = "durable-position"
BLOCK = 4096
MAGIC = b"WDUR"
VERSION = 1

_FIELDS = struct.Struct("<4sHHIIQQQQ")
_BODY = BLOCK - U32.size


class Owner(msgspec.Struct, frozen=True):
    """Which log a file is about. `generation` is drawn when a log begins, or is restored."""

    log: int
    system: int
    generation: int


class Found(msgspec.Struct, frozen=True):
    """What a file says: the highest position, 0 if it names none, and the count of its block.

    `bad` says why it names none, or what is wrong with one of its blocks; empty if nothing is.
    """

    position: int = 0
    count: int = 0
    bad: str = ""


def pack_block(owner: Owner, count: int, position: int) -> bytes:
    """Return one block."""
    fields = _FIELDS.pack(
        MAGIC, VERSION, 0, owner.log, 0, owner.system, owner.generation, count, position
    )
    body = fields.ljust(_BODY, b"\0")
    return body + U32.pack(crc32c(body))


def look(disk: Readable, owner: Owner | None = None) -> Found:
    """Read a log's file; changes nothing. Without an `owner` any log's is believed.

    Raises `OSError`.
    """
    if NAME not in disk.names():
        return Found(bad="there is none")
    data = disk.read(NAME, 0, 2 * BLOCK)
    blocks = [data[at : at + BLOCK] for at in (0, BLOCK)]
    if not any(data) and len(data) == 2 * BLOCK:
        return Found(bad="it was never written")
    found = [one for block in blocks for one in _unpacked(block, owner)]
    torn = any(any(block) and not _is_sound(block) for block in blocks)
    bad = "one of its blocks fails its CRC-32C" if torn else ""
    if not found:
        return Found(bad=bad or "it is about another log, or an earlier one")
    best = newest(found)
    return Found(best.position, best.count, bad)


def newest(found: Sequence[Found]) -> Found:
    """Return what the sound block that was written last says."""
    return max(found, key=lambda one: one.count)


def _is_sound(block: bytes) -> bool:
    return len(block) == BLOCK and U32.unpack_from(block, _BODY)[0] == crc32c(block[:_BODY])


def _unpacked(block: bytes, owner: Owner | None) -> Iterator[Found]:
    """Yield what a block says, if it is sound, of a known version, and about this log."""
    if not _is_sound(block):
        return
    magic, version, _, log, _, system, generation, count, position = _FIELDS.unpack_from(block)
    if (magic, version) != (MAGIC, VERSION):
        return
    if owner is None or Owner(log, system, generation) == owner:
        yield Found(position, count)


class DurablePosition:
    """One log's file. Used by one thread at a time."""

    def __init__(self, disk: Disk, owner: Owner) -> None:
        """Read the file in a folder, which need not be there yet. Raises `OSError`."""
        self._disk = disk
        self._owner = owner
        #: What the file said when it was opened.
        self.found = look(disk, owner)
        self._count, self._position = self.found.count, self.found.position
        #: Whether the file is known to be whole, and its name to be durable.
        self._is_made = False

    @property
    def position(self) -> int:
        """The highest position that was saved, or found."""
        return self._position

    def save(self, position: int) -> None:
        """Name a position below which all of the log is durable; blocks until that is durable.

        A position that is not higher than the last one is left out. After an `OSError` or a
        `DiskFailed` it may be called again: whichever block the disk holds then is true.
        """
        if position <= self._position:
            return
        count = self._count + 1
        block = pack_block(self._owner, count, position)
        if self._is_made:
            self._disk.write(NAME, count % 2 * BLOCK, [block])
            self._disk.sync(NAME)
        else:  # what was found may be there only in a cache, its name too
            last = pack_block(self._owner, self._count, self._position)
            blocks = (block, last) if count % 2 == 0 else (last, block)
            self._disk.replace(NAME, b"".join(blocks))
            self._is_made = True
        self._count, self._position = count, position
