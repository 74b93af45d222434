"""A fleet from its key file to devices in Python and in C, as an operator does it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weir.cli.main import main
from weir.device import Client, DeviceSecret
from weir.errors import Disconnected, NotAuthenticated, ProofNeeded

ROOT = Path(__file__).resolve().parents[4]
SOURCE = ROOT / "examples" / "device-c"
#: Two programs and a node start, which takes seconds where others work as well.
PATIENCE = 60


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Run `weir serve` with a key file."""
    weir("access", "key", str(tmp_path / "key"))
    command = (sys.executable, "-m", "weir.cli", "serve", "--port", "0")
    environment = {**os.environ, "WEIR__ACCESS__KEY_FILE": str(tmp_path / "key")}
    with (
        (tmp_path / "node.log").open("w") as log,
        subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")], env=environment,
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=tmp_path,
        ) as node,
    ):  # fmt: skip
        try:
            assert node.stdout is not None
            line = node.stdout.readline()
            found = re.search(r":(\d+)", line)
            assert found, f"{line!r}\n{(tmp_path / 'node.log').read_text()}"
            yield int(found[1])
        finally:
            node.terminate()
            node.wait(30)


def weir(*words: str, port: int = 0) -> Any:
    """Run a command; return what it prints as JSON, if it does."""
    more = ("--json", "--url", f"weir://127.0.0.1:{port}") if port else ()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*words, *more]) == 0
    return json.loads(said.getvalue()) if port else said.getvalue()


def device(port: int, hub: int, secret: dict[str, Any] | None, boot: int = 1) -> Client:
    own = None
    if secret is not None:
        own = DeviceSecret(bytes.fromhex(secret["secret"]), secret["generation"])
    return Client("127.0.0.1", port, hub, boot, "locks", timeout=10.0, secret=own)


def test_a_fleet_from_its_key_to_its_devices(port: int, tmp_path: Path) -> None:
    key = tmp_path / "fleet.key"
    weir("topic", "create", "locks", "--url", f"weir://127.0.0.1:{port}")
    made = weir("fleet", "create", "doors", "40", "0x31", "--signed", "--key", str(key), port=port)
    assert (made["fleet"], made["first"], made["last"], made["level"]) == (
        "doors",
        40,
        49,
        "signed",
    )
    assert key.stat().st_mode & 0o777 == 0o600
    assert [one["fleet"] for one in weir("fleet", "list", port=port)["fleets"]] == ["doors"]
    first = weir("device", "enrol", "42", "--key", str(key), port=port)
    assert (first["hub"], first["generation"], len(first["secret"])) == (42, 0, 64)

    with pytest.raises(ProofNeeded):
        device(port, 42, None)
    with pytest.raises(NotAuthenticated):
        device(port, 43, first)
    with device(port, 42, first) as client:
        assert [r.code for r in client.send_many([b"open", b"close"])] == [0, 0]
        replaced = weir("device", "replace", "42", port=port)
        assert (replaced["generation"], replaced["revoked"], replaced["before"]) == (1, False, 0)
        assert client.publish_sequenced(b"as before").code == 0
        second = weir("device", "enrol", "42", "--key", str(key), port=port)
        assert second["secret"] != first["secret"]
        with device(port, 42, second) as new:
            assert new.publish_sequenced(b"new").code == 0
        with pytest.raises((Disconnected, NotAuthenticated)):
            client.publish_sequenced(b"too late")
    third = weir("device", "replace", "42", "--now", port=port)
    assert third["unreached"] == []
    third = weir("device", "status", "42", port=port)
    assert (third["generation"], third["before"]) == (2, None)
    with pytest.raises(NotAuthenticated):
        device(port, 42, second, boot=2)
    second = weir("device", "enrol", "42", "--key", str(key), port=port)
    with device(port, 42, second) as client:
        assert client.publish_sequenced(b"newer").code == 0
    assert weir("device", "revoke", "42", port=port)["unreached"] == []
    assert weir("device", "status", "42", port=port)["revoked"]
    with pytest.raises(NotAuthenticated):
        device(port, 42, second, boot=3)
    said = (tmp_path / "node.log").read_text()
    for secret in (first["secret"], second["secret"], key.read_text().strip()):
        assert secret not in said
    in_c(port, tmp_path, weir("device", "enrol", "45", "--key", str(key), port=port)["secret"])


def in_c(port: int, tmp_path: Path, secret: str) -> None:
    """The reference for firmware comes in with its secret, and with no other."""
    if shutil.which("gcc") is None or shutil.which("make") is None:
        packages = ("gcc", "libc6-dev", "make")
        subprocess.run([ROOT / "scripts" / "apt-install", *packages], check=True, timeout=110)
    make = ("make", "-s", "-C", str(SOURCE), f"OUT={tmp_path}", "CC=gcc", f"{tmp_path}/demo")
    subprocess.run(make, check=True, timeout=PATIENCE)
    words = [str(tmp_path / "demo"), "127.0.0.1", str(port), "locks", "crew", "45", "1", "3", "2"]
    for given, code, text in (
        (secret, 0, "done"),
        ("00" * 32, 1, "does not take this hub"),
        (None, 1, "needs its secret"),
    ):
        environment = {**os.environ} | ({"WEIR_SECRET": given} if given else {})
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment
        )
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True), done.stderr
