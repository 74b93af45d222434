"""Where to connect: weir://host[:port][,host2[:port2]]."""

from __future__ import annotations

import re

PORT = 6800
_SCHEME = "weir://"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\],]+))(?::(\d{1,5}))?")


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a URL, in its order. Raises `ValueError` for any other text."""
    hosts = []
    if url.startswith(_SCHEME):
        for part in url.removeprefix(_SCHEME).removesuffix("/").split(","):
            found = _HOST.fullmatch(part)
            port = int(found[3] or PORT) if found else 0
            if not found or not 1 <= port <= 65_535:
                break
            hosts.append((found[1] or found[2], port))
        else:
            return hosts
    raise ValueError(f"{url!r} is no address: write weir://host:port or weir://host1:port,host2")
