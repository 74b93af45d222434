"""The page about worlds tells the truth: the naive handler is caught, and the mended one passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import weir

ROOT = Path(__file__).parents[5]
SOURCE = Path(weir.__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("charging.py", "conftest.py", "test_charging.py"):
        code = (ROOT / "examples" / "worlds" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(code, encoding="utf-8")
    return tmp_path


def _pytest(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--strict-markers",
            *words,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_mended_handler_passes(folder: Path) -> None:
    code, said = _pytest(folder, "--weir-seeds", "0:1", "test_charging.py::test_mended")
    assert code == 0, said
    assert "1 passed" in said


def test_the_naive_handler_is_caught_and_the_seed_runs_again(folder: Path) -> None:
    code, said = _pytest(folder, "-x", "test_charging.py::test_naive")
    assert code == 1, said
    (again,) = set(re.findall(r"run it again: pytest (--weir-seeds \d+ \S+)", said))
    assert again.endswith(" test_charging.py::test_naive")
    (trace,) = set(re.findall(r"trace hash (\w+)", said))
    code, said = _pytest(folder, *again.split())
    assert code == 1, said
    assert f"trace hash {trace}" in said
    assert "1 failed" in said
