"""Control records of the registry about who may do what.

A user has a number, which is that of the entry that made it: another user who gets the same name
later has another number, and nothing that the first one had.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from weir.access.signatures import SEED_BYTES, PublicKey
from weir.access.wrapping import WRAPPED_BYTES
from weir.broker.records.secrets import StoredVerifier

#: In `open` everybody may do everything; in `watch`, too, and what would be refused is counted; in
#: `closed` it is refused.
AccessMode = Literal["open", "watch", "closed"]
#: A rule: its verbs, the kind of resource, its name, and whether that is a beginning of names.
RuleRow = tuple[tuple[str, ...], str, str, bool]
#: As it is, or wrapped, which makes it longer.
SECRET_BYTES_MAX = 64
_WRAPPED = WRAPPED_BYTES + SEED_BYTES
Secret = Annotated[bytes, Meta(min_length=32, max_length=SECRET_BYTES_MAX + WRAPPED_BYTES)]


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """A control record of access."""


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
    """Registry: a user has another password; whoever came by the one before must come again."""

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
    wrapped: Annotated[bytes, Meta(max_length=_WRAPPED)] = b""


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
