"""Sessions: the peers that are connected to this shard."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from weir.access.scram import ScramServer
from weir.access.tokens import UNLIMITED, SessionToken, TokenLimits
from weir.broker.runtime.budget import Budget
from weir.errors import BadRequest, NoHello
from weir.model.columns import epoch_of
from weir.model.ids import place_node
from weir.model.limits import PARKED_BYTES_MAX
from weir.protocol.client.declaration import Kind, Verb
from weir.protocol.device import DevicePublishes, DeviceRequest
from weir.protocol.frame import CLIENT_HEADER, ClientFrame
from weir.protocol.proof import Challenge, DeviceHello

ANONYMOUS = "anonymous"
#: What the principal of a shard begins with; no peer's has a colon in it.
SHARD = "shard:"
#: What a device's message costs in memory besides its bytes, roughly: list places and columns.
ROW_BYTES = 64


#: A session keeps so many decisions at once, and remembers so many resources that it used.
_DECISIONS_MAX = 4_096
#: What a decision hangs on: the opcode of the request, its group, its cluster.
DecisionKey = tuple[int, int, str]


class Asked(NamedTuple):
    """What somebody asks to be allowed: a verb with the resource of this full name; or, if `is_any`
    is set, with any of its kind, of the topic that is named, if one is.
    """

    verb: Verb
    kind: Kind
    name: str
    is_any: bool = False


class Decisions:
    """What a session was allowed, at one access version, and what it used since it was let in."""

    __slots__ = ("_allowed", "_version", "is_incomplete", "used")

    def __init__(self) -> None:
        """Nothing was allowed yet."""
        self._allowed: dict[DecisionKey, tuple[Asked, ...]] = {}
        self._version = -1
        #: What was used. `is_incomplete` if it was more than is remembered.
        self.used: dict[Asked, None] = {}
        self.is_incomplete = False

    def allowed(self, key: DecisionKey, version: int) -> tuple[Asked, ...] | None:
        """Return what a request uses that was allowed already; None if it was not, or if anything
        has changed since.
        """
        return self._allowed.get(key) if self._version == version else None

    def allow(self, key: DecisionKey, version: int, used: tuple[Asked, ...]) -> None:
        """A request is allowed at this access version."""
        if self._version != version or len(self._allowed) >= _DECISIONS_MAX:
            self._allowed.clear()
            self._version = version
        self._allowed[key] = used

    def use(self, asked: Asked) -> bool:
        """Something is used: the session ends with the right to it. Return whether it is new."""
        if asked in self.used:
            return False
        if len(self.used) < _DECISIONS_MAX:
            self.used[asked] = None
        else:
            self.is_incomplete = True
        return True


class Attempt(msgspec.Struct, frozen=True):
    """A login under way: the principal that it would be, empty if there is no such user, the access
    version at which it began, the name that it gave, and the line in which its failure counts.
    """

    server: ScramServer
    principal: str
    version: int
    user: str
    line: str


class DeviceSession(msgspec.Struct, eq=False):
    """A hub's connection: its identity, where its messages go, and the highest stamp it was told.

    There is one for a session: a later hello changes it, and only while nothing is in flight.
    """

    session: int
    hub: int
    boot: int
    group: int
    seen: int = 0
    #: Whether it proved its identity; how often its device was replaced, and its fleet's tag.
    is_verified: bool = False
    generation: int = 0
    tag: str = ""
    #: Publishes that wait for their replies; and whether its hello does, which another shard has.
    in_flight: int = 0
    awaits_welcome: bool = False

    @property
    def awaits_replies(self) -> bool:
        """Whether confirms or a welcome come later: a refusal now would overtake them."""
        return self.in_flight > 0 or self.awaits_welcome

    @property
    def epoch(self) -> int:
        """What its sequences are counted in."""
        return epoch_of(self.generation, self.boot)


class Session(msgspec.Struct, eq=False):
    """One connection: its principal, and whether it said hello in either dialect."""

    id: int
    opened_ms: int
    principal: str = ANONYMOUS
    welcomed: bool = False
    #: The address of its machine; empty if it is not known.
    address: str = ""
    #: The access version that it was let in at, where that is known; and what it was allowed and
    #: has used.
    admitted_at: int = 0
    _decisions: Decisions | None = None
    #: Whether nobody on the way can read along; where a peer that logs in comes from, as failures
    #: of logins are counted; the login that is under way; and whether a login has shown a ticket,
    #: be it good or not.
    is_private: bool = False
    origin: str = ""
    attempt: Attempt | None = None
    has_shown_ticket: bool = False
    #: The token that it came by, if it did.
    token: SessionToken | None = None
    #: The user, by its full name, whose certificate it has shown; empty: nobody's.
    certified: str = ""
    #: The hub and the generation of the device whose certificate it has shown.
    certified_device: tuple[int, int] | None = None
    #: When it ends by itself, in monotonic milliseconds; 0: never.
    ends_ms: int = 0
    #: Whether it takes notices about its connection.
    takes_notices: bool = False
    #: Whether another shard passes on what the peer asks; and which, by its place.
    passed: bool = False
    place: int = 0
    #: What a device's hello named.
    hub: int = 0
    device: DeviceSession | None = None
    #: The hello of a hub that must prove itself, and what it was asked.
    asked: tuple[DeviceHello, Challenge] | None = None
    #: The hub that did, and its generation; by which version of its fleet's key, and at which
    #: level, where this shard has checked that itself.
    proven: tuple[int, int] | None = None
    proven_by: tuple[int, int] | None = None
    #: Whether it has waited until its device counted as used.
    has_waited: bool = False
    #: The place that took its hello.
    device_place: int = -1
    #: What came while it has to wait for news of the registry; None while it need not.
    parked: list[ClientFrame | DeviceRequest] | None = None
    #: Whether that waits for a quota, and for no news.
    awaits_quota: bool = False
    #: What is charged for what is parked.
    parked_bytes: int = 0

    @classmethod
    def opened(
        cls, number: int, now_ms: int, principal: str, place: int, address: str = ""
    ) -> Session:
        """Begin one; with a `principal` the peer is connected elsewhere, at `place`."""
        if principal:
            return cls(number, now_ms, principal, True, address, passed=True, place=place)
        return cls(number, now_ms, address=address)

    @property
    def decisions(self) -> Decisions:
        """What it was allowed, and what it used; there is nothing of that in an open set."""
        if self._decisions is None:
            self._decisions = Decisions()
        return self._decisions

    @property
    def used(self) -> Iterable[Asked]:
        """What it has used since it was let in, as far as that was looked at."""
        return self._decisions.used if self._decisions is not None else ()

    @property
    def awaits_admission(self) -> bool:
        """Whether only its certificate identifies it so far."""
        return bool(self.certified) and self.principal == ANONYMOUS and not self.greeted

    @property
    def limits(self) -> TokenLimits:
        """What the token that it came by is limited to."""
        return UNLIMITED if self.token is None else self.token.limits

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
        if self.parked_bytes + size > PARKED_BYTES_MAX:
            return False
        self.parked = [*(self.parked or ()), *frames]
        self.parked_bytes += size
        budget.take(size)
        return True

    def take_kept(self, budget: Budget) -> Sequence[ClientFrame | DeviceRequest]:
        """Return what was parked: it need not wait any more."""
        frames, self.parked = self.parked or (), None
        budget.release(self.parked_bytes)
        self.parked_bytes = 0
        return frames

    def begin_device(
        self, hub: int, boot: int, group: int, proved: tuple[int, str] | None = None
    ) -> None:
        """Take a device's hello. It has `proved` its identity, if there is a generation and its
        fleet's tag. Raises `BadRequest` if it changes something too early.

        Replies of two partitions would overtake each other, and the new one could stamp below what
        is about to be confirmed in the old one.
        """
        is_verified, (generation, tag) = proved is not None, proved or (0, "")
        device = self.device
        if device is None:
            self.device = DeviceSession(self.id, hub, boot, group, 0, is_verified, generation, tag)
            return
        before = device.hub, device.boot, device.group, device.is_verified, device.generation
        if (*before, device.tag) == (hub, boot, group, is_verified, generation, tag):
            return
        if device.in_flight:
            raise BadRequest(
                f"{device.in_flight} publishes wait for their replies: say hello again after them"
            )
        device.hub, device.boot, device.group = hub, boot, group
        device.is_verified, device.generation, device.tag = is_verified, generation, tag

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
