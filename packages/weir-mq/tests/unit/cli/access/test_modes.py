"""`weir access`, as a process that loads no other family of verbs knows it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weir
from weir.cli.main import main, whole_command
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


def test_programs_read_which_key_file_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    assert main(["access", "key", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["file"]) == ("weir.access-key/1", str(file))


@pytest.mark.parametrize(
    "group",
    ["cert", "user", "role", "acl", "access", "token", "audit", "context", "fleet", "device",
     "quota"],
)  # fmt: skip
def test_programs_read_what_each_verb_of_access_did(group: str) -> None:
    def leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for name, one in command.commands.items():
                yield from leaves(one, f"{words} {name}")
        else:
            yield words, command

    found = [*leaves(whole_command().commands[group], group)]  # type: ignore[attr-defined]
    assert found
    without = [
        words
        for words, one in found
        if not any("--json" in parameter.opts for parameter in one.params)
    ]
    assert without == []
