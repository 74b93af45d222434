"""A measurement begins when the disk is at rest, or when that takes too long."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from weir_lab.bench.harness import resting
from weir_lab.bench.harness.resting import disk_at_rest, written

MIB = 1 << 20


def test_a_disk_is_at_rest_once_little_is_written_between_two_looks() -> None:
    totals = [0, 9 * MIB, 12 * MIB, 13 * MIB - 1, 99 * MIB]
    looks = iter(totals)
    assert asyncio.run(disk_at_rest(60, lambda: next(looks), 0.0))
    assert list(looks) == totals[4:]


def test_nobody_waits_longer_than_they_said(monkeypatch: pytest.MonkeyPatch) -> None:
    total = 0

    def busy() -> int:
        nonlocal total
        total += 5 * MIB
        return total

    # Each look takes a second by this clock.
    monkeypatch.setattr(resting, "time", SimpleNamespace(monotonic=lambda: total / (5 * MIB)))
    assert not asyncio.run(disk_at_rest(3, busy, 0.0))
    assert total == 15 * MIB
    assert not asyncio.run(disk_at_rest(0, busy))


def test_what_is_written_to_disks_is_counted(tmp_path: Path) -> None:
    before = written()
    file = tmp_path / "file"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT)
    os.write(handle, os.urandom(4 * MIB))
    os.fsync(handle)
    os.close(handle)
    # A folder in memory is on no disk, and some systems count none.
    assert written() >= before
