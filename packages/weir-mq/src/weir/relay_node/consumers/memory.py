"""How much memory the requests of consumers may use at a relay while they await the core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from weir.errors import Overloaded
from weir.model.limits import MIB, RETRY_AFTER_MS
from weir.protocol.client import messages as m
from weir.relay_node.sessions import ReaderSession

#: Requests that await the core have so many bytes in all, and so many of one client: four acks of
#: as many ranges as one may have.
REQUESTS_BYTES_MAX = 64 * MIB
CLIENT_BYTES_MAX = 8 * MIB
#: A range, or a tag, with the objects that it is made of.
_ITEM_BYTES = 208


class RequestMemory:
    """The requests that await the core, by their clients."""

    def __init__(self) -> None:
        """There are none."""
        self.used = 0
        self._of = Counter[ReaderSession]()

    @contextmanager
    def held(self, session: ReaderSession, request: m.Request) -> Iterator[None]:
        """A request is kept meanwhile. Raises `Overloaded` if that would be too much."""
        size = size_of(request)
        if self.used + size > REQUESTS_BYTES_MAX or self._of[session] + size > CLIENT_BYTES_MAX:
            raise Overloaded(
                f"requests of consumers that await the core may have {CLIENT_BYTES_MAX:,} bytes at "
                f"this relay for a connection, and {REQUESTS_BYTES_MAX:,} in all: ask again once "
                "some are answered",
                RETRY_AFTER_MS,
            )
        self.used += size
        self._of[session] += size
        try:
            yield
        finally:
            self.used -= size
            self._of[session] -= size
            if not self._of[session]:
                del self._of[session]


def size_of(request: m.Request) -> int:
    """Return about how many bytes a decoded request uses beside its fixed part."""
    size = 0
    for name in request.__struct_fields__:
        value = getattr(request, name)
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, list | tuple):
            size += _ITEM_BYTES * len(value)
    return size
