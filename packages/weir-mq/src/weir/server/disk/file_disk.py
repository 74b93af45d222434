"""One folder of files on a real disk, behind the port `weir.storage.disk.Disk`. Thread-safe."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from weir.codec import Buffer, total
from weir.errors import DiskFailed, WeirError
from weir.storage.disk import Pacer, at_once

log = logging.getLogger(__name__)

#: The exit code of a process whose disk failed (sysexits.h EX_IOERR): its supervisor goes by it.
EXIT_DISK = 74
#: The system takes no more buffers in one call (IOV_MAX).
_BUFFERS_MAX = 1024
_ZEROS = bytes(1 << 20)
#: What is written of a new file between two turns of others: a millisecond or two of a disk's time.
_STEP = 1 << 18
_LOCK = "lock"
#: No room on the disk, or none within the quota.
_FULL = (errno.ENOSPC, errno.EDQUOT)
#: What says that a file system only takes what is written.
_NO_ALLOCATING = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_ASIDE = ".new"
#: What may lie in a folder that nobody uses: the lock of a process that ended early, and what a new
#: file system has.
_UNUSED = frozenset({_LOCK, "lost+found"})


class FolderInUse(WeirError):
    """Another process has this folder open."""


def foreign_files(folder: Path, unfinished: str = "") -> str:
    """Return the first files, in words, of a folder that something is to be founded in; "" if it is
    free. An `unfinished` founding may have left a file of that name. Raises `OSError`.
    """
    names = {one.name for one in folder.iterdir()} if folder.is_dir() else set()
    found = sorted(names - _UNUSED - {f"{unfinished}{_ASIDE}"})
    return ", ".join(found[:3] + ["..."] * (len(found) > 3))


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

    def create(self, name: str, size: int, pace: Pacer = at_once) -> None:
        """Write a file of zeros; on an error remove it again."""
        path = self._path(name)
        self._check_room(size)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            is_there = _allocate(handle, size)
            # Real zeros: blocks that are merely allocated cost a metadata write at first use.
            for at, step in _steps(size, pace):
                _write(handle, at, _zeros(step))
                _sync_new(handle, path)
                if not pace((at + step) / size) and is_there:
                    break
        except (OSError, DiskFailed):
            path.unlink()
            raise
        finally:
            os.close(handle)
        self._sync_folder()

    def zero(self, name: str, pace: Pacer = at_once) -> None:
        """Write zeros over the whole file. Raises `DiskFailed`."""
        size = self.size(name)
        for at, step in _steps(size, pace):
            self.write(name, at, _zeros(step))
            with _or_die("sync", self._folder, name):
                os.fsync(self._handle(name))
            pace((at + step) / size)
        self._sync_folder()

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers from byte `offset` on. Raises `DiskFailed`."""
        handle = self._handles.get(name) or self._handle(name)
        try:  # each flush does: no `with`, which takes as long as the rest of it
            _write(handle, offset, buffers)
        except OSError as error:
            raise _died("write", self._folder, name, error) from error

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
        handle = self._handles.get(name) or self._handle(name)
        try:
            os.fdatasync(handle)
        except OSError as error:
            raise _died("sync", self._folder, name, error) from error

    def replace(self, name: str, data: Buffer) -> None:
        """Make `data` the whole file at once."""
        path = self._path(name)
        aside = self._path(name + _ASIDE, aside=True)
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            _write(handle, 0, [data])
            _sync_new(handle, aside)
            os.replace(aside, path)
        except (OSError, DiskFailed):
            aside.unlink()
            raise
        finally:
            os.close(handle)
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

    def _check_room(self, size: int) -> None:
        """Raise the `OSError` that writing `size` bytes would end in.

        Trying it each time would take the last free bytes from checkpoints, over and over.
        """
        system = os.fstatvfs(self._directory)
        if system.f_blocks and system.f_bavail * system.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder))

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
        with _or_die("sync folder", self._folder):
            os.fsync(self._directory)


def die(number: int, error: BaseException) -> NoReturn:
    """End the process at once, from whichever thread (DESIGN §4 Log).

    What the page cache holds is unknown now: nothing may be retried, believed, or said to anybody.
    A restart reads the disk and finds out.
    """
    log.critical("log %d: the disk failed: %s", number, error)
    logging.shutdown()
    os._exit(EXIT_DISK)


def _write(handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
    """Write all buffers, however few the system takes at a time."""
    if len(buffers) <= _BUFFERS_MAX and (size := total(buffers)):
        written = os.pwritev(handle, buffers, offset)
        if written == size:  # as it nearly always is
            return
        buffers, offset = _behind(list(buffers), written), offset + written
    for at in range(0, len(buffers), _BUFFERS_MAX):
        chunk = list(buffers[at : at + _BUFFERS_MAX])
        left = total(chunk)
        while left:
            written = os.pwritev(handle, chunk, offset)
            offset += written
            left -= written
            if left:
                chunk = _behind(chunk, written)


def _steps(size: int, pace: Pacer) -> Iterator[tuple[int, int]]:
    """Yield where to write how much before the next sync: all, unless others are to get a turn."""
    step = size if pace is at_once else _STEP
    for at in range(0, size, step or 1):
        yield at, min(step, size - at)


def _allocate(handle: int, size: int) -> bool:
    """Make a new file as large as it is to be, all zeros; False where the file system cannot."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in _NO_ALLOCATING:
            raise
        return False
    return True


def _zeros(size: int) -> list[Buffer]:
    whole, part = divmod(size, len(_ZEROS))
    return [*[_ZEROS] * whole, _ZEROS[:part]]


def _sync_new(handle: int, path: Path) -> None:
    """Sync a file that nobody uses yet. Raises `DiskFailed`, or `OSError` if there is no room:
    some systems tell that only now, and nothing is lost with the file, which must go then.
    """
    with _or_die("sync new file", path, but=_FULL):
        os.fsync(handle)


def _behind(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """Return what is left of `buffers` behind the first `written` bytes."""
    for at, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[at + 1 :]]
        written -= len(buffer)
    return []


@contextmanager
def _or_die(doing: str, folder: Path, name: str = "", but: Sequence[int] = ()) -> Iterator[None]:
    """Turn an `OSError`, `but` those numbers, into `DiskFailed`: what the disk holds is unknown."""
    try:
        yield
    except OSError as error:
        if error.errno in but:
            raise
        raise _died(doing, folder, name, error) from error


def _died(doing: str, folder: Path, name: str, error: OSError) -> DiskFailed:
    return DiskFailed(
        f"could not {doing} {folder / name}: {error.strerror or error}. What the disk holds is "
        "unknown now, so this process must end; check the disk, then start again: the log is "
        "verified then"
    )
