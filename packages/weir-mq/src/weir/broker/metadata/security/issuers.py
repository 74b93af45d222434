"""Issuers whose tokens are accepted, their audiences, and the keys that verify the tokens.

The set itself is one, once it has a key; its name is `weir://SYSTEM`. Others are known by the keys
of a JWKS file, which an administrator gives: no broker fetches anything. A token of theirs names a
user of one namespace, so that an issuer of one tenant never names a user of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from weir.access.signatures import PublicKey
from weir.access.tokens import NAME_CHARACTERS_MAX as CLAIM_CHARACTERS_MAX
from weir.access.tokens import Claims, Issuer
from weir.broker.metadata.security.rules import topic_name
from weir.broker.records.security import RewrappedRow, TokenKeysAdded, TokenRenewed, digest_of
from weir.errors import BadName, BadRequest, NotAuthenticated, TooLarge
from weir.model.limits import (
    TOKEN_ISSUERS_MAX,
    TOKEN_KEYS_MAX,
    TOKEN_RENEWALS_MAX,
    TOKEN_RENEWALS_OF_ONE_MAX,
)
from weir.model.topic import check_name, split_name

#: The answer to every token that is not accepted, whatever is wrong with it.
NOBODY = "this token is not accepted: get a new one"


class TokenKey(NamedTuple):
    """A key that verifies, with the wrapped key that signs or nothing, and the access version since
    which it is there.
    """

    public: PublicKey
    wrapped: bytes
    since: int


class TokenIssuer(msgspec.Struct, frozen=True):
    """An issuer of tokens, its audience, and the namespace of its users; empty: any namespace."""

    name: str
    audience: str
    namespace: str
    keys: tuple[TokenKey, ...] = ()

    def key(self, id: str) -> TokenKey | None:
        """Return one of its keys."""
        return next((one for one in self.keys if one.public.key_id == id), None)

    @property
    def signer(self) -> TokenKey | None:
        """The newest key that signs here."""
        signing = [one for one in self.keys if one.wrapped]
        return max(signing, key=lambda one: one.since, default=None)

    def user(self, claims: Claims) -> str:
        """Return the full name of the user that a token names. Raises `NotAuthenticated`."""
        try:
            if self.namespace:
                return topic_name(self.namespace, check_name(claims.subject, "user"))
            return topic_name(*split_name(claims.subject))
        except BadName:
            raise NotAuthenticated(NOBODY) from None


class TokenIssuers:
    """All issuers whose tokens a set takes, by name."""

    __slots__ = ("_renewals", "_rows")

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: dict[str, TokenIssuer] = {}
        #: By principal, issuer and id of tokens, until when sessions by them go on.
        self._renewals: dict[tuple[str, str, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._rows or self._renewals)

    def __iter__(self) -> Iterator[TokenIssuer]:
        return iter(self._rows.values())

    def copy(self) -> TokenIssuers:
        """Return a copy, which changes by itself."""
        other = TokenIssuers()
        other._rows, other._renewals = dict(self._rows), dict(self._renewals)
        return other

    def find(self, name: str) -> TokenIssuer | None:
        """Return an issuer by its name."""
        return self._rows.get(name)

    def verifying(self) -> Mapping[str, Issuer]:
        """Return what verifies tokens, by the issuer that they name."""
        return {
            one.name: Issuer(one.name, one.audience, [key.public for key in one.keys])
            for one in self._rows.values()
        }

    def has_key(self, issuer: str, key: str, at: int) -> bool:
        """Return whether an issuer has had this key ever since access version `at`."""
        row = self._rows.get(issuer)
        known = None if row is None else row.key(key)
        return known is not None and known.since <= at

    def add(self, record: TokenKeysAdded, version: int) -> bool:
        """Add keys, which are there from access `version` on; return whether tokens that were taken
        before may not be any more. Raises `BadRequest`, `BadName` or `TooLarge`.
        """
        check_issuer(record)
        before = self._rows.get(record.issuer)
        known = {} if before is None else {one.public.key_id: one for one in before.keys}
        kept = {} if record.replace else dict(known)
        meant = (record.audience, record.namespace)
        moved = before is not None and (before.audience, before.namespace) != meant
        for row in record.keys:
            had = known.get(row.public.key_id)
            is_new = had is None or (had.public, had.wrapped) != (row.public, row.wrapped)
            since = version if had is None or is_new or moved else had.since
            kept[row.public.key_id] = TokenKey(row.public, row.wrapped, since)
        if len(kept) > TOKEN_KEYS_MAX:
            raise TooLarge(f"an issuer has at most {TOKEN_KEYS_MAX} keys", TOKEN_KEYS_MAX)
        if before is None and len(self._rows) >= TOKEN_ISSUERS_MAX:
            raise TooLarge(f"there are at most {TOKEN_ISSUERS_MAX} issuers", TOKEN_ISSUERS_MAX)
        after = TokenIssuer(record.issuer, record.audience, record.namespace, tuple(kept.values()))
        self._rows[after.name] = after
        is_less = any(kept.get(id) != one for id, one in known.items())
        if is_less:
            self._forget_renewals(after.name)
        return is_less

    def renewed_until(self, principal: str, issuer: str, id: str) -> int:
        """Return until when a renewal lets sessions by such a token go on; 0 if there is none."""
        return self._renewals.get((principal, issuer, id), 0)

    def renew(self, record: TokenRenewed) -> None:
        """Let sessions go on. Raises `TooLarge` where too many tokens were renewed."""
        key = record.principal, record.issuer, record.id
        live = {known: until for known, until in self._renewals.items() if until >= record.now}
        if key not in live and len(live) >= TOKEN_RENEWALS_MAX:
            raise TooLarge(
                f"{TOKEN_RENEWALS_MAX:,} tokens are renewed now: renew fewer, or let them live "
                "longer", TOKEN_RENEWALS_MAX,
            )  # fmt: skip
        own = sum(1 for principal, *_ in live if principal == record.principal)
        if key not in live and own >= TOKEN_RENEWALS_OF_ONE_MAX:
            raise TooLarge(
                f"{TOKEN_RENEWALS_OF_ONE_MAX} tokens of this user are renewed now: renew fewer, or "
                "let them live longer", TOKEN_RENEWALS_OF_ONE_MAX,
            )  # fmt: skip
        live[key] = max(record.until, live.get(key, 0))
        self._renewals = live

    def rewrap(self, row: RewrappedRow) -> None:
        """The key that signs and has this id is wrapped by another one: it is the same key."""
        for name, issuer in self._rows.items():
            keys = tuple(
                key._replace(wrapped=row.wrapped)
                if key.wrapped and (key.public.key_id, digest_of(key.wrapped)) == (
                    row.name, row.before
                ) else key
                for key in issuer.keys
            )  # fmt: skip
            self._rows[name] = replace(issuer, keys=keys)

    def remove(self, name: str, key: str) -> None:
        """Forget a key of an issuer, or with an empty `key` all of it. Raises `BadRequest`."""
        row = self._rows.get(name)
        if row is None or (key and row.key(key) is None):
            raise BadRequest(
                f"there is no key {key or 'at all'} of issuer {name}: `weir token key list` shows "
                "those that are there"
            )
        self._forget_renewals(name)
        keys = tuple(one for one in row.keys if key and one.public.key_id != key)
        if keys:
            self._rows[name] = replace(row, keys=keys)
        else:
            del self._rows[name]

    def _forget_renewals(self, issuer: str) -> None:
        """Let sessions end with their own tokens: a key that is gone may have signed what others
        were renewed by.
        """
        self._renewals = {one: at for one, at in self._renewals.items() if one[1] != issuer}

    def encode(self) -> object:
        """Return it as MessagePack can hold it."""
        rows = [
            (one.name, one.audience, one.namespace, [tuple(key) for key in one.keys])
            for one in self._rows.values()
        ]
        return rows, [(*key, until) for key, until in self._renewals.items()]

    @classmethod
    def decode(cls, data: Any) -> TokenIssuers:
        """Return what `encode` gave."""
        found, (rows, renewals) = cls(), data
        for principal, issuer, id, until in renewals:
            found._renewals[principal, issuer, id] = until
        for name, audience, namespace, keys in rows:
            known = tuple(
                TokenKey(msgspec.convert(public, PublicKey), wrapped, since)
                for public, wrapped, since in keys
            )
            found._rows[name] = TokenIssuer(name, audience, namespace, known)
        return found


def check_issuer(record: TokenKeysAdded) -> None:
    """Raise `BadRequest` or `BadName` for what can be no issuer."""
    for what, text in (("issuer", record.issuer), ("audience", record.audience)):
        if not 1 <= len(text) <= CLAIM_CHARACTERS_MAX:
            raise BadRequest(
                f"an {what} has 1 to {CLAIM_CHARACTERS_MAX} characters", CLAIM_CHARACTERS_MAX
            )
    if record.namespace:
        check_name(record.namespace, "namespace")
    if not record.keys:
        raise BadRequest("give at least one key")
