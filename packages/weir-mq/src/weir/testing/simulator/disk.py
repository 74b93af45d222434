"""A disk that behaves as badly as real ones may: it loses, tears and reorders what was not synced.

The unit is the sector: 512 bytes are written whole or not at all. Everything is drawn from one
random source, so that a seed replays.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

from weir.codec import Buffer
from weir.errors import DiskFailed
from weir.storage.disk import Pacer, at_once

SECTOR = 512
_ASIDE = ".new"


class PowerCut(Exception):
    """The power failed, or the process died, in the middle of a call: `crash` or `kill` comes next.

    Only a driver of the simulation catches it; to the code under test the world has ended.
    """


class _File:
    """What readers see, what the platter holds, and the sectors in between.

    `dirty` holds every version written since the last sync, since a cache may write back early.
    """

    __slots__ = ("dirty", "stable", "visible")

    def __init__(self) -> None:
        self.visible = bytearray()
        self.stable = bytearray()
        self.dirty: dict[int, list[bytes]] = {}

    def write(self, offset: int, data: bytes) -> None:
        end, dirty = offset + len(data), self.dirty
        if end > len(self.visible):
            self.visible.extend(bytes(end - len(self.visible)))
        self.visible[offset:end] = data
        first, last = offset // SECTOR, -(-end // SECTOR)
        touched = bytes(self.visible[first * SECTOR : last * SECTOR])
        for sector, start in enumerate(range(0, len(touched), SECTOR), first):
            version = touched[start : start + SECTOR]
            if (versions := dirty.get(sector)) is not None:
                versions.append(version)
            else:
                dirty[sector] = [version]

    def sync(self) -> None:
        """Bring the platter up to date, but for what an earlier failed sync marked clean."""
        self._settle({sector: versions[-1] for sector, versions in self.dirty.items()})
        self.stable.extend(self.visible[len(self.stable) :])

    def fail(self, rng: random.Random) -> None:
        """Sync some sectors, forget that the others were written; readers still see them."""
        kept = {s: versions[-1] for s, versions in self.dirty.items() if rng.random() < 0.5}
        self._settle(kept)

    def crash(self, rng: random.Random) -> None:
        """Keep a random version of each unsynced sector, and a random length of a growing file."""
        length = rng.choice((len(self.stable), len(self.visible), *self._lengths(rng)))
        latest = rng.choice((0.0, 0.5, 0.9, 1.0))
        kept = {}
        for sector, versions in self.dirty.items():
            if rng.random() < latest:
                kept[sector] = versions[-1]
            elif earlier := rng.randrange(len(versions)):
                kept[sector] = versions[earlier - 1]
        self._settle(kept)
        self.stable.extend(bytes(max(0, length - len(self.stable))))
        del self.stable[length:]
        self.visible = bytearray(self.stable)

    def _lengths(self, rng: random.Random) -> list[int]:
        shortest, longest = len(self.stable), len(self.visible)
        return [rng.randrange(shortest, longest)] if shortest < longest else []

    def _settle(self, kept: dict[int, bytes]) -> None:
        following: list[bytes] = []
        begin = end = 0
        for sector, version in kept.items():
            if (start := sector * SECTOR) != end:
                self._put(begin, following)
                following, begin = [], start
            following.append(version)
            end = start + len(version)
        self._put(begin, following)
        self.dirty.clear()

    def _put(self, start: int, following: list[bytes]) -> None:
        """Bring sectors that follow one another to the platter."""
        data = b"".join(following)
        if start > len(self.stable):
            self.stable.extend(bytes(start - len(self.stable)))
        self.stable[start : start + len(data)] = data


class SimDisk:
    """The port `weir.storage.disk.Disk` in memory, with power cuts, kills and errors on demand."""

    def __init__(self, rng: random.Random) -> None:
        """Begin with an empty folder; every choice is drawn from `rng`."""
        self.dice = rng
        self._visible: dict[str, _File] = {}
        self._stable: dict[str, _File] = {}
        #: Each name's unsynced changes, in order; None is a removal.
        self._pending: dict[str, list[_File | None]] = {}
        self._failures: dict[str, list[int]] = {}
        self._calls_left: int | None = None
        #: Whether there is no room for another file.
        self.full = False

    # -- the port ----------------------------------------------------------------------------

    def names(self) -> list[str]:
        """Return the names of all files."""
        self._step("names")
        return [name for name in self._visible if not name.endswith(_ASIDE)]

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""
        self._step("size")
        return len(self._file(name).visible)

    def create(self, name: str, size: int, pace: Pacer = at_once) -> None:
        """Make a file of zeros in four steps, between any of which the power may fail."""
        self._step("create")
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        if name in self._visible:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        file = _File()
        self._link(name, file)
        try:
            self._step("write")
            file.write(0, bytes(size))
            self._sync(file)
        except (OSError, DiskFailed):
            self._link(name, None)
            raise
        self._sync_folder()

    def zero(self, name: str, pace: Pacer = at_once) -> None:
        """Zero a file where it lies, in three steps."""
        self.write(name, 0, [bytes(self.size(name))])
        self.sync(name)
        self._sync_folder()

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write within the file; past its end is a bug of the caller."""
        data = b"".join(buffers)
        file = self._file(name)
        if offset < 0 or offset + len(data) > len(file.visible):
            raise ValueError(f"write of {len(data):,} at {offset:,} reaches past {name}'s end")
        try:
            self._step("write")
        except PowerCut:
            file.write(offset, data[: self.dice.randint(0, len(data))])
            raise
        except OSError as error:
            file.write(offset, data[: self.dice.randint(0, len(data))])
            raise DiskFailed(f"could not write {name}: {error.strerror}") from error
        file.write(offset, data)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return what readers see, synced or not."""
        self._step("read")
        return bytes(self._file(name).visible[offset : offset + length])

    def sync(self, name: str) -> None:
        """Make the file's writes durable."""
        self._sync(self._file(name))

    def replace(self, name: str, data: Buffer) -> None:
        """Make `data` the whole file: aside, sync, rename, sync the folder."""
        self._step("replace")
        file = _File()
        self._link(name + _ASIDE, file)
        try:
            self._step("write")
            file.write(0, bytes(data))
            self._sync(file)
            self._step("rename")
        except (OSError, DiskFailed):
            self._link(name + _ASIDE, None)
            raise
        self._link(name, file)
        self._link(name + _ASIDE, None)
        self._sync_folder()

    def remove(self, name: str) -> None:
        """Remove the file and sync the folder."""
        self._step("remove")
        self._file(name)
        self._link(name, None)
        self._sync_folder()

    def close(self) -> None:
        """Do nothing: there is no handle to give up."""

    # -- the world ---------------------------------------------------------------------------

    def crash(self) -> None:
        """Cut the power: of everything unsynced a random part stays. A restart sees this object."""
        for name, changes in self._pending.items():
            if latest := self.dice.randrange(len(changes) + 1):
                self._set(self._stable, name, changes[latest - 1])
        self._pending.clear()
        for file in self._stable.values():
            file.crash(self.dice)
        self._visible = {n: f for n, f in self._stable.items() if not n.endswith(_ASIDE)}
        self._stable = dict(self._visible)
        self._revive()

    def kill(self) -> None:
        """Kill the process: the page cache survives it, as visible and as unsynced as it was."""
        self._revive()

    def cut_after(self, calls: int) -> None:
        """Let so many more steps pass, then raise `PowerCut` from every one until the restart."""
        self._calls_left = calls

    def fail_next(self, operation: str, number: int) -> None:
        """Let the next `create`, `write`, `sync`, `read`, `replace` or `remove` fail with an errno.

        After a failed sync part of the data is lost although readers see it and later syncs
        succeed, as on Linux ("fsync failures", ATC '20).
        """
        self._failures.setdefault(operation, []).append(number)

    def flip(self, name: str, offset: int, bit: int = 0) -> None:
        """Let one bit rot, on the platter and in the cache."""
        file = self._file(name)
        file.visible[offset] ^= 1 << bit
        if offset < len(file.stable):
            file.stable[offset] ^= 1 << bit

    def truncate(self, name: str, size: int) -> None:
        """Cut a file short, on the platter and in the cache."""
        file = self._file(name)
        del file.visible[size:]
        del file.stable[size:]

    # -- how ---------------------------------------------------------------------------------

    def _step(self, operation: str) -> None:
        if self._calls_left is not None:
            if not self._calls_left:
                raise PowerCut(operation)
            self._calls_left -= 1
        if numbers := self._failures.get(operation):
            number = numbers.pop(0)
            raise OSError(number, os.strerror(number))

    def _sync(self, file: _File) -> None:
        try:
            self._step("sync")
        except OSError as error:
            file.fail(self.dice)
            raise DiskFailed(f"could not sync: {error.strerror}") from error
        file.sync()

    def _sync_folder(self) -> None:
        self._step("sync folder")
        for name, changes in self._pending.items():
            self._set(self._stable, name, changes[-1])
        self._pending.clear()

    def _file(self, name: str) -> _File:
        file = self._visible.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return file

    def _link(self, name: str, file: _File | None) -> None:
        self._set(self._visible, name, file)
        self._pending.setdefault(name, []).append(file)

    @staticmethod
    def _set(folder: dict[str, _File], name: str, file: _File | None) -> None:
        if file is None:
            folder.pop(name, None)
        else:
            folder[name] = file

    def _revive(self) -> None:
        self._calls_left = None
        self._failures.clear()
