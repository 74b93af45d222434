"""Whom the kills under a pipeline hit."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from weir_lab.spark_cluster import kills
from weir_lab.spark_cluster.standalone import SparkFailed


class Worker:
    """A worker that has an executor from the how-manieth look on."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    def executors(self) -> list[int]:
        self._looks -= 1
        return [] if self._looks > 0 else [7]


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(kills, "kill", found.extend)
    monkeypatch.setattr(kills, "_LOOK_SECONDS", 0.0)
    return found


def pipeline_of(worker: Worker, log: Path) -> kills.Pipeline:
    some = cast(Any, SimpleNamespace(workers=[worker], log=log))
    return kills.Pipeline(some, some, some, some, Path(), lambda _: None)


def test_an_executor_is_awaited(killed: list[int], tmp_path: Path) -> None:
    """Else a kill would hit nobody while the job starts again, and count for nothing."""
    pipeline_of(Worker(3), tmp_path / "log").kill("executor", random.Random(1))
    assert killed == [7]


def test_a_job_without_executors_fails(
    killed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "_PATIENCE_SECONDS", 0.05)
    (tmp_path / "log").write_text("the master is gone\n")
    with pytest.raises(SparkFailed, match="the master is gone"):
        pipeline_of(Worker(1_000_000), tmp_path / "log").kill("executor", random.Random(1))
    assert killed == []
