"""What a backup holds: written last, read first."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import xxhash

from weir.codec import Buffer
from weir.errors import WeirError

MANIFEST = "manifest.json"
FORMAT = 2
_PIECE_BYTES = 1 << 20


class BadBackup(WeirError):
    """The backup is not one, is cut short, or is damaged; the message names the file."""


class File(msgspec.Struct, frozen=True):
    """A file of the backup: its path below the backup's folder, its length, its xxh3-128.

    So many `zeros` followed where it was; they are written only where it is put back.
    """

    path: str
    bytes: int
    xxh3: str
    zeros: int = 0


class Partition(msgspec.Struct, frozen=True):
    """Messages [first_offset, next_offset) of a partition, and the file that holds them."""

    partition: int
    first_offset: int
    next_offset: int
    batches: int
    file: str
    #: Offsets [first, behind) that could not be read, for the log is damaged there.
    holes: list[tuple[int, int]] = []
    #: Offsets [first, behind) of messages that never were: their scatterings were aborted.
    voids: list[tuple[int, int]] = []
    #: Whether it takes messages no more.
    ended: bool = False

    @property
    def messages(self) -> int:
        """How many messages there are."""
        lacking = sum(b - a for a, b in (*self.holes, *self.voids))
        return self.next_offset - self.first_offset - lacking


class Topic(msgspec.Struct, frozen=True):
    """A topic as it was. `id` seeds the hashes of its batches; `settings` by their names."""

    id: int
    namespace: str
    name: str
    order: str
    settings: dict[str, Any]
    partitions: list[Partition]

    @property
    def full_name(self) -> str:
        """The name with its namespace."""
        return f"{self.namespace}/{self.name}"


class Manifest(msgspec.Struct, frozen=True):
    """The whole backup. `system` is the id of the system it was made of, in hexadecimal."""

    kind: Literal["folder", "topics"]
    weir: str
    made: str
    system: str
    files: list[File]
    topics: list[Topic] = []
    format: int = FORMAT


@contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Make the folder, and remove what is in it if what is done meanwhile fails.

    Raises `BadBackup` if there is something in it: nothing is overwritten.
    """
    was_there = path.exists()
    if was_there and (not path.is_dir() or any(path.iterdir())):
        raise BadBackup(f"{path} is there already: name a new or an empty folder")
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        if was_there:
            path.mkdir(exist_ok=True)
        raise


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest: from now on the backup counts."""
    aside = folder / f"{MANIFEST}.new"
    data = msgspec.json.format(msgspec.json.encode(manifest))
    with aside.open("wb") as file:
        file.write(data + b"\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(folder / MANIFEST)
    sync_folder(folder)


def read(folder: Path) -> Manifest:
    """Return a backup's manifest. Raises `BadBackup`."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BadBackup(f"{path} is missing: {folder} is no backup, or was cut short") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBackup(f"{path} is damaged: {error}") from None
    if manifest.format != FORMAT:
        raise BadBackup(
            f"{path} has format {manifest.format}; this release reads {FORMAT}: use the release "
            f"that made it ({manifest.weir})"
        )
    for file in manifest.files:
        if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
            raise BadBackup(f"{path} names {file.path!r}, which lies outside of the backup")
    return manifest


def verify(folder: Path, manifest: Manifest) -> None:
    """Read every file; raise `BadBackup` that names the first one that is not what it was."""
    for file in manifest.files:
        check(folder / file.path, file)


def check(path: Path, file: File) -> None:
    """Raise `BadBackup` unless `path` has the length and the hash of `file`."""
    try:
        hasher, size = xxhash.xxh3_128(), 0
        for piece in pieces(path):
            hasher.update(piece)
            size += len(piece)
    except OSError as error:
        raise BadBackup(f"{path} cannot be read: {error.strerror}") from None
    if (size, hasher.hexdigest()) != (file.bytes, file.xxh3):
        raise BadBackup(f"{path} is damaged: it is not what was written; use another backup")


def pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, some at a time."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Writing:
    """A file that is being written and hashed; leaving the block syncs it. `made` says what it is.

    Raises `OSError`.
    """

    def __init__(self, root: Path, path: str) -> None:
        """Make a new file at `path` below `root`."""
        self._path = path
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        self._file = (root / path).open("xb")
        self._hasher = xxhash.xxh3_128()
        self._size = 0

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def put(self, data: Buffer) -> None:
        """Append bytes."""
        self._file.write(data)
        self._hasher.update(data)
        self._size += len(data)

    def put_zeros(self, count: int) -> None:
        """Append so many zeros."""
        for begin in range(0, count, _PIECE_BYTES):
            self.put(bytes(min(_PIECE_BYTES, count - begin)))

    def made(self) -> File:
        """Return what was written so far."""
        return File(self._path, self._size, self._hasher.hexdigest())
