"""The real disk: one folder of files behind the port `weir.log.disk.Disk`. Safe from any thread."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from weir.codec.fields import Buffer, total
from weir.errors import DiskFailed, WeirError

#: The system takes no more buffers in one call (IOV_MAX).
_BUFFERS_MAX = 1024
_ZEROS = bytes(1 << 20)
_LOCK = "lock"
_ASIDE = ".new"


class FolderInUse(WeirError):
    """Another process has this folder open."""


class FileDisk:
    """A folder that one process at a time may open.

    File handles stay open until `close`: a read or flush never waits for an `open`.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder, made if it is not there. Raises `FolderInUse` or `OSError`."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._handles: dict[str, int] = {}
        self._guard = threading.Lock()
        self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._directory = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise FolderInUse(
                f"{self._folder} is in use by another weir process: stop that one, or give this "
                "one a folder of its own"
            ) from None
        for left in self._folder.glob(f"*{_ASIDE}"):  # of a `replace` that a crash cut short
            left.unlink()

    def names(self) -> list[str]:
        """Return the names of all files but the folder's lock and unfinished replacements."""
        names = os.listdir(self._folder)
        return [name for name in names if name != _LOCK and not name.endswith(_ASIDE)]

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""
        return os.fstat(self._handle(name)).st_size

    def create(self, name: str, size: int) -> None:
        """Write a file of zeros; on an error remove it again."""
        path = self._path(name)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            # Real zeros: blocks that are merely allocated cost a metadata write at first use.
            whole, part = divmod(size, len(_ZEROS))
            _write(handle, 0, [*[_ZEROS] * whole, _ZEROS[:part]])
            with _or_die(f"sync new file {path}"):
                os.fsync(handle)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(handle)
        self._sync_folder()

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers from byte `offset` on. Raises `DiskFailed`."""
        handle = self._handle(name)
        with _or_die(f"write {self._path(name)}"):
            _write(handle, offset, buffers)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset` on; fewer only where the file ends."""
        handle = self._handle(name)
        parts: list[bytes] = []
        while length and (part := os.pread(handle, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sync(self, name: str) -> None:
        """Make every finished write to the file durable. Raises `DiskFailed`."""
        handle = self._handle(name)
        with _or_die(f"sync {self._path(name)}"):
            os.fdatasync(handle)

    def replace(self, name: str, data: Buffer) -> None:
        """Make `data` the whole file at once."""
        path = self._path(name)
        aside = self._path(name + _ASIDE, aside=True)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write(handle, 0, [data])
            with _or_die(f"sync {aside}"):
                os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(aside, path)
        self._forget(name)
        self._sync_folder()

    def remove(self, name: str) -> None:
        """Remove the file and sync the folder."""
        self._path(name).unlink()
        self._forget(name)
        self._sync_folder()

    def close(self) -> None:
        """Close all handles and give up the folder; a second call does nothing."""
        with self._guard:
            handles = [*self._handles.values(), self._directory, self._lock]
            self._handles.clear()
            self._directory = self._lock = -1
        for handle in handles:
            if handle >= 0:
                os.close(handle)

    def _path(self, name: str, *, aside: bool = False) -> Path:
        if "/" in name or name in ("", ".", "..", _LOCK) or name.endswith(_ASIDE) > aside:
            raise ValueError(f"{name!r} is no name for a file of this folder")
        return self._folder / name

    def _handle(self, name: str) -> int:
        handle = self._handles.get(name)
        if handle is None:
            with self._guard:
                if self._lock < 0:
                    raise ValueError(f"{self._folder} is closed")
                handle = self._handles.get(name)
                if handle is None:
                    handle = os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC)
                    self._handles[name] = handle
        return handle

    def _forget(self, name: str) -> None:
        with self._guard:
            handle = self._handles.pop(name, None)
        if handle is not None:
            os.close(handle)

    def _sync_folder(self) -> None:
        with _or_die(f"sync folder {self._folder}"):
            os.fsync(self._directory)


def _write(handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
    """Write all buffers, however few the system takes at a time."""
    for at in range(0, len(buffers), _BUFFERS_MAX):
        chunk = list(buffers[at : at + _BUFFERS_MAX])
        left = total(chunk)
        while left:
            written = os.pwritev(handle, chunk, offset)
            offset += written
            left -= written
            if left:
                chunk = _behind(chunk, written)


def _behind(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """Return what is left of `buffers` behind the first `written` bytes."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []


@contextmanager
def _or_die(doing: str) -> Iterator[None]:
    """Turn an `OSError` into `DiskFailed`: what the disk holds now is unknown."""
    try:
        yield
    except OSError as error:
        raise DiskFailed(
            f"could not {doing}: {error.strerror or error}. What the disk holds is unknown now, so "
            "this process must end; check the disk, then start again: the log is verified then"
        ) from error
