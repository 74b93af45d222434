"""Secrets at rest: only the key opens them, and only for what they are."""

from __future__ import annotations

import stat
from base64 import b64encode

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.access.wrapping import (
    KEY_FILE_BYTES_MAX,
    KEYS_MAX,
    SECRET_BYTES_MAX,
    WRAPPED_BYTES,
    KeyRing,
    check_key_file,
    read_key_file,
    write_key_line,
)
from weir.errors import BadRequest, WrongKey

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
NONCE = bytes(12)


@settings(max_examples=50)
@given(st.binary(max_size=300), st.text(max_size=30))
def test_a_secret_comes_back(secret: bytes, purpose: str) -> None:
    ring = KeyRing([OLD])
    wrapped = ring.wrap(secret, purpose, NONCE)
    assert len(wrapped) == len(secret) + WRAPPED_BYTES
    assert ring.unwrap(wrapped, purpose) == secret
    with pytest.raises(WrongKey):
        ring.unwrap(wrapped, purpose + "2")


def test_a_wrapped_secret_is_these_bytes() -> None:
    wrapped = KeyRing([OLD]).wrap(b"secret", "verifier of shop/alice", NONCE)
    head = wrapped[:5]
    assert head.hex() == "01" + "d58683c2"
    assert wrapped[5:17] == NONCE
    context = head + b"verifier of shop/alice"
    assert AESGCM(OLD).decrypt(NONCE, wrapped[17:], context) == b"secret"


@settings(max_examples=100)
@given(st.integers(0, 38), st.integers(1, 255))
def test_no_changed_byte_is_unwrapped(at: int, change: int) -> None:
    ring = KeyRing([OLD])
    wrapped = bytearray(ring.wrap(b"secret", "it", NONCE))
    assert len(wrapped) == 39
    wrapped[at] ^= change
    with pytest.raises(WrongKey):
        ring.unwrap(bytes(wrapped), "it")


@pytest.mark.parametrize("size", [0, 1, WRAPPED_BYTES - 1, WRAPPED_BYTES])
def test_what_is_cut_is_refused(size: int) -> None:
    ring = KeyRing([OLD])
    with pytest.raises(WrongKey):
        ring.unwrap(ring.wrap(b"secret", "it", NONCE)[:size], "it")


def test_a_key_rotates_in_three_steps() -> None:
    before = KeyRing([OLD]).wrap(b"secret", "it", NONCE)
    both = KeyRing([OLD, NEW])
    assert both.is_current(before)
    first = KeyRing([NEW, OLD])
    assert not first.is_current(before)
    assert first.unwrap(before, "it") == b"secret"
    after = first.wrap(b"secret", "it", NONCE)
    assert first.is_current(after)
    assert both.unwrap(after, "it") == b"secret"
    alone = KeyRing([NEW])
    assert alone.unwrap(after, "it") == b"secret"
    with pytest.raises(WrongKey, match="has not"):
        alone.unwrap(before, "it")


def test_what_cannot_be_wrapped_is_refused() -> None:
    ring = KeyRing([OLD])
    for secret, nonce in ((bytes(SECRET_BYTES_MAX + 1), NONCE), (b"", bytes(11)), (b"", bytes(13))):
        with pytest.raises(BadRequest):
            ring.wrap(secret, "it", nonce)
    for keys in ([], [bytes(31)], [OLD, OLD], [bytes([n]) * 32 for n in range(KEYS_MAX + 1)]):
        with pytest.raises(BadRequest):
            KeyRing(keys)


def test_a_key_file_is_read() -> None:
    text = b"# the key of set 1\n\n" + write_key_line(NEW) + b"  " + write_key_line(OLD)
    ring = read_key_file(text)
    assert ring.unwrap(KeyRing([OLD]).wrap(b"secret", "it", NONCE), "it") == b"secret"
    assert ring.is_current(KeyRing([NEW]).wrap(b"secret", "it", NONCE))


@pytest.mark.parametrize(
    "data",
    [b"", b"# nothing", b"weir-key-1", b"weir-key-2 " + b64encode(OLD), b64encode(OLD),
     b"weir-key-1 " + b64encode(OLD[:31]), b"weir-key-1 " + b64encode(OLD)[:-1] + b"!",
     b"weir-key-1 " + b64encode(OLD) + b" x", write_key_line(OLD) * 2,
     b"#" * (KEY_FILE_BYTES_MAX + 1)],
)  # fmt: skip
def test_what_is_no_key_file_is_refused_without_its_content(data: bytes) -> None:
    with pytest.raises(BadRequest) as refused:
        read_key_file(data)
    assert b64encode(OLD).decode()[:8] not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_key_file_is_for_its_user_alone() -> None:
    file = stat.S_IFREG
    for mode, owner, is_credential in [
        (file | 0o600, 7, False), (file | 0o400, 7, False), (file | 0o400, 0, False),
        (file | 0o440, 0, True),
    ]:  # fmt: skip
        check_key_file(mode, owner, 7, is_credential=is_credential)
    for mode, owner, is_credential in [
        (file | 0o640, 7, False), (file | 0o604, 7, False), (file | 0o620, 7, False),
        (file | 0o602, 7, False), (file | 0o600, 8, False), (stat.S_IFDIR | 0o600, 7, False),
        (stat.S_IFLNK | 0o600, 7, False), (file | 0o444, 0, True), (file | 0o440, 8, True),
        (file | 0o610, 7, False),
    ]:  # fmt: skip
        with pytest.raises(BadRequest):
            check_key_file(mode, owner, 7, is_credential=is_credential)


def test_keys_are_not_shown() -> None:
    assert OLD.hex()[:8] not in repr(KeyRing([OLD]))
    assert b64encode(OLD).decode()[:8] not in repr(KeyRing([OLD]))
