"""`weir access rescue`: an administrator by who may write into a node's data folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

from weir.broker.metadata.security.access import RESCUER
from weir.client.access import AccessChange
from weir.client.client import Client, connect
from weir.errors import NotAuthenticated, WeirError
from weir.model.topic import split_name
from weir.server.disk.node_folder import NodeFolder
from weir.server.rescue import LOOK_SECONDS, offered

_TRIES = 5
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_TIMEOUT_SECONDS = 15.0


class NotRescued(WeirError):
    """The node does not run here, or did not take the file."""


def rescued(folder: Path, user: str, password: str, url: str = "") -> AccessChange:
    """Make a user an administrator with this password, by the node that runs on a folder. Raises
    `NotRescued`, `BadRequest`, and what a client raises.
    """
    with offered(folder) as secret:
        return asyncio.run(_rescue(url or _url_of(folder), secret, user, password))


def _url_of(folder: Path) -> str:
    place = NodeFolder(folder).endpoint()
    if place is None or not Path(f"/proc/{place.pid}").exists():
        raise NotRescued(f"no node runs on {folder}: start it, with more than half of its set")
    host = _EVERYWHERE.get(place.host, place.host)
    return f"weir://[{host}]:{place.port}" if ":" in host else f"weir://{host}:{place.port}"


async def _rescue(url: str, secret: str, user: str, password: str) -> AccessChange:
    scheme, _, place = url.partition("://")
    named = f"{scheme}://{quote(RESCUER, safe='')}@{place}"
    for _ in range(_TRIES):
        await asyncio.sleep(1.5 * LOOK_SECONDS)  # each shard looks for the file by itself
        try:
            async with connect(named, password=secret, request_timeout=_TIMEOUT_SECONDS) as client:
                return await _restore(client, user, password)
        except NotAuthenticated:
            continue
    raise NotRescued(
        f"the node at {url} does not take the file: give --data its folder, and be the user that "
        "it runs as, or root"
    )


async def _restore(client: Client, user: str, password: str) -> AccessChange:
    name = "/".join(split_name(user))
    users = {one.name for one in (await client.access.describe()).users}
    if name not in users:
        return await client.access.create_user(user, password, ["admin"])
    # In this order: whoever knows the old password must not be an administrator for a moment.
    await client.access.set_password(user, password)
    return await client.access.change_roles(user, add=["admin"])
