"""`weir access`, as a process that loads no other family of verbs knows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import weir
from weir.server.key_files import read_key_ring

SOURCE = Path(weir.__file__).parents[1]


def test_a_process_of_its_own_makes_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    done = subprocess.run(
        [sys.executable, "-m", "weir.cli", "access", "key", str(file)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "holds a new key" in done.stdout) == (0, True), done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_key_ring(str(file), str(tmp_path / "data")) is not None
