"""Secrets and proofs of devices: what is bound to what."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from weir.access.devices import (
    MAC_BYTES,
    Claim,
    FrameKeys,
    FrameMac,
    check_proof,
    derive_secret,
    expand_key,
    frame_keys,
    prove_broker,
    prove_device,
)
from weir.model.limits import GENERATION_MAX

FLEET_KEY = bytes(range(32))
SECRET = derive_secret(FLEET_KEY, 99, 42, 0)
CLAIM = Claim(99, 42, 0, 1, 7, 65_535, 2, "locks", b"b" * 16, b"d" * 16)


def test_keys_are_expanded_as_rfc_5869_does() -> None:
    """Its test cases 1, 2 and 3."""
    one = expand_key(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert one.hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    two = expand_key(bytes(range(0x50)), bytes(range(0x60, 0xB0)), bytes(range(0xB0, 0x100)), 82)
    assert two.hex().startswith("b11e398dc80327a1c8e7f78c596a4934")
    assert two.hex().endswith("cc30c58179ec3e87c14c01d5c1f3434f1d87")
    three = expand_key(b"\x0b" * 22, b"", b"", 42)
    assert three.hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


@settings(max_examples=50)
@given(st.binary(min_size=1), st.binary(), st.binary(), st.integers(1, 200))
def test_another_implementation_expands_alike(
    key: bytes, salt: bytes, info: bytes, size: int
) -> None:
    theirs = HKDF(SHA256(), size, salt, info).derive(key)
    assert expand_key(key, salt, info, size) == theirs


@pytest.mark.parametrize("size", [0, -1, 255 * 32 + 1])
def test_no_key_is_longer_than_hkdf_gives(size: int) -> None:
    with pytest.raises(ValueError, match="HKDF"):
        expand_key(b"k", b"", b"", size)


def test_a_secret_is_bound_to_key_system_hub_and_generation() -> None:
    others = {
        derive_secret(FLEET_KEY, 99, 42, 0), derive_secret(bytes(32), 99, 42, 0),
        derive_secret(FLEET_KEY, 98, 42, 0), derive_secret(FLEET_KEY, 99, 43, 0),
        derive_secret(FLEET_KEY, 99, 42, 1), derive_secret(FLEET_KEY, 42, 99, 0),
    }  # fmt: skip
    assert len(others) == 6
    # What firmware and factories derive, for ever.
    assert SECRET.hex() == "1b8461151e97d62e6bd0f16df1016eaf0b72a5aef3d228f16e60e40f901e43ce"


@pytest.mark.parametrize(
    ("key", "generation"),
    [(b"", 0), (bytes(31), 0), (bytes(33), 0), (FLEET_KEY, -1), (FLEET_KEY, GENERATION_MAX + 1)],
)
def test_a_secret_that_cannot_be_is_not_derived(key: bytes, generation: int) -> None:
    with pytest.raises(ValueError, match=r"fleet key|generation"):
        derive_secret(key, 99, 42, generation)


CHANGES: dict[str, list[object]] = {
    "system": [98, 42], "hub": [43, 99], "generation": [1], "key_version": [0, 2],
    "boot": [6, 8, 0], "partition": [0, 65_534], "level": [0, 1], "topic": ["lock", "locks2", ""],
    "broker_nonce": [b"d" * 16, bytes(16)], "device_nonce": [b"b" * 16, bytes(16)],
}  # fmt: skip


def test_a_proof_is_of_one_claim_alone() -> None:
    assert CHANGES.keys() == set(Claim.__struct_fields__)
    claims = [CLAIM]
    for name, values in CHANGES.items():
        claims += [msgspec.structs.replace(CLAIM, **{name: value}) for value in values]
    claims.append(msgspec.structs.replace(CLAIM, broker_nonce=b"d" * 16, device_nonce=b"b" * 16))
    made = [prove(SECRET, claim) for claim in claims for prove in (prove_device, prove_broker)]
    keys = [key for claim in claims for key in msgspec.structs.astuple(frame_keys(SECRET, claim))]
    assert len({*made, *keys}) == 4 * len(claims)


def test_a_proof_is_these_bytes() -> None:
    words = (
        (99).to_bytes(8, "big") + (42).to_bytes(8, "big") + bytes(4) + b"\x01"
        + (7).to_bytes(4, "big") + b"\xff\xff" + b"\x02" + b"b" * 16 + b"d" * 16 + b"locks"
    )  # fmt: skip
    assert CLAIM.words() == words
    for label, found in [
        (b"weir device proof 1\0", prove_device(SECRET, CLAIM)),
        (b"weir broker proof 1\0", prove_broker(SECRET, CLAIM)),
        (b"weir device frames 1\0", frame_keys(SECRET, CLAIM).of_device),
        (b"weir broker frames 1\0", frame_keys(SECRET, CLAIM).of_broker),
    ]:
        assert found == hmac.digest(SECRET, label + words, hashlib.sha256)


def test_nonces_that_prove_nothing_are_not_fresh() -> None:
    assert CLAIM.is_fresh
    assert not msgspec.structs.replace(CLAIM, device_nonce=bytes(16)).is_fresh
    assert not msgspec.structs.replace(CLAIM, device_nonce=b"b" * 16).is_fresh


def test_proofs_are_compared_whole() -> None:
    proof = prove_device(SECRET, CLAIM)
    assert check_proof(proof, bytes(proof))
    for other in (b"", proof[:-1], proof[:-1] + bytes([proof[-1] ^ 1]), proof + b"\0"):
        assert not check_proof(proof, other)


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1), st.binary(max_size=200))
def test_a_mac_is_the_beginning_of_an_hmac(key: bytes, counter: int, content: bytes) -> None:
    expected = hmac.digest(key, counter.to_bytes(8, "big") + content, hashlib.sha256)
    macs = FrameMac(key)
    assert macs.of(counter, content) == macs.of(counter, content) == expected[:MAC_BYTES]


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_of_frames_has_its_size(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        FrameMac(bytes(size))


def test_keys_are_not_shown() -> None:
    assert repr(FrameKeys(b"k" * 32, b"l" * 32)) == "FrameKeys()"
