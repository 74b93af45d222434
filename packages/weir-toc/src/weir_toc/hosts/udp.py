"""One UDP socket: all that has come is read at once, and packets leave in as few calls as possible.

Beacons and data of a link go through one socket, so a barrier is read behind all that was queued
before it. Runs of packets of one size to one address leave in one call by UDP_SEGMENT, where the
kernel has it, in their order.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weir_toc.packet import PACKET_BYTES_MAX

Address = tuple[str, int]
Datagram = tuple[bytes, Address]
Loses = Callable[[], bool]

#: So many packets are read before anything else happens.
BURST_PACKETS = 512
#: What one call with UDP_SEGMENT may hold: the kernel's limits.
_SEGMENTS_MAX, _SEGMENTS_BYTES_MAX = 64, 65_000
_SOL_UDP, _UDP_SEGMENT = 17, 103
_BUFFER_BYTES = 4 << 20
_UINT16 = struct.Struct("=H")


@dataclass(slots=True)
class SocketCounters:
    """What the kernel did not take or give."""

    #: Packets that did not fit in the send buffer, or had no way to their address: they are lost.
    unsent: int = 0
    #: Calls that sent several packets.
    batches: int = 0
    #: Packets that were lost on purpose.
    lost: int = 0


class UdpSocket:
    """A bound socket that never blocks."""

    def __init__(
        self, local: Address, remote: Address | None = None, loses: Loses | None = None
    ) -> None:
        """With a `remote` address nothing is read from any other one.

        `loses` is asked for each packet to send whether it is lost: a benchmark wants some to be.
        """
        family = socket.getaddrinfo(*local, type=socket.SOCK_DGRAM)[0][0]
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.counters = SocketCounters()
        self._segments = True
        self._loses = loses
        try:
            self.socket.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            self.socket.bind(local)
            if remote is not None:
                self.socket.connect(remote)
        except OSError:
            self.socket.close()
            raise
        #: The only address that this socket talks to, or none.
        self.remote = remote or ("", 0)
        self.is_connected = remote is not None

    @property
    def address(self) -> Address:
        """Where this socket takes packets."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def read(self, packets_max: int = BURST_PACKETS) -> list[Datagram]:
        """Return the packets that have come, the oldest first; a longer one than any is cut."""
        found: list[Datagram] = []
        receive = self.socket.recvfrom
        for _ in range(packets_max):
            try:
                data, address = receive(PACKET_BYTES_MAX + 1)
            except BlockingIOError:
                break
            except OSError:
                continue  # what an earlier packet was answered with, once
            found.append((data, (address[0], address[1])))
        return found

    def send(self, packets: Iterable[tuple[bytes | bytearray, Address]]) -> None:
        """Send packets in this order. What the kernel does not take is lost, and counted."""
        run: list[bytes | bytearray] = []
        to: Address | None = None
        size = total = 0
        for data, address in self._kept(packets) if self._loses else packets:
            is_full = len(run) >= _SEGMENTS_MAX or total + len(data) > _SEGMENTS_BYTES_MAX
            # Only the last packet of a run may be shorter.
            if run and (address != to or is_full or len(data) > size or len(run[-1]) < size):
                self._send_run(run, to)
                run, total = [], 0
            if not run:
                to, size = address, len(data)
            run.append(data)
            total += len(data)
        if run:
            self._send_run(run, to)

    def _kept(
        self, packets: Iterable[tuple[bytes | bytearray, Address]]
    ) -> Iterator[tuple[bytes | bytearray, Address]]:
        """Yield the packets that are not lost on purpose."""
        for one in packets:
            if self._loses is not None and self._loses():
                self.counters.lost += 1
            else:
                yield one

    def _send_run(self, run: list[bytes | bytearray], to: Address | None) -> None:
        target = None if self.is_connected else to
        if len(run) > 1 and self._segments:
            size = _UINT16.pack(len(run[0]))
            try:
                self.socket.sendmsg(run, [(_SOL_UDP, _UDP_SEGMENT, size)], 0, target)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                    self._segments = False
                elif not isinstance(error, ConnectionRefusedError):
                    self.counters.unsent += len(run)
                    return
                # A refusal answers an earlier packet; this call sent nothing.
            else:
                self.counters.batches += 1
                return
        for data in run:
            self._send_one(data, target)

    def _send_one(self, data: bytes | bytearray, target: Address | None) -> None:
        for _ in range(2):
            try:
                self.socket.sendmsg([data], [], 0, target)
                return
            except ConnectionRefusedError:
                continue  # of an earlier packet
            except OSError:
                break
        self.counters.unsent += 1


#: How a host opens its socket; a test or benchmark gives one that loses packets.
OpenSocket = Callable[[Address, Address | None], UdpSocket]


def address_of(text: str) -> Address:
    """Return the address in `host:port`; port 0 takes any. Raises ValueError."""
    host, _, port = text.rpartition(":")
    with contextlib.suppress(ValueError):
        if host and 0 <= int(port) < 1 << 16:
            return host.strip("[]"), int(port)
    raise ValueError(f"{text!r} is not of the form host:port")
