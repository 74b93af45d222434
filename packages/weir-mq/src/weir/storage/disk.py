"""The disk port: everything that a log asks of a folder. Synchronous; the host chooses the thread.

`weir.server.disk.file_disk.FileDisk` is the real one, `weir.testing.simulator.disk.SimDisk` the one
that loses, tears and reorders. Names are flat; files have a fixed size from `create` on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from weir.codec import Buffer

#: Told again and again which part of a file is done, from 0 to 1; it may wait, so that others get
#: at the disk meanwhile. Returns whether the rest is worth writing, too.
Pacer = Callable[[float], bool]


def at_once(done: float) -> bool:
    """Make a file as fast as the disk can."""
    return True


class Readable(Protocol):
    """The reading half of a disk: enough to look at a log without touching it."""

    def names(self) -> list[str]:
        """Return the names of all files, in no promised order."""

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on; fewer only where the file ends."""


class Disk(Readable, Protocol):
    """One folder. A write or sync that fails raises `weir.errors.DiskFailed`; all else `OSError`.

    After `DiskFailed` the process must end: the system may have marked the lost pages clean, so
    that neither another sync nor a read from the cache tells the truth ("fsync failures",
    ATC '20).
    """

    def create(self, name: str, size: int, pace: Pacer = at_once) -> None:
        """Make a file of `size` zeros, written and not merely allocated as far as `pace` wants it;
        file and folder synced.

        On an error no file of that name is left behind. `OSError` for want of room, at whichever
        step; it may be tried again.
        """

    def zero(self, name: str, pace: Pacer = at_once) -> None:
        """Make an existing file all zeros where it lies; file and folder synced. Needs no room."""

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all `buffers` one behind the other from byte `offset` on; not yet durable."""

    def sync(self, name: str) -> None:
        """Make every finished write to the file durable (fdatasync)."""

    def replace(self, name: str, data: Buffer) -> None:
        """Make `data` the whole file, at once: written aside, synced, renamed, folder synced.

        On an error the old file stays, and nothing is left aside.
        """

    def remove(self, name: str) -> None:
        """Remove the file; folder synced."""

    def close(self) -> None:
        """Give up file handles and the folder. Syncs nothing."""
