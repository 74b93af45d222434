"""How much may be in memory (DESIGN §8): one budget a shard, and pools for frames that are not
whole.

Frames that are not whole yet are read, or lose their connection. A frame is charged for bytes that
came, not for those it claims. Its first `FIRST_BYTES` go to a pool for beginnings. A larger frame
then asks for a reservation of its whole length, and is not read until it has one. A frame with a
reservation can always finish, so no two frames wait for each other. Both pools are apart from
`Budget`: whatever strangers send, what commits, acknowledgements, reads, links and Raft need is not
touched.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import Generic, TypeVar

import msgspec

from weir.errors import Overloaded
from weir.model.limits import (
    BUDGET_BYTES_DEFAULT,
    CLIENT_FRAME_BYTES_MAX,
    DEVICE_BODY_BYTES_MAX,
    KIB,
    RETRY_AFTER_MS,
)

#: What a frame may bring without a reservation: 64 KiB of body and any header. A connection has
#: no more before its hello.
FIRST_BYTES = DEVICE_BODY_BYTES_MAX + KIB
#: A reservation that is younger than this is not revoked.
REVOCABLE_SECONDS = 0.2
#: The pool holds at least so many frames of the largest kind.
LARGEST_FRAMES = 4
_LARGEST_BYTES = CLIENT_FRAME_BYTES_MAX + KIB
_FIRST_POOL_BYTES_MIN = 16 * FIRST_BYTES
#: Time between two events counts for at most this much: a process that stood still, or was busy,
#: has read nothing meanwhile, and that is not the fault of a peer.
_STEP_SECONDS_MAX = 0.05

K = TypeVar("K")


class Budget:
    """The bytes of one shard: charged while in memory, from the socket to the commit, and from the
    log to the peer. Above three quarters reading stops; above all of it publishes are refused.
    """

    __slots__ = ("_little", "_low", "high", "limit", "used")

    def __init__(self, limit: int = BUDGET_BYTES_DEFAULT) -> None:
        """Allow `limit` bytes."""
        self.limit = limit
        self.used = 0
        self._little = limit // 4
        #: Above so many bytes reading stops.
        self.high = limit // 4 * 3
        self._low = limit // 2

    def charge(self, size: int) -> None:
        """Take `size` bytes, or raise `Overloaded`: try again after a pause, nothing is lost.

        While little is in use anything passes: what is larger than the limit never would else.
        """
        used = self.used
        if used > self._little and used + size > self.limit:
            self.check(size)
        self.used = used + size

    def check(self, size: int) -> None:
        """Raise `Overloaded` if `charge` would; take nothing."""
        if self.used > self._little and self.used + size > self.limit:
            raise Overloaded(
                f"this shard holds {self.used:,} of {self.limit:,} bytes: try again shortly",
                RETRY_AFTER_MS,
            )

    def fits(self, size: int) -> bool:
        """Return whether `size` bytes are within the limit, however little is in use."""
        return self.used + size <= self.limit

    def has_room(self, size: int) -> bool:
        """Return whether `size` bytes may be taken now."""
        return self.used <= self._little or self.used + size <= self.limit

    def take(self, size: int) -> None:
        """Take `size` bytes that are in memory already and cannot be refused any more."""
        self.used += size

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self.used -= size

    def should_hold(self, holding: bool) -> bool:
        """Return whether to stop reading from peers, given whether reading is stopped now."""
        return self.used > (self._low if holding else self.high)

    @property
    def is_short(self) -> bool:
        """Whether more than half is in use: then namespaces are served in turn."""
        return self.used > self._low

    def is_news(self, holding: bool) -> bool:
        """Return whether `should_hold` says something else than it did last."""
        return (self.used > (self._low if holding else self.high)) != holding


class Unfinished(Generic[K]):
    """Bytes of frames that are not whole, by frame, in the order in which bytes came last."""

    __slots__ = ("_came", "limit", "used")

    def __init__(self, limit: int) -> None:
        """Hold at most `limit` bytes, or those of one frame."""
        self.limit = limit
        self.used = 0
        self._came: OrderedDict[K, int] = OrderedDict()

    def came(self, frame: K, size: int) -> None:
        """Of `frame` there are `size` bytes now; 0 forgets it."""
        before = self._came.get(frame, 0)
        self.used += size - before
        if not size:
            self._came.pop(frame, None)
            return
        self._came[frame] = size
        if size > before:
            self._came.move_to_end(frame)

    def overflow(self) -> list[K]:
        """Forget and return the frames that have waited longest for their next bytes, until the
        rest is within the limit. The frame that moved last is never among them.
        """
        found = []
        while self.used > self.limit and len(self._came) > 1:
            frame, size = self._came.popitem(last=False)
            self.used -= size
            found.append(frame)
        return found


class State(Enum):
    """What becomes of a frame."""

    #: It is read without a reservation.
    BEGUN = auto()
    #: It is not read until it has a reservation.
    WAITING = auto()
    #: It has a reservation, and is read to its end.
    RESERVED = auto()
    #: It lost its memory, because others brought bytes and it did not.
    EVICTED = auto()
    #: It lost its reservation to others that waited, because it was the slowest.
    REVOKED = auto()


class Incoming(msgspec.Struct, eq=False):
    """A frame of a connection that is not whole yet."""

    connection: int
    principal: str
    address: str
    state: State = State.BEGUN
    #: Bytes that have come.
    came: int = 0
    #: Bytes when it is whole; 0 until its header has come.
    size: int = 0
    granted_at: float = 0.0
    #: Bytes that had come when it got its reservation.
    came_before: int = 0

    @property
    def is_read(self) -> bool:
        """Whether the connection may be read, as far as this frame is concerned."""
        return self.state is not State.WAITING


class Turns:
    """Frames that wait for a reservation. Turns go round by principal, within a principal by
    address, and within an address by connection.
    """

    __slots__ = ("_principals", "count")

    def __init__(self) -> None:
        """Begin with none."""
        self.count = 0
        self._principals: OrderedDict[str, OrderedDict[str, OrderedDict[int, Incoming]]] = (
            OrderedDict()
        )

    def add(self, frame: Incoming) -> None:
        """Let a frame wait behind others of its address."""
        addresses = self._principals.setdefault(frame.principal, OrderedDict())
        addresses.setdefault(frame.address, OrderedDict())[frame.connection] = frame
        self.count += 1

    def head(self) -> Incoming | None:
        """Return the frame whose turn it is."""
        if not self.count:
            return None
        addresses = next(iter(self._principals.values()))
        return next(iter(next(iter(addresses.values())).values()))

    def remove(self, frame: Incoming, served: bool) -> None:
        """Take a frame out. If it was `served`, its address and principal go to the end."""
        addresses = self._principals[frame.principal]
        frames = addresses[frame.address]
        del frames[frame.connection]
        self.count -= 1
        if not frames:
            del addresses[frame.address]
        elif served:
            addresses.move_to_end(frame.address)
        if not addresses:
            del self._principals[frame.principal]
        elif served:
            self._principals.move_to_end(frame.principal)


class Reservations:
    """Decides about the unfinished frames of all clients and devices of a shard.

    It is told what came and what time it is. `advance` returns the frames whose state has changed;
    the host then reads, stops reading, or closes their connections.
    """

    __slots__ = ("_changed", "_clock", "_now", "_reserved", "_turns", "_unfinished", "evicted",
                 "limit", "reserved_bytes", "revoked")  # fmt: skip

    def __init__(self, budget_bytes: int, now: float) -> None:
        """Have a pool of a quarter of a shard's budget for first bytes, and one of half of it,
        and at least four of the largest frames, for reservations. `now` is in seconds.
        """
        self._unfinished: Unfinished[Incoming] = Unfinished(
            max(budget_bytes // 4, _FIRST_POOL_BYTES_MIN)
        )
        self.limit = max(budget_bytes // 2, LARGEST_FRAMES * _LARGEST_BYTES)
        self.reserved_bytes = 0
        #: How many frames lost their memory, or their reservation.
        self.evicted = self.revoked = 0
        self._reserved: dict[Incoming, None] = {}
        self._turns = Turns()
        self._changed: list[Incoming] = []
        self._clock = now
        self._now = 0.0

    @property
    def first_bytes(self) -> int:
        """Bytes of frames that have no reservation."""
        return self._unfinished.used

    @property
    def first_bytes_limit(self) -> int:
        """How many of those are allowed."""
        return self._unfinished.limit

    @property
    def waiting(self) -> int:
        """How many frames wait for a reservation."""
        return self._turns.count

    def arrived(self, frame: Incoming, came: int, size: int) -> None:
        """Of a frame of `size` bytes (0: not known yet) there are `came` now."""
        if frame.state is State.RESERVED:
            frame.came = came
        elif frame.state in (State.BEGUN, State.WAITING):
            frame.came, frame.size = came, size
            self._unfinished.came(frame, came)
            if frame.state is State.BEGUN and came >= FIRST_BYTES and size > FIRST_BYTES:
                frame.state = State.WAITING
                self._turns.add(frame)
                self._changed.append(frame)

    def ended(self, frame: Incoming) -> None:
        """A frame is whole, or its connection is over."""
        if frame.state is State.RESERVED:
            del self._reserved[frame]
            self.reserved_bytes -= frame.size
        else:
            self._unfinished.came(frame, 0)
            if frame.state is State.WAITING:
                self._turns.remove(frame, served=False)
        frame.state = State.BEGUN

    @property
    def is_due(self) -> bool:
        """Whether `advance` may have something to decide."""
        unfinished = self._unfinished
        return self._turns.count > 0 or unfinished.used > unfinished.limit

    def advance(self, now: float) -> list[Incoming]:
        """Decide what can be decided; return frames whose state has changed, each once."""
        self._now += min(max(now - self._clock, 0.0), _STEP_SECONDS_MAX)
        self._clock = now
        self._evict()
        while (frame := self._turns.head()) is not None:
            while self.reserved_bytes + frame.size > self.limit:
                if (slowest := self._slowest()) is None:
                    return self._take_changed()
                self._revoke(slowest)
            self._grant(frame)
        return self._take_changed()

    def _evict(self) -> None:
        for frame in self._unfinished.overflow():
            if frame.state is State.WAITING:
                self._turns.remove(frame, served=False)
            frame.state = State.EVICTED
            self.evicted += 1
            self._changed.append(frame)

    def _grant(self, frame: Incoming) -> None:
        self._turns.remove(frame, served=True)
        self._unfinished.came(frame, 0)
        frame.state = State.RESERVED
        frame.granted_at, frame.came_before = self._now, frame.came
        self._reserved[frame] = None
        self.reserved_bytes += frame.size
        self._changed.append(frame)

    def _slowest(self) -> Incoming | None:
        """Return the slowest reservation that may be revoked. The fastest of all may not, so that
        one frame at least gets through, however many wait and however slow all connections are.
        """
        fastest = max(self._reserved, key=self._rate)
        old = [
            frame
            for frame in self._reserved
            if frame is not fastest and self._now - frame.granted_at > REVOCABLE_SECONDS
        ]
        return min(old, key=self._rate, default=None)

    def _rate(self, frame: Incoming) -> float:
        """Return how many bytes a second a reservation has delivered."""
        age = max(self._now - frame.granted_at, REVOCABLE_SECONDS)
        return (frame.came - frame.came_before) / age

    def _revoke(self, frame: Incoming) -> None:
        del self._reserved[frame]
        self.reserved_bytes -= frame.size
        frame.state = State.REVOKED
        self.revoked += 1
        self._changed.append(frame)

    def _take_changed(self) -> list[Incoming]:
        changed, self._changed = self._changed, []
        return list(dict.fromkeys(changed))
