"""Who a client is by a token, and where that is found.

A client that has a token never tries a password, nor the other way about: so nobody on the way can
bring it to show more than it meant to.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from inspect import isawaitable
from pathlib import Path

from weir.access.scram import check_channel
from weir.access.tokens import BEARER, TOKEN_BYTES_MAX, token_ends
from weir.client.connection.credentials import (
    Asking,
    Credentials,
    find_password,
    login_step,
    read_first_line,
)
from weir.client.connection.system import in_daemon
from weir.errors import NotAuthenticated, RemoteProtocolError, UnknownOpcode
from weir.model.topic import split_name
from weir.protocol.client.access import Login, LoginStep

#: Where the token is looked for of a client that names no user and is given none.
TOKEN, TOKEN_FILE = "WEIR_TOKEN", "WEIR_TOKEN_FILE"
#: A token; the path of a file with one, which is read for each connection; or what returns one.
TokenSource = str | os.PathLike[str] | Callable[[], str | Awaitable[str]]


class TokenCredentials:
    """A token, for all connections of one client."""

    __slots__ = ("_source", "user")

    def __init__(self, source: TokenSource, user: str = "") -> None:
        """Log in by what `source` is or gives; with a `user`, as nobody else."""
        self._source = source
        self.user = user

    def __repr__(self) -> str:
        """Show no token."""
        return f"TokenCredentials(user={self.user!r})"

    async def log_in(self, connection: Asking, timeout: float) -> None:
        """Log in by a connection, before hello. Raises `NotAuthenticated`, also before anything is
        sent where others could read along.
        """
        check_channel(is_encrypted=connection.is_private, is_loopback=False)
        token = await self.token()
        with _in_words(token):
            reply = login_step(await connection.request(Login(BEARER, token), timeout))
        self._check(reply)

    def _check(self, reply: LoginStep) -> None:
        if not reply.done:
            raise RemoteProtocolError("the broker took the token, and let nobody in")
        if self.user and "/".join(split_name(self.user)) != reply.user:
            raise NotAuthenticated(f"the token is of user {reply.user}, not of {self.user}")

    def log_in_blocking(self, request: Callable[[Login], object], is_private: bool) -> None:
        """Log in by a token that was given as text, without an event loop: `request` returns the
        reply, or raises the refusal. Raises as `log_in`.
        """
        check_channel(is_encrypted=is_private, is_loopback=False)
        if not isinstance(self._source, str):
            raise NotAuthenticated("there is no token to log in by: it is given as text here")
        token = _checked(self._source)
        with _in_words(token):
            reply = login_step(request(Login(BEARER, token)))
        self._check(reply)

    async def token(self) -> bytes:
        """Return the token as it is now. Raises `NotAuthenticated` where there is none."""
        source = self._source
        try:
            if isinstance(source, str):
                found = source
            elif callable(source):
                given = source()
                found = await given if isawaitable(given) else given
            else:
                path = Path(source)
                found = await in_daemon(lambda: read_first_line(path, "token", TOKEN_BYTES_MAX))
        except (ValueError, OSError) as error:
            raise NotAuthenticated(f"there is no token to log in by: {error}") from None
        return _checked(found)


#: Who a client is.
AnyCredentials = Credentials | TokenCredentials


def find_credentials(
    user: str,
    password: str | os.PathLike[str] | None,
    token: TokenSource | None,
    hosts: Sequence[tuple[str, int]] = (),
) -> AnyCredentials | None:
    """Return who a client is that is told so much, and is told the rest by the environment: a user
    with a password, or a token; None: nobody. Raises `ValueError` and `OSError`.
    """
    if token is not None and password is not None:
        raise ValueError("give a password or a token, not both")
    if not user and password is not None:
        raise ValueError("a password needs a user: weir://USER@HOST")
    if token is None and user:
        return Credentials(user, find_password(user, password, hosts))
    found = find_token(token)
    return None if found is None else TokenCredentials(found, user)


def find_token(given: TokenSource | None = None) -> TokenSource | None:
    """Return the token that is `given`, or that the environment names; None if neither does."""
    if given is not None:
        return given
    if token := os.environ.get(TOKEN):
        return token
    return Path(path) if (path := os.environ.get(TOKEN_FILE)) else None


def _checked(found: object) -> bytes:
    if not isinstance(found, str) or not found.isascii() or not found.strip():
        raise NotAuthenticated("there is no token to log in by: it is text, as JWT has it")
    if len(found) > TOKEN_BYTES_MAX:
        raise NotAuthenticated(f"the token has more than {TOKEN_BYTES_MAX:,} bytes")
    return found.strip().encode()


@contextmanager
def _in_words(token: bytes) -> Iterator[None]:
    """Let a refused login say when the token ends, or that the broker knows no tokens."""
    try:
        yield
    except UnknownOpcode:
        raise NotAuthenticated(
            "this broker is of a release that takes no tokens: upgrade it"
        ) from None
    except NotAuthenticated as error:
        raise NotAuthenticated(f"{error}{_end_of(token)}") from None


def _end_of(token: bytes) -> str:
    """Return what a token says of its own end: the broker tells no stranger."""
    if (ends := token_ends(token)) is None:
        return " (it is no token)"
    return f" (it says that it ends at {datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M:%S} UTC)"
