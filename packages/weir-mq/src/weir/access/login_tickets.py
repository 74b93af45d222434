"""Tickets of logins: what a client shows that has logged in before (ADR 0120).

A ticket alone is no login. It gives the next login of its user a queue of its own, so that it does
not wait behind an attacker who guesses passwords from the same address, or of the same user. It is
bytes that only a shard of the system can make, and it fits one user with one password:

    version u8 = 1, end u64 in seconds since 1970, id 16 bytes, MAC 32 bytes; big endian, 57 bytes

The MAC is HMAC-SHA256, by a key that is derived from the secret of the set's false salts, over a
label, the system, the end, the id, the access version at which the password was set, and the
principal. So it ends with the user, and with its password, and no table of tickets is kept.
"""

from __future__ import annotations

import hmac
import struct

TICKET_ID_BYTES = 16
#: How long a ticket is good for. Each login gives a new one.
TICKET_SECONDS = 7 * 24 * 3_600
_VERSION = 1
_HEAD = struct.Struct(f">BQ{TICKET_ID_BYTES}s")
_BOUND = struct.Struct(">QQ")
_MAC_BYTES = 32
TICKET_BYTES = _HEAD.size + _MAC_BYTES
_KEY_LABEL = b"weir login ticket key 1"
_LABEL = b"weir login ticket 1\0"


class TicketIssuer:
    """Makes and checks the tickets of one system, by a secret that all its shards have."""

    __slots__ = ("_key", "_system")

    def __init__(self, secret: bytes, system: int) -> None:
        """Know a key of 16 bytes or more, and the number of the system."""
        self._key = hmac.digest(secret, _KEY_LABEL, "sha256")
        self._system = system

    def issue(self, principal: str, password_set: int, now: float, id: bytes) -> bytes:
        """Return a ticket of a principal whose password was set at an access version. `now` is in
        seconds since 1970, `id` is 16 random bytes.
        """
        if len(id) != TICKET_ID_BYTES:
            raise ValueError(f"the id of a ticket has {TICKET_ID_BYTES} bytes, not {len(id)}")
        head = _HEAD.pack(_VERSION, int(now) + TICKET_SECONDS, id)
        return head + self._mac(head, principal, password_set)

    def id_of(self, ticket: bytes, principal: str, password_set: int, now: float) -> bytes | None:
        """Return the id of a ticket; None if it is none, is over, or is not of this principal with
        this password. An empty principal has none. It takes equally long whatever is wrong with a
        ticket of the right length.
        """
        if len(ticket) != TICKET_BYTES:
            return None
        head, mac = ticket[: _HEAD.size], ticket[_HEAD.size :]
        version, end, found = _HEAD.unpack(head)
        genuine = hmac.compare_digest(mac, self._mac(head, principal, password_set))
        is_good = genuine & (version == _VERSION) & (now < end) & bool(principal)
        return bytes(found) if is_good else None

    def _mac(self, head: bytes, principal: str, password_set: int) -> bytes:
        bound = _BOUND.pack(self._system, password_set)
        return hmac.digest(self._key, _LABEL + head + bound + principal.encode(), "sha256")


def end_of(ticket: bytes) -> int | None:
    """Return when a ticket is over, in seconds since 1970, as it says itself; None for one of
    another version, which a client may keep all the same.
    """
    if len(ticket) != TICKET_BYTES or ticket[0] != _VERSION:
        return None
    return int(_HEAD.unpack_from(ticket)[1])
