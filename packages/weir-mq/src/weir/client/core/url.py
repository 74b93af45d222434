"""Where to connect: weir://host[:port][,host2[:port2]].

weir://localhost                  one host, port 6800
weir://broker1:6800,broker2:6801  several of one system: whichever answers
weir://[::1]:6800                 an IPv6 address, in brackets
"""

from __future__ import annotations

import re

PORT = 6800
_SCHEME = "weir://"
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\],]+))(?::(\d{1,5}))?")
_PORT_MAX = 65_535


def parse_url(url: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a URL, in its order. Raises `ValueError` for any other text."""
    if not isinstance(url, str):
        raise TypeError(f"an address is text as in weir://host:port, not {type(url).__name__}")
    hosts = []
    if url.startswith(_SCHEME):
        for part in url.removeprefix(_SCHEME).removesuffix("/").split(","):
            found = _HOST.fullmatch(part.strip())
            port = int(found[3] or PORT) if found else 0
            if not found or not 1 <= port <= _PORT_MAX:
                break
            hosts.append((found[1] or found[2], port))
        else:
            return hosts
    raise ValueError(
        f"{url!r} is no address{_hint(url)}: write weir://host:port or weir://host1:port,host2"
    )


def _hint(url: str) -> str:
    """Return what is most likely wrong, as far as one can tell."""
    scheme, separator, rest = url.rpartition("://")
    if not separator:
        return f" (without the weir:// in front: weir://{url})" if _HOST.fullmatch(url) else ""
    if scheme != "weir":
        return f" (weir:// it is, not {scheme}://)"
    if "@" in rest:
        return " (it takes no user and no password)"
    if "/" in rest.removesuffix("/"):
        return " (it ends with the port: topics are named where they are used)"
    if rest.count(":") > 1 and "[" not in rest and "," not in rest:
        return f" (an IPv6 address stands in brackets: weir://[{rest}])"
    port = rest.rpartition(":")[2]
    if port.isdecimal() and not 1 <= int(port) <= _PORT_MAX:
        return f" (ports are 1 to {_PORT_MAX:,})"
    return ""
