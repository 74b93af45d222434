"""Marked secrets of a real node are in nothing that it writes: logs, backups, dumps, errors; and
its wrapping key rotates while it is killed.
"""

from __future__ import annotations

import contextlib
import io
import random
import threading
from pathlib import Path

import pytest

from weir import sync
from weir.access.credentials import ITERATIONS_MIN, ScramVerifier, make_verifier
from weir.cli.main import main
from weir.errors import WeirError
from weir.server.key_files import create_key_file
from weir.testing.nodes import HOST, Node, start_node

PASSWORD = "marked-password-of-the-administrator"
FLEET_KEY = bytes.fromhex("6d61726b" * 8)
SALT = b"a marked salt 16"
KILLS = 4


def says(*words: str) -> str:
    """Run a command; return all that it prints."""
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        main([*words])
    return out.getvalue() + err.getvalue()


def places(folder: Path) -> list[tuple[str, bytes]]:
    """All files below a folder, by name."""
    return [(str(path), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()]


def weak(password: str) -> ScramVerifier:
    """Return a verifier that is made with as little work as is allowed."""
    return make_verifier(password, SALT, ITERATIONS_MIN)


@pytest.fixture
def fixed_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client make a verifier that the test knows."""
    from weir.client import access

    monkeypatch.setattr(access, "make_verifier", lambda password, _: weak(password))
    monkeypatch.setenv("WEIR_NEW_PASSWORD", PASSWORD)
    monkeypatch.setenv("WEIR_PASSWORD", PASSWORD)


def node_of(tmp_path: Path, key_file: Path) -> Node:
    return start_node(tmp_path / "data", tmp_path, key_file=str(key_file), segment_mib=32, spares=0)


def url_of(node: Node, user: str = "") -> str:
    return f"weir://{user and f'{user}@'}{HOST}:{node.port}"


def test_marked_secrets_are_found_nowhere(tmp_path: Path, fixed_salt: None) -> None:
    key_file = tmp_path / "keys"
    create_key_file(key_file)
    fleet_key = tmp_path / "fleet.key"
    fleet_key.write_text(FLEET_KEY.hex())
    fleet_key.chmod(0o600)
    said = ""
    with node_of(tmp_path, key_file) as node:
        said += says("access", "init", "--user", "root", "--url", url_of(node))
        said += says(
            "fleet", "create", "doors", "40", "49", "--key", str(fleet_key), "--url", url_of(node)
        )
        said += says("access", "mode", "closed", "--url", url_of(node, "root"))
        for words in (
            ("access", "status"), ("user", "list"), ("user", "show", "root"),
            ("fleet", "list"), ("user", "create", "root"), ("acl", "suggest"),
        ):  # fmt: skip
            said += says(*words, "--json", "--url", url_of(node, "root"))
            said += says(*words, "--url", url_of(node))  # it is refused, and says why
        said += says("doctor", "--data", str(node.folder))
        said += node.said()
    said += says("backup", str(tmp_path / "data"), "--to", str(tmp_path / "backup"))
    said += says("inspect", str(tmp_path / "data")) + says("verify", str(tmp_path / "data"))
    verifier = weak(PASSWORD)
    (key,) = [line.split()[1] for line in key_file.read_text().splitlines()]
    marked = {
        "password": PASSWORD.encode(), "stored key": verifier.stored_key,
        "server key": verifier.server_key, "fleet key": FLEET_KEY,
        "fleet key in hex": FLEET_KEY.hex().encode(), "wrapping key": key.encode(),
    }  # fmt: skip
    found = places(tmp_path / "data") + places(tmp_path / "backup")
    assert any(b"default/root" in data for _, data in found)
    assert any(b"doors" in data for _, data in found)
    for what, secret in marked.items():
        assert not [name for name, data in [*found, ("said", said.encode())] if secret in data], (
            what
        )


def test_the_wrapping_key_rotates_under_kills(tmp_path: Path, fixed_salt: None) -> None:
    old, both, new = (tmp_path / name for name in ("old", "both", "new"))
    create_key_file(old)
    create_key_file(new)
    both.write_bytes(new.read_bytes() + old.read_bytes())
    both.chmod(0o600)
    users = 300
    with node_of(tmp_path, old) as node:
        says("access", "init", "--user", "root", "--url", url_of(node))
        with sync.connect(url_of(node)) as client:
            for number in range(users):
                client.access.create_user(f"user{number}", PASSWORD)
    for turn in range(KILLS):
        node = node_of(tmp_path, both)
        killer = threading.Timer(random.Random(turn).random() * 0.03, node.kill)
        with (
            sync.connect(url_of(node), request_timeout=1.0) as client,
            contextlib.suppress(WeirError),
        ):
            killer.start()
            while True:
                client.access.rewrap()
        killer.join()
        node.kill()
    with node_of(tmp_path, both) as node:
        assert '"left": 0' in says("access", "rewrap", "--json", "--url", url_of(node))
        assert "wrapped by the first key" in says(
            "doctor", "--data", str(node.folder), "--only", "secrets"
        )
    with node_of(tmp_path, new) as node:
        for name in ("root", "user0", f"user{users - 1}"):
            with sync.connect(url_of(node, name)) as client:
                client.ping()
        with sync.connect(url_of(node)) as client:
            assert len(client.access.describe().users) == users + 1
            assert client.access.secrets_left() == 0
    with node_of(tmp_path, old) as node, pytest.raises(WeirError, match="which this key file has"):
        sync.connect(url_of(node, "root"), request_timeout=1.0).close()
