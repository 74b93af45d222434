"""Who a client is: a user and a password, where that is found, and how a connection logs in by it.

    weir://ann@localhost              user ann of the default namespace
    weir://shop%2Fann@broker1:6800    user ann of namespace shop

A password is never part of an address, which ends up in histories, logs and process lists.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from weir.access.credentials import SaltedKey, derive_key, prepare_password
from weir.access.scram import (
    MECHANISM,
    NONCE_BYTES,
    Challenge,
    ScramClient,
    ScramProof,
    check_channel,
    encode_nonce,
)
from weir.client.connection.system import SYSTEM, in_daemon
from weir.errors import NotAuthenticated, Refused, RemoteProtocolError, UnknownOpcode
from weir.protocol.client.access import Login, LoginStep

#: Where a password is looked for that is not given.
PASSWORD, PASSWORD_FILE = "WEIR_PASSWORD", "WEIR_PASSWORD_FILE"
#: What others than the owner may do with a file of a password: nothing.
_OTHERS = 0o077
_FILE_BYTES_MAX = 4_096


class Asking(Protocol):
    """A connection, as far as a login needs it."""

    @property
    def is_private(self) -> bool:
        """Whether nobody on the way can read along."""

    async def request(self, request: Login, timeout: float) -> object:
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


def find_password(user: str, given: str | os.PathLike[str] | None = None) -> str:
    """Return the password of a user: what is `given`, as text or as the path of a file; else by the
    environment. Raises `ValueError` if there is none, `OSError` for a file that cannot be read.
    """
    if isinstance(given, str):
        return given
    if given is not None:
        return read_password_file(Path(given))
    if (password := os.environ.get(PASSWORD)) is not None:
        return password
    if path := os.environ.get(PASSWORD_FILE):
        return read_password_file(Path(path))
    raise ValueError(
        f"user {user} needs a password: set the environment variable {PASSWORD}, or name a file of "
        f"mode 0600 by {PASSWORD_FILE}"
    )


def read_password_file(path: Path) -> str:
    """Return the first line of a file that only its owner may read. Raises `ValueError` for one
    that others may, or that is too long; `OSError`.
    """
    with path.open("rb") as file:
        others = os.fstat(file.fileno()).st_mode & _OTHERS
        if others:
            raise ValueError(f"others may read {path}: chmod 600 {path}, and set a new password")
        data = file.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise ValueError(f"{path} is no password: over {_FILE_BYTES_MAX:,} bytes")
    try:
        return data.decode().partition("\n")[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no password: it is not UTF-8") from None


class Credentials:
    """A user and its password, for all connections of one client. What is made of the password for
    a set's salt is kept: that takes 30 ms once, not at each connection.
    """

    __slots__ = ("_key", "_password", "user")

    def __init__(self, user: str, password: str) -> None:
        """Be `user`. Raises `BadRequest` for what can be no password."""
        prepare_password(password)
        self.user = user
        self._password = password
        self._key: SaltedKey | None = None

    def __repr__(self) -> str:
        """Show no password."""
        return f"Credentials(user={self.user!r})"

    async def log_in(self, connection: Asking, timeout: float) -> None:
        """Log in by a connection, before hello; each step may take `timeout` seconds.

        Raises `NotAuthenticated`, also before anything is sent where others could read along;
        `RemoteProtocolError` for a broker that does not know the user's password either.
        """
        check_channel(is_encrypted=connection.is_private, is_loopback=False)
        client = ScramClient(self.user, encode_nonce(SYSTEM.get().secret_bytes(NONCE_BYTES)))
        challenge = client.challenged((await self._ask(connection, client.first, timeout)).message)
        proof = ScramProof(challenge, await self._key_for(challenge))
        last = await self._ask(connection, proof.final, timeout)
        proof.check(last.message)
        if not last.done:
            raise RemoteProtocolError("the broker proved who it is, and let nobody in")

    async def _ask(self, connection: Asking, message: bytes, timeout: float) -> LoginStep:
        try:
            reply = await connection.request(Login(MECHANISM, message), timeout)
        except UnknownOpcode:
            raise NotAuthenticated(
                "this broker is of a release that has no users: upgrade it, or name no user"
            ) from None
        except NotAuthenticated as error:
            raise NotAuthenticated(f"{error} (user {self.user})") from None
        except Refused:
            raise
        if not isinstance(reply, LoginStep):
            raise RemoteProtocolError(f"a login was answered by a {type(reply).__name__}")
        return reply

    async def _key_for(self, challenge: Challenge) -> SaltedKey:
        if self._key is None or not challenge.fits(self._key):
            password, salt, iterations = self._password, challenge.salt, challenge.iterations
            self._key = await in_daemon(lambda: derive_key(password, salt, iterations))
        return self._key
