"""Reads that must not be stale: each is served once a round of heartbeats has shown that this node
still led after it came, and all that was committed before is applied (dissertation §6.4).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import weir_raft as raft
from weir.broker.replica.refusals import refusal_of
from weir.errors import NotLeader, Refused

#: Told None when the read may be served, or why not.
Then = Callable[[Refused | None], None]


class Rounds:
    """The reads of one group that wait for their round, or for an entry to be applied."""

    __slots__ = ("_asked", "_confirmed", "_next")

    def __init__(self) -> None:
        """Begin with none."""
        self._next = 1
        self._asked: dict[int, Then] = {}
        #: Indices rise, for rounds end in the order in which they began.
        self._confirmed: deque[tuple[int, Then]] = deque()

    def begin(self, node: raft.Node, then: Then) -> bool:
        """Ask for a round, or answer at once where no other node could know better; return whether
        the node has something to send.
        """
        known = node.configuration
        if node.role is raft.Role.LEADER and known.voters == (node.leader,) and not known.outgoing:
            then(None)
            return False
        context, self._next = self._next, self._next + 1
        self._asked[context] = then
        try:
            node.read_index(context)
        except (raft.NotLeader, raft.NotReady) as error:
            del self._asked[context]
            then(refusal_of(error))
            return False
        return True

    def confirmed(self, read: raft.ReadState) -> None:
        """A round is over."""
        then = self._asked.pop(read.context, None)
        if then is not None:
            self._confirmed.append((read.index, then))

    @property
    def waiting(self) -> bool:
        """Whether a read that was confirmed waits for an entry."""
        return bool(self._confirmed)

    def applied(self, index: int) -> None:
        """Serve what may be served once entry `index` is applied."""
        while self._confirmed and self._confirmed[0][0] <= index:
            self._confirmed.popleft()[1](None)

    def lose(self, error: NotLeader) -> None:
        """This node leads no more: whoever leads next must be asked."""
        asked, self._asked = self._asked, {}
        confirmed, self._confirmed = self._confirmed, deque()
        for then in (*(then for _, then in confirmed), *asked.values()):
            then(error)
