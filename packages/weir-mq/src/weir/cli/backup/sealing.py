"""A backup whose manifest is authenticated, and whose files may be encrypted, by a key file.

`manifest.mac` is a line of text: `weir-backup-1 KEY SALT MAC`, in hexadecimal digits. KEY is the id
of the key in the key file (4 bytes), SALT 16 random bytes, and MAC the HMAC-SHA-256 of
`manifest.json` by the subkey `backup manifest` (HKDF-SHA-256 of the key, with this salt). The
manifest has the SHA-256 of each file, so it speaks for all of them.

An encrypted file, by AES-256-GCM with the subkey `backup file PATH`:

    "weir-enc-1\\n" | records

    record: length u32 big-endian, top bit set in the last | encrypted bytes | tag 16 bytes

The nonce of a record is its number from 0 on, 12 bytes big-endian; its length field is
authenticated with it. So records that are left out, moved, or taken from another file, are found.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from weir.access.signatures import load
from weir.access.wrapping import KeyRing
from weir.codec import Buffer
from weir.errors import BadRequest, WeirError, WrongKey
from weir.server.key_files import read_key_ring

MAC = "manifest.mac"
SALT_BYTES = 16
_LINE = "weir-backup-1"
_MAC_BYTES_MAX = 256
_MAGIC = b"weir-enc-1\n"
RECORD_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")
_LAST = 1 << 31
_TAG_BYTES = 16
_NONCE_BYTES = 12


class NotAuthentic(WeirError):
    """A backup is not what the holder of the key wrote, or cannot be read without the key."""


class Seal:
    """The keys of one backup."""

    def __init__(self, ring: KeyRing, salt: bytes, key: bytes, encrypts: bool = False) -> None:
        """Use the key of this id in `ring`. Raises `WrongKey` if it is not there."""
        self.encrypts = encrypts
        self._ring = ring
        self._salt = salt
        self._key = key
        self._of_manifest = ring.subkey("backup manifest", salt, key)

    @classmethod
    def new(cls, ring: KeyRing, encrypts: bool) -> Seal:
        """Draw the salt of a new backup."""
        return cls(ring, secrets.token_bytes(SALT_BYTES), ring.current, encrypts)

    def mac_line(self, manifest: bytes) -> bytes:
        """Return what authenticates a manifest."""
        mac = hmac.digest(self._of_manifest, manifest, "sha256")
        return f"{_LINE} {self._key.hex()} {self._salt.hex()} {mac.hex()}\n".encode()

    def writing(self, path: str) -> EncryptedFile:
        """Return what encrypts a new file of this path."""
        return EncryptedFile(self._cipher(path))

    def decrypt(self, path: str, file: BinaryIO) -> Iterator[bytes]:
        """Yield what an encrypted file of this path holds. Raises `NotAuthentic`."""
        cipher, invalid = self._cipher(path), load("exceptions").InvalidTag
        if file.read(len(_MAGIC)) != _MAGIC:
            raise NotAuthentic(f"{path} is not encrypted, and is to be: use another backup")
        number, is_last = 0, False
        while not is_last:
            head = file.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                raise NotAuthentic(f"{path} is cut short: use another backup")
            (length,) = _LENGTH.unpack(head)
            length, is_last = length & ~_LAST, bool(length & _LAST)
            if length > RECORD_BYTES:
                raise NotAuthentic(f"{path} was changed: use another backup")
            data = file.read(length + _TAG_BYTES)
            try:
                yield bytes(cipher.decrypt(number.to_bytes(_NONCE_BYTES, "big"), data, head))
            except (invalid, ValueError):
                raise NotAuthentic(f"{path} was changed: use another backup") from None
            number += 1
        if file.read(1):
            raise NotAuthentic(f"{path} was changed: use another backup")

    def _cipher(self, path: str) -> Any:
        key = self._ring.subkey(f"backup file {path}", self._salt, self._key)
        return load("hazmat.primitives.ciphers.aead").AESGCM(key)


class EncryptedFile:
    """Encrypts a file, some bytes at a time."""

    def __init__(self, cipher: Any) -> None:
        """Begin with nothing."""
        self._cipher = cipher
        self._held = bytearray()
        self._number = 0

    def put(self, data: Buffer) -> bytes:
        """Take bytes; return what is to be written by now. The last record stays here."""
        self._held += data
        out = b""
        while len(self._held) > RECORD_BYTES:
            out += self._record(bytes(self._held[:RECORD_BYTES]), is_last=False)
            del self._held[:RECORD_BYTES]
        return out

    def finish(self) -> bytes:
        """Return what ends the file."""
        return self._record(bytes(self._held), is_last=True)

    def _record(self, data: bytes, is_last: bool) -> bytes:
        head = _LENGTH.pack(len(data) | (_LAST if is_last else 0))
        nonce = self._number.to_bytes(_NONCE_BYTES, "big")
        magic = b"" if self._number else _MAGIC
        self._number += 1
        return magic + head + bytes(self._cipher.encrypt(nonce, data, head))


def new_seal(key_file: Path | None, encrypts: bool) -> Seal | None:
    """Return the keys of a new backup; None without a key file. Raises `BadRequest`."""
    if key_file is None:
        if encrypts:
            raise BadRequest("a backup is encrypted by a key file: give --key-file")
        return None
    ring = read_key_ring(str(key_file), "")
    assert ring is not None
    return Seal.new(ring, encrypts)


def check_manifest(folder: Path, manifest: bytes, key_file: Path | None) -> Seal | None:
    """Return the keys of a backup whose manifest this is, once it has proved to be authentic; None
    without a key file. Raises `NotAuthentic` and `BadRequest`.
    """
    if key_file is None:
        return None
    ring = read_key_ring(str(key_file), "")
    assert ring is not None
    try:
        with (folder / MAC).open("rb") as file:
            words = file.read(_MAC_BYTES_MAX).decode("ascii").split()
        if len(words) != 4 or words[0] != _LINE:
            raise ValueError
        key, salt, mac = (bytes.fromhex(word) for word in words[1:])
    except FileNotFoundError:
        raise NotAuthentic(
            f"{folder / MAC} is missing: this backup was made without a key file, or somebody "
            "removed that; restore it without --key-file and WEIR__ACCESS__KEY_FILE only if you "
            "trust the place where it lay"
        ) from None
    except (ValueError, UnicodeDecodeError):
        raise NotAuthentic(f"{folder / MAC} is damaged: use another backup") from None
    try:
        seal = Seal(ring, salt, key)
    except WrongKey as error:
        raise NotAuthentic(str(error)) from None
    if not hmac.compare_digest(seal.mac_line(manifest).split()[3], mac.hex().encode()):
        raise NotAuthentic(f"the manifest of {folder} was changed: use another backup")
    return seal


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
