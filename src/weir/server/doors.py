"""Who may come in, how fast, and for how long without a word."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from weir.model.limits import (
    ACCEPT_BURST,
    ACCEPTS_PER_SECOND_DEFAULT,
    CONNECTIONS_MAX,
    FRAME_SECONDS,
    IDLE_SECONDS_DEFAULT,
)

#: Descriptors that are no connections: the log, its segments, the folder, other shards.
_OWN_DESCRIPTORS = 256


@dataclass(frozen=True, slots=True)
class Doors:
    """The limits of a shard's connections."""

    connections_max: int = CONNECTIONS_MAX
    #: Connections that are let in per second, once a burst of `ACCEPT_BURST` is used up.
    accepts_per_second: float = ACCEPTS_PER_SECOND_DEFAULT
    #: A device that says nothing for so long is let go; a ping is enough.
    idle_seconds: float = IDLE_SECONDS_DEFAULT
    #: A frame that was begun must be whole after so long.
    frame_seconds: float = FRAME_SECONDS


class Visitor(Protocol):
    """Who comes to the door."""

    @property
    def gone(self) -> bool:
        """Whether it has hung up."""

    def cut(self) -> None:
        """Close its connection at once."""


V = TypeVar("V", bound=Visitor)


class Lobby(Generic[V]):
    """A token bucket: those who come too fast wait, in turn, and nothing is read from them.

    Who hangs up meanwhile takes no token, else devices that lose patience and come again would keep
    out each other, and themselves.
    """

    __slots__ = ("_rate", "_then", "_tokens", "_waiting", "closed")

    def __init__(self, per_second: float, now: float) -> None:
        """Let `ACCEPT_BURST` in at once."""
        #: Whether all have to wait: the shard is not there yet.
        self.closed = False
        self._rate = per_second
        self._tokens = float(ACCEPT_BURST)
        self._then = now
        self._waiting: deque[V] = deque()

    def may_enter(self, peer: V, now: float) -> bool:
        """Return whether a peer may come in now; if not, it waits for `entering`."""
        if now != self._then:
            self._refill(now)
        if self.closed or self._waiting or self._tokens < 1:
            self._waiting.append(peer)
            return False
        self._tokens -= 1
        return True

    def entering(self, now: float) -> list[V]:
        """Return those who may come in by now; cut those who are gone."""
        self._refill(now)
        found: list[V] = []
        while not self.closed and self._waiting and self._tokens >= 1:
            peer = self._waiting.popleft()
            if peer.gone:
                peer.cut()
            else:
                self._tokens -= 1
                found.append(peer)
        return found

    def _refill(self, now: float) -> None:
        self._tokens = min(ACCEPT_BURST, self._tokens + self._rate * (now - self._then))
        self._then = now


def open_doors(doors: Doors) -> Doors:
    """Raise this process's limit of open files as far as it goes; return what that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = doors.connections_max + _OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        _make_room(wanted)
        return doors
    _make_room(soft)
    fewer = max(soft - _OWN_DESCRIPTORS, soft // 2)
    return Doors(fewer, doors.accepts_per_second, doors.idle_seconds, doors.frame_seconds)


def _make_room(descriptors: int) -> None:
    """Let the table of this process's descriptors be as large as it may have to be: 8 bytes each.

    The system doubles a full one, and who opens a file waits 5 to 15 ms for that where a process
    has several threads: all peers of a shard would, in the middle of a burst.
    """
    with contextlib.suppress(OSError):  # it can do without
        some = os.open(os.devnull, os.O_RDONLY)
        try:
            os.close(fcntl.fcntl(some, fcntl.F_DUPFD_CLOEXEC, descriptors - 1))
        finally:
            os.close(some)
