"""The tutorial of a closed set: its commands are typed into a shell, and print what it shows."""

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

import pytest

from rigs.pages import shown
from weir.client.sync.client import connect
from weir.errors import NotAuthenticated

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/closed.md"
EXAMPLES = ROOT / "examples/closed"


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


@pytest.mark.timeout(600)  # it starts thirty processes, and Spark
def test_the_page_leads_to_what_it_says(tmp_path: Path) -> None:
    port = str(free_port())
    for one in EXAMPLES.iterdir():
        (tmp_path / one.name).write_text(one.read_text().replace("6800", port))
    with (tmp_path / "weir.toml").open("r+") as file:
        text = file.read().replace("[node]\n", f"[node]\nport = {port}\n")
        file.seek(0)
        file.write(text)
    env = environment(tmp_path)
    page = [(line.replace("6800", port), told) for line, told in shown(PAGE.read_text())]
    serve = next(number for number, (line, _) in enumerate(page) if line.startswith("weir serve"))
    typed(page[:serve], tmp_path, env)
    with serving(page[serve][0], tmp_path, env):
        url = f"weirs://localhost:{port}?ca={tmp_path}/weir-ca/ca.pem"
        connect(url, request_timeout=60.0).close()  # it is up
        typed(page[serve + 1 :], tmp_path, env)
        # It is closed, and to ann as well.
        for user, password in (("ann", tmp_path / "ann.password"), ("", None)):
            address = url.replace("//", f"//{user}@") if user else url
            try:
                connect(address, password=password).close()
            except NotAuthenticated:
                continue
            raise AssertionError(f"{user or 'nobody'} was let in")
    # Passwords are in their files, and nowhere else.
    for secret in tmp_path.glob("*.password"):
        words = secret.read_text().strip()
        assert secret.stat().st_mode & 0o077 == 0
        found = [
            path for path in tmp_path.rglob("*")
            if path.is_file() and path != secret and words.encode() in path.read_bytes()
        ]  # fmt: skip
        assert found == [], words


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
