"""Positions that hold: nothing stamped below the asked stamp is still on its way."""

from __future__ import annotations

from collections.abc import Callable

from weir.broker.intake import Intake
from weir.broker.outbox import Caller, Outbox
from weir.broker.state import PartitionState
from weir.broker.waits import Wait, Waits
from weir.errors import Refused, Unavailable
from weir.order.clock import Time
from weir.wire.messages import PositionsReply

#: Far above what a commit takes, and below what a client waits for an answer.
_WAIT_MS_MAX = 10_000


class Settling:
    """Keeps who asks back until what was accepted before is committed, while this node leads."""

    __slots__ = ("_intake", "_outbox", "_state", "_time", "_waits")

    def __init__(self, intake: Intake, state: PartitionState, outbox: Outbox, time: Time) -> None:
        """Begin to lead; nobody waits yet."""
        self._intake = intake
        self._state = state
        self._outbox = outbox
        self._time = time
        #: With the offset that must be committed, and what answers then. Offsets never fall.
        self._waits: Waits[tuple[int, Callable[[], PositionsReply]]] = Waits()

    def __len__(self) -> int:
        return len(self._waits)

    def ask(self, caller: Caller, stamp: int, positions: Callable[[], PositionsReply]) -> None:
        """Stamp `stamp` or higher from now on, and answer once all that is accepted is committed.

        A stamp further ahead than a client may have seen is no bound: others may come below it.
        Raises `Overloaded` where nobody may wait.
        """
        self._intake.clock.raise_to(self._intake.clock.clamp(self._time.wall_ms(), stamp - 1))
        behind = self._intake.next_offset
        if self._state.next_offset >= behind:
            self._outbox.reply(caller, positions())
            return
        self._waits.check_room()
        deadline = self._time.monotonic_ms() + _WAIT_MS_MAX
        self._waits.add(Wait(caller, (behind, positions), deadline))

    def wake(self) -> None:
        """More is committed: answer those who waited for it."""
        while self._waits and self._waits.first().request[0] <= self._state.next_offset:
            wait = self._waits.pop()
            self._outbox.reply(wait.caller, wait.request[1]())

    def tick(self) -> None:
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
