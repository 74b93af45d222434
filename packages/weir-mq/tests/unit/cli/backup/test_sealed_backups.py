"""Sealed backups: nothing in them is seen, changed, moved or left out without the key."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from weir import sync
from weir.access.wrapping import KeyRing, write_key_line
from weir.cli.backup import folders, manifest
from weir.cli.backup.manifest import BadBackup, decrypted, read_sealed
from weir.cli.backup.sealing import (
    MAC,
    RECORD_BYTES,
    NotAuthentic,
    Seal,
    check_manifest,
    new_seal,
)
from weir.cli.main import main
from weir.errors import BadRequest, WrongKey
from weir.server.disk.node_folder import NodeFolder
from weir.testing.nodes import running_node

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
MARKED = b"a marked message of nobody's business"
SALT = b"salt of 16 bytes"


def key_file(folder: Path, *keys: bytes) -> Path:
    path = folder / f"keys-{len(keys)}-{keys[0][0]}"
    path.write_bytes(b"".join(map(write_key_line, keys)))
    path.chmod(0o600)
    return path


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A stopped node's folder with a marked segment of more than a record."""
    folder = tmp_path / "node"
    NodeFolder(folder).found(1)
    (folder / "log-0").mkdir()
    content = (MARKED + bytes(range(256))) * 5_000 + bytes(5_000)
    (folder / "log-0" / "segment-00000001").write_bytes(content)
    return folder


def made(node: Path, to: Path, key: Path, encrypts: bool) -> Path:
    folders.back_up(node, to, new_seal(key, encrypts))
    return to


@pytest.mark.parametrize("encrypts", [False, True])
def test_a_sealed_backup_comes_back(node: Path, tmp_path: Path, encrypts: bool) -> None:
    key = key_file(tmp_path, KEY)
    backup = made(node, tmp_path / "backup", key, encrypts)
    stored = b"".join(path.read_bytes() for path in backup.rglob("*") if path.is_file())
    assert (MARKED in stored) is not encrypts
    assert main(["restore", str(backup), "--verify", "--key-file", str(key)]) == 0
    back = tmp_path / "back"
    assert main(["restore", str(backup), "--data", str(back), "--key-file", str(key)]) == 0
    segment = Path("log-0/segment-00000001")
    assert (back / segment).read_bytes() == (node / segment).read_bytes()
    assert not [one for one in tmp_path.iterdir() if "restore" in one.name], "plaintext is removed"


def test_a_manifest_that_is_changed_while_it_is_checked_is_found(
    node: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is used is what was checked: somebody may write into the folder of a backup."""
    key = key_file(tmp_path, KEY)
    backup = made(node, tmp_path / "backup", key, False)
    honest = Path.read_bytes
    authentic = honest(backup / manifest.MANIFEST)
    changed = msgspec.json.decode(authentic)
    changed["files"] = changed["files"][:-1]
    answers = [msgspec.json.encode(changed), authentic, authentic]

    def read_bytes(path: Path) -> bytes:
        return answers.pop(0) if path.name == manifest.MANIFEST else honest(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(NotAuthentic, match="was changed"):
        read_sealed(backup, key)
    found, _ = read_sealed(backup, key)
    assert len(found.files) == len(changed["files"]) + 1


def test_another_key_opens_nothing(
    node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = made(node, tmp_path / "backup", key_file(tmp_path, KEY), encrypts=True)
    back = ["restore", str(backup), "--data", str(tmp_path / "back")]
    assert main(back) == 1
    assert "give --key-file" in capsys.readouterr().err
    assert main([*back, "--key-file", str(key_file(tmp_path, OTHER))]) == 1
    assert "which this key file has not" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()
    assert main([*back, "--key-file", str(key_file(tmp_path, OTHER, KEY))]) == 0


def test_a_backup_without_a_key_is_none_for_who_has_one(
    node: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders.back_up(node, tmp_path / "backup")
    verify = ["restore", str(tmp_path / "backup"), "--verify"]
    assert main(verify) == 0
    assert main([*verify, "--key-file", str(key_file(tmp_path, KEY))]) == 1
    assert f"{MAC} is missing" in capsys.readouterr().err
    assert main(["backup", str(node), "--to", str(tmp_path / "more"), "--encrypt"]) == 1
    assert "give --key-file" in capsys.readouterr().err


@pytest.mark.parametrize("encrypts", [False, True])
def test_what_was_changed_is_refused(node: Path, tmp_path: Path, encrypts: bool) -> None:
    key = key_file(tmp_path, KEY)
    backup = made(node, tmp_path / "backup", key, encrypts)
    told, _ = read_sealed(backup, key)
    for name in (manifest.MANIFEST, MAC):
        copy = tmp_path / f"changed-{name}"
        shutil.copytree(backup, copy)
        data = bytearray((copy / name).read_bytes())
        data[-3] ^= 1
        (copy / name).write_bytes(data)
        with pytest.raises((NotAuthentic, BadBackup)):
            read_sealed(copy, key)
    forged = msgspec.structs.replace(told, made="1999-01-01T00:00:00+00:00")
    data = msgspec.json.format(msgspec.json.encode(forged))
    with pytest.raises(NotAuthentic, match="was changed"):
        check_manifest(backup, data, key)
    file = next(one for one in told.files if "segment" in one.path)
    (backup / file.path).write_bytes((backup / file.path).read_bytes()[:-1] + b"x")
    with pytest.raises(BadBackup, match="damaged"):
        manifest.verify(backup, told)
    # A hash that is no proof may be forged with the file.
    with manifest.Writing(tmp_path / "again", file.path) as again:
        again.put((backup / file.path).read_bytes())
    weak = msgspec.structs.replace(again.made(), sha256=file.sha256)
    manifest.check(backup / file.path, again.made())
    with pytest.raises(BadBackup, match="damaged"):
        manifest.check(backup / file.path, weak)


def sealed(data: bytes, path: str = "files/a", ring: KeyRing | None = None) -> bytes:
    seal = Seal(ring or KeyRing([KEY]), SALT, KeyRing([KEY]).current, encrypts=True)
    writing = seal.writing(path)
    pieces = [writing.put(data[at : at + 70_000]) for at in range(0, len(data), 70_000)]
    return b"".join(pieces) + writing.finish()


def opened(stored: bytes, path: str = "files/a") -> bytes:
    seal = Seal(KeyRing([KEY]), SALT, KeyRing([KEY]).current)
    return b"".join(seal.decrypt(path, io.BytesIO(stored)))


GOLDEN_FILE = "776569722d656e632d310a8000000491605ebd84907f1dd8df20c0fa2c35010cdea8e7"
GOLDEN_LINE = (
    "weir-backup-1 d58683c2 73616c74206f66203136206279746573 "
    "429076f701f8030be1a1fd3fe964481fe77c90681a1839ff04ecf93b8ded9194\n"
)
SIZES = [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES]


@pytest.mark.parametrize("size", SIZES)
def test_files_of_any_size_come_back(size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    assert opened(sealed(data[:size])) == data[:size]


def test_records_are_not_left_out_moved_or_taken_from_elsewhere() -> None:
    magic, whole = len(b"weir-enc-1\n"), 4 + RECORD_BYTES + 16
    stored = sealed(bytes(2 * RECORD_BYTES) + b"end")
    first, second = stored[magic : magic + whole], stored[magic + whole : magic + 2 * whole]
    last = stored[magic + 2 * whole :]
    for bad in (
        stored[:-1], stored[: magic + whole], stored[:magic], b"", stored + b"x",
        stored[:magic] + first + last, stored[:magic] + second + first + last,
        stored[:magic] + last, b"weir-enc-2\n" + stored[magic:],
        stored[:magic] + first + second + bytes([last[0] & 0x7F]) + last[1:],
        stored[:magic] + b"\xff\xff\xff\xff" + first[4:],
    ):  # fmt: skip
        with pytest.raises(NotAuthentic):
            opened(bad)
    with pytest.raises(NotAuthentic):
        opened(stored, "files/b")


def test_what_is_stored_has_these_bytes() -> None:
    """Other releases read exactly this."""
    assert sealed(b"weir").hex() == GOLDEN_FILE
    line = Seal(KeyRing([KEY]), SALT, KeyRing([KEY]).current).mac_line(b"{}\n")
    assert line.decode() == GOLDEN_LINE


def test_a_subkey_is_of_its_key_salt_and_purpose() -> None:
    ring, key = KeyRing([KEY, OTHER]), KeyRing([KEY]).current
    found = {
        ring.subkey("a", SALT, key), ring.subkey("b", SALT, key), ring.subkey("a", b"x" * 16, key),
        ring.subkey("a", SALT, KeyRing([OTHER]).current),
    }  # fmt: skip
    assert len(found) == 4
    expanded = HKDF(SHA256(), 32, SALT, b"weir a").derive(KEY)
    assert ring.subkey("a", SALT, key) == expanded
    with pytest.raises(WrongKey):
        KeyRing([OTHER]).subkey("a", SALT, key)
    with pytest.raises(BadRequest):
        new_seal(None, encrypts=True)


def test_topics_are_sealed_and_published_again(tmp_path: Path) -> None:
    key = key_file(tmp_path, KEY)
    to = tmp_path / "backup"
    with running_node() as one, sync.connect(one.url) as client:
        client.create_topic("orders", 2)
        for number in range(20):
            client.publish("orders", MARKED + b"%d" % number)
        words = ["backup", "--to", str(to), "--key-file", str(key), "--encrypt", "--url", one.url]
        assert main(words) == 0
    stored = b"".join(path.read_bytes() for path in to.rglob("*") if path.is_file())
    assert MARKED not in stored
    with running_node() as one:
        assert main(["restore", str(to), "--to", one.url, "--key-file", str(key)]) == 0
        with sync.connect(one.url) as client:
            back = [message.value for message in client.reader("orders", follow=False)]
    assert sorted(back) == sorted(MARKED + b"%d" % number for number in range(20))


def test_a_backup_that_is_not_encrypted_is_read_where_it_lies(node: Path, tmp_path: Path) -> None:
    key = key_file(tmp_path, KEY)
    backup = made(node, tmp_path / "backup", key, encrypts=False)
    told, seal = read_sealed(backup, key)
    with decrypted(backup, told, seal) as (place, same):
        assert (place, same) == (backup, told)
