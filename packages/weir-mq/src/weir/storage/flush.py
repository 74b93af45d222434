"""A flush: everything staged since the last one, written and synced in one go.

It begins with a MARK frame that names how far the log was durable before it. Nothing in a flush
counts until `run` has returned and the log was told so.
"""

from __future__ import annotations

import msgspec

from weir.codec.fields import Buffer
from weir.storage.disk import Disk
from weir.storage.spare_files import Spare


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
