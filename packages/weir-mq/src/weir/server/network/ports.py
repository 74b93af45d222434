"""The ports of a node of several shards: one that all share, and one of its own for each."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from weir.server.config.sections import Config, split_address
from weir.server.network.addresses import in_words


class Ports(NamedTuple):
    """Where a node is reached: an address, the shared port there, the shards' own by number."""

    host: str
    shared: int
    own: tuple[int, ...]
    #: The shared port's sockets: for each address of the host as many as there are shards, for each
    #: lets only so many connections wait.
    doors: tuple[socket.socket, ...]

    def leave(self) -> None:
        """Listen no more on the shared port, once every shard has closed it too."""
        for door in self.doors:
            door.close()


@contextmanager
def reserved(host: str, port: int, shards: int) -> Iterator[Ports]:
    """Keep the ports while it lasts, so that a shard that starts again finds them free.

    A socket that is bound and does not listen gets no connections. All shards listen on all sockets
    of the shared port, and the system deals connections out to those: each shard takes from one of
    them, and from the others who waits there too long, for one that stands still takes nobody. Each
    binds its own port again: while it is away, connections there are refused. Raises `OSError`.
    """
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    found = [*dict.fromkeys((family, str(address[0])) for family, *_, address in places)]
    with ExitStack() as stack:
        doors: list[socket.socket] = []
        for family, address in found:
            # They share it by SO_REUSEPORT, by which another node could slip in too.
            with _bound(family, address, port, shared=False) as probe:
                port = probe.getsockname()[1]
            for _ in range(max(shards, 1)):
                doors.append(stack.enter_context(_bound(family, address, port)))
        own = [stack.enter_context(_bound(*found[0], 0)) for _ in range(shards)]
        numbers = tuple(one.getsockname()[1] for one in own)
        yield Ports(found[0][1], port, numbers, tuple(doors))


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
