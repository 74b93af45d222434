"""A disk in memory whose power can be cut: what was not synced is lost then, and nothing else.

The simulator's disk tears and reorders too; this one is for applications, whose tests want to see
the same every time.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from weir.codec.fields import Buffer
from weir.storage.disk import Pacer, at_once


class MemoryDisk:
    """The port `weir.storage.disk.Disk`. Only `write` needs a `sync`; all else is durable at once.

    A write past the end of a file is a `ValueError`: a bug of the log.
    """

    def __init__(self) -> None:
        """Begin with an empty folder."""
        self._files: dict[str, bytearray] = {}
        #: By file, what lay where something unsynced was written, in the order of the writes.
        self._before: dict[str, list[tuple[int, bytes]]] = {}

    def crash(self) -> None:
        """Take back every write since its file's last sync."""
        for name, changes in self._before.items():
            file = self._files[name]
            for offset, data in reversed(changes):
                file[offset : offset + len(data)] = data
        self._before.clear()

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self._files)

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""
        return len(self._file(name))

    def create(self, name: str, size: int, pace: Pacer = at_once) -> None:
        """Make a file of `size` zeros."""
        if name in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._files[name] = bytearray(size)

    def zero(self, name: str, pace: Pacer = at_once) -> None:
        """Make an existing file all zeros."""
        self.replace(name, bytes(self.size(name)))

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all `buffers` one behind the other; lost by a crash until the next sync."""
        file, data = self._file(name), b"".join(buffers)
        end = offset + len(data)
        if not 0 <= offset <= end <= len(file):
            raise ValueError(f"write of {len(data):,} at {offset:,} reaches past {name}'s end")
        self._before.setdefault(name, []).append((offset, bytes(file[offset:end])))
        file[offset:end] = data

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes, synced or not."""
        return bytes(self._file(name)[offset : offset + length])

    def sync(self, name: str) -> None:
        """Make the file's writes durable."""
        self._file(name)
        self._before.pop(name, None)

    def replace(self, name: str, data: Buffer) -> None:
        """Make `data` the whole file."""
        self._before.pop(name, None)
        self._files[name] = bytearray(data)

    def remove(self, name: str) -> None:
        """Remove the file."""
        self._file(name)
        del self._files[name]
        self._before.pop(name, None)

    def close(self) -> None:
        """Nothing to give up: the disk outlives its users."""

    def _file(self, name: str) -> bytearray:
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return file
