"""How long a log takes to open again: `python -m weir.bench.restart --gib 10` prints JSON.

Writes a log of that size through the real log and disk, with checkpoints and index files as a node
writes them, then opens it anew: as it is, and once more without any index file.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from weir.bench.machine import Machine, this_machine
from weir.broker.writer import CHECKPOINT_BYTES, CHECKPOINT_FRAMES
from weir.log.checkpoint import save
from weir.log.frame import Kind
from weir.log.index_file import is_index
from weir.log.log import Log
from weir.log.record import Record
from weir.log.recovery import recover
from weir.log.settings import Settings
from weir.model.batch import encode
from weir.model.header import HEADER_SIZE, stamped
from weir.model.limits import KIB, MIB
from weir.server.disk import FileDisk

_GROUPS = 8
_FLUSH_BYTES = 4 * MIB
_MESSAGE_BYTES = 100


class Shape(msgspec.Struct, frozen=True):
    """A log of about `gib` GiB, in entries of `entry_kib` KiB of 100-byte messages."""

    gib: float = 10.0
    entry_kib: int = 256


class Result(msgspec.Struct, frozen=True):
    """Seconds until the log could be written to again, and what they were measured on."""

    shape: Shape
    machine: Machine
    log_bytes: int
    entries: int
    write_seconds: float
    restart_seconds: float
    scan_seconds: float


class _Writer:
    """Fills a log as a node does: flushes, spares, checkpoints, chores."""

    def __init__(self, disk: FileDisk, log: Log, shape: Shape) -> None:
        self._disk, self._log, self._shape = disk, log, shape
        self._saved = self._frames = 0
        self._applied = dict.fromkeys(_ids(), 0)
        count = max(shape.entry_kib * KIB // (_MESSAGE_BYTES + 4), 1)
        self._batches = {g: bytes(encode([bytes(_MESSAGE_BYTES)] * count, group=g)) for g in _ids()}
        self._count = count

    def run(self) -> int:
        """Write it all; return the number of entries."""
        while self._log.tail < self._shape.gib * 1024 * MIB:
            start = self._log.tail
            while self._log.tail - start < _FLUSH_BYTES:
                for group in _ids():
                    self._append(group)
            self._settle()
        return sum(self._applied.values())

    def _append(self, group: int) -> None:
        index = self._applied[group] = self._applied[group] + 1
        first, batch = (index - 1) * self._count, self._batches[group]
        payload = (stamped(batch, index, first), memoryview(batch)[HEADER_SIZE:])
        behind = first + self._count
        kind = Kind.BATCHES
        self._log.append(Record(group, 1, index, kind, payload, len(batch), first, behind, index))

    def _settle(self) -> None:
        log, disk = self._log, self._disk
        flush = log.next_flush()
        assert flush is not None  # something was appended
        flush.run(disk)
        log.flushed(flush)
        while chore := log.next_chore():
            chore.run(disk)
        many = log.frames - self._frames > CHECKPOINT_FRAMES
        if many or log.tail - self._saved > CHECKPOINT_BYTES:
            self._saved, self._frames = log.tail, log.frames
            save(disk, log.checkpoint(self._applied, b""))
            log.checkpoint_saved()


def measure(shape: Shape, folder: Path) -> Result:
    """Write a log into an empty folder and open it twice. Raises `ValueError` if entries differ."""
    settings = Settings(log=0, system=1)
    with contextlib.closing(FileDisk(folder)) as disk:
        log = recover(disk, settings).log
        started = time.perf_counter()
        entries = _Writer(disk, log, shape).run()
        written = time.perf_counter() - started
        size = log.tail
    restart = _open(folder, settings, entries)
    for path in folder.iterdir():
        if is_index(path.name):
            path.unlink()
    scan = _open(folder, settings, entries)
    return Result(shape, this_machine(), size, entries, written, restart, scan)


def _open(folder: Path, settings: Settings, entries: int) -> float:
    with contextlib.closing(FileDisk(folder)) as disk:
        started = time.perf_counter()
        recovered = recover(disk, settings)
        seconds = time.perf_counter() - started
    found = sum(group.last_index for group in recovered.groups.values())
    if found != entries:
        raise ValueError(f"{entries:,} entries were written and {found:,} are there")
    return seconds


def _ids() -> Sequence[int]:
    return [topic << 16 for topic in range(1, _GROUPS + 1)]


def main() -> None:
    """Measure with the sizes that the command line names, in a temporary folder."""
    parser = argparse.ArgumentParser(prog="python -m weir.bench.restart")
    parser.add_argument("--gib", type=float, default=Shape().gib)
    parser.add_argument("--entry-kib", type=int, default=Shape().entry_kib)
    parser.add_argument("--folder", type=Path, help="where the log is to lie for the moment")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=wanted.folder) as folder:
        result = measure(Shape(wanted.gib, wanted.entry_kib), Path(folder))
    print(msgspec.json.format(msgspec.json.encode(result)).decode())


if __name__ == "__main__":
    main()
