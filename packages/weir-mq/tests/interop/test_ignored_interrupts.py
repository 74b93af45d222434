"""The tests pass where their shell ignores SIGINT, as background commands and nohup jobs do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
PROGRAM_STOPPED_BY_CTRL_C = (
    "packages/weir-mq/tests/interop/test_cli.py::test_a_tail_follows_until_ctrl_c"
)


def test_programs_that_tests_start_stop_at_ctrl_c_where_a_shell_ignores_it() -> None:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest, PROGRAM_STOPPED_BY_CTRL_C],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
