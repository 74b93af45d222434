"""One UDP socket: all that has come is read at once, and packets leave in as few calls as possible.

Beacons and data of a link go through one socket, so a barrier is read behind all that was queued
before it. Runs of packets of one size to one address leave in one call by UDP_SEGMENT, where the
kernel has it, in their order; by UDP_GRO they are read in one call, too. Packets of several
addresses or sizes leave by `sendmmsg`, and are read by `recvmmsg`.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from weir_toc.errors import CannotListen
from weir_toc.hosts.batches import BATCH_MAX, HAS_BATCHES, Inbox, Outlet, Sending, Train
from weir_toc.packet import split

Address = tuple[str, int]
Loses = Callable[[], bool]

#: So often is read, and so many bytes, before anything else happens.
BURST_READS, BURST_BYTES = 512, 256 << 10
#: Where runs have come that were so long, so few are read in one call: as many fill a burst.
_LONG_BYTES, _LONG_READS = 8 << 10, 4
#: What one call with UDP_SEGMENT may hold: the kernel's limits.
_SEGMENTS_MAX, _SEGMENTS_BYTES_MAX = 64, 65_000
_SOL_UDP, _UDP_SEGMENT, _UDP_GRO = 17, 103, 104
#: What Linux tells of a socket's memory: the last of nine numbers counts what found no room.
_SO_MEMINFO, _MEMINFO = 55, struct.Struct("=9I")
#: What the kernel may say about a read: the size of packets that it has merged.
_ABOUT_BYTES = socket.CMSG_SPACE(4)
_READ_BYTES = 1 << 16
_BUFFER_BYTES = 4 << 20
_UINT16, _INT = struct.Struct("=H"), struct.Struct("=i")


#: What to do where nothing can be taken at an address.
_ADVICE = {
    errno.EADDRINUSE: "another program has it: end that one, or take another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: give one that it has as --listen",
    errno.EACCES: "ports below 1024 need root: take a higher one",
    socket.EAI_NONAME: "nobody knows this name: give a numeric address as --listen",
}


def cannot_listen(address: Address, error: OSError) -> CannotListen:
    """Return the error of an address that a socket cannot be bound to, with what to do."""
    why = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return CannotListen(f"cannot listen at {address[0]}:{address[1]}: {why}")


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
        Raises CannotListen if `local` is in use, or none of this machine.
        """
        try:
            family = socket.getaddrinfo(*local, type=socket.SOCK_DGRAM)[0][0]
        except socket.gaierror as error:
            raise cannot_listen(local, error) from error
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.counters = SocketCounters()
        self._segments = True
        self._loses = loses
        self._buffer = b"" if HAS_BATCHES else bytearray(_READ_BYTES)
        try:
            self.socket.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            with contextlib.suppress(OSError):  # a kernel that merges nothing
                self.socket.setsockopt(_SOL_UDP, _UDP_GRO, 1)
            try:
                self.socket.bind(local)
            except OSError as error:
                raise cannot_listen(local, error) from error
            if remote is not None:
                self.socket.connect(remote)
        except (OSError, CannotListen):
            self.socket.close()
            raise
        #: The only address that this socket talks to, or none.
        self.remote = remote or ("", 0)
        self.is_connected = remote is not None
        self._inbox = Inbox() if HAS_BATCHES else None
        self._outlet = Outlet(family) if HAS_BATCHES and remote is None else None
        #: How many are read in one call.
        self._reads = BATCH_MAX
        #: Whether the last `read` took all that had come, rather than as much as it may.
        self.is_drained = False

    @property
    def address(self) -> Address:
        """Where this socket takes packets."""
        host, port = self.socket.getsockname()[:2]
        return host, port

    @property
    def kernel_drops(self) -> int:
        """How often the kernel dropped what came, as the receive buffer was full; 0 where no kernel
        tells. Packets that came in one piece count once.
        """
        if not sys.platform.startswith("linux"):
            return 0
        try:
            told = self.socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
        except OSError:  # it is closed, or the kernel is older than 4.12
            return 0
        return int(_MEMINFO.unpack(told)[-1]) if len(told) == _MEMINFO.size else 0

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def read(self, reads_max: int = BURST_READS) -> list[Train]:
        """Return the packets that have come, the oldest first: runs of one size in one piece.

        That is all, and the socket `is_drained`, unless it is more than a burst may be.
        """
        self.is_drained = False
        if self._inbox is not None:
            return self._read_batches(self._inbox, reads_max)
        found: list[Train] = []
        receive, buffer, view = self.socket.recvmsg_into, [self._buffer], memoryview(self._buffer)
        left = BURST_BYTES
        for _ in range(reads_max):
            if left <= 0:
                break
            try:
                length, about, _, address = receive(buffer, _ABOUT_BYTES)
            except BlockingIOError:
                self.is_drained = True
                break
            except OSError:
                continue  # what an earlier packet was answered with, once
            size = length
            left -= length
            for level, kind, value in about:
                if (level, kind) == (_SOL_UDP, _UDP_GRO):
                    (size,) = _INT.unpack(value)
            found.append(Train(bytes(view[:length]), (address[0], address[1]), size or 1))
        self.is_drained = self.is_drained or not found
        return found

    def _read_batches(self, inbox: Inbox, reads_max: int) -> list[Train]:
        found: list[Train] = []
        left = BURST_BYTES
        while left > 0 and reads_max > 0:
            count = min(self._reads, reads_max)
            reads_max -= count
            try:
                batch = inbox.read(self.socket.fileno(), count)
            except BlockingIOError:
                self.is_drained = True
                break
            except OSError:
                continue  # what an earlier packet was answered with, once
            read = sum([len(one.data) for one in batch])
            left -= read
            self._reads = _LONG_READS if read > _LONG_BYTES * len(batch) else BATCH_MAX
            found += batch
            if len(batch) < count:
                self.is_drained = True
                break
        self.is_drained = self.is_drained or not found
        return found

    def send(self, packets: Iterable[Sending]) -> None:
        """Send packets in this order. What the kernel does not take is lost, and counted."""
        packets = [*(self._kept(packets) if self._loses else packets)]
        if self._outlet is not None and self._outlet.takes_all(packets):  # such as beacons
            self._send_singles(packets)
            return
        run: list[bytes | bytearray] = []
        singles: list[Sending] = []
        to: Address = self.remote
        size = total = limit = 0
        for data, address, each in packets:
            if run and (address != to or each != size or total + len(data) > limit):
                self._leave(run, to, size, singles)
                run, total = [], 0
            if not run:
                to, size = address, each
                limit = each * max(1, min(_SEGMENTS_MAX, _SEGMENTS_BYTES_MAX // max(1, each)))
            if len(data) > limit:
                for at in range(0, len(data), limit):
                    self._leave([data[at : at + limit]], to, size, singles)
                continue
            run.append(data)
            total += len(data)
        if run:
            self._leave(run, to, size, singles)
        self._send_singles(singles)

    def _leave(
        self, run: list[bytes | bytearray], to: Address, size: int, singles: list[Sending]
    ) -> None:
        """Send a run behind the `singles`; let a single packet wait for others among them."""
        is_one = len(run) == 1 and len(run[0]) <= size
        if is_one and self._outlet is not None and self._outlet.takes(run[0], to):
            singles.append((run[0], to, size))
            return
        if singles:
            self._send_singles(singles)
            singles.clear()
        self._send_run(run, to, size)

    def _send_singles(self, singles: list[Sending]) -> None:
        if len(singles) > 1:
            assert self._outlet is not None
            self.counters.unsent += self._outlet.send(self.socket.fileno(), singles)
            self.counters.batches += 1
        elif singles:
            self._send_one(*singles[0][:2])

    def _kept(self, packets: Iterable[Sending]) -> Iterator[Sending]:
        """Yield the packets that are not lost on purpose."""
        for data, address, size in packets:
            for one in split(data, size):
                if self._loses is not None and self._loses():
                    self.counters.lost += 1
                else:
                    yield one, address, len(one)

    def _send_run(self, run: list[bytes | bytearray], to: Address, size: int) -> None:
        target = None if self.is_connected else to
        if self._segments and sum(map(len, run)) > size:
            try:
                self.socket.sendmsg(run, [(_SOL_UDP, _UDP_SEGMENT, _UINT16.pack(size))], 0, target)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EIO, errno.ENOPROTOOPT, errno.EOPNOTSUPP):
                    self._segments = False
                elif not isinstance(error, ConnectionRefusedError):
                    self.counters.unsent += sum(len(data) // size for data in run)
                    return
                # A refusal answers an earlier packet; this call sent nothing.
            else:
                self.counters.batches += 1
                return
        for data in run:
            for one in split(data, size):
                self._send_one(one, target)

    def _send_one(self, data: bytes | bytearray, target: Address | None) -> None:
        for _ in range(2):
            try:
                if target is None:
                    self.socket.send(data)
                else:
                    self.socket.sendto(data, target)
                return
            except ConnectionRefusedError:
                continue  # of an earlier packet
            except OSError:
                break
        self.counters.unsent += 1


#: How a host opens its socket; a test or benchmark gives one that loses packets.
OpenSocket = Callable[[Address, Address | None], UdpSocket]


def ends_towards(remote: Address) -> tuple[str, Address]:
    """Return the address of this host from which packets to `remote` leave, and `remote` as the
    kernel names it when packets come from there.
    """
    family = socket.getaddrinfo(*remote, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(remote)
        host, port = probe.getpeername()[:2]
        return probe.getsockname()[0], (host, port)


def address_of(text: str) -> Address:
    """Return the address in `host:port`; port 0 takes any. Raises ValueError."""
    host, _, port = text.rpartition(":")
    with contextlib.suppress(ValueError):
        if host and 0 <= int(port) < 1 << 16:
            return host.strip("[]"), int(port)
    raise ValueError(f"{text!r} is not of the form host:port")
