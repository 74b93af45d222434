"""What every verb that talks to a broker shares: `--url`, the event loop, and patience."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from weir.client.client import Client

R = TypeVar("R")

#: A person waits at a terminal: long enough for a broker that is starting, and no longer.
TIMEOUT_SECONDS = 5.0

Url = Annotated[
    str,
    typer.Option("--url", envvar="WEIR_URL", show_envvar=True, help="The broker's address."),
]
DEFAULT_URL = "weir://localhost:6800"


def connected(url: str, work: Callable[[Client], Awaitable[R]]) -> R:
    """Connect, do `work`, close; return what it returned. A wrong URL is a usage error."""
    import asyncio

    from weir.client.connect import connect

    try:
        connecting = connect(url, name="weir-cli", request_timeout=TIMEOUT_SECONDS)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--url") from None

    async def run() -> R:
        async with connecting as client:
            return await work(client)

    return asyncio.run(run())
