"""The identity of a client: where its password or token is found, and how it logs in with it.

    weir://ann@localhost              user ann of the default namespace
    weir://shop%2Fann@broker1:6800    user ann of namespace shop

A password is never part of an address, which ends up in histories, logs and process lists. It is
given by a program, or found in the environment, in a file, or in the keyring of the machine's user.

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
from typing import Protocol
from urllib.parse import unquote

from weir.access.credentials import SaltedKey, derive_key, prepare_password
from weir.access.login_tickets import end_of
from weir.access.scram import (
    MECHANISM,
    NONCE_BYTES,
    Challenge,
    ScramClient,
    ScramProof,
    check_channel,
    encode_nonce,
)
from weir.access.tokens import BEARER, TOKEN_BYTES_MAX, read_unverified
from weir.client.connection.system import SYSTEM, in_daemon
from weir.errors import (
    BadRequest,
    Disconnected,
    NotAuthenticated,
    RemoteProtocolError,
    UnknownOpcode,
    WeirError,
)
from weir.model.topic import split_name
from weir.protocol.client.access import Login, LoginStep
from weir.protocol.client.declaration import Request
from weir.protocol.client.tokens import RenewToken

log = logging.getLogger(__name__)

#: Where a password is looked for that is not given, before the keyring.
PASSWORD, PASSWORD_FILE = "WEIR_PASSWORD", "WEIR_PASSWORD_FILE"
#: What others than the owner may do with a file of a password: nothing.
_OTHERS = 0o077
_FILE_BYTES_MAX = 4_096
#: Where the token is looked for of a client that names no user and is given none.
TOKEN, TOKEN_FILE = "WEIR_TOKEN", "WEIR_TOKEN_FILE"
#: A token; the path of a file with one, which is read for each connection; or what returns one.
TokenSource = str | os.PathLike[str] | Callable[[], str | Awaitable[str]]
#: A token is asked for again no sooner, in seconds.
_PAUSE_MIN = 1.0


class Asking(Protocol):
    """A connection, as far as a login needs it."""

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along."""

    async def request(self, request: Request, timeout: float) -> object:
        """Return the reply, or raise the refusal."""


def split_user(url: str) -> tuple[str, str]:
    """Return a URL without its user, and the user; empty if it names none. Raises `ValueError` for
    one with a password.
    """
    scheme, separator, rest = url.partition("://")
    named, question, options = rest.partition("?")
    user, at, places = named.rpartition("@")
    if not at:
        return url, ""
    if ":" in user:
        raise ValueError(
            "an address has no password, which others would see: set the environment variable "
            f"{PASSWORD}, or name a file of mode 0600 by {PASSWORD_FILE}"
        )
    if not user:
        raise ValueError(f"{url!r} names no user before the @")
    return f"{scheme}{separator}{places}{question}{options}", unquote(user)


def find_password(
    user: str,
    given: str | os.PathLike[str] | None = None,
    hosts: Sequence[tuple[str, int]] = (),
) -> str:
    """Return the password of a user: what is `given`, as text or as the path of a file; else by the
    environment; else the keyring's for one of the `hosts`, where that library is installed.

    Raises `ValueError` if there is none, `OSError` for a file that cannot be read.
    """
    if isinstance(given, str):
        return given
    if given is not None:
        return read_password_file(Path(given))
    if (password := os.environ.get(PASSWORD)) is not None:
        return password
    if path := os.environ.get(PASSWORD_FILE):
        return read_password_file(Path(path))
    if (password := _of_keyring(user, hosts)) is not None:
        return password
    raise ValueError(
        f"user {user} needs a password: set the environment variable {PASSWORD}, or name a file of "
        f"mode 0600 by {PASSWORD_FILE}, or `pip install 'weir-mq[keyring]'` and "
        f"`keyring set {keyring_service(*hosts[0]) if hosts else 'weir://HOST:PORT'} {user}`"
    )


def keyring_service(host: str, port: int) -> str:
    """Return by which name a keyring has the passwords of a broker's users."""
    return f"weir://{f'[{host}]' if ':' in host else host}:{port}"


def _of_keyring(user: str, hosts: Sequence[tuple[str, int]]) -> str | None:
    """Return the password that the keyring has of a user for the first of the hosts that it knows.
    Raises `ValueError` for a keyring that cannot be read.
    """
    if not hosts:
        return None
    try:
        import keyring
        from keyring.errors import KeyringError, NoKeyringError
    except ModuleNotFoundError:
        return None
    try:
        for host, port in hosts:
            found = keyring.get_password(keyring_service(host, port), user)
            if found is not None:
                return str(found)
    except NoKeyringError:
        return None  # as on most servers
    except KeyringError as error:
        raise ValueError(
            f"the keyring of this machine cannot be read ({error}): unlock it, or set {PASSWORD}"
        ) from None
    return None


def read_password_file(path: Path) -> str:
    """Return the first line of a file that only its owner may read. Raises `ValueError` for one
    that others may, or that is too long; `OSError`.
    """
    return read_first_line(path, "password", _FILE_BYTES_MAX)


def read_first_line(path: Path, what: str, limit: int) -> str:
    """Return the first line of a file that holds a secret, as `read_password_file` does."""
    with path.open("rb") as file:
        others = os.fstat(file.fileno()).st_mode & _OTHERS
        if others:
            raise ValueError(f"others may read {path}: chmod 600 {path}, and get a new {what}")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} is no {what}: over {limit:,} bytes")
    try:
        return data.decode().partition("\n")[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no {what}: it is not UTF-8") from None


class StaleTicket(Disconnected):
    """The ticket of the last login is not good any more, and is forgotten: connect again."""


class TicketStore(Protocol):
    """What keeps the ticket of one user for the next process. It raises nothing: without a ticket a
    login goes on as well.
    """

    def read(self) -> bytes:
        """Return the ticket; empty if there is none."""

    def write(self, ticket: bytes) -> None:
        """Keep a ticket in the place of the last one; an empty one removes it."""


class LoginTicket:
    """The ticket of the last login of a client, for its next one: with it that login does not wait
    behind an attacker who guesses passwords at the same address.
    """

    __slots__ = ("_store", "_ticket")

    def __init__(self, store: TicketStore | None = None) -> None:
        """Have the one of `store`; without it none yet."""
        self._store = store
        self._ticket = b"" if store is None else store.read()

    def __bool__(self) -> bool:
        return bool(self._ticket)

    def login(self, mechanism: str, message: bytes) -> Login:
        """Return the first message of a login. A ticket that is over is forgotten, not shown."""
        end = end_of(self._ticket)
        if end is not None and SYSTEM.get().now_us() >= end * 1_000_000:
            self._set(b"")
        return Login(mechanism, message, self._ticket)

    def keep(self, last: LoginStep) -> None:
        """A login is done: keep what it gave."""
        self._set(last.ticket)

    def _set(self, ticket: bytes) -> None:
        self._ticket = ticket
        if self._store is not None:
            self._store.write(ticket)

    @contextmanager
    def shown(self, login: Login) -> Iterator[None]:
        """A login is asked meanwhile. If it shows a ticket and is refused, or cannot be read, that
        ticket is forgotten: raises `StaleTicket`, for the broker takes no other attempt by that
        connection. Others of this client may have shown it too, and may have got another one by
        now.
        """
        try:
            yield
        except (BadRequest, NotAuthenticated) as error:
            if not login.ticket:
                raise
            if self._ticket == login.ticket:
                self._set(b"")
            raise StaleTicket(f"{error}: the next connection logs in without it") from None


class Credentials:
    """A user and its password, for all connections of one client. What is made of the password for
    a set's salt is kept: that takes 30 ms once, not at each connection.
    """

    __slots__ = ("_key", "_password", "_ticket", "user")

    def __init__(self, user: str, password: str, store: TicketStore | None = None) -> None:
        """Be `user`, whose ticket is in `store`, if it is given. Raises `BadRequest` for what can
        be no password.
        """
        prepare_password(password)
        self.user = user
        self._password = password
        self._key: SaltedKey | None = None
        self._ticket = LoginTicket(store)

    def __repr__(self) -> str:
        """Show no password."""
        return f"Credentials(user={self.user!r})"

    async def log_in(self, connection: Asking, timeout: float) -> None:
        """Log in by a connection, before hello; each step may take `timeout` seconds.

        Raises `NotAuthenticated`, also before anything is sent where others could read along;
        `RemoteProtocolError` for a broker that does not know the user's password either;
        `StaleTicket` if that of the last login is not good any more.
        """
        client = self._begin(connection.is_private)
        request = self._ticket.login(MECHANISM, client.first)
        with self._in_words(), self._ticket.shown(request):
            first = login_step(await connection.request(request, timeout))
        challenge = client.challenged(first.message)
        if not self._has_key(challenge):
            self._key = await in_daemon(lambda: self._derive(challenge))
        proof = self._prove(challenge)
        with self._in_words():
            last = login_step(await connection.request(Login(MECHANISM, proof.final), timeout))
        _check_proof(proof, last)
        self._ticket.keep(last)

    def log_in_blocking(self, request: Callable[[Login], object], is_private: bool) -> None:
        """Do the same without an event loop: `request` returns the reply, or raises the refusal."""
        client = self._begin(is_private)
        login = self._ticket.login(MECHANISM, client.first)
        with self._in_words(), self._ticket.shown(login):
            first = login_step(request(login))
        challenge = client.challenged(first.message)
        if not self._has_key(challenge):
            self._key = self._derive(challenge)
        proof = self._prove(challenge)
        with self._in_words():
            last = login_step(request(Login(MECHANISM, proof.final)))
        _check_proof(proof, last)
        self._ticket.keep(last)

    def _begin(self, is_private: bool) -> ScramClient:
        check_channel(is_encrypted=is_private, is_loopback=False)
        return ScramClient(self.user, encode_nonce(SYSTEM.get().secret_bytes(NONCE_BYTES)))

    def _has_key(self, challenge: Challenge) -> bool:
        return self._key is not None and challenge.fits(self._key)

    def _derive(self, challenge: Challenge) -> SaltedKey:
        return derive_key(self._password, challenge.salt, challenge.iterations)

    def _prove(self, challenge: Challenge) -> ScramProof:
        assert self._key is not None  # made for this challenge
        return ScramProof(challenge, self._key)

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Make the error of a refused login name the user, or say that the broker knows no
        users.
        """
        try:
            yield
        except UnknownOpcode:
            raise NotAuthenticated(
                "this broker is of a release that has no users: upgrade it, or name no user"
            ) from None
        except NotAuthenticated as error:
            raise NotAuthenticated(f"{error} (user {self.user})") from None


def login_step(reply: object) -> LoginStep:
    """Return a step of a login. Raises `RemoteProtocolError` for another reply."""
    if not isinstance(reply, LoginStep):
        raise RemoteProtocolError(f"a login was answered by a {type(reply).__name__}")
    return reply


def _check_proof(proof: ScramProof, last: LoginStep) -> None:
    """Raise `RemoteProtocolError` unless the broker proved its identity and logged in the user."""
    proof.check(last.message)
    if not last.done:
        raise RemoteProtocolError("the broker proved its identity, and did not log in the user")


class TokenCredentials:
    """A token, for all connections of one client."""

    __slots__ = ("_source", "_ticket", "_told", "user")

    def __init__(
        self, source: TokenSource, user: str = "", store: TicketStore | None = None
    ) -> None:  # fmt: skip
        """Log in by what `source` is or gives; with a `user`, as nobody else. Its ticket is in
        `store`, if that is given.
        """
        self._source = source
        #: The token that others were renewed by last.
        self._told = b""
        self._ticket = LoginTicket(store)
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
            raise RemoteProtocolError("the broker accepted the token, and did not log in its user")
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
            raise NotAuthenticated(
                f"a blocking client takes its token as text: pass the token itself, or set {TOKEN}"
            )
        token = _token_of(self._source)
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
        return _token_of(found)


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
                log.warning("a token could not be renewed; it is tried again: %s", error)
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
        raise RemoteProtocolError("the broker accepted the token, and did not say for how long")
    return float(reply.message)


#: The identity of a client.
AnyCredentials = Credentials | TokenCredentials


def find_credentials(
    user: str,
    password: str | os.PathLike[str] | None,
    token: TokenSource | None,
    hosts: Sequence[tuple[str, int]] = (),
    store: TicketStore | None = None,
) -> AnyCredentials | None:
    """Return who a client is that is told so much, and is told the rest by the environment: a user
    with a password, or a token; None: nobody. Its ticket is in `store`, if that is given: not that
    of a token without a user, which may be another user's each time. Raises `ValueError` and
    `OSError`.
    """
    if token is not None and password is not None:
        raise ValueError("give a password or a token, not both")
    if not user and password is not None:
        raise ValueError("a password needs a user: weir://USER@HOST")
    if token is None and user:
        return Credentials(user, find_password(user, password, hosts), store)
    found = find_token(token)
    return None if found is None else TokenCredentials(found, user, store if user else None)


def find_token(given: TokenSource | None = None) -> TokenSource | None:
    """Return the token that is `given`, or that the environment names; None if neither does."""
    if given is not None:
        return given
    if token := os.environ.get(TOKEN):
        return token
    return Path(path) if (path := os.environ.get(TOKEN_FILE)) else None


def _token_of(found: object) -> bytes:
    if not isinstance(found, str) or not found.isascii() or not found.strip():
        raise NotAuthenticated(
            "no token to log in with: give a JWT, as ASCII text that is not empty"
        )
    if len(found) > TOKEN_BYTES_MAX:
        raise NotAuthenticated(
            f"the token has more than {TOKEN_BYTES_MAX:,} bytes: ask its issuer for one with fewer "
            "claims"
        )
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
