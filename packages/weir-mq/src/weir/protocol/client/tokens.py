"""Requests and replies about tokens: the keys that verify them, and tokens that the set issues.

A login by token is a `Login` of the mechanism BEARER.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from weir.access.signatures import PublicKey
from weir.access.tokens import (
    LIFE_SECONDS_MAX,
    LIMITED_ROLES_MAX,
    LIMITED_TOPICS_MAX,
    NAME_CHARACTERS_MAX,
    TOKEN_BYTES_MAX,
)
from weir.errors import BadName, LevelTooLow, NotAuthenticated, TooLarge, UnknownRole, UnknownUser
from weir.model.ids import Natural
from weir.model.limits import OWN_TOKEN_SECONDS_MAX, TOKEN_KEYS_MAX
from weir.protocol.client.access import AccessChanged, Name
from weir.protocol.client.declaration import (
    Control,
    ControlReply,
    ControlRequest,
    Declaration,
    Request,
    Resource,
    Retry,
    Right,
    Scope,
)

Text = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
TokenId = Annotated[str, Meta(max_length=64)]
LimitedRoles = Annotated[tuple[Name, ...], Meta(max_length=LIMITED_ROLES_MAX)]
LimitedTopics = Annotated[tuple[Name, ...], Meta(max_length=LIMITED_TOPICS_MAX)]
_ADMINISTER = (Right("administer", Resource.SYSTEM),)


class CreateTokenKey(ControlRequest, frozen=True, array_like=True):
    """Let the set have another key that signs tokens, under this id; the newest one signs. The
    broker draws it, and keeps it wrapped.
    """

    declaration = Declaration(
        64,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(BadName, TooLarge, LevelTooLow),
        methods=("Access.create_token_key",),
    )

    key: TokenId


class TrustIssuer(ControlRequest, frozen=True, array_like=True):
    """Take tokens of an issuer that one of these keys signed for this audience, and no other of
    this issuer: users of one namespace, which `sub` names.
    """

    declaration = Declaration(
        65,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(BadName, TooLarge, LevelTooLow),
        methods=("Access.trust_issuer",),
    )

    issuer: Text
    audience: Text
    namespace: Name
    keys: Annotated[tuple[PublicKey, ...], Meta(max_length=TOKEN_KEYS_MAX)]


class RemoveTokenKey(ControlRequest, frozen=True, array_like=True):
    """Remove a key of an issuer, or with an empty `key` the issuer; an empty `issuer` is the set
    itself. Connections that came by tokens of that key end.
    """

    declaration = Declaration(
        66,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        rights=_ADMINISTER,
        refusals=(LevelTooLow,),
        methods=("Access.remove_token_key",),
    )

    issuer: Text
    key: Text = ""


class TokenKeyInfo(Control, frozen=True, array_like=True):
    """A key that verifies tokens of an issuer. Those of the set itself sign here, too."""

    issuer: str
    audience: str
    namespace: str
    key: str
    algorithm: str
    signs: bool


class TokenKeyList(ControlReply, frozen=True, array_like=True):
    """All keys; and whether this node opens those that sign."""

    keys: list[TokenKeyInfo]
    opens: bool


class ListTokenKeys(ControlRequest, frozen=True, array_like=True):
    """Ask which keys verify tokens."""

    declaration = Declaration(
        67,
        Scope.COPY,
        TokenKeyList,
        Retry.READ,
        rights=_ADMINISTER,
        methods=("Access.token_keys", "Access.opens_token_keys"),
    )


class TokenIssued(ControlReply, frozen=True, array_like=True):
    """A token, and the second since 1970 at which it ends."""

    token: bytes
    ends: Natural


class IssueToken(ControlRequest, frozen=True, array_like=True):
    """Ask for a token of the user that asks, who logged in by something else than a token. Tokens
    with one `token_id` renew each other. `roles` and `topics` limit what it gives; None: to all
    that the user may.
    """

    declaration = Declaration(
        68,
        Scope.COPY,
        TokenIssued,
        Retry.ANEW,
        free="a token of one's own gives no more than one has",
        refusals=(NotAuthenticated, BadName, UnknownRole, TooLarge),
        methods=("Access.issue_token",),
    )

    seconds: Annotated[int, Meta(ge=1, le=OWN_TOKEN_SECONDS_MAX)]
    token_id: TokenId = ""
    roles: LimitedRoles | None = None
    topics: LimitedTopics | None = None


class IssueTokenFor(ControlRequest, frozen=True, array_like=True):
    """Ask for a token of another user, as `IssueToken` does for one's own."""

    declaration = Declaration(
        69,
        Scope.COPY,
        TokenIssued,
        Retry.ANEW,
        rights=_ADMINISTER,
        refusals=(BadName, UnknownUser, UnknownRole, TooLarge),
        methods=("Access.issue_token",),
    )

    user: Name
    seconds: Annotated[int, Meta(ge=1, le=LIFE_SECONDS_MAX)]
    token_id: TokenId = ""
    roles: LimitedRoles | None = None
    topics: LimitedTopics | None = None


class RenewToken(ControlRequest, frozen=True, array_like=True):
    """Let all connections of this user go on that came by tokens of the same issuer and id, until
    this token ends.
    """

    declaration = Declaration(
        58,
        Scope.REGISTRY,
        AccessChanged,
        Retry.SAME,
        free="it gives nothing that the token does not give",
        refusals=(NotAuthenticated, TooLarge, LevelTooLow),
    )

    token: Annotated[bytes, Meta(max_length=TOKEN_BYTES_MAX)]


#: All requests of this page.
REQUESTS: tuple[type[Request], ...] = (
    CreateTokenKey,
    TrustIssuer,
    RemoveTokenKey,
    ListTokenKeys,
    IssueToken,
    IssueTokenFor,
    RenewToken,
)
