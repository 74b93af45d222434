"""Whose a token is: looked at in a login, and for each page that is asked for by one."""

from __future__ import annotations

from typing import NamedTuple

from weir.access.tokens import Claims, verify_token
from weir.broker.metadata.security.access import Access, User
from weir.broker.metadata.security.issuers import NOBODY
from weir.errors import MissingLibrary, NotAuthenticated, Unavailable


class Bearer(NamedTuple):
    """The user that a valid token names, and what else it says."""

    user: User
    claims: Claims


def bearer_of(access: Access, token: bytes, now: float) -> Bearer:
    """Return whose a token is at `now`, in seconds since 1970.

    Raises `NotAuthenticated`, which tells no stranger why, and `Unavailable` without the library.
    """
    try:
        claims = verify_token(token, access.issuers.verifying(), now)
    except MissingLibrary as error:
        raise Unavailable(f"nobody can log in by a token here: {error}") from None
    except NotAuthenticated:
        raise NotAuthenticated(NOBODY) from None
    issuer, limits = access.issuers.find(claims.issuer), claims.limits
    user = None if issuer is None else access.user(issuer.user(claims))
    if user is None or limits.number not in (0, user.number):
        raise NotAuthenticated(NOBODY)  # the user is gone, or another has its name now
    if limits.number and limits.version < user.password_set:
        # Whoever had it issued may have known the password of then.
        raise NotAuthenticated(NOBODY)
    return Bearer(user, claims)
