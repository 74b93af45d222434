"""A lake as plain Parquet files and a manifest, which readers obey: for users without Delta Lake.

Each version of the manifest is one file, `_manifest/<version>.json`, with the whole table: what is
not in it is no part of the table, though it may lie in its folders. A version is created by linking
a finished file to its name, which fails if another writer was faster.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from weir.errors import LakeMismatch
from weir.spark.lake import files as parquet
from weir.spark.lake.layout import (
    COMPACT_BYTES,
    Batch,
    Home,
    KeptFile,
    Snapshot,
    crowded,
    least_kept_ms,
    sync,
    writing,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")
FORMAT = 1
_FOLDER = "_manifest"
#: So often a change is tried again when another writer was faster.
_TRIES = 20
#: Versions that stay, for people who look back; readers need none once they have the newest.
_VERSIONS_KEPT = 100


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A file of the table."""

    path: str
    day: str
    rows: int
    size: int


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """A file that was replaced, and when, in ms since 1970."""

    path: str
    at_ms: int


class Manifest(msgspec.Struct, frozen=True):
    """The whole table as of one version. `applications` are the last micro-batches by query."""

    format: int
    version: int
    topic: str
    id: int
    files: list[Listed] = []
    applications: dict[str, int] = {}
    positions: dict[int, int] = {}
    gone: list[Gone] = []


class ParquetLake:
    """The Parquet files in a folder that a manifest names."""

    format = "parquet"

    def __init__(self, folder: Path, home: Home | None) -> None:
        """Open the lake, or found it for `home`. Raises `LakeMismatch`."""
        self.folder = folder
        self._manifests = folder / _FOLDER
        if home is not None and not self.is_at(folder):
            with writing(folder):
                self._manifests.mkdir(parents=True, exist_ok=True)
                sync(folder)
            self._create(Manifest(FORMAT, 0, home.topic, home.id))
        first = self._read()
        self.home = Home(first.topic, first.id)
        if home is not None:
            home.check(self.home, folder)

    @staticmethod
    def is_at(folder: Path) -> bool:
        """Whether a folder holds a lake of this format."""
        return bool(_versions(folder / _FOLDER))

    def snapshot(self) -> Snapshot:
        """Return the lake as of now."""
        now = self._read()
        files = [KeptFile(one.path, one.day, one.rows, one.size) for one in now.files]
        return Snapshot(now.version, files, now.positions)

    def has(self, application: str, number: int) -> bool:
        """Whether the micro-batch of a query was added."""
        return self._read().applications.get(application, -1) >= number

    def add(self, batch: Batch) -> bool:
        """Add a micro-batch's files; return False, and add nothing, if it was added before.

        Raises `LakeMismatch` if the lake has some of the messages from elsewhere.
        """

        def change(now: Manifest) -> Manifest | None:
            if now.applications.get(batch.application, -1) >= batch.number:
                return None
            batch.check(self.home, now.positions, self.folder)
            behind = {partition: behind for partition, (_, behind) in batch.spans.items()}
            return msgspec.structs.replace(
                now,
                files=now.files + [Listed(f.path, f.day, f.rows, f.size) for f in batch.files],
                applications=now.applications | {batch.application: batch.number},
                positions=now.positions | behind,
            )

        return self._change(change)

    def compact(self, spark: SparkSession, least: int) -> int:
        """Merge the small files of days that have `least` or more; return how many there were.

        Executors do it, a task for each new file; present readers continue with the old files.
        """
        groups = [group for files in self._crowded(least) for group in _groups(files)]
        if not groups:
            return 0
        merged = parquet.merge(spark, self.folder, groups, "merged")
        old = {file.path: file.rows for group in groups for file in group}
        if sum(old.values()) != sum(file.rows for file in merged):
            raise LakeMismatch(
                f"{self.folder}: {sum(old.values()):,} rows were to be merged, and "
                f"{sum(file.rows for file in merged):,} came: nothing was replaced; check the "
                "disk, and whether others delete files there"
            )

        def change(now: Manifest) -> Manifest | None:
            if not old.keys() <= {file.path for file in now.files}:
                return None  # another merged some of them meanwhile
            at = int(time.time() * 1_000)
            return msgspec.structs.replace(
                now,
                files=[file for file in now.files if file.path not in old]
                + [Listed(f.path, f.day, f.rows, f.size) for f in merged],
                gone=now.gone + [Gone(path, at) for path in old],
            )

        return len(old) if self._change(change) else 0

    def vacuum(self, keep_ms: int) -> int:
        """Delete files that no version of the last `keep_ms` needs; return how many.

        Files that a reader needs stay, and those that a query writes now.
        """
        now_ms = int(time.time() * 1_000)
        before = now_ms - least_kept_ms(self.folder, keep_ms, now_ms)
        now = self._read()
        needed = {file.path for file in now.files}
        needed |= {gone.path for gone in now.gone if gone.at_ms >= before}
        deleted = 0
        for path in sorted(self.folder.glob("day=*/*.parquet")):
            name = f"{path.parent.name}/{path.name}"
            # Written lately, by a micro-batch under way or by one that was added since.
            if name in needed or path.stat().st_mtime * 1_000 >= before:
                continue
            path.unlink(missing_ok=True)
            deleted += 1
        if any(gone.at_ms < before for gone in now.gone):
            self._change(
                lambda now: msgspec.structs.replace(
                    now, gone=[gone for gone in now.gone if gone.at_ms >= before]
                )
            )
        return deleted

    def _crowded(self, least: int) -> list[list[KeptFile]]:
        return [*crowded(self.snapshot().files, least).values()]

    def _change(self, change: Callable[[Manifest], Manifest | None]) -> bool:
        """Make a new version of the newest one; False if `change` finds that nothing is to do."""
        for _ in range(_TRIES):
            now = self._read()
            if (changed := change(now)) is None:
                return False
            if self._create(msgspec.structs.replace(changed, version=now.version + 1)):
                self._forget_old(now.version)
                return True
        raise LakeMismatch(
            f"{self.folder}: other writers were faster {_TRIES} times: stop some of them"
        )

    def _create(self, manifest: Manifest) -> bool:
        """Create a version, durably; False if it is there already."""
        part = self._manifests / f".{secrets.token_hex(8)}.part"
        with writing(self._manifests):
            try:
                with part.open("xb") as file:
                    file.write(msgspec.json.encode(manifest))
                    file.flush()
                    os.fsync(file.fileno())
                os.link(part, self._manifests / f"{manifest.version:020}.json")
            except FileExistsError:
                return False
            finally:
                part.unlink(missing_ok=True)
            sync(self._manifests)
        return True

    def _read(self) -> Manifest:
        """Return the newest version. Raises `LakeMismatch` for what this release cannot read."""
        for _ in range(_TRIES):
            path = _versions(self._manifests)[-1]
            with contextlib.suppress(FileNotFoundError):  # forgotten meanwhile: look again
                data = path.read_bytes()
                break
        else:
            raise LakeMismatch(f"{self._manifests} changes faster than it can be read")
        try:
            manifest = msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise LakeMismatch(f"{path} is no manifest of a lake: {error}") from None
        if manifest.format != FORMAT:
            raise LakeMismatch(f"{path} has format {manifest.format}: a newer weir can read it")
        return manifest

    def _forget_old(self, newest: int) -> None:
        for path in _versions(self._manifests):
            if int(path.stem) <= newest - _VERSIONS_KEPT:
                path.unlink(missing_ok=True)


def _versions(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.json") if path.stem.isdecimal())


def _groups(files: Sequence[KeptFile]) -> list[list[KeptFile]]:
    """Put files together that make one of up to `COMPACT_BYTES`; a lone one stays as it is."""
    groups: list[list[KeptFile]] = []
    size = COMPACT_BYTES
    for file in files:
        if size + file.size > COMPACT_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [group for group in groups if len(group) > 1]
