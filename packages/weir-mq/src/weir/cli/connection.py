"""What every verb that talks to a broker shares: `--url`, the event loop, and patience."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from weir.client.client import Client, Connecting

R = TypeVar("R")

Timeout = Annotated[
    str, typer.Option(help="Give up if no broker answers within this time at the start.")
]

#: A person waits at a terminal: long enough for a broker that is starting, and no longer.
TIMEOUT_SECONDS = 5.0

Url = Annotated[
    str,
    typer.Option("--url", envvar="WEIR_URL", show_envvar=True, help="The broker's address."),
]
DEFAULT_URL = "weir://localhost:6800"


def connected_for_ever(url: str, timeout: str, work: Callable[[Client], Awaitable[R]]) -> R:
    """Do as `connected` does, with `timeout` for the first connection; a broker that goes later is
    waited for without end, and stderr says so.
    """

    async def patiently(client: Client) -> R:
        from weir.cli.consume import for_ever

        return await for_ever(client, work, partial(_tell_away, url))

    return connected(url, patiently, first_timeout(timeout))


def first_timeout(timeout: str) -> float:
    """Return what `--timeout` says, in seconds. Raises `typer.BadParameter`."""
    from weir.cli.retention import duration

    seconds = duration("--timeout", timeout)
    if not seconds:
        raise typer.BadParameter("give more than 0s, as in 5s", param_hint="--timeout")
    return seconds


def _tell_away(url: str, away: bool) -> None:
    words = "is away: waiting for it (Ctrl-C ends)" if away else "is back"
    print(f"{url} {words}", file=sys.stderr, flush=True)


def connected(url: str, work: Callable[[Client], Awaitable[R]], timeout: float | None = None) -> R:
    """Connect within `timeout` seconds, by default `TIMEOUT_SECONDS`, do `work`, close; return what
    it returned. A wrong URL is a usage error.
    """
    import asyncio

    try:
        connecting = _connecting(url, timeout or TIMEOUT_SECONDS)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None

    async def run() -> R:
        async with connecting as client:
            return await work(client)

    return asyncio.run(run())


def changed(url: str, work: Callable[[Client], Awaitable[R]]) -> R:
    """Do as `connected` does for a change that shards have to keep to. One that is away is waited
    for, so stderr says how long that takes.
    """

    async def told(client: Client) -> R:
        from weir.cli.output import told_while

        return await told_while("waiting until all shards keep to it", work(client))

    return connected(url, told)


def _connecting(url: str, timeout: float) -> Connecting:
    """Return a client on its way, as `weir.connect` does, whose user has its ticket in a file: each
    command is a process of its own. Raises `ValueError` and `OSError`.
    """
    from weir.client.arguments import parse_url
    from weir.client.client import Connecting
    from weir.client.connection.credentials import find_credentials, split_user
    from weir.client.connection.ticket_file import ticket_file
    from weir.client.core.retries import Backoff

    places, user = split_user(url)
    hosts = parse_url(places)
    credentials = find_credentials(user, None, None, hosts, ticket_file(user, hosts))
    return Connecting(hosts, "weir-cli", Backoff(), timeout, credentials)
