"""Control records of the registry about security: users and rules, fleets of devices, and secrets.

A user has a number, which is that of the entry that made it: another user who gets the same name
later has another number, and nothing that the first one had. Keys are wrapped before they are
written: no log, snapshot or backup holds one. What wraps a secret by another key names by a digest
what it replaces, so a row that meets another secret, as after a new password, changes nothing.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weir.access.credentials import ScramVerifier
from weir.access.devices import FLEET_KEY_BYTES, KEY_VERSION_MAX
from weir.access.signatures import SEED_BYTES, PublicKey
from weir.access.wrapping import WRAPPED_BYTES
from weir.model.limits import GENERATION_MAX

#: In `open` everybody may do everything; in `watch`, too, and what would be refused is counted; in
#: `closed` it is refused.
AccessMode = Literal["open", "watch", "closed"]
#: A rule: its verbs, the kind of resource, its name, and whether that is a beginning of names.
RuleRow = tuple[tuple[str, ...], str, str, bool]
#: A secret that is wrapped: one of 32 bytes at least.
Wrapped = Annotated[bytes, Meta(min_length=WRAPPED_BYTES + 32, max_length=512)]
#: A verifier as it is stored: wrapped, or as it is where the nodes have no key file.
StoredVerifier = ScramVerifier | Wrapped
#: As it is, or wrapped, which makes it longer.
SECRET_BYTES_MAX = 64
_WRAPPED_SEED = WRAPPED_BYTES + SEED_BYTES
_WRAPPED_KEY = WRAPPED_BYTES + FLEET_KEY_BYTES
Secret = Annotated[bytes, Meta(min_length=32, max_length=SECRET_BYTES_MAX + WRAPPED_BYTES)]
_DIGEST_BYTES = 16
#: Rows of one record.
REWRAPPED_ROWS_MAX = 64
#: Up to 2^64 - 1, as far as MessagePack goes.
Hub = Annotated[int, Meta(ge=0)]


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A control record of users, roles, tokens, fleets and their devices."""


class AccessFounded(_Record, frozen=True, array_like=True, tag="access"):
    """Registry: there are users from now on. Of what those get who do not exist, `secret` makes
    what looks real: the first one is the set's for good.
    """

    secret: Secret


class UserCreated(_Record, frozen=True, array_like=True, tag="user"):
    """Registry: a user, `NAMESPACE/NAME`, is there, and has these roles."""

    user: str
    verifier: StoredVerifier
    roles: tuple[str, ...] = ()


class UserPasswordSet(_Record, frozen=True, array_like=True, tag="user-password"):
    """Registry: a user has a new password; sessions of the former password must log in again."""

    user: str
    verifier: StoredVerifier


class UserRolesChanged(_Record, frozen=True, array_like=True, tag="user-roles"):
    """Registry: a user gets roles, and loses roles."""

    user: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


class UserRevoked(_Record, frozen=True, array_like=True, tag="user-revoked"):
    """Registry: a user is gone, with all it had."""

    user: str


class RoleChanged(_Record, frozen=True, array_like=True, tag="role"):
    """Registry: a role may do less with some resources, and then more with some; one that is not
    there is made.
    """

    role: str
    added: tuple[RuleRow, ...]
    removed: tuple[RuleRow, ...]


class RoleDeleted(_Record, frozen=True, array_like=True, tag="role-deleted"):
    """Registry: a role is gone, and no user has it any more."""

    role: str


class AccessModeSet(_Record, frozen=True, array_like=True, tag="access-mode"):
    """Registry: what is done with what no rule allows."""

    mode: AccessMode


class TokenKeyRow(msgspec.Struct, frozen=True, array_like=True):
    """A key that verifies tokens; `wrapped` is the key that signs, wrapped by the key file of the
    set's nodes, or empty where somebody else issues tokens.
    """

    public: PublicKey
    wrapped: Annotated[bytes, Meta(max_length=_WRAPPED_SEED)] = b""


class TokenKeysAdded(_Record, frozen=True, array_like=True, tag="token-keys"):
    """Registry: tokens of an issuer are taken that one of these keys signed for this audience. They
    name users of `namespace`, or with full names where it is empty. With `replace` the issuer has
    no other keys any more.
    """

    issuer: str
    audience: str
    namespace: str
    keys: tuple[TokenKeyRow, ...]
    replace: bool


class TokenRenewed(_Record, frozen=True, array_like=True, tag="token-renewed"):
    """Registry: sessions of a principal that came by tokens of this issuer with this id go on until
    `until`, in seconds since 1970. Renewals that ended before `now` are forgotten.
    """

    principal: str
    issuer: str
    id: str
    until: Annotated[int, Meta(ge=0)]
    now: Annotated[int, Meta(ge=0)]


class TokenKeysRemoved(_Record, frozen=True, array_like=True, tag="token-keys-removed"):
    """Registry: a key of an issuer is gone; with an empty `key`, the issuer with all of its."""

    issuer: str
    key: str


AccessRecord = (
    AccessFounded
    | UserCreated
    | UserPasswordSet
    | UserRolesChanged
    | UserRevoked
    | RoleChanged
    | RoleDeleted
    | AccessModeSet
    | TokenKeysAdded
    | TokenKeysRemoved
    | TokenRenewed
)


class FleetKey(msgspec.Struct, frozen=True, array_like=True):
    """A version of a fleet's key, wrapped by the key file of the set's nodes."""

    version: Annotated[int, Meta(ge=1, le=KEY_VERSION_MAX)]
    wrapped: Annotated[bytes, Meta(min_length=_WRAPPED_KEY, max_length=_WRAPPED_KEY)]

    def __repr__(self) -> str:
        """Show the version alone."""
        return f"FleetKey({self.version})"


class FleetPut(_Record, frozen=True, array_like=True, tag="fleet"):
    """Registry: hubs `first` to `last`, both included, are a fleet, or the one of this name has
    these from now on; what its devices must do says `level`. Their messages have its `tag`.
    """

    name: str
    first: Hub
    last: Hub
    level: Annotated[int, Meta(ge=0, le=0xFF)]
    keys: tuple[FleetKey, ...]
    tag: str = ""


class FleetRemoved(_Record, frozen=True, array_like=True, tag="fleet-removed"):
    """Registry: a fleet is gone; its hubs belong to nobody."""

    name: str


class DeviceSet(_Record, frozen=True, array_like=True, tag="device"):
    """Registry: the device of a hub that may come is that of this generation alone, or it was
    revoked. Of two such records the one counts that goes further: nothing that ended begins again.
    """

    hub: Hub
    generation: Annotated[int, Meta(ge=0, le=GENERATION_MAX)]
    is_revoked: bool


def purpose_of(fleet: str, version: int) -> str:
    """Return what the wrapped key of a fleet is."""
    return f"key {version} of fleet {fleet}"


class DeviceReplaced(_Record, frozen=True, array_like=True, tag="device-replaced"):
    """Registry: the device of a hub is that of this generation; the one before may come until the
    new one does.
    """

    hub: Hub
    generation: Annotated[int, Meta(ge=1, le=GENERATION_MAX)]


class DeviceUsed(_Record, frozen=True, array_like=True, tag="device-used"):
    """Registry: the device of this generation has proved its identity; the one before may no longer
    connect. If the hub has a higher generation already, nothing changes.
    """

    hub: Hub
    generation: Annotated[int, Meta(ge=1, le=GENERATION_MAX)]


DeviceRecord = DeviceSet | DeviceReplaced | DeviceUsed
FleetRecord = FleetPut | FleetRemoved | DeviceRecord


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
