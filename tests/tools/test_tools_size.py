"""`tools/size` counts the packages of a small tree that is laid out in both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "size"
MODULE = '''"""A docstring

of three lines.
"""

import os


class C:
    """One more line."""

    x = """a value, no docstring"""
    """A string that stands alone."""

    def f(self):
        if os:
            return 1
'''
#: import, class, assignment, def, if, return
STATEMENTS = 6


def size(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def sizes(*arguments: str | Path) -> dict[str, Any]:
    done = size("--json", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lay_out(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MODULE)


def test_a_package_is_a_top_folder_with_all_that_it_holds(tmp_path: Path) -> None:
    lay_out(tmp_path, "src/weir/__init__.py", "src/weir/log/a.py", "src/weir/log/deep/b.py")
    lay_out(tmp_path, "src/weir/log/tests/test_a.py", "src/notes/draft.py", "tests/test_b.py")
    lines = MODULE.count("\n")
    one = {
        "lines": lines,
        "statements": STATEMENTS,
        "docstring_lines": 4 + 1 + 1,
        "files": 1,
        "files_below_60_lines": 1,
    }
    found = sizes(tmp_path)
    assert found["commit"] is None
    assert found["packages"] == {
        "weir/.": one,
        "weir/log": {figure: 2 * count for figure, count in one.items()},
    }
    assert found["import_roots"] == {"weir": found["total"]}
    assert found["total"] == {figure: 3 * count for figure, count in one.items()}


def test_packages_of_several_distributions_are_counted_together(tmp_path: Path) -> None:
    lay_out(tmp_path, "packages/weir-raft/src/weir_raft/__init__.py")
    lay_out(tmp_path, "packages/weir-mq/src/weir/__init__.py", "packages/weir-mq/tests/test_c.py")
    lay_out(tmp_path, "packages/weir-mq/src/weir/broker/a.py")
    (tmp_path / "packages/weir-mq/src/weir/broker/a.py").write_text("x = 1\n" * 60)
    found = sizes(tmp_path)
    assert {*found["packages"]} == {"weir_raft/.", "weir/.", "weir/broker"}
    assert found["packages"]["weir/broker"] == {
        "lines": 60,
        "statements": 60,
        "docstring_lines": 0,
        "files": 1,
        "files_below_60_lines": 0,
    }
    alone = sizes(tmp_path / "packages/weir-raft/src/weir_raft")
    assert alone["packages"] == {"weir_raft/.": found["import_roots"]["weir_raft"]}


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    done = size(tmp_path)
    assert done.returncode == 2
    assert "no __init__.py" in done.stderr


def test_this_repository_has_packages() -> None:
    found = sizes()
    assert found["total"]["files"] == sum(row["files"] for row in found["packages"].values())
    assert "weir/broker" in found["packages"]
    part = ROOT / "packages/weir-raft/src/weir_raft"
    table = size(part)
    assert table.returncode == 0
    assert f"{sizes(part)['total']['lines']:,}" in table.stdout
