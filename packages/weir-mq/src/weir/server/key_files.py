"""Files with keys, for their user alone; the key file lies outside the data folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from weir.access.signatures import load
from weir.access.wrapping import (
    KEY_BYTES,
    KEY_FILE_BYTES_MAX,
    KeyRing,
    check_key_file,
    read_key_file,
    write_key_line,
)
from weir.errors import BadRequest


def read_key_ring(path: str, data_folder: str) -> KeyRing | None:
    """Return the keys of a file; None if there is no `path`. An empty `data_folder` is none.

    Raises `BadRequest` for a file that cannot be read, that others can read, that lies within the
    data folder, where every backup would take it, or that holds no keys; and `MissingLibrary`.
    """
    if not path:
        return None
    place = Path(path)
    try:
        if data_folder and place.resolve().is_relative_to(Path(data_folder).resolve()):
            raise BadRequest(
                f"the key file {path} lies in the data folder, whose copies it is to protect: move "
                "it elsewhere"
            )
        with place.open("rb") as file:
            # Of what was opened: another file may have its name by now.
            about = os.fstat(file.fileno())
            credentials = os.environ.get("CREDENTIALS_DIRECTORY", "")
            is_credential = bool(credentials) and place.parent == Path(credentials)
            check_key_file(about.st_mode, about.st_uid, os.geteuid(), is_credential=is_credential)
            data = file.read(KEY_FILE_BYTES_MAX + 1)
        ring = read_key_file(data)
        load("hazmat.primitives.ciphers.aead")  # takes 0.1 s, and may be missing: not at a login
    except OSError as error:
        raise BadRequest(f"the key file {path} cannot be read: {error.strerror}") from None
    return ring


def create_key_file(path: Path) -> None:
    """Write a new key file with one key, mode 0600. Raises `BadRequest` if there is a file already,
    or it cannot be written.
    """
    write_secret(path, write_key_line(secrets.token_bytes(KEY_BYTES)))


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that its user alone reads, durably. Raises `BadRequest` as above."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadRequest(f"{path} is there already: it may hold a key that is in use") from None
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(opened, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()  # half a key is worse than none
        raise BadRequest(f"{path} cannot be written: {error.strerror}") from None


def read_secret(path: Path) -> bytes:
    """Return what a file holds that its user alone reads, up to 4 KiB. Raises `BadRequest`."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            check_key_file(about.st_mode, about.st_uid, os.geteuid())
            data = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > KEY_FILE_BYTES_MAX:
        raise BadRequest(f"{path} is too long for a key")
    return data
