"""Key files: for their user alone, and never beside what they protect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weir.access.wrapping import KEY_FILE_BYTES_MAX
from weir.errors import BadRequest
from weir.server.key_files import create_key_file, read_key_ring, read_secret, write_secret


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    create_key_file(path)
    return path


def test_a_key_file_is_made_and_read(file: Path, tmp_path: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600
    ring = read_key_ring(str(file), str(tmp_path / "data"))
    assert ring is not None
    assert ring.unwrap(ring.wrap(b"secret", "it", bytes(12)), "it") == b"secret"
    assert read_key_ring("", str(tmp_path)) is None


def test_two_key_files_hold_two_keys(file: Path, tmp_path: Path) -> None:
    create_key_file(tmp_path / "other")
    assert file.read_bytes() != (tmp_path / "other").read_bytes()


def test_a_file_that_is_there_is_not_written_over(file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(BadRequest, match="there already"):
        create_key_file(file)
    assert file.read_bytes() == before
    with pytest.raises(BadRequest, match="cannot be written"):
        create_key_file(file / "below")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o606, 0o644])
def test_a_file_that_others_may_read_is_refused(file: Path, tmp_path: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(BadRequest, match="chmod 0600"):
        read_key_ring(str(file), str(tmp_path / "data"))
    with pytest.raises(BadRequest, match="chmod 0600"):
        read_secret(file)


def test_a_link_is_looked_through(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(file)
    assert read_key_ring(str(link), str(tmp_path / "data")) is not None
    file.chmod(0o644)
    with pytest.raises(BadRequest, match="chmod"):
        read_key_ring(str(link), str(tmp_path / "data"))


def test_a_key_beside_the_data_is_refused(file: Path, tmp_path: Path) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(file)
    for path in (file, tmp_path / "sub" / ".." / "key", link):
        with pytest.raises(BadRequest, match="data folder"):
            read_key_ring(str(path), str(tmp_path))
    link.unlink()


def test_what_is_no_file_or_holds_no_key_is_refused(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with pytest.raises(BadRequest, match="cannot be read"):
        read_key_ring(str(tmp_path / "none"), data)
    with pytest.raises(BadRequest):
        read_key_ring(str(tmp_path), data)
    bad = tmp_path / "bad"
    write_secret(bad, b"nothing")
    with pytest.raises(BadRequest, match="line 1"):
        read_key_ring(str(bad), data)
    long = tmp_path / "long"
    write_secret(long, b"#" * (KEY_FILE_BYTES_MAX + 1))
    with pytest.raises(BadRequest):
        read_key_ring(str(long), data)
    with pytest.raises(BadRequest, match="too long"):
        read_secret(long)
    assert read_secret(bad) == b"nothing"


def test_a_credential_of_systemd_may_have_a_group(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "other"))
    with pytest.raises(BadRequest):
        read_key_ring(str(file), str(tmp_path / "data"))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_key_ring(str(file), str(tmp_path / "data")) is not None


def test_a_mask_of_the_shell_changes_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_key_file(tmp_path / "key")
    finally:
        os.umask(before)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
