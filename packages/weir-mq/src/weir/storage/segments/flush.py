"""A flush: everything staged since the last one, written and synced in one go.

It begins with a MARK frame that names how far the log was durable before it. Nothing in a flush
counts until `run` has returned and the log was told so.
"""

from __future__ import annotations

import msgspec

from weir.codec.fields import Buffer
from weir.storage.disk import Disk
from weir.storage.segments.spare_files import Spare


class Run(msgspec.Struct, frozen=True):
    """Bytes that follow one another in one segment: one write. `missing` is made first."""

    name: str
    offset: int
    buffers: list[Buffer]
    missing: Spare | None = None


class Flush(msgspec.Struct, frozen=True):
    """Log positions `start` to `end`, with the tokens given to `append`, in order, and the bound
    that it makes durable.
    """

    start: int
    end: int
    runs: tuple[Run, ...]
    tokens: tuple[object, ...]
    bound: int = 0

    @property
    def missing_bytes(self) -> int:
        """The size of the files that it may have to make first."""
        return sum(run.missing.size for run in self.runs if run.missing)

    def run(self, disk: Disk) -> None:
        """Write and sync; blocks. When it returns, all is durable.

        After an `OSError` (no room for a new segment) it may be run again: the same bytes go to
        the same places. After `DiskFailed` it must not be.
        """
        for run in self.runs:
            if run.missing and run.missing.name not in disk.names():
                run.missing.run(disk)
            disk.write(run.name, run.offset, run.buffers)
        for run in self.runs:
            disk.sync(run.name)


class Staged:
    """What the next flush will write, in the order of its positions."""

    __slots__ = ("_runs", "bound", "buffers", "start", "tokens")

    def __init__(self, start: int, bound: int) -> None:
        """Begin at position `start`, with no run open yet; the MARK names `bound`."""
        self.start = start
        self.bound = bound
        self.tokens: list[object] = []
        #: The bytes of the run that is open; appending to it is all that staging a frame takes.
        self.buffers: list[Buffer] = []
        self._runs: list[Run] = []

    def open(self, name: str, offset: int, missing: Spare | None = None) -> None:
        """Begin a run at a byte of a file."""
        self.buffers = []
        self._runs.append(Run(name, offset, self.buffers, missing))

    def seal(self, end: int) -> Flush:
        """Return the flush; nothing may be staged here any more."""
        return Flush(self.start, end, tuple(self._runs), tuple(self.tokens), self.bound)
