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
_FENCE = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    page = (ROOT / "docs/TESTING.md").read_text(encoding="utf-8")
    found = _FENCE.findall(page)
    assert [name for name, _ in found] == ["charging.py", "conftest.py", "test_charging.py"]
    for name, code in found:
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
    code, said = _pytest(folder, "--weir-seeds", "0:4", "test_charging.py::test_mended")
    assert code == 0, said
    assert "4 passed" in said


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
