"""The oldest PySpark that is supported reads and writes topics, and keeps a lake of one.

`scripts/spark-oldest` makes an environment for it beside .venv, and runs any of the Spark tests.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
VERSION = "4.2.0"
#: A query that reads, one that writes, and a pipeline of all layers.
CHOSEN = (
    "test_available_now_ends_and_a_restart_continues",
    "test_a_micro_batch_that_is_run_again_adds_nothing",
    "test_late_rows_of_windows_are_counted_once",
)
SECONDS = 1_500


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
def test_the_oldest_pyspark_reads_writes_and_keeps_a_lake() -> None:
    told = subprocess.run(
        [ROOT / "scripts/spark-oldest", VERSION, "-q", "-n", "0", "-k", " or ".join(CHOSEN)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    said = told.stdout + told.stderr
    assert told.returncode == 0, said[-4_000:]
    assert f"PySpark {VERSION}" in said
    passed = re.search(r"(\d+) passed", said)
    assert passed is not None
    assert int(passed[1]) >= len(CHOSEN)
