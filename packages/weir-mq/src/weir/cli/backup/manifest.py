"""What a backup holds: written last, read first."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
import xxhash

from weir.cli.backup.sealing import MAC, Seal, check_manifest, sha256_of
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
    #: Where the manifest is authenticated; xxh3 finds damage, not who meant it.
    sha256: str = ""


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
    """A topic as it was. `id` seeds the hashes of its batches; `settings` by their names. `key_by`
    says what its messages of devices had as their key.
    """

    id: int
    namespace: str
    name: str
    order: str
    settings: dict[str, Any]
    partitions: list[Partition]
    key_by: str = ""

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
    #: Whether files are encrypted: lengths and hashes are those of what is stored.
    encrypted: bool = False


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


def write(folder: Path, manifest: Manifest, seal: Seal | None = None) -> None:
    """Write the manifest: from now on the backup counts. A `seal` authenticates it."""
    data = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
    if seal is not None:
        _replace(folder / MAC, seal.mac_line(data))
    _replace(folder / MANIFEST, data)
    sync_folder(folder)


def _replace(path: Path, data: bytes) -> None:
    aside = path.with_name(f"{path.name}.new")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


def hashed(folder: Path, manifest: Manifest) -> Manifest:
    """Return a manifest with the SHA-256 of each file. Raises `OSError`."""
    files = [
        msgspec.structs.replace(file, sha256=sha256_of(folder / file.path))
        for file in manifest.files
    ]
    return msgspec.structs.replace(manifest, files=files)


def read_sealed(folder: Path, key_file: Path | None) -> tuple[Manifest, Seal | None]:
    """Return a backup's manifest, and its keys. With a key file it must be authentic, and so must
    all files when they are checked. Raises `BadBackup`, `NotAuthentic`, `BadRequest`.
    """
    data = _manifest_bytes(folder)  # once: what is checked is what is used
    manifest = _decoded(folder, data)
    seal = check_manifest(folder, data, key_file)
    if seal is not None and not all(file.sha256 for file in manifest.files):
        raise BadBackup(f"{folder / MANIFEST} has no SHA-256 of some file: use another backup")
    if manifest.encrypted and seal is None:
        raise BadBackup(f"{folder} is encrypted: give --key-file")
    return manifest, seal


@contextmanager
def decrypted(
    folder: Path, manifest: Manifest, seal: Seal | None, aside: Path | None = None
) -> Iterator[tuple[Path, Manifest]]:
    """Yield a backup as it is in plaintext: an encrypted one is decrypted into a folder that its
    user alone reads, below `aside`, and removed behind the block.
    """
    if seal is None or not manifest.encrypted:
        yield folder, manifest
        return
    with tempfile.TemporaryDirectory(prefix="weir-restore-", dir=aside) as name:
        plain, files = Path(name), []
        for file in manifest.files:
            check(folder / file.path, file)
            with (folder / file.path).open("rb") as source, Writing(plain, file.path) as copy:
                for piece in seal.decrypt(file.path, source):
                    copy.put(piece)
            files.append(msgspec.structs.replace(copy.made(), zeros=file.zeros))
        yield plain, msgspec.structs.replace(manifest, files=files, encrypted=False)


def read(folder: Path) -> Manifest:
    """Return a backup's manifest. Raises `BadBackup`."""
    return _decoded(folder, _manifest_bytes(folder))


def _manifest_bytes(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise BadBackup(
            f"{folder / MANIFEST} is missing: {folder} is no backup, or was cut short"
        ) from None


def _decoded(folder: Path, data: bytes) -> Manifest:
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
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
    is_same = (size, hasher.hexdigest()) == (file.bytes, file.xxh3)
    if not is_same or (file.sha256 and sha256_of(path) != file.sha256):
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

    With a `seal` that encrypts, what is written is encrypted. Raises `OSError`.
    """

    def __init__(self, root: Path, path: str, seal: Seal | None = None) -> None:
        """Make a new file at `path` below `root`."""
        self._path = path
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        self._file = (root / path).open("xb")
        self._hasher = xxhash.xxh3_128()
        self._size = 0
        self._sealed = None if seal is None or not seal.encrypts else seal.writing(path)

    def __enter__(self) -> Writing:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if self._sealed is not None and kind is None:
                self._write(self._sealed.finish())
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def put(self, data: Buffer) -> None:
        """Append bytes."""
        self._write(data if self._sealed is None else self._sealed.put(data))

    def put_zeros(self, count: int) -> None:
        """Append so many zeros."""
        for begin in range(0, count, _PIECE_BYTES):
            self.put(bytes(min(_PIECE_BYTES, count - begin)))

    def made(self) -> File:
        """Return what was written; of an encrypted file behind the block only."""
        return File(self._path, self._size, self._hasher.hexdigest())

    def _write(self, data: Buffer) -> None:
        self._file.write(data)
        self._hasher.update(data)
        self._size += len(data)
