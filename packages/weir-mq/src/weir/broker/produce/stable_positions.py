"""Positions of a partition that hold: nothing below the asked stamp is still on its way."""

from __future__ import annotations

from typing import NamedTuple

from weir.broker.produce.appender import Appender
from weir.broker.records.entries import StampsRaised, of_control
from weir.broker.replica.group import Group
from weir.broker.runtime.outbox import Caller, Outbox, Wait, Waits
from weir.broker.state.state import PartitionState
from weir.errors import Refused, Unavailable
from weir.order.clock import Time
from weir.protocol.client.messages import PositionsReply

#: Far above what a commit takes, and below what a client waits for an answer.
_WAIT_MS_MAX = 10_000


def positions_of(group: Group, state: PartitionState, stamp: int) -> PositionsReply:
    """Return where it begins, where it ends, and where messages from `stamp` on begin."""
    begin, end = state.log_start, state.decided_offset
    if not stamp:
        return PositionsReply(begin, end, begin)
    at = group.log.reader.offset_at(group.id, stamp)
    return PositionsReply(begin, end, end if at is None else min(max(at, begin), end))


class PositionWaiter(NamedTuple):
    """A question for the positions of a stamp, and the offset and bound to be committed first."""

    stamp: int
    behind: int
    bound: int


class StablePositions:
    """Answers who asks once what was accepted before is committed, while this node leads."""

    __slots__ = ("_appender", "_group", "_outbox", "_promised", "_state", "_time", "_waits")

    def __init__(
        self, group: Group, appender: Appender, state: PartitionState, outbox: Outbox, time: Time
    ) -> None:
        """Begin to lead; nobody waits yet."""
        self._group = group
        self._appender = appender
        self._state = state
        self._outbox = outbox
        self._time = time
        #: The highest bound that was proposed, so that the next leader knows it too.
        self._promised = 0
        self._waits: Waits[PositionWaiter] = Waits()

    def __len__(self) -> int:
        return len(self._waits)

    def ask(self, caller: Caller, stamp: int) -> None:
        """Stamp `stamp` or higher from now on, and answer once all that is accepted is committed.

        A stamp further ahead than a client may have seen is no bound: others may come below it.
        Raises `Overloaded` where nobody may wait, and what `Group.propose` does.
        """
        bound = self._appender.clock.clamp(self._time.wall_ms(), stamp - 1)
        self._appender.clock.raise_to(bound)
        bound = self._promise(bound)
        behind = self._appender.next_offset
        if self._is_kept(behind, bound):
            self._outbox.reply(caller, positions_of(self._group, self._state, stamp))
            return
        self._waits.check_room()
        deadline = self._time.monotonic_ms() + _WAIT_MS_MAX
        self._waits.add(Wait(caller, PositionWaiter(stamp, behind, bound), deadline))

    def _promise(self, bound: int) -> int:
        """Return the bound that must be committed: a promise holds beyond this leadership.

        A lone voter leads next itself, and its clock goes on.
        """
        if not self._group.has_others:
            return 0
        if bound > max(self._state.last_stamp, self._promised):
            self._group.propose(of_control(StampsRaised(bound)))
            self._promised = bound
        return bound

    def raise_above(self, promised: int) -> None:
        """Propose an entry that is stamped above all that was `promised`, unless there is one."""
        if promised > max(self._state.last_stamp, self._promised):
            stamp = self._appender.clock.stamp(self._time.wall_ms())
            self._group.propose(of_control(StampsRaised(stamp)))
            self._promised = stamp

    def _is_kept(self, behind: int, bound: int) -> bool:
        return self._state.decided_offset >= behind and self._state.last_stamp >= bound

    def answer_committed(self) -> None:
        """More is committed: answer those who waited for it."""
        while self._waits and self._is_kept(*self._waits.first().request[1:]):
            wait = self._waits.pop()
            positions = positions_of(self._group, self._state, wait.request.stamp)
            self._outbox.reply(wait.caller, positions)

    def expire(self) -> None:
        """Refuse those who waited for too long."""
        for wait in self._waits.ended(self._time.monotonic_ms()):
            slow = Unavailable("what is under way in this partition takes long: ask again shortly")
            self._outbox.refuse(wait.caller, slow)

    def end(self, error: Refused) -> None:
        """The topic is gone: refuse all who wait."""
        while self._waits:
            self._outbox.refuse(self._waits.pop().caller, error)

    def closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self._waits.closed(session)
