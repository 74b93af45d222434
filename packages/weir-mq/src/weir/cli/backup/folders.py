"""A stopped node's whole folder, copied and put back byte for byte."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import weir
from weir.cli.backup import manifest as m
from weir.cli.backup.manifest import BadBackup
from weir.cli.backup.sealing import Seal
from weir.cli.survey import NotALog
from weir.server.disk.file_disk import FolderInUse
from weir.server.disk.node_folder import LIFE, NodeFolder, draw_life, life_name
from weir.storage.format import durable_position

_FILES = "files"
_LOCK = "lock"
#: A durable position would be above what an older copy of its log holds.
_LEFT_OUT = (_LOCK, durable_position.NAME)
#: Of a replacement that a crash cut short.
_ASIDE = ".new"


def back_up(folder: Path, to: Path, seal: Seal | None = None) -> m.Manifest:
    """Copy a stopped node's folder, with the logs that lie elsewhere.

    Raises `FolderInUse`, `NotALog`, `BadBackup`, also where a log is not all there; `OSError`.
    """
    home = NodeFolder(folder)
    founded = home.founded()
    if founded is None:
        raise NotALog(f"{folder} is no node's folder: it has no node.json")
    logs = [home.log(number, founded) for number in range(founded.logs)]
    for number, log in enumerate(logs):
        _check_there(number, log, home.life(number))
    with _stopped(folder, logs), m.new_folder(to):
        # Put back, all logs lie below the folder.
        here = msgspec.json.encode(msgspec.structs.replace(founded, folders={}))
        files = [_copied(to, "node.json", [here], seal)]
        for number, log in enumerate(logs):
            if life := home.life(number):
                files.append(_copied(to, life_name(number), [life.encode()], seal))
            for path in sorted(log.iterdir()) if log.is_dir() else ():
                if path.is_file() and path.name not in _LEFT_OUT and path.suffix != _ASIDE:
                    copied = _copied(to, f"log-{number}/{path.name}", m.pieces(path), seal)
                    files.append(copied)
        made = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = m.Manifest(
            "folder", weir.__version__, made, f"{founded.system:x}", files,
            encrypted=seal is not None and seal.encrypts,
        )  # fmt: skip
        m.verify(to, manifest)
        m.write(to, manifest if seal is None else m.hashed(to, manifest), seal)
    return manifest


def _check_there(number: int, log: Path, life: str) -> None:
    """Raise `BadBackup` unless the log that the node wrote last, if any, lies in its folder."""
    try:
        here = (log / LIFE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        here = ""
    if life and here != life:
        raise BadBackup(
            f"log {number} of this node has begun, and is not in {log}: mount the disk that holds "
            "it. A backup without it would lack all that is there"
        )


def _copied(to: Path, path: str, pieces: Iterable[bytes], seal: Seal | None = None) -> m.File:
    """Copy a file but for the zeros at its end: most of a log is prepared and not used yet."""
    zeros = 0
    with m.Writing(to, f"{_FILES}/{path}", seal) as copy:
        for piece in pieces:
            used = piece.rstrip(b"\0")
            if used:
                copy.put_zeros(zeros)
                copy.put(used)
                zeros = 0
            zeros += len(piece) - len(used)
    return msgspec.structs.replace(copy.made(), zeros=zeros)


def restore(backup: Path, manifest: m.Manifest, folder: Path) -> None:
    """Put a node's folder back, checked while it is written. Nothing is overwritten, and nothing
    is left if it fails. Raises `BadBackup`, `OSError`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadBackup(f"{folder} is there already: name a new or an empty folder")
    aside = folder.with_name(f"{folder.name}.restoring")
    with m.new_folder(aside):
        for file in manifest.files:
            source = backup / file.path
            try:
                with m.Writing(aside, file.path.removeprefix(f"{_FILES}/")) as copy:
                    for piece in m.pieces(source):
                        copy.put(piece)
                    done = copy.made()
                    copy.put_zeros(file.zeros)  # written, not left out: the log counts on them
            except FileNotFoundError:
                raise BadBackup(f"{source} is missing: use another backup") from None
            if (done.bytes, done.xxh3) != (file.bytes, file.xxh3):
                raise BadBackup(f"{source} is damaged: it is not what was written; use another")
        _draw_lives(aside)
        for path in [aside, *(one for one in aside.rglob("*") if one.is_dir())]:
            m.sync_folder(path)
        if folder.exists():
            folder.rmdir()
        aside.rename(folder)
        m.sync_folder(folder.absolute().parent)


def _draw_lives(folder: Path) -> None:
    """Let each log of a restored folder be another one than it was: a durable position that was
    saved elsewhere, of what the log held after the backup, is none of this log's.
    """
    for log in folder.glob("log-*"):
        if (log / LIFE).exists():
            life = draw_life()
            for path in (folder / life_name(int(log.name.removeprefix("log-"))), log / LIFE):
                with path.open("w") as file:
                    file.write(life)
                    file.flush()
                    os.fsync(file.fileno())


@contextmanager
def _stopped(folder: Path, logs: list[Path]) -> Iterator[None]:
    """Hold all locks, so that no node runs or starts meanwhile. Raises `FolderInUse`."""
    with ExitStack() as held:
        for path in [folder, *(log for log in logs if log.is_dir())]:
            handle = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            held.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FolderInUse(
                    f"{folder} is in use by a running node: stop that one first, or back up its "
                    "topics while it runs, with --url and without the folder"
                ) from None
        yield
