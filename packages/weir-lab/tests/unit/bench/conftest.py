"""A peer for tests: a program called redis-server that speaks as much as is asked of it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

FAKE = Path(__file__).with_name("fake_redis.py")


@pytest.fixture
def fake_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `redis-server` be the fake, for this process and those it starts."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "redis-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
