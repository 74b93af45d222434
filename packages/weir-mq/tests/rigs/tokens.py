"""Tokens of a set and of another issuer, as a test wants them."""

from __future__ import annotations

from typing import Any, cast

from rigs.broker_rig import Rig
from rigs.shards import catalog_of, sessions_of
from weir.access.signatures import PrivateKey
from weir.access.tokens import BEARER, Claims, TokenLimits, issue_token
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.protocol.client import tokens as t
from weir.protocol.client.access import Login
from weir.testing import Node

#: A key that signs for another issuer.
IDP_KEY = PrivateKey.from_seed(bytes(range(32)))
IDP = "https://idp.example"


def trust(**other: Any) -> t.TrustIssuer:
    """Return the request that lets tokens of `IDP` in, of users of the namespace `default`."""
    asked: dict[str, Any] = {
        "issuer": IDP, "audience": "weir", "namespace": "default",
        "keys": (IDP_KEY.public("idp"),),
    }  # fmt: skip
    return t.TrustIssuer(**(asked | other))


def token_of(
    now: float, user: str = "ann", seconds: float = 600, key: PrivateKey = IDP_KEY, **other: Any
) -> bytes:
    """Return a token of `IDP`."""
    asked = {"issuer": IDP, "audiences": ("weir",), "issued": now, **other}
    kid = str(asked.pop("kid", "idp"))
    limits = TokenLimits(asked.pop("roles", None), asked.pop("topics", None))
    claims = Claims(subject=user, expires=now + seconds, limits=limits, **asked)
    return issue_token(key, kid, claims)


def enter_by(rig: Rig, session: int, token: bytes, is_private: bool = True) -> Any:
    """Let a peer come, and log in by a token; return the answer."""
    rig.replies[session] = []
    rig.handle(ev.Opened(session))
    if is_private:
        rig.handle(ev.Secured(session))
    return rig.answer(session, Login(BEARER, token))


def principal_of(rig: Rig, session: int) -> str:
    """Return who a session is."""
    return str(sessions_of(rig.shard)[session].principal)


def renewals_of(node: Node) -> dict[tuple[str, str, str], int]:
    """Return which tokens were renewed at a node in memory, and until when."""
    return dict(catalog_of(cast(Any, node)._host._shard).access.issuers._renewals)


def hung_up(rig: Rig) -> list[int]:
    """Return the sessions that ended, in order."""
    return [one.session for one in rig.others if isinstance(one, ef.Hangup)]
