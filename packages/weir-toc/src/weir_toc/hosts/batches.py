"""Many datagrams of one socket in one call: recvmmsg and sendmmsg of the C library.

Each call of Python to the kernel takes more time than a beacon of forty bytes. Here the kernel is
given tables of messages that are made once; what differs is written into them before a call.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, chain
from operator import le
from typing import NamedTuple, cast

from weir_toc.hosts.frames import Address

#: So many datagrams in one call.
BATCH_MAX = 64
#: A datagram that is sent in a batch has so many bytes at most: all packets are smaller.
BATCHED_BYTES_MAX = 1_536
#: What may come as one: the kernel merges packets up to this size.
_ROOM_BYTES = 1 << 16
#: An address of the kernel has so many bytes at most, and what it says about a datagram.
_NAME_BYTES, _ABOUT_BYTES = 32, 32
_NAME_BYTES_OF: dict[int, int] = {socket.AF_INET: 16, socket.AF_INET6: 28}
#: So many addresses are remembered in the form of the kernel.
_KNOWN_MAX = 4_096

_SOL_UDP, _UDP_GRO = 17, 104


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class _Message(ctypes.Structure):
    """`struct mmsghdr`: a `struct msghdr`, and how long the datagram is."""

    _fields_ = (
        ("name", ctypes.c_void_p), ("name_bytes", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p), ("vector_count", ctypes.c_size_t),
        ("about", ctypes.c_void_p), ("about_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int), ("_", ctypes.c_int),
        ("length", ctypes.c_uint32),
    )  # fmt: skip


_MESSAGE_BYTES = ctypes.sizeof(_Message)
#: Of each message: the bytes of its name, what is said about it, and its length.
_READ = struct.Struct("=8xI4x8x8x8xQ8xI4x")
#: Level, kind and value of what the kernel says: the size of what it has merged.
_SAID = struct.Struct("=8xiii")
_SAID_BYTES = 20


#: Packets to send to one address, each of so many bytes, the last one perhaps shorter.
Sending = tuple[bytes | bytearray, Address, int]


class Train(NamedTuple):
    """Packets of one address that came at once: each of `size` bytes, the last perhaps shorter."""

    data: bytes
    address: Address
    size: int


#: `Train` of a tuple of its fields, without a function of Python: each read takes one.
_train = cast("Callable[[tuple[bytes, Address, int]], Train]", partial(tuple.__new__, Train))


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, or None where it has none, or has other tables."""
    if sys.platform != "linux" or _READ.size != _MESSAGE_BYTES:
        return None
    try:
        found: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    except OSError:
        return None
    return found


_recvmmsg, _sendmmsg = _function("recvmmsg"), _function("sendmmsg")

#: Whether this system can send and read several datagrams in one call.
HAS_BATCHES = _recvmmsg is not None and _sendmmsg is not None


class _Table:
    """Messages for the kernel, each with room for its name and its bytes."""

    def __init__(self, room: int, name_bytes: int, with_about: bool) -> None:
        # Anonymous memory: what is never written to takes none.
        self.data = mmap.mmap(-1, BATCH_MAX * room)
        self.names = bytearray(BATCH_MAX * name_bytes)
        self.about = bytearray(BATCH_MAX * _ABOUT_BYTES)
        vectors = (_Vector * BATCH_MAX)()
        messages = (_Message * BATCH_MAX)()
        self._data_start, names = _start_of(self.data), _start_of(self.names)
        about = _start_of(self.about)
        for at, (message, vector) in enumerate(zip(messages, vectors, strict=True)):
            vector.base, vector.length = self._data_start + at * room, room
            message.name, message.name_bytes = names + at * name_bytes, name_bytes
            message.vectors = ctypes.addressof(vectors) + at * ctypes.sizeof(_Vector)
            message.vector_count = 1
            if with_about:
                message.about, message.about_bytes = about + at * _ABOUT_BYTES, _ABOUT_BYTES
        self.start = ctypes.addressof(messages)
        self.messages = memoryview(messages).cast("B")
        #: Words of the same memory: where the bytes of a message are, and how many.
        self._vectors = memoryview(vectors).cast("B").cast("L")

    def fill(self, datagrams: Sequence[bytes | bytearray], names: Sequence[bytes]) -> None:
        """Put datagrams into the first messages, one behind the other, with whole names."""
        lengths = [*map(len, datagrams)]
        starts = accumulate(lengths, initial=self._data_start)
        words = array("L", chain.from_iterable(zip(starts, lengths, strict=False)))
        self._vectors[: len(words)] = words
        self.data[: sum(lengths)] = b"".join(datagrams)
        joined = b"".join(names)
        self.names[: len(joined)] = joined


class Inbox:
    """Reads datagrams of a socket, several in one call."""

    def __init__(self) -> None:
        self._table = _Table(_ROOM_BYTES, _NAME_BYTES, with_about=True)
        self._blank = bytes(self._table.messages)
        self._addresses: dict[bytes, Address] = {}

    def read(self, fd: int, count: int) -> list[Train]:
        """Return what has come, the oldest first, `count` datagrams at most.

        Raises OSError, BlockingIOError if nothing has come.
        """
        assert _recvmmsg is not None
        table = self._table
        count = min(count, BATCH_MAX)
        size = count * _MESSAGE_BYTES
        table.messages[:size] = self._blank[:size]
        got = _recvmmsg(fd, ctypes.c_void_p(table.start), count, socket.MSG_DONTWAIT, None)
        if got < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        found = []
        data, names, known = table.data, bytes(table.names), self._addresses
        at = name_at = 0
        for name_bytes, about_bytes, length in _READ.iter_unpack(
            table.messages[: got * _MESSAGE_BYTES]
        ):
            name = names[name_at : name_at + name_bytes]
            address = known.get(name) or self._learn(name)
            merged = self._merged(name_at) if about_bytes else 0
            found.append(_train((data[at : at + length], address, merged or length or 1)))
            at += _ROOM_BYTES
            name_at += _NAME_BYTES
        return found

    def _merged(self, at: int) -> int:
        """The size of the packets that the kernel has merged; 0 if it says something else."""
        level, kind, value = _SAID.unpack_from(self._table.about, at)
        return value if (level, kind) == (_SOL_UDP, _UDP_GRO) else 0

    def _learn(self, name: bytes) -> Address:
        if len(self._addresses) >= _KNOWN_MAX:
            self._addresses.clear()
        return self._addresses.setdefault(name, _address_of(name))


class Outlet:
    """Sends datagrams from a socket, several in one call."""

    def __init__(self, family: int) -> None:
        self._family = family
        self._table = _Table(BATCHED_BYTES_MAX, _NAME_BYTES_OF[family], with_about=False)
        self._names: dict[Address, bytes | None] = {}

    def takes(self, data: bytes | bytearray, to: Address) -> bool:
        """Whether a datagram can be sent in a batch: it is small, and its address is numeric."""
        return len(data) <= BATCHED_BYTES_MAX and self._name_of(to) is not None

    def takes_all(self, packets: Sequence[Sending]) -> bool:
        """Whether all can be sent in a batch, and none is in a run: no two go to one address."""
        known = self._names
        names = {known[to] if to in known else self._name_of(to) for _, to, _ in packets}
        if len(names) < len(packets) or None in names:
            return False
        lengths = [len(data) for data, _, _ in packets]
        sizes = [size for _, _, size in packets]
        return max(lengths, default=0) <= BATCHED_BYTES_MAX and all(map(le, lengths, sizes))

    def send(self, fd: int, packets: Sequence[Sending]) -> int:
        """Send packets that it takes, in this order; return how many the kernel did not take."""
        unsent = 0
        for first in range(0, len(packets), BATCH_MAX):
            some = packets[first : first + BATCH_MAX]
            names = [self._name_of(to) or b"" for _, to, _ in some]
            self._table.fill([data for data, _, _ in some], names)
            unsent += self._send(fd, len(some))
        return unsent

    def _send(self, fd: int, count: int) -> int:
        assert _sendmmsg is not None
        table = self._table
        done = unsent = 0
        refused = False
        while done < count:
            start = ctypes.c_void_p(table.start + done * _MESSAGE_BYTES)
            sent = _sendmmsg(fd, start, count - done, socket.MSG_DONTWAIT)
            if sent > 0:
                done += sent
                refused = False
            elif ctypes.get_errno() == errno.ECONNREFUSED and not refused:
                refused = True  # it answers an earlier datagram, once
            else:
                unsent += 1
                done += 1
                refused = False
        return unsent

    def _name_of(self, to: Address) -> bytes | None:
        try:
            return self._names[to]
        except KeyError:
            if len(self._names) >= _KNOWN_MAX:
                self._names.clear()
            return self._names.setdefault(to, _name_of(self._family, to))


def _start_of(buffer: mmap.mmap | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def _address_of(name: bytes) -> Address:
    """Return the address in a `struct sockaddr` of the kernel, as sockets of Python name it."""
    (port,) = struct.unpack_from(">H", name, 2)
    if int.from_bytes(name[:2], sys.byteorder) == socket.AF_INET6:
        return socket.inet_ntop(socket.AF_INET6, name[8:24]), port
    return socket.inet_ntoa(name[4:8]), port


def _name_of(family: int, to: Address) -> bytes | None:
    """Return the `struct sockaddr` of an address; None if it is a name, or of another family."""
    try:
        ip = socket.inet_pton(family, to[0])
    except OSError:
        return None
    head = family.to_bytes(2, sys.byteorder) + to[1].to_bytes(2, "big")
    return head + (ip + bytes(8) if family == socket.AF_INET else bytes(4) + ip + bytes(4))
