"""The user of a query, whose password each process finds for itself.

    .option("url", "weirs://ann@broker1?ca=ca.pem")     the password as below
    .option("user", "ann")                              the same, beside the url
    .option("passwordFile", "/run/secrets/weir")        a file of mode 0600 on each machine

Without `passwordFile` the environment of the process says it, as it does for other clients:
WEIR_PASSWORD, or WEIR_PASSWORD_FILE. Where the set issues tokens, tasks that read get one from the
driver, and need no password (`weir.spark.tokens`). Spark writes options, plans and offsets to logs,
pages and checkpoints, so all of them hold names alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from weir.client.arguments import PORT, parse_url
from weir.client.connection.credentials import (
    PASSWORD,
    PASSWORD_FILE,
    AnyCredentials,
    Credentials,
    TokenCredentials,
    find_password,
    split_user,
)
from weir.errors import BadOption

Place = tuple[str, int]
Hosts = tuple[Place, ...]

#: Options with the brokers' addresses, the user, and the files for logins; as users write them.
NAMES = (
    "url", "host", "port", "user", "passwordFile", "ca", "certificate", "key", "serverName",
)  # fmt: skip
#: Those that name files of TLS, by what a URL calls them.
_FILES = {"ca": "ca", "certificate": "certificate", "key": "key", "server_name": "serverName"}
#: What somebody may try, and what would be read by everybody who sees the plan.
_SECRETS = ("password", "token", "secret")


@dataclass(frozen=True, slots=True)
class Login:
    """A user, and the file that has its password: "" leaves that to the environment. Or a token of
    the user for some topics, by full names, as tasks get it from the driver.

    Tokens for the same topics renew each other, so a connection that came by one is used on.
    """

    user: str
    password_file: str = ""
    topics: tuple[str, ...] | None = None
    token: str = field(default="", compare=False, repr=False)


class LoginHosts(Hosts):
    """Hosts where a user logs in. They equal none that are reached as nobody, or as another user:
    connections are kept by hosts.
    """

    login: Login

    def __new__(cls, places: Iterable[Place], login: Login) -> LoginHosts:
        """Be these places."""
        made = super().__new__(cls, places)
        made.login = login
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoginHosts) and tuple.__eq__(self, other) and (
            self.login == other.login
        )  # fmt: skip

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((tuple(self), self.login))

    def __reduce__(self) -> tuple[Any, ...]:
        return LoginHosts, (tuple(self), self.login)


def alike(places: Iterable[Place], hosts: Hosts) -> Hosts:
    """Return other places of the system of `hosts`, to be asked as the same user."""
    return LoginHosts(places, hosts.login) if isinstance(hosts, LoginHosts) else tuple(places)


#: What was found in this process; a forked child may go on with it.
_found: dict[tuple[Login, Place], Credentials] = {}


def credentials_of(hosts: Hosts) -> AnyCredentials | None:
    """Return the credentials for hosts; None without a user. Raises `BadOption` if the password is
    not found here.
    """
    if not isinstance(hosts, LoginHosts):
        return None
    if hosts.login.token:
        return TokenCredentials(hosts.login.token, hosts.login.user)
    key = hosts.login, hosts[0]
    if key not in _found:
        user, file = hosts.login.user, hosts.login.password_file
        try:
            password = find_password(user, Path(file) if file else None, hosts)
        except (ValueError, OSError) as error:
            raise BadOption(
                f"{error}. That is so on each machine that runs tasks: set {PASSWORD} or "
                f"{PASSWORD_FILE} for executors, or give the option passwordFile; tasks that read "
                "need none once the set has a key for tokens (`weir token key add`)"
            ) from None
        _found[key] = Credentials(user, password)
    return _found[key]


def forget_credentials(hosts: Hosts) -> None:
    """Look for the password again when it is needed next: it was refused."""
    if isinstance(hosts, LoginHosts):
        for key in [key for key in _found if key[0] == hosts.login]:
            del _found[key]


def refuse_secrets(options: Mapping[str, str]) -> None:
    """Raise `BadOption` for an option that would hold a secret; names are in lower case."""
    if given := next((name for name in _SECRETS if name in options), None):
        raise BadOption(
            f"a {given} is no option, because Spark shows options in plans and logs: set "
            f"{PASSWORD} or {PASSWORD_FILE} where tasks run, or name a file of mode 0600 by "
            ".option('passwordFile', ...)"
        )


def hosts_of(options: Mapping[str, str]) -> Hosts:
    """Return hosts and credentials; `options` has names in lower case. Raises `BadOption`."""
    url = options.get("url")
    if url is not None and ("host" in options or "port" in options):
        raise BadOption("give either url or host and port, not both")
    try:
        if url is None:
            url = f"weir://{options.get('host', '127.0.0.1')}:{options.get('port', PORT)}"
        url, user = split_user(url)
        places = tuple(parse_url(_with_files(url, options)))
    except ValueError as error:
        raise BadOption(str(error)) from None
    named, file = options.get("user", ""), options.get("passwordfile", "")
    if user and named and user != named:
        raise BadOption(f"the url names user {user}, and the option user is {named!r}: give one")
    if not (user or named):
        if file:
            raise BadOption("option passwordFile needs a user: .option('user', 'ann'), say")
        return places
    return LoginHosts(places, Login(user or named, file))


def _with_files(url: str, options: Mapping[str, str]) -> str:
    """Return a URL with the files of TLS that options name. Raises `ValueError`."""
    given = {
        name: options[option.lower()]
        for name, option in _FILES.items()
        if option.lower() in options
    }
    if not given:
        return url
    if not url.startswith("weirs://"):
        option = _FILES[next(iter(given))]
        raise ValueError(f"option {option} is of TLS: write weirs:// in the url")
    query = "&".join(f"{name}={quote(value)}" for name, value in given.items())
    return f"{url}{'&' if '?' in url else '?'}{query}"
