"""`tools/test-ids` finds tests that are lost between two lists, and those that only moved."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[2] / "tools"
BEFORE = """tests/unit/log/test_a.py
  TestC::test_in_a_class
  test_one
  test_two 5
tests/unit/logs/test_b.py
  test_three
"""


def run(tool: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tool), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def compared(
    folder: Path, after: str, moves: str = "", reasons: str = ""
) -> subprocess.CompletedProcess[str]:
    texts = {"before": BEFORE, "after": after, "moves.tsv": moves, "reasons.tsv": reasons}
    for name, text in texts.items():
        (folder / name).write_text(text)
    tables = ("--moves", folder / "moves.tsv", "--reasons", folder / "reasons.tsv")
    return run(TOOLS / "test-ids", "compare", folder / "before", folder / "after", *tables)


def test_the_same_list_lost_nothing(tmp_path: Path) -> None:
    done = compared(tmp_path, BEFORE)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_test_that_is_gone_and_cases_that_are_gone_are_lost(tmp_path: Path) -> None:
    after = BEFORE.replace("  test_one\n", "  test_new\n").replace("test_two 5", "test_two 3")
    done = compared(tmp_path, after)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "lost  tests/unit/log/test_a.py::test_one",
        "lost  tests/unit/log/test_a.py::test_two: 2 of 5 cases",
        "new   tests/unit/log/test_a.py::test_new",
    ]


def test_more_cases_are_no_loss(tmp_path: Path) -> None:
    assert compared(tmp_path, BEFORE.replace("test_two 5", "test_two 6")).returncode == 0


def test_what_moved_is_found_and_the_longest_beginning_wins(tmp_path: Path) -> None:
    after = (
        BEFORE.replace("tests/unit/log/", "packages/weir-mq/tests/storage/")
        .replace("tests/unit/logs/", "tests/other/")
        .replace("test_one", "test_first")
    )
    moves = (
        "tests/unit\ttests/other\n"
        "tests/unit/logs/\ttests/other/\n"
        "tests/unit/log\tpackages/weir-mq/tests/storage\n"
        "tests/unit/log/test_a.py::test_one\tpackages/weir-mq/tests/storage/test_a.py::test_first\n"
    )
    done = compared(tmp_path, after, moves)
    assert (done.returncode, done.stdout) == (0, "")
    assert "idle  no test began with 'tests/unit'," in done.stderr


def test_a_move_to_where_the_test_is_not_loses_it(tmp_path: Path) -> None:
    done = compared(tmp_path, BEFORE, "tests/unit/logs\ttests/elsewhere\n")
    assert done.returncode == 1
    assert "should be tests/elsewhere/test_b.py::test_three" in done.stdout


def test_two_tests_that_became_one_keep_their_cases(tmp_path: Path) -> None:
    after = BEFORE.replace("  test_one\n", "").replace("test_two 5", "test_two 6")
    one, two = (f"tests/unit/log/test_a.py::test_{name}" for name in ("one", "two"))
    assert compared(tmp_path, after, f"{one}\t{two}\n").returncode == 0
    assert compared(tmp_path, after.replace(" 6", " 5"), f"{one}\t{two}\n").returncode == 1


def test_a_reason_excuses_a_loss(tmp_path: Path) -> None:
    after = BEFORE.replace("  test_one\n", "")
    done = compared(tmp_path, after, reasons="tests/unit/log/test_a.py::test_one\tis in test_two\n")
    assert done.returncode == 0
    assert done.stdout == "gone  tests/unit/log/test_a.py::test_one: is in test_two\n"
    done = compared(tmp_path, after, reasons="tests/unit/log/test_a.py::test_on\tno such test\n")
    assert done.returncode == 1


def test_a_line_without_two_columns_is_refused(tmp_path: Path) -> None:
    done = compared(tmp_path, BEFORE, reasons="tests/unit/log/test_a.py::test_one\n")
    assert done.returncode == 2
    assert "reasons.tsv:1" in done.stderr


def test_the_tests_of_a_repository_and_of_its_distributions_are_collected(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    tool = Path(shutil.copy(TOOLS / "test-ids", tmp_path / "tools"))
    for folder in (tmp_path, tmp_path / "packages/one"):
        (folder / "tests").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (tmp_path / "tests/test_x.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('text', ['a b', 'c::d', 'e[f'])\ndef test_p(text): pass\n\n"
        "class TestC:\n    def test_m(self): pass\n"
    )
    (tmp_path / "packages/one/tests/test_y.py").write_text("def test_q(): pass\n")
    done = run(tool, "list")
    assert done.stdout == (
        "packages/one/tests/test_y.py\n  test_q\ntests/test_x.py\n  TestC::test_m\n  test_p 3\n"
    )
    (tmp_path / "before").write_text(done.stdout)
    (tmp_path / "packages/one/tests/test_y.py").write_text("")
    done = run(tool, "compare", tmp_path / "before")
    assert (done.returncode, done.stdout) == (1, "lost  packages/one/tests/test_y.py::test_q\n")
    (tmp_path / "tests/test_x.py").write_text("import no_such_module\n")
    assert run(tool, "list").returncode == 2
