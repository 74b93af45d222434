"""Secrets at rest: verifiers, fleet keys and token keys are wrapped with AES-256-GCM by a key file
that lies outside the data folder, so a stolen disk or backup reveals none of them.

A wrapped secret:

    version u8 = 1 | key id 4 bytes | nonce 12 bytes | encrypted secret | tag 16 bytes

Its *purpose* is authenticated with it: whose secret it is, and of what kind. So a wrapped secret
that is copied into another row is refused there.

A key file has a line for each key, `weir-key-1 BASE64` with 32 bytes; the first wraps, all unwrap.
A key rotates in three steps: add the new one below, on all nodes; move it to the top; when all is
rewrapped, drop the old one.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import stat
from base64 import b64decode, b64encode
from collections.abc import Sequence

from weir.access.signatures import load
from weir.errors import BadRequest, WrongKey

KEY_BYTES = 32
NONCE_BYTES = 12
SECRET_BYTES_MAX = 64 * 1024
KEY_FILE_BYTES_MAX = 4_096
KEYS_MAX = 8

_VERSION = b"\x01"
_ID_BYTES = 4
_TAG_BYTES = 16
_HEAD_BYTES = len(_VERSION) + _ID_BYTES + NONCE_BYTES
#: What wrapping adds to a secret.
WRAPPED_BYTES = _HEAD_BYTES + _TAG_BYTES
_LINE = "weir-key-1"


class KeyRing:
    """The keys of a key file."""

    __slots__ = ("_current", "_keys")

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Wrap with the first, unwrap with all; each is 32 random bytes. Raises `BadRequest`."""
        if not 1 <= len(keys) <= KEYS_MAX or any(len(key) != KEY_BYTES for key in keys):
            raise BadRequest(f"a key ring has 1 to {KEYS_MAX} keys of {KEY_BYTES} bytes", KEYS_MAX)
        self._keys = {_id_of(key): key for key in keys}
        if len(self._keys) != len(keys):
            raise BadRequest("a key ring has one key twice: remove one of them")
        self._current = _id_of(keys[0])

    def __repr__(self) -> str:
        """Show the ids, no key."""
        return f"KeyRing({[one.hex() for one in self._keys]})"

    def wrap(self, secret: bytes, purpose: str, nonce: bytes) -> bytes:
        """Return a secret so that only a holder of the key reads it, and only for this purpose.

        `nonce` is 12 random bytes, new for every call: one that is used twice gives both secrets
        away. Raises `BadRequest` and `MissingLibrary`.
        """
        if len(secret) > SECRET_BYTES_MAX:
            raise BadRequest(f"a secret has at most {SECRET_BYTES_MAX:,} bytes", SECRET_BYTES_MAX)
        if len(nonce) != NONCE_BYTES:
            raise BadRequest(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}", NONCE_BYTES)
        head = _VERSION + self._current
        cipher = load("hazmat.primitives.ciphers.aead").AESGCM(self._keys[self._current])
        return head + nonce + bytes(cipher.encrypt(nonce, secret, head + purpose.encode()))

    def unwrap(self, wrapped: bytes, purpose: str) -> bytes:
        """Return the secret. Raises `WrongKey` if none of these keys wrapped it for this purpose,
        and `MissingLibrary`.
        """
        if not WRAPPED_BYTES <= len(wrapped) <= WRAPPED_BYTES + SECRET_BYTES_MAX:
            raise WrongKey(f"the {purpose} is no wrapped secret: restore it from a backup")
        if wrapped[:1] != _VERSION:
            raise WrongKey(f"the {purpose} was wrapped by a later release: upgrade this node")
        head, nonce = wrapped[: _HEAD_BYTES - NONCE_BYTES], wrapped[_HEAD_BYTES - NONCE_BYTES :]
        nonce, rest = nonce[:NONCE_BYTES], nonce[NONCE_BYTES:]
        if (key := self._keys.get(head[1:])) is None:
            raise WrongKey(
                f"the {purpose} is wrapped by key {head[1:].hex()}, which this key file has not: "
                "add that key to the file, or rewrap on a node that has it"
            )
        invalid: type[Exception] = load("exceptions").InvalidTag
        try:
            cipher = load("hazmat.primitives.ciphers.aead").AESGCM(key)
            return bytes(cipher.decrypt(nonce, rest, head + purpose.encode()))
        except invalid:
            raise WrongKey(f"the {purpose} was changed, or wrapped for something else") from None

    @property
    def current(self) -> bytes:
        """The id of the key that wraps now."""
        return self._current

    def subkey(self, purpose: str, salt: bytes, key: bytes) -> bytes:
        """Return the subkey of the key with this id for a purpose, 32 bytes: HKDF-SHA-256 (RFC
        5869). Raises `WrongKey` if the key is not there.
        """
        if (found := self._keys.get(key)) is None:
            raise WrongKey(
                f"this was made with key {key.hex()}, which this key file has not: add that key to "
                "the file"
            )
        extracted = hmac.digest(salt, found, "sha256")
        return hmac.digest(extracted, f"weir {purpose}".encode() + b"\x01", "sha256")

    def is_current(self, wrapped: bytes) -> bool:
        """Return whether the key that wraps now wrapped this one: else rewrap it."""
        return wrapped[: _HEAD_BYTES - NONCE_BYTES] == _VERSION + self._current


def read_key_file(data: bytes) -> KeyRing:
    """Return the keys of a key file. Raises `BadRequest`, whose text shows nothing of the file."""
    if len(data) > KEY_FILE_BYTES_MAX:
        raise BadRequest(f"a key file has at most {KEY_FILE_BYTES_MAX:,} bytes", KEY_FILE_BYTES_MAX)
    keys = []
    for number, line in enumerate(data.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        try:
            if len(words) != 2 or words[0] != _LINE.encode():
                raise ValueError
            keys.append(b64decode(words[1], validate=True))
            if len(keys[-1]) != KEY_BYTES:
                raise ValueError
        except (binascii.Error, ValueError):
            raise BadRequest(
                f"line {number} of the key file is not `{_LINE}` and {KEY_BYTES} bytes in base64"
            ) from None
    return KeyRing(keys)


def write_key_line(key: bytes) -> bytes:
    """Return the line of a key file for 32 random bytes."""
    return f"{_LINE} {b64encode(key).decode()}\n".encode()


def check_key_file(mode: int, owner: int, user: int, *, is_credential: bool = False) -> None:
    """Raise `BadRequest` unless a key file is for its user alone.

    `mode` and `owner` are those of the file, `user` is who the process runs as. A credential of
    systemd may be readable by a group: systemd gives it to the unit by a list of its own.
    """
    if not stat.S_ISREG(mode):
        raise BadRequest("the key file is no regular file")
    if owner not in (0, user):
        raise BadRequest(f"the key file belongs to user {owner}, not to {user}: chown it")
    bad = stat.S_IRWXO if is_credential else stat.S_IRWXG | stat.S_IRWXO
    if mode & bad:
        raise BadRequest(
            f"the key file may be read by others (mode {stat.S_IMODE(mode):04o}): chmod 0600 it"
        )


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"weir key id" + key).digest()[:_ID_BYTES]
