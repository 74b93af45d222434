"""What a device's transport keeps of what its socket does not take."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc

from weir.server.network.socket_transport import WRITES, PlainTransport

COUNT = 50_000


class TransportWatcher:
    """Looks at one connection, when it is told to."""

    def watch(self, transport: PlainTransport, events: int) -> None:
        transport.events = events

    def sniff(self, transport: PlainTransport, data: bytes) -> bool:
        return True

    def soon(self, transport: PlainTransport) -> None:
        transport.end()

    def ended(self, transport: PlainTransport) -> None:
        transport.events = 0

    def failed(self, transport: PlainTransport, error: Exception) -> None:
        raise error


def test_small_replies_that_nobody_reads_take_what_they_are_charged_for() -> None:
    """An object for each would take thirty times as much, of which the budget would not know."""
    lock, end = socket.socketpair()
    with lock, end:
        transport = PlainTransport(TransportWatcher(), end, asyncio.Protocol())
        transport.set_write_buffer_limits(high=1 << 20)
        size = 0
        while not transport.get_write_buffer_size():
            transport.write(bytes(1 << 12))
            size += 1 << 12
        tracemalloc.start()
        try:
            for n in range(COUNT):
                transport.write(b"%011d" % n)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert 11 * COUNT <= transport.get_write_buffer_size() < 1 << 20
        assert taken < 2 * transport.get_write_buffer_size()
        found = bytearray()
        turns = 0
        while transport.events & WRITES:
            found += lock.recv(1 << 20)
            transport.turn()
            turns += 1
        transport.close()
        while data := lock.recv(1 << 20):
            found += data
    assert found[size:] == b"".join(b"%011d" % n for n in range(COUNT))
    assert turns < COUNT // 100, "what was kept goes out together"
