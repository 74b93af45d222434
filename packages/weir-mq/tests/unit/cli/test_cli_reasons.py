"""What the system refuses, or lacks, ends in a line that says what to do."""

from __future__ import annotations

import errno
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from weir.cli.main import main
from weir.cli.process import EXTRAS, in_words, not_installed

ROOT = Path(__file__).parents[5]


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "be the user who owns it"),
        (errno.EPERM, "be the user who owns it"),
        (errno.EROFS, "another disk"),
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "free space"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_what_the_system_refuses_comes_with_advice(number: int, advice: str) -> None:
    line = in_words(OSError(number, os.strerror(number), "/data/node.json"))
    assert line.startswith(f"/data/node.json: {os.strerror(number)}: ")
    assert advice in line


def test_what_needs_no_advice_is_told_as_it_is() -> None:
    assert in_words(FileNotFoundError(2, "No such file", "weir.toml")) == "weir.toml: No such file"
    assert in_words(OSError("by itself")) == "by itself"


def test_a_full_disk_is_told_by_the_verb_that_met_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["init", "--data", str(tmp_path / "node")]) == 1
    assert "free space, or give a folder on another disk" in capsys.readouterr().err


def test_a_verb_without_its_library_names_what_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`weir chaos` ended in a traceback where numpy was not installed."""
    for name in [name for name in sys.modules if name.startswith("weir_lab.bench.faults.chaos")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert main(["chaos", "kill-leader", "--times", "1"]) == 1
    told = capsys.readouterr().err
    assert "numpy, which is not installed: pip install numpy" in told
    assert not_installed(ModuleNotFoundError(name="weir.nothing")) == ""


def test_simulated_worlds_are_not_played_without_what_brokers_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each world in which somebody packed a batch was said to break a promise."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for words in (["run", "--seeds", "1"], ["mutants"]):
        assert main(["sim", *words]) == 1
        assert "pip install 'weir-mq[compress]'" in capsys.readouterr().err


def test_the_optional_parts_are_those_that_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "packages/weir-mq/pyproject.toml").read_text())["project"]
    brought = {
        extra: {re.split(r"[\[<>=]", need)[0].lower() for need in needs}
        for extra, needs in project["optional-dependencies"].items()
    }
    for extra, modules in EXTRAS.items():
        assert set(modules) <= brought[extra], extra
