"""What wraps and opens secrets of the registry, by this node's key file.

Entries, checkpoints and backups hold what came out of here. A node without a key file stores
secrets as they are, and says so: its data folder is as secret as they are then.
"""

from __future__ import annotations

from weir.access.devices import Nonces
from weir.access.wrapping import NONCE_BYTES, KeyRing
from weir.errors import BadRequest, MissingLibrary, Unavailable, WrongKey

FALSE_SALTS = "secret of false salts"


def purpose_of_verifier(user: str) -> str:
    """Return what the wrapped verifier of a user is."""
    return f"verifier of user {user}"


def purpose_of_token_key(id: str) -> str:
    """Return what a wrapped key that signs tokens is."""
    return f"token key {id}"


class Vault:
    """Wraps and opens secrets by the keys of a node."""

    __slots__ = ("_nonces", "_ring")

    def __init__(self, nonces: Nonces | None, ring: KeyRing | None) -> None:
        """Without a `ring` or `nonces` nothing is wrapped or opened here."""
        self._nonces = nonces
        self._ring = ring

    @property
    def wraps(self) -> bool:
        """Whether secrets are wrapped here."""
        return self._ring is not None and self._nonces is not None

    def seal(self, secret: bytes, purpose: str) -> bytes:
        """Return a secret as it is stored. Raises `BadRequest` without a key file, or without the
        library that it needs.
        """
        if self._ring is None or self._nonces is None:
            raise BadRequest(
                f"this node has no key file to wrap the {purpose} with: set `access.key_file` on "
                "all nodes, to a copy of one file"
            )
        try:
            return self._ring.wrap(secret, purpose, self._nonces.next()[:NONCE_BYTES])
        except MissingLibrary as error:
            raise BadRequest(str(error)) from None

    def unseal(self, wrapped: bytes, purpose: str) -> bytes:
        """Return a secret. Raises `Unavailable` where the key file here does not open it."""
        if self._ring is None:
            raise Unavailable(
                f"this node has no key file to open the {purpose} with: set `access.key_file` to a "
                "copy of the file that its set uses, and restart it, or connect to another node"
            )
        try:
            return self._ring.unwrap(wrapped, purpose)
        except (WrongKey, MissingLibrary) as error:
            raise Unavailable(str(error)) from None

    def is_current(self, wrapped: bytes) -> bool:
        """Return whether the key that wraps now wrapped this one."""
        return self._ring is not None and self._ring.is_current(wrapped)


#: What a node without a key file has.
NO_VAULT = Vault(None, None)
