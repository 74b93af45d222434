"""Marked secrets of a real node are in nothing that it writes: logs, backups, dumps, errors; and
its wrapping key rotates while it is killed.
"""

from __future__ import annotations

import contextlib
import io
import random
import threading
from base64 import b64decode
from functools import cache
from pathlib import Path

import pytest

from rigs.certificates import TestCa
from weir import sync
from weir.access.credentials import ScramVerifier, make_verifier
from weir.access.devices import derive_secret
from weir.access.signatures import SEED_BYTES
from weir.access.wrapping import WRAPPED_BYTES, read_key_file
from weir.broker.metadata.security.vault import purpose_of_token_key
from weir.cli.main import main
from weir.client.connection.ticket_file import settings_folder
from weir.device import Client as Device
from weir.device import DeviceSecret
from weir.errors import WeirError, WrongKey
from weir.server.disk.node_folder import NodeFolder
from weir.server.key_files import create_key_file
from weir.testing.nodes import HOST, Node, start_node
from weir.tls.authority import Issued

PASSWORD = "marked-password-of-the-administrator"
FLEET_KEY = bytes.fromhex("6d61726b" * 8)
SALT = b"a marked salt 16"
KILLS = 4
HUB = 42


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


@cache
def known(password: str) -> ScramVerifier:
    """Return a verifier of a password, made with a salt that the test knows.

    Hundreds of users have the same, for to make one takes as long as all else that is done for one.
    """
    return make_verifier(password, SALT)


@pytest.fixture
def fixed_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client make a verifier that the test knows."""
    from weir.client import access

    monkeypatch.setattr(access, "make_verifier", lambda password, _: known(password))
    monkeypatch.setenv("WEIR_NEW_PASSWORD", PASSWORD)
    monkeypatch.setenv("WEIR_PASSWORD", PASSWORD)


def node_of(tmp_path: Path, key_file: Path, **more: str) -> Node:
    return start_node(
        tmp_path / "data", tmp_path, key_file=str(key_file), segment_mib=32, spares=0, **more
    )


def devices_say(node: Node, secret: bytes) -> str:
    """Let a device come in by its secret, and another one fail with it; return what they say."""
    said = ""
    for hub in (HUB, HUB + 1):
        try:
            with Device(
                HOST, node.port, hub=hub, boot=1, topic="doors", secret=DeviceSecret(secret)
            ) as device:
                device.publish(b"open", 1)
                said += f"in: {hub}, {device!r}"
        except WeirError as error:
            said += f"{error!r} {error}"
    assert "in: 42" in said
    assert "NotAuthenticated" in said
    return said


def token_seed(found: list[tuple[str, bytes]], key_file: Path, key_id: str) -> bytes:
    """Return the seed of the key by which the set signs tokens, as a node unwraps it."""
    ring, purpose = read_key_file(key_file.read_bytes()), purpose_of_token_key(key_id)
    for _, data in found:
        at = -1
        while (at := data.find(b"\x01" + ring.current, at + 1)) >= 0:
            with contextlib.suppress(WrongKey):
                return ring.unwrap(data[at : at + SEED_BYTES + WRAPPED_BYTES], purpose)
    raise AssertionError("no file has the wrapped key that signs tokens")


def tickets() -> list[bytes]:
    """Return the tickets that commands keep, in base64 and as they are."""
    files = (settings_folder() / "tickets").glob("*.ticket")
    texts = [path.read_bytes().strip() for path in files]
    return [*texts, *map(b64decode, texts)]


def tokens_say(node: Node, ca: TestCa, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    """Return a token of root, the id of the key that signed it, and what is said to who comes by
    it, and by one that is not right.
    """
    url = ca.url(node.port)
    with sync.connect(url.replace("//", "//root@")) as client:
        key_id = client.access.create_token_key()
        token = client.access.issue_token(600, user="root", token_id="kept").token
    said = ""
    body, _, signature = token.rpartition(".")
    for shown in (token, f"{body}.{signature[:-4]}AAAA", f"{token}x"):
        monkeypatch.setenv("WEIR_TOKEN", shown)
        said += says("topic", "list", "--url", url)
        said += says("user", "show", "root", "--json", "--url", url)
    monkeypatch.delenv("WEIR_TOKEN")
    assert '"user": "default/root"' in said
    refused = said.count("this token is not accepted")
    assert refused == 4, "two tokens that are not right, by two commands"
    return token, key_id, said


def key_of(issued: Issued) -> bytes:
    """Return a part of a private key that no other key has, as it stands in a file."""
    lines = issued.key.read_bytes().splitlines()
    return max(lines[1:-1], key=len)


def url_of(node: Node, user: str = "") -> str:
    return f"weir://{user and f'{user}@'}{HOST}:{node.port}"


def test_marked_secrets_are_found_nowhere(
    tmp_path: Path, fixed_salt: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    key_file = tmp_path / "keys"
    create_key_file(key_file)
    fleet_key = tmp_path / "fleet.key"
    fleet_key.write_text(FLEET_KEY.hex())
    fleet_key.chmod(0o600)
    said = ""
    system = NodeFolder(tmp_path / "data").found(1).system
    ca = TestCa(tmp_path / "ca", system)
    own, mine = ca.issue("node/1"), ca.issue("user/default/root")
    files = {"certificate": str(own.certificate), "key": str(own.key), "trust": ca.bundle}
    with node_of(tmp_path, key_file, **files) as node:
        said += says("access", "init", "--user", "root", "--url", url_of(node))
        said += says(
            "fleet", "create", "doors", "40", "49", "--key", str(fleet_key), "--url", url_of(node)
        )
        said += says("topic", "create", "doors", "--url", url_of(node))
        said += says(
            "acl", "allow", "fleet.doors", "publish", "topic", "doors", "--url", url_of(node)
        )
        said += says("access", "mode", "closed", "--url", url_of(node, "root"))
        secret = derive_secret(FLEET_KEY, system, HUB, 0)
        said += devices_say(node, secret)
        token, key_id, told = tokens_say(node, ca, monkeypatch)
        said += told
        listed = says("topic", "list", "--url", ca.url(node.port, mine))
        assert "doors" in listed, "the certificate lets it in"
        said += listed
        for words in (
            ("access", "status"), ("user", "list"), ("user", "show", "root"),
            ("fleet", "list"), ("user", "create", "root"), ("acl", "suggest"),
        ):  # fmt: skip
            said += says(*words, "--json", "--url", url_of(node, "root"))
            said += says(*words, "--url", url_of(node))  # it is refused, and says why
        said += says("doctor", "--data", str(node.folder))
        by_topics = ("backup", "--to", str(tmp_path / "topics"))
        said += says(*by_topics, "--topic", "doors", "--url", url_of(node, "root"))
        said += node.said()
    said += says("backup", str(tmp_path / "data"), "--to", str(tmp_path / "backup"))
    said += says("inspect", str(tmp_path / "data")) + says("verify", str(tmp_path / "data"))
    verifier = known(PASSWORD)
    (key,) = [line.split()[1] for line in key_file.read_text().splitlines()]
    marked = {
        "password": PASSWORD.encode(), "stored key": verifier.stored_key,
        "server key": verifier.server_key, "fleet key": FLEET_KEY,
        "fleet key in hex": FLEET_KEY.hex().encode(), "wrapping key": key.encode(),
        "device's secret": secret, "device's secret in hex": secret.hex().encode(),
        "token": token.encode(), "signature of the token": token.rpartition(".")[2].encode(),
        "private key of the node": key_of(own), "private key of a user": key_of(mine),
    }  # fmt: skip
    found = [one for name in ("data", "backup", "topics") for one in places(tmp_path / name)]
    seed = token_seed(found, key_file, key_id)
    marked |= {"key of tokens": seed, "key of tokens in hex": seed.hex().encode()}
    kept = tickets()
    marked |= {f"ticket {number}": one for number, one in enumerate(kept)}
    assert len(kept) > 1, "commands keep tickets"
    assert len(set(marked.values())) == len(marked)
    assert any(name.startswith(str(tmp_path / "topics")) for name, _ in found)
    assert any(b"default/root" in data for _, data in found)
    assert any(b"doors" in data for _, data in found)
    searched = [*found, ("said", said.encode())]
    for what, mark in marked.items():
        assert not [name for name, data in searched if mark in data], what


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
