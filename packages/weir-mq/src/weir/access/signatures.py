"""Keys that sign tokens: Ed25519 (EdDSA) and ECDSA on P-256 with SHA-256 (ES256), RFC 8037, 7518.

A key has one algorithm for good. The verifier takes the algorithm from the key, never from what was
signed: else the signer's public key would serve as the secret of an HMAC.

The library `cryptography` comes with the extra `weir-mq[access]`; it takes 0.1 s to load, so it is
loaded by the first call.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import msgspec

from weir.errors import BadRequest, MissingLibrary

KEY_ID_CHARACTERS_MAX = 128
#: A point on P-256: 4, then both coordinates.
_POINT_BYTES = 65
_NUMBER_BYTES = 32
_SIGNATURE_BYTES = 64
_PEM_BYTES_MAX = 4_096
#: Of what a private key of Ed25519 is made.
SEED_BYTES = 32


class Algorithm(StrEnum):
    """How a key signs, as `alg` of a JWT names it."""

    EDDSA = "EdDSA"
    ES256 = "ES256"


class PublicKey(msgspec.Struct, frozen=True, array_like=True):
    """A key that verifies: 32 bytes of Ed25519, or an uncompressed point of P-256 in 65 bytes.

    It is stored as msgpack `[id, algorithm, key]`.
    """

    key_id: Annotated[str, msgspec.Meta(max_length=KEY_ID_CHARACTERS_MAX)]
    algorithm: Algorithm
    key: Annotated[bytes, msgspec.Meta(min_length=_NUMBER_BYTES, max_length=_POINT_BYTES)]

    def check(self) -> None:
        """Raise `BadRequest` if it is no key of its algorithm, and `MissingLibrary`."""
        _load_public(self)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Return whether this key signed the data. Raises as `check`."""
        if len(signature) != _SIGNATURE_BYTES:
            return False
        key = _load_public(self)
        invalid: type[Exception] = load("exceptions").InvalidSignature
        try:
            if self.algorithm is Algorithm.EDDSA:
                key.verify(signature, data)
            else:
                halves = (signature[:_NUMBER_BYTES], signature[_NUMBER_BYTES:])
                numbers = [int.from_bytes(half, "big") for half in halves]
                utils = load("hazmat.primitives.asymmetric.utils")
                key.verify(utils.encode_dss_signature(*numbers), data, _ecdsa())
        except invalid:
            return False
        return True


class PrivateKey:
    """A key that signs, read from PEM (PKCS 8)."""

    __slots__ = ("_key", "algorithm")

    def __init__(self, pem: bytes) -> None:
        """Read a key that no password protects. Raises `BadRequest` if it is none of Ed25519 or
        P-256, and `MissingLibrary`.
        """
        if len(pem) > _PEM_BYTES_MAX:
            raise BadRequest(f"a private key has at most {_PEM_BYTES_MAX:,} bytes", _PEM_BYTES_MAX)
        serialization = load("hazmat.primitives.serialization")
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except Exception:  # the library raises several kinds, whose texts may show the key
            raise BadRequest("this is no private key in PEM without a password") from None
        if isinstance(key, load("hazmat.primitives.asymmetric.ed25519").Ed25519PrivateKey):
            self.algorithm = Algorithm.EDDSA
        elif getattr(getattr(key, "curve", None), "name", "") == "secp256r1":
            self.algorithm = Algorithm.ES256
        else:
            raise BadRequest("a key that signs tokens is one of Ed25519 or P-256: make such a one")
        self._key = key

    @classmethod
    def from_seed(cls, seed: bytes) -> PrivateKey:
        """Return the key of Ed25519 that 32 random bytes are. Raises `BadRequest` for another
        number of bytes, and `MissingLibrary`.
        """
        if len(seed) != SEED_BYTES:
            raise BadRequest(f"a key of Ed25519 has {SEED_BYTES} bytes", SEED_BYTES)
        ed25519 = load("hazmat.primitives.asymmetric.ed25519")
        key = cls.__new__(cls)
        key.algorithm = Algorithm.EDDSA
        key._key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
        return key

    def public(self, key_id: str) -> PublicKey:
        """Return the key that verifies what this one signs."""
        serialization = load("hazmat.primitives.serialization")
        encoding, form = serialization.Encoding, serialization.PublicFormat
        if self.algorithm is Algorithm.EDDSA:
            data = self._key.public_key().public_bytes(encoding.Raw, form.Raw)
        else:
            data = self._key.public_key().public_bytes(encoding.X962, form.UncompressedPoint)
        return PublicKey(key_id, self.algorithm, data)

    def sign(self, data: bytes) -> bytes:
        """Return the signature, 64 bytes."""
        if self.algorithm is Algorithm.EDDSA:
            return bytes(self._key.sign(data))
        utils = load("hazmat.primitives.asymmetric.utils")
        numbers = utils.decode_dss_signature(self._key.sign(data, _ecdsa()))
        return b"".join(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers)


def load(module: str) -> Any:
    """Return a module of `cryptography`. Raises `MissingLibrary`."""
    try:
        return import_module(f"cryptography.{module}")
    except ImportError:
        raise MissingLibrary(
            "cryptography is not installed: pip install 'weir-mq[access]'"
        ) from None


def _load_public(key: PublicKey) -> Any:
    try:
        if key.algorithm is Algorithm.EDDSA:
            ed25519 = load("hazmat.primitives.asymmetric.ed25519")
            return ed25519.Ed25519PublicKey.from_public_bytes(key.key)
        if len(key.key) != _POINT_BYTES:
            raise ValueError
        ec = load("hazmat.primitives.asymmetric.ec")
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key.key)
    except ValueError:
        raise BadRequest(f"key {key.key_id!r} is no public key of {key.algorithm}") from None


def _ecdsa() -> Any:
    hashes = load("hazmat.primitives.hashes")
    return load("hazmat.primitives.asymmetric.ec").ECDSA(hashes.SHA256())
