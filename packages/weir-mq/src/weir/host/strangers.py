"""Peers that have not said who they are: how much each may bring, for how long, and all together.

A connection is free until then, so what it holds is not a user's, and nobody misses it. A handshake
of TLS has a time limit of its own, which begins when its first step is done, not while it waits for
its turn behind thousands of others. It costs as much as hundreds of messages: when all devices of a
city come back at once, those that are in go first, so a turn of the loop does a few handshakes, and
the others wait in line.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, Protocol, TypeVar

from weir.host.ports import Log
from weir.model.ids import is_loopback
from weir.model.limits import STRANGER_BYTES_MAX, STRANGER_SECONDS
from weir.protocol.client.access import Login
from weir.protocol.client.declaration import opcode_of
from weir.protocol.frame import ClientFrame

#: All strangers together hold at most this part of a shard's budget.
BUDGET_PART = 8
#: What handshakes take of one turn, in seconds; the last one may end later.
TURN_SECONDS = 0.002

H = TypeVar("H")


class Peer(Protocol):
    """Who came."""

    session: int

    @property
    def address(self) -> str:
        """The address of the peer; empty if it has none."""

    def cut(self) -> None:
        """Close at once."""


_LOGIN = opcode_of(Login)
C = TypeVar("C", bound=Peer)


class Strangers(Generic[C]):
    """Peers that have said no hello yet, and what came from them."""

    __slots__ = ("_came", "_log", "_since", "encrypted", "limit", "refusals", "unopened", "used")

    def __init__(self, limit: int, log: Log) -> None:
        """Let all of them hold at most `limit` bytes."""
        self.limit = limit
        self._log = log
        #: By which code some are to be refused once they say hello, and why.
        self.refusals: dict[C, tuple[int, str]] = {}
        #: Those of which the shard is to hear when their handshake is done.
        self.unopened: set[C] = set()
        #: Those that came by TLS.
        self.encrypted: set[C] = set()
        self.used = 0
        #: How much came from each, who was silent longest first.
        self._came: OrderedDict[C, int] = OrderedDict()
        #: Since when, in seconds, each is in a handshake; who began first comes first.
        self._since: dict[C, float] = {}

    def __len__(self) -> int:
        return len(self._came)

    def brought(self, one: C, size: int) -> bool:
        """So many bytes came from one; return whether it may bring more.

        If all hold too much, those are cut that were silent longest.
        """
        if not size:
            return True
        came = self._came.get(one, 0) + size
        self._came[one] = came
        self._came.move_to_end(one)
        self.used += size
        while self.used > self.limit and len(self._came) > 1:
            other = next(iter(self._came))
            self.left(other)
            self._log.warning("session %d closed: strangers hold too much", other.session)
            other.cut()
        return came <= STRANGER_BYTES_MAX

    def shakes(self, one: C, now: float) -> None:
        """Count the time of a handshake from `now` on, in seconds, unless it is counted already."""
        self._since.setdefault(one, now)

    def waits(self, one: C) -> None:
        """Its handshake waits for its turn: that is no fault of its own."""
        self._since.pop(one, None)

    def shaken(self, one: C) -> None:
        """Its handshake is done: what it brought for that is gone, and it has yet to say hello."""
        self._since.pop(one, None)
        self.used -= self._came.pop(one, 0)

    def left(self, one: C) -> None:
        """It has said hello, or is gone."""
        self.shaken(one)
        self.refusals.pop(one, None)
        self.unopened.discard(one)
        self.encrypted.discard(one)

    def may_log_in(self, one: C, frame: object) -> bool:
        """Return whether a peer begins to log in, and nobody on the way to it can read along."""
        if not isinstance(frame, ClientFrame) or frame.opcode != _LOGIN:
            return False
        return one in self.encrypted or is_loopback(one.address)

    def cut_late(self, now: float) -> None:
        """Cut those whose handshakes take too long by `now`."""
        late = []
        for one, since in self._since.items():
            if now - since <= STRANGER_SECONDS:
                break
            late.append(one)
        for one in late:
            self.left(one)
            self._log.info("session %d closed: its TLS handshake took too long", one.session)
            one.cut()


class HandshakeTurns(Generic[H]):
    """Whose handshake goes on in this turn, and who waits, in order."""

    __slots__ = ("_spent", "_waiting")

    def __init__(self) -> None:
        """Begin a first turn."""
        self._spent = 0.0
        self._waiting: deque[H] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def may_step(self, one: H) -> bool:
        """Return whether one may go on now; if not, it waits for `next`."""
        if self._waiting or self._spent >= TURN_SECONDS:
            self._waiting.append(one)
            return False
        return True

    def stepped(self, seconds: float) -> None:
        """Charge the turn for a step."""
        self._spent += seconds

    def begin(self) -> None:
        """Begin another turn."""
        self._spent = 0.0

    def next(self) -> H | None:
        """Return who goes on now, and is to be charged for it; None if this turn is over."""
        if not self._waiting or self._spent >= TURN_SECONDS:
            return None
        return self._waiting.popleft()
