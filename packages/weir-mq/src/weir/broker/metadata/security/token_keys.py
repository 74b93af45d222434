"""What is asked of the keys of tokens, and tokens that the set issues.

The leader draws a key that signs, and wraps it before it proposes it: entries, snapshots and
backups hold wrapped keys alone. Any node that has the key file issues tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weir.access.signatures import SEED_BYTES, PrivateKey
from weir.access.tokens import Claims, TokenLimits, issue_token
from weir.broker.metadata.security.access import User, bearer_of
from weir.broker.metadata.security.issuers import NOBODY, TokenKey, check_issuer
from weir.broker.metadata.security.rules import topic_name
from weir.broker.metadata.security.users import AccessCatalog, AccessRequests, Replies
from weir.broker.metadata.security.vault import Vault, purpose_of_token_key
from weir.broker.records.security import TokenKeyRow, TokenKeysAdded, TokenKeysRemoved, TokenRenewed
from weir.broker.runtime.outbox import Caller
from weir.broker.runtime.session import Session
from weir.errors import BadRequest, MissingLibrary, NotAuthenticated, Unavailable, UnknownRole
from weir.model.topic import check_name, split_name
from weir.order.clock import Time
from weir.protocol.client import tokens as wire


def issuer_of(system: int) -> str:
    """Return the name of a system as an issuer; its tokens are for itself."""
    return f"weir://{system:x}"


class TokenKeyVault:
    """Draws, wraps and opens keys that sign tokens, by this node's key file."""

    __slots__ = ("_opened", "_random", "_vault")

    def __init__(self, random: Callable[[int], bytes] | None, vault: Vault) -> None:
        """Draw from `random`; without it nothing is drawn. Keys go through `vault`."""
        self._random = random
        self._vault = vault
        #: Keys, by what they are wrapped as.
        self._opened: dict[bytes, PrivateKey] = {}

    def draw(self, id: str) -> TokenKeyRow:
        """Return a new key. Raises `BadRequest` without a key file or the library."""
        if self._random is None:
            raise BadRequest("this node draws no random bytes: it cannot have keys of tokens")
        seed = self._random(SEED_BYTES)
        wrapped = self._vault.seal(seed, purpose_of_token_key(id))
        return TokenKeyRow(PrivateKey.from_seed(seed).public(id), wrapped)

    def open(self, key: TokenKey) -> PrivateKey:
        """Return a key that signs. Raises `Unavailable` where this node cannot open it."""
        found = self._opened.get(key.wrapped)
        if found is None:
            id = key.public.key_id
            purpose = purpose_of_token_key(id)
            try:
                found = PrivateKey.from_seed(self._vault.unseal(key.wrapped, purpose))
            except (MissingLibrary, BadRequest) as error:
                raise Unavailable(str(error)) from None
            if found.public(id) != key.public:
                raise Unavailable(f"the {purpose} does not match its public key: remove it")
            self._opened = {key.wrapped: found}  # another one signs, or another key wraps it
        return found

    def opens(self, keys: Iterable[TokenKey]) -> bool:
        """Return whether all of these that sign are opened here."""
        try:
            for key in keys:
                if key.wrapped:
                    self.open(key)
        except Unavailable:
            return False
        return True


class TokenKeyRequests:
    """Changes which keys verify tokens, by entries, and issues tokens."""

    __slots__ = ("_access", "_catalog", "_issuer", "_outbox", "_time", "_vault")

    def __init__(
        self, catalog: AccessCatalog, outbox: Replies, access: AccessRequests, time: Time,
        system: int, vault: TokenKeyVault,
    ) -> None:  # fmt: skip
        """Change `catalog` by entries that `access` proposes."""
        self._catalog = catalog
        self._outbox = outbox
        self._access = access
        self._time = time
        self._vault = vault
        self._issuer = issuer_of(system)

    def handlers(self) -> Mapping[type[Any], Callable[[Session, Caller, Any], None]]:
        """Return what answers each request about tokens."""
        return {
            wire.CreateTokenKey: self._create,
            wire.TrustIssuer: self._trust,
            wire.RemoveTokenKey: self._remove,
            wire.ListTokenKeys: self._list,
            wire.IssueToken: self._issue_own,
            wire.IssueTokenFor: self._issue_for,
            wire.RenewToken: self._renew,
        }

    def _create(self, _: Session, caller: Caller, request: wire.CreateTokenKey) -> None:
        own = self._catalog.access.issuers.find(self._issuer)
        if own is not None and own.key(request.key) is not None:
            self._access.is_so(caller)
            return
        key = self._vault.draw(check_name(request.key, "key"))
        record = TokenKeysAdded(self._issuer, self._issuer, "", (key,), False)
        self._access.propose(record, caller)

    def _trust(self, _: Session, caller: Caller, request: wire.TrustIssuer) -> None:
        if request.issuer == self._issuer:
            raise BadRequest("that is this set itself: `weir token key add` gives it a key")
        try:
            for key in request.keys:
                key.check()
        except MissingLibrary as error:
            raise Unavailable(str(error)) from None
        keys = tuple(TokenKeyRow(key) for key in request.keys)
        namespace = check_name(request.namespace, "namespace")
        record = TokenKeysAdded(request.issuer, request.audience, namespace, keys, True)
        check_issuer(record)
        self._access.propose(record, caller)

    def _remove(self, _: Session, caller: Caller, request: wire.RemoveTokenKey) -> None:
        issuers, name = self._catalog.access.issuers, request.issuer or self._issuer
        known = issuers.find(name)
        if known is None or (request.key and known.key(request.key) is None):
            self._access.is_so(caller)
        else:
            self._access.propose(TokenKeysRemoved(name, request.key), caller)

    def _list(self, _: Session, caller: Caller, request: wire.ListTokenKeys) -> None:
        issuers = self._catalog.access.issuers
        rows = [
            wire.TokenKeyInfo(
                one.name, one.audience, one.namespace, key.public.key_id,
                key.public.algorithm.value, bool(key.wrapped),
            )
            for one in issuers for key in one.keys
        ]  # fmt: skip
        opens = all(self._vault.opens(one.keys) for one in issuers)
        self._outbox.reply(caller, wire.TokenKeyList(rows, opens))

    def _renew(self, session: Session, caller: Caller, request: wire.RenewToken) -> None:
        now = self._time.wall_ms()
        user, claims = bearer_of(self._catalog.access, bytes(request.token), now / 1_000)
        if user.principal != session.principal:
            raise NotAuthenticated(NOBODY)
        if not claims.token_id:
            raise BadRequest("a token without an id (`jti`) renews no others")
        until = math.ceil(claims.expires)
        record = TokenRenewed(
            user.principal, claims.issuer, claims.token_id, until, now // 1_000
        )  # fmt: skip
        self._access.propose(record, caller)

    def _issue_own(self, session: Session, caller: Caller, request: wire.IssueToken) -> None:
        user = self._catalog.access.user_of(session.principal)
        if user is None or session.passed or session.token is not None:
            raise BadRequest(
                "a user that logged in by a password or a certificate gets a token of its own; "
                "a session that logged in by a token gets none: ask the issuer for the next one"
            )
        self._issue(caller, user, request)

    def _issue_for(self, _: Session, caller: Caller, request: wire.IssueTokenFor) -> None:
        self._issue(caller, self._access.known(request.user), request)

    def _issue(
        self, caller: Caller, user: User, request: wire.IssueToken | wire.IssueTokenFor
    ) -> None:
        """Answer with a token. Raises `BadRequest`, `BadName`, `UnknownRole` or `Unavailable`."""
        access = self._catalog.access
        own = access.issuers.find(self._issuer)
        if own is None or own.signer is None:
            raise BadRequest("this set has no key that signs tokens: `weir token key add`")
        roles = request.roles
        for role in roles or ():
            if role not in user.roles:
                raise UnknownRole(f"user {user.name} has no role {role}, so no token gives it")
        topics = request.topics
        if topics is not None:
            topics = tuple(topic_name(*split_name(one)) for one in topics)
        now = self._time.wall_ms() // 1000
        limits = TokenLimits(roles, topics, user.number, access.version)
        claims = Claims(
            own.name, user.name, (own.audience,), now + request.seconds, 0, now, request.token_id,
            limits,
        )  # fmt: skip
        key = own.signer
        token = issue_token(self._vault.open(key), key.public.key_id, claims)
        self._outbox.reply(caller, wire.TokenIssued(token, now + request.seconds))
