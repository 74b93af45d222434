"""Who a client is by a token, and where that is found.

A client that has a token never tries a password, nor the other way about: so nobody on the way can
bring it to show more than it meant to.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from inspect import isawaitable
from pathlib import Path

from weir.access.scram import check_channel
from weir.access.tokens import BEARER, TOKEN_BYTES_MAX, read_unverified
from weir.client.connection.credentials import (
    Asking,
    Credentials,
    LoginTicket,
    find_password,
    login_step,
    read_first_line,
)
from weir.client.connection.system import in_daemon
from weir.errors import NotAuthenticated, RemoteProtocolError, UnknownOpcode, WeirError
from weir.model.topic import split_name
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.tokens import RenewToken

log = logging.getLogger(__name__)

#: A token is asked for again no sooner, in seconds.
_PAUSE_MIN = 1.0
#: Where the token is looked for of a client that names no user and is given none.
TOKEN, TOKEN_FILE = "WEIR_TOKEN", "WEIR_TOKEN_FILE"
#: A token; the path of a file with one, which is read for each connection; or what returns one.
TokenSource = str | os.PathLike[str] | Callable[[], str | Awaitable[str]]


class TokenCredentials:
    """A token, for all connections of one client."""

    __slots__ = ("_source", "_ticket", "_told", "user")

    def __init__(self, source: TokenSource, user: str = "") -> None:
        """Log in by what `source` is or gives; with a `user`, as nobody else."""
        self._source = source
        #: The token that others were renewed by last.
        self._told = b""
        self._ticket = LoginTicket()
        self.user = user

    def __repr__(self) -> str:
        """Show no token."""
        return f"TokenCredentials(user={self.user!r})"

    async def log_in(self, connection: Asking, timeout: float) -> Renewal | None:
        """Log in by a connection, before hello; return what keeps it logged in, if there may be
        other tokens. Raises `NotAuthenticated`, also before anything is sent where others could
        read along.
        """
        check_channel(is_encrypted=connection.is_private, is_loopback=False)
        token = await self.token()
        request = self._ticket.login(BEARER, token)
        with _in_words(token), self._ticket.shown(request):
            reply = login_step(await connection.request(request, timeout))
        self._check(reply)
        if isinstance(self._source, str):
            return None
        return Renewal(self, token, _seconds_left(reply))

    def _check(self, reply: LoginStep) -> None:
        if not reply.done:
            raise RemoteProtocolError("the broker took the token, and let nobody in")
        if self.user and "/".join(split_name(self.user)) != reply.user:
            raise NotAuthenticated(f"the token is of user {reply.user}, not of {self.user}")
        self._ticket.keep(reply)

    async def renew(self, connection: Asking, token: bytes, timeout: float) -> float:
        """Let a connection go on by another token; return for how many seconds. Connections of
        others that came by tokens with its id go on, too: that is asked once. Raises `Refused` or
        `Disconnected`.
        """
        reply = login_step(await connection.request(Login(BEARER, token), timeout))
        read = read_unverified(token)
        if token != self._told and read is not None and read[1]:
            await connection.request(RenewToken(token), timeout)
            self._told = token
        return _seconds_left(reply)

    def log_in_blocking(self, request: Callable[[Login], object], is_private: bool) -> None:
        """Log in by a token that was given as text, without an event loop: `request` returns the
        reply, or raises the refusal. Raises as `log_in`.
        """
        check_channel(is_encrypted=is_private, is_loopback=False)
        if not isinstance(self._source, str):
            raise NotAuthenticated("there is no token to log in by: it is given as text here")
        token = _checked(self._source)
        login = self._ticket.login(BEARER, token)
        with _in_words(token), self._ticket.shown(login):
            reply = login_step(request(login))
        self._check(reply)

    async def token(self) -> bytes:
        """Return the token as it is now. Raises `NotAuthenticated` where there is none."""
        source = self._source
        try:
            if isinstance(source, str):
                found = source
            elif callable(source):
                found = await _asked(source)
            else:
                path = Path(source)
                found = await in_daemon(lambda: read_first_line(path, "token", TOKEN_BYTES_MAX))
        except (ValueError, OSError) as error:
            raise NotAuthenticated(f"there is no token to log in by: {error}") from None
        return _checked(found)


async def _asked(source: Callable[[], str | Awaitable[str]]) -> str:
    """Return what a function gives. Raises `NotAuthenticated` for whatever it raises."""
    try:
        given = source()
        return await given if isawaitable(given) else given
    except Exception as error:
        raise NotAuthenticated(f"the function that gives tokens failed: {error!r}") from error


class Renewal:
    """Keeps one connection logged in: it asks for a token again and again before the last one ends,
    and shows the broker each new one.
    """

    __slots__ = ("_credentials", "_left", "_token")

    def __init__(self, credentials: TokenCredentials, token: bytes, left: float) -> None:
        """The connection came by `token`, which lets it go on for `left` seconds."""
        self._credentials = credentials
        self._token = token
        self._left = left

    async def keep(self, connection: Asking, over: asyncio.Event, timeout: float) -> None:
        """Renew until the connection is `over`."""
        ends = asyncio.get_running_loop().time() + self._left
        while not await _within(over, _pause(ends - asyncio.get_running_loop().time())):
            began = asyncio.get_running_loop().time()
            try:
                token = await self._credentials.token()
                if token == self._token:
                    continue  # nobody has written the next one yet
                left = await self._credentials.renew(connection, token, timeout)
            except WeirError as error:
                log.warning("a token was not renewed, and is tried again: %s", error)
                continue
            self._token, ends = token, began + left


async def _within(over: asyncio.Event, seconds: float) -> bool:
    """Return whether it is over; after so many seconds it is not."""
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return False
    return True


def _pause(left: float) -> float:
    """Return how long to wait before the next token is asked for, while this one has so long left:
    the first is asked for once a third is left, and others ever more often.
    """
    return max(left * 2 / 3, _PAUSE_MIN)


def _seconds_left(reply: LoginStep) -> float:
    """Return for how long the broker lets a connection go on. Raises `RemoteProtocolError`."""
    if not reply.done or not reply.message.isdigit() or len(reply.message) > 12:
        raise RemoteProtocolError("the broker took the token, and does not say for how long")
    return float(reply.message)


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
    if (read := read_unverified(token)) is None:
        return " (it is no token)"
    try:
        ends = datetime.fromtimestamp(read[0], UTC)
    except (ValueError, OverflowError, OSError):  # behind the year 9999
        return ""
    return f" (it says that it ends at {ends:%Y-%m-%d %H:%M:%S} UTC)"
