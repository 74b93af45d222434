"""Who is connected to this shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from weir.broker.runtime.budget import Budget
from weir.errors import BadRequest, NoHello
from weir.model.ids import place_node
from weir.model.limits import PARKED_BYTES_MAX
from weir.protocol.device import DevicePublishes, DeviceRequest
from weir.protocol.frame import CLIENT_HEADER, ClientFrame
from weir.protocol.proof import Challenge, DeviceHello

ANONYMOUS = "anonymous"
#: What the principal of a shard begins with; no peer's has a colon in it.
SHARD = "shard:"
#: What a device's message costs in memory besides its bytes, roughly: list places and columns.
ROW_BYTES = 64


class DeviceSession(msgspec.Struct, eq=False):
    """A hub's connection: who it is, where its messages go, and the highest stamp it was told.

    There is one for a session: a later hello changes it, and only while nothing is in flight.
    """

    session: int
    hub: int
    boot: int
    group: int
    seen: int = 0
    #: Publishes that wait for their replies.
    in_flight: int = 0


class Session(msgspec.Struct, eq=False):
    """One connection: its principal, and whether it said hello in either dialect."""

    id: int
    opened_ms: int
    principal: str = ANONYMOUS
    welcomed: bool = False
    #: Whether another shard passes on what the peer asks; and which, by its place.
    passed: bool = False
    place: int = 0
    #: What a device's hello named.
    hub: int = 0
    device: DeviceSession | None = None
    #: The hello of a hub that must prove itself, and what it was asked.
    asked: tuple[DeviceHello, Challenge] | None = None
    #: The hub that did, and its generation.
    proven: tuple[int, int] | None = None
    #: The place that took its hello.
    device_place: int = -1
    #: What came while it has to wait for news of the registry; None while it need not.
    parked: list[ClientFrame | DeviceRequest] | None = None
    #: What is charged for it.
    _parked_bytes: int = 0

    @classmethod
    def opened(cls, number: int, now_ms: int, principal: str, place: int) -> Session:
        """Begin one; with a `principal` the peer is connected elsewhere, at `place`."""
        if principal:
            return cls(number, now_ms, principal, welcomed=True, passed=True, place=place)
        return cls(number, now_ms)

    @property
    def is_shard(self) -> bool:
        """Whether this is another shard, and not a peer of one."""
        return self.passed and self.principal.startswith(SHARD)

    @property
    def foreign(self) -> bool:
        """Whether another node passes on what the peer asks."""
        return place_node(self.place) != 0

    @property
    def greeted(self) -> bool:
        """Whether the peer said hello."""
        return self.welcomed or self.device is not None

    def keep(self, frames: Sequence[ClientFrame | DeviceRequest], budget: Budget) -> bool:
        """Park frames, charged to `budget`; False, and nothing is kept, if that is too much."""
        size = sum(_bytes_of(frame) for frame in frames)
        if self._parked_bytes + size > PARKED_BYTES_MAX:
            return False
        self.parked = [*(self.parked or ()), *frames]
        self._parked_bytes += size
        budget.take(size)
        return True

    def take_kept(self, budget: Budget) -> Sequence[ClientFrame | DeviceRequest]:
        """Return what was parked: it need not wait any more."""
        frames, self.parked = self.parked or (), None
        budget.release(self._parked_bytes)
        self._parked_bytes = 0
        return frames

    def begin_device(self, hub: int, boot: int, group: int) -> None:
        """Take a device's hello. Raises `BadRequest` if it changes something too early.

        Replies of two partitions would overtake each other, and the new one could stamp below what
        is about to be confirmed in the old one.
        """
        device = self.device
        if device is None:
            self.device = DeviceSession(self.id, hub, boot, group)
        elif (device.hub, device.boot, device.group) != (hub, boot, group):
            if device.in_flight:
                raise BadRequest(
                    f"{device.in_flight} publishes wait for their replies: "
                    "say hello again after them"
                )
            device.hub, device.boot, device.group = hub, boot, group

    def check_welcomed(self) -> None:
        """Raise `NoHello` unless a client hello came first."""
        if not self.welcomed:
            raise NoHello("say hello first: the first frame of a connection is Hello")


def _bytes_of(frame: ClientFrame | DeviceRequest) -> int:
    if isinstance(frame, ClientFrame):
        return CLIENT_HEADER.size + len(frame.body)
    if isinstance(frame, DevicePublishes):
        return sum(map(len, frame.values)) + ROW_BYTES * len(frame.sns)
    return ROW_BYTES


class NewSessions:
    """Peers that have not said hello, in order of arrival: only they are looked at, however many
    are connected.
    """

    __slots__ = ("_queue", "_within_ms")

    def __init__(self, within_ms: int) -> None:
        """Expect hello within so many milliseconds."""
        self._within_ms = within_ms
        self._queue: deque[Session] = deque()

    def add(self, session: Session) -> None:
        """A peer connected."""
        self._queue.append(session)

    def overdue(self, now_ms: int) -> list[Session]:
        """Return those whose time is up, once, and forget those who said hello."""
        found = []
        while self._queue:
            session = self._queue[0]
            if not session.greeted:
                if now_ms - session.opened_ms <= self._within_ms:
                    break
                found.append(session)
            self._queue.popleft()
        return found
