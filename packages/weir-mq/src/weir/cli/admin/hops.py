"""Asking the relays of a topology, each within a bounded time, and all of them within another."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import quote

if TYPE_CHECKING:
    from weir.client.client import Client
    from weir.topology.sets import SetRow

T = TypeVar("T")

#: A relay that does not answer within so many seconds is shown as such.
RELAY_SECONDS = 3.0
#: So many are asked at once, and all within so many seconds: of 10,000 most may be away.
ASKED_AT_ONCE, ALL_SECONDS = 200, 15.0
_URL = re.compile(r"(?P<scheme>weirs?://)(?P<user>[^@/?]*@)?(?P<hosts>[^?]*)(?P<query>\?.*)?", re.S)


class Hop(NamedTuple, Generic[T]):
    """A place that was asked: its name, its address, and what it said, or why it said nothing."""

    name: str
    url: str
    found: T | None
    error: str = ""


def places_of(sets: Sequence[SetRow], url: str) -> list[tuple[str, str]]:
    """Return names and addresses of the nodes of sets that are relays, reached as `url` is."""
    return [
        (f"{row.name}/{node.number}", at(url, node.host, node.port))
        for row in sets
        if row.tier != "core"
        for node in row.nodes
    ]


def at(url: str, host: str, port: int) -> str:
    """Return the address of another node, to be reached as `url` is, by its own name."""
    found = _URL.fullmatch(url)
    name = host
    host = f"[{host}]" if ":" in host else host
    if found is None:
        return f"weir://{host}:{port}"
    pairs = (found["query"] or "?")[1:].split("&")
    kept = [pair for pair in pairs if pair and not pair.startswith("server_name=")]
    if found["scheme"] == "weirs://" and os.environ.get("WEIR_SERVER_NAME"):
        kept.append(f"server_name={quote(name)}")  # or that of the core would count
    query = f"?{'&'.join(kept)}" if kept else ""
    return f"{found['scheme']}{found['user'] or ''}{host}:{port}{query}"


async def ask_relays(
    places: Sequence[tuple[str, str]], ask: Callable[[Client], Awaitable[T]]
) -> list[Hop[T]]:
    """Return what the relays at `places` answer, in their order, or why there is no answer."""
    import asyncio

    from weir.client.client import connect
    from weir.errors import WeirError

    room = asyncio.Semaphore(ASKED_AT_ONCE)
    deadline = asyncio.get_running_loop().time() + ALL_SECONDS

    async def one(name: str, url: str) -> Hop[T]:
        try:
            async with asyncio.timeout_at(deadline), room:
                connecting = connect(url, name="weir-cli", request_timeout=RELAY_SECONDS)
                async with connecting as client:
                    return Hop(name, url, await ask(client))
        except TimeoutError:
            return Hop(name, url, None, f"the {ALL_SECONDS:.0f} s for all relays were over")
        except (WeirError, ValueError) as error:
            return Hop(name, url, None, str(error))

    return list(await asyncio.gather(*(one(name, url) for name, url in places)))
