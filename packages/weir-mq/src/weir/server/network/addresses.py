"""The addresses that a node listens on: a port that all its shards share, and one of its own for
each; and, where nobody can listen on one, what to change.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from weir.errors import WeirError
from weir.server.config import Config, split_address

_ADVICE = {
    errno.EADDRINUSE: "is in use: stop what listens there, or give another {option}; port 0 takes "
    "a free one",
    errno.EADDRNOTAVAIL: "is no address of this machine: listen on 127.0.0.1, or on 0.0.0.0 for "
    "all its addresses",
    errno.EACCES: "is not allowed to this user: give a port from 1024 on",
}


class BadAddress(WeirError):
    """The address cannot be listened on."""


@contextmanager
def in_words(host: str, port: int, option: str) -> Iterator[None]:
    """Turn what the system says about an address into `BadAddress`, which names `option`.

    Any other `OSError` passes, as one about a file does.
    """
    try:
        yield
    except socket.gaierror as error:
        raise BadAddress(
            f"the host {host!r} is not known here ({error.strerror}): give an address of this "
            "machine, 127.0.0.1 for itself alone, or 0.0.0.0 for all of them"
        ) from None
    except OSError as error:
        # What a folder that may not be written to raises has a file name.
        if error.errno not in _ADVICE or error.filename is not None:
            raise
        advice = _ADVICE[error.errno].format(option=option)
        raise BadAddress(f"{host}:{port} {advice}") from None


class Ports(NamedTuple):
    """Where a node is reached: an address, the shared port there, the shards' own by number."""

    host: str
    shared: int
    own: tuple[int, ...]
    #: The shared port's sockets: for each address of the host as many as there are shards, for each
    #: lets only so many connections wait.
    listeners: tuple[socket.socket, ...]

    def leave(self) -> None:
        """Listen no more on the shared port, once every shard has closed it too."""
        for listener in self.listeners:
            listener.close()


@contextmanager
def reserved(host: str, port: int, shards: int) -> Iterator[Ports]:
    """Keep the ports while it lasts, so that a shard that starts again finds them free.

    A socket that is bound and does not listen gets no connections. All shards listen on all sockets
    of the shared port, and the system deals connections out to those: each shard accepts from one
    of them, and from the others the connections that have waited too long, because a shard that
    hangs accepts none. Each binds its own port again: while it is away, connections there are
    refused. Raises `OSError`.
    """
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found = [*dict.fromkeys((family, str(address[0])) for family, *_, address in places)]
    with ExitStack() as stack:
        listeners: list[socket.socket] = []
        for family, address in found:
            # They share it by SO_REUSEPORT, by which another node could slip in too.
            with _bound(family, address, port, shared=False) as probe:
                port = probe.getsockname()[1]
            for _ in range(max(shards, 1)):
                listeners.append(stack.enter_context(_bound(family, address, port)))
        own = [stack.enter_context(_bound(*found[0], 0)) for _ in range(shards)]
        numbers = tuple(one.getsockname()[1] for one in own)
        yield Ports(found[0][1], port, numbers, tuple(listeners))


def check_free(config: Config) -> None:
    """Raise `BadAddress`, or `OSError` of `node.port`, where the node could not listen.

    That is before anything is made: a start that fails founds no node.
    """
    with reserved(config.node.host, config.node.port, 0):
        pass
    if config.metrics.listen:
        host, port = split_address(config.metrics.listen)
        with in_words(host, port, "--metrics"), reserved(host, port, 0):
            pass


def _bound(family: int, address: str, port: int, shared: bool = True) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind((address, port))
    except BaseException:
        one.close()
        raise
    return one
