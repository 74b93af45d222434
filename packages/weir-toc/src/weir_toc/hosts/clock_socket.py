"""Datagrams by which a clock is compared with the leader's, as in NTP: RFC 5905, section 8.

The kernel stamps a datagram as it comes, so the time that it waits for a busy program does not
count. A request and its answer have 40 bytes, big-endian:

    magic 8 bytes | nonce u64 | term u64 | reached u64 | answered u64, both in nanoseconds

A request has zeros behind its nonce; it is as long as its answer, so that nobody can have a member
send more than he sends. Answers with another nonce or term are not taken. The same comparison goes
over the control connection, for networks that carry no datagrams to the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from time import time_ns

from weir_toc.clock import Clock
from weir_toc.hosts.frames import Address

_FORMAT = struct.Struct("!8sQQQQ")
_MAGIC = b"weir-toc"
#: So many datagrams are read before anything else happens.
_BURST = 64
#: Answers that one node waits for. What is older is lost.
_ASKED_MAX = 8
#: SO_TIMESTAMPNS of Linux, which is also the type of the message that has the stamp.
_TIMESTAMP = 35
_TIMESPEC = struct.Struct("@qq")
_ABOUT_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_NS_PER_S = 1_000_000_000
#: A datagram that lay here for longer: the wall clock was set meanwhile.
_WAITED_MAX = _NS_PER_S

_About = Sequence[tuple[int, int, bytes]]


class _Datagrams(ABC):
    """A socket of the event loop, which takes datagrams until it is closed or fails."""

    def __init__(self, family: int) -> None:
        self._socket = _opened(family)
        self._is_read = False

    def _begin(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        self._is_read = True

    @abstractmethod
    def _read(self) -> None:
        """Take what is there."""

    def _receive(self) -> tuple[bytes, _About, Address] | None:
        """Return a datagram, what the kernel says about it, and its address; None if none is there.

        A socket that fails is read no more: the event loop is told so, once.
        """
        try:
            data, about, _, address = self._socket.recvmsg(_FORMAT.size + 1, _ABOUT_BYTES)
        except (BlockingIOError, InterruptedError, ConnectionRefusedError):
            return None  # nothing is left, or what was sent found nobody
        except OSError as error:
            self._end()
            asyncio.get_running_loop().call_exception_handler({
                "message": "Datagrams that compare clocks cannot be read. From now on clocks are "
                           "compared over control connections alone, which is less exact.",
                "exception": error,
            })  # fmt: skip
            return None
        return data, about, address

    def _end(self) -> None:
        if self._is_read:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._is_read = False

    def close(self) -> None:
        """Take nothing more."""
        self._end()
        self._socket.close()


class ClockAnswers(_Datagrams):
    """A member's side: answers who asks while this member leads."""

    def __init__(
        self, listening: socket.socket, now: Callable[[], int], term: Callable[[], int]
    ) -> None:
        """Bind to the address of `listening`. `now` gives the reference time, and `term` that in
        which this member leads: 0 if it does not. Raises OSError if the port is taken.
        """
        super().__init__(listening.family)
        self._now = now
        self._term = term
        try:
            self._socket.bind(listening.getsockname())
        except OSError:
            self._socket.close()
            raise
        self._begin()

    def _read(self) -> None:
        for _ in range(_BURST):
            received = self._receive()
            if received is None:
                return
            data, about, address = received
            term = self._term()
            if not term or len(data) != _FORMAT.size:
                continue
            magic, nonce, *_ = _FORMAT.unpack(data)
            if magic != _MAGIC:
                continue
            waited = _waited(about)
            reached = self._now() - waited
            answer = bytearray(_FORMAT.size)
            with contextlib.suppress(OSError):  # a full buffer: the node asks again
                _FORMAT.pack_into(answer, 0, _MAGIC, nonce, term, reached, self._now())
                self._socket.sendto(answer, address)


class ClockQuestions(_Datagrams):
    """A node's side: asks the leader, and gives the answers to the clock of the node."""

    def __init__(
        self, leader: tuple[str, int], term: int, clock: Clock, raw_clock: Callable[[], int]
    ) -> None:
        """`leader` is a numeric address, and `term` the one in which it leads."""
        super().__init__(socket.AF_INET6 if ":" in leader[0] else socket.AF_INET)
        self._term = term
        self._clock = clock
        self._raw_clock = raw_clock
        #: When each question left, by its nonce, in raw time.
        self._asked: dict[int, int] = {}
        with contextlib.suppress(OSError):  # no way for datagrams: what is sent is refused
            self._socket.connect(leader)
        self._begin()

    def ask(self) -> None:
        """Send one question, unless no answer can be read any more."""
        if not self._is_read:
            return
        nonce = int.from_bytes(os.urandom(8), "big")
        question = _FORMAT.pack(_MAGIC, nonce, 0, 0, 0)
        while len(self._asked) >= _ASKED_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[nonce] = self._raw_clock()
        with contextlib.suppress(OSError):  # nobody takes it there, or the buffer is full
            self._socket.send(question)

    def _read(self) -> None:
        for _ in range(_BURST):
            found = self._receive()
            if found is None:
                return
            data, about, _ = found
            waited = _waited(about)  # first: see there
            received = self._raw_clock() - waited
            if len(data) != _FORMAT.size:
                continue
            magic, nonce, term, reached, answered = _FORMAT.unpack(data)
            if magic == _MAGIC and term == self._term and nonce in self._asked:
                self._clock.sample(self._asked.pop(nonce), reached, answered, received)


def _opened(family: int) -> socket.socket:
    """Return a socket that does not block and whose datagrams the kernel stamps, where it can.

    It may begin to some time later: until then a wait counts, and makes the round trip longer.
    """
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)
    return made


def _waited(about: _About) -> int:
    """Return for how many nanoseconds a datagram has lain here; 0 if the kernel does not say.

    The clock of the host is to be read behind this: what passes between both then makes the round
    trip longer, never shorter, and the shortest ones are trusted.
    """
    for level, kind, stamp in about:
        if level == socket.SOL_SOCKET and kind == _TIMESTAMP and len(stamp) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(stamp)
            waited = time_ns() - (seconds * _NS_PER_S + nanoseconds)
            return waited if 0 <= waited <= _WAITED_MAX else 0
    return 0
