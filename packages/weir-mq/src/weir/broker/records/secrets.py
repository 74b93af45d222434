"""Control records of the registry about secrets at rest: they are wrapped by another key.

What a row replaces is named by a digest, so a row that meets another secret, as after a new
password, changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weir.access.credentials import ScramVerifier
from weir.access.wrapping import WRAPPED_BYTES

_DIGEST_BYTES = 16
#: A secret that is wrapped: one of 32 bytes at least.
Wrapped = Annotated[bytes, Meta(min_length=WRAPPED_BYTES + 32, max_length=512)]
#: A verifier as it is stored: wrapped, or as it is where the nodes have no key file.
StoredVerifier = ScramVerifier | Wrapped
#: Rows of one record.
REWRAPPED_ROWS_MAX = 64


class RewrappedRow(msgspec.Struct, frozen=True, array_like=True):
    """A secret that is wrapped by another key: of a user, a version of a fleet's key, a key of
    tokens by its id, or what false salts are made of. `before` is the digest of what was stored.
    """

    kind: Literal["user", "fleet", "salts", "token"]
    name: str
    version: Annotated[int, Meta(ge=0)]
    before: Annotated[bytes, Meta(min_length=_DIGEST_BYTES, max_length=_DIGEST_BYTES)]
    wrapped: Wrapped


class SecretsRewrapped(msgspec.Struct, frozen=True, array_like=True, tag="rewrapped"):
    """Registry: these secrets are wrapped by another key. They are the same secrets."""

    rows: Annotated[tuple[RewrappedRow, ...], Meta(max_length=REWRAPPED_ROWS_MAX)]


def digest_of(stored: StoredVerifier | bytes) -> bytes:
    """Return what names a secret as it is stored."""
    return hashlib.sha256(msgspec.msgpack.encode(stored)).digest()[:_DIGEST_BYTES]
