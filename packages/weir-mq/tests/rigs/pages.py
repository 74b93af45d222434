"""Pages whose commands a test runs: blocks of the console behind `<!-- run -->`."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RUN = re.compile(r"^<!-- run -->\n```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Yield each command that is run, and what the page shows that it prints."""
    for block in _RUN.findall(page):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, printed = command.partition("\n")
            yield line, printed


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def environment(folder: Path) -> dict[str, str]:
    """Return an environment where `weir` and `python` are those that run this test."""
    bin = folder / "bin"
    bin.mkdir()
    (bin / "weir").write_text(f'#!/bin/sh\nexec {sys.executable} -m weir.cli "$@"\n')
    (bin / "weir").chmod(0o755)
    (bin / "python").symlink_to(sys.executable)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR")}
    # A link to Python does not say which environment it is of.
    paths = os.pathsep.join(one for one in sys.path if one)
    return kept | {
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": paths,
        "PYSPARK_PYTHON": sys.executable,
        "XDG_CONFIG_HOME": str(folder / "config"),
    }


@contextmanager
def serving(command: str, folder: Path, env: dict[str, str]) -> Iterator[None]:
    """Run a node while the block runs."""
    with (folder / "node.log").open("wb") as log:
        node = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=env, stdout=log, stderr=log
        )
    try:
        yield
    finally:
        node.terminate()
        node.wait(30)


def typed(lines: list[tuple[str, str]], folder: Path, env: dict[str, str]) -> None:
    """Type commands, and compare what they print with what the page shows."""
    bash = shutil.which("bash")
    assert bash
    for line, told in lines:
        done = subprocess.run(
            [bash, "-o", "pipefail", "-c", line], cwd=folder, env=env, capture_output=True,
            text=True, timeout=200, check=False,
        )  # fmt: skip
        out = re.sub(r" +$", "", done.stdout, flags=re.MULTILINE)
        assert (done.returncode, out) == (0, told), f"{line}\n{done.stderr}"
