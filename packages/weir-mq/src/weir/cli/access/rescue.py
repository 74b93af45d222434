"""A client without a user: a file in the data folder of a node lets it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from weir.errors import NotAuthenticated, WeirError

if TYPE_CHECKING:
    from weir.client.client import Client

R = TypeVar("R")

_TRIES = 5
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_TIMEOUT_SECONDS = 15.0


class NotRescued(WeirError):
    """The node does not run here, or did not take the file."""


def rescued(folder: Path, work: Callable[[Client], Awaitable[R]], url: str = "") -> R:
    """Do `work` with a client that a file in the folder of a node lets in; return its result.

    The node runs on this machine. It is reached at `url`, or else by loopback. The file is removed
    behind the work, and is good for two minutes.

    Raises `NotRescued`, `BadRequest` where the file cannot be written, and what `work` raises.
    """
    import asyncio

    from weir.server.rescue import offered

    with offered(folder) as secret:
        return asyncio.run(_rescued(url or _url_of(folder), secret, work))


def _url_of(folder: Path) -> str:
    from weir.server.disk.node_folder import NodeFolder

    place = NodeFolder(folder).endpoint()
    if place is None or not Path(f"/proc/{place.pid}").exists():
        raise NotRescued(f"no node runs on {folder}: start it")
    host = _EVERYWHERE.get(place.host, place.host)
    return f"weir://[{host}]:{place.port}" if ":" in host else f"weir://{host}:{place.port}"


async def _rescued(url: str, secret: str, work: Callable[[Client], Awaitable[R]]) -> R:
    import asyncio
    from urllib.parse import quote

    from weir.broker.metadata.security.access import RESCUER
    from weir.cli.output import told_while
    from weir.client.client import connect
    from weir.server.rescue import LOOK_SECONDS

    scheme, _, place = url.partition("://")
    named = f"{scheme}://{quote(RESCUER, safe='')}@{place}"

    async def let_in() -> Client:
        for _ in range(_TRIES):
            await asyncio.sleep(1.5 * LOOK_SECONDS)  # each shard looks for the file by itself
            try:
                return await connect(named, password=secret, request_timeout=_TIMEOUT_SECONDS)
            except NotAuthenticated:
                continue
        raise NotRescued(
            f"the node at {url} does not take the file: give --data its folder, and be the user "
            "that it runs as, or root"
        )

    client = await told_while("waiting for the node", let_in())
    try:
        return await work(client)
    finally:
        await client.close()
