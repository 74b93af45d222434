"""What was sent to a peer and has not left this process: memory that the peer holds."""

from __future__ import annotations

from weir.broker.runtime.budget import Budget
from weir.host.ports import Transport

#: While the budget is used up, a peer that takes none of its replies for so long is cut.
_STALL_SECONDS = 10.0


class UnsentReplies:
    """Bytes of replies that are charged to the budget until they have left this process."""

    __slots__ = ("_budget", "_since", "size")

    def __init__(self, budget: Budget) -> None:
        """Give bytes back to `budget`."""
        self._budget = budget
        #: How many there are.
        self.size = 0
        #: Since which look the peer has taken none of them.
        self._since: float | None = None

    def release(self, transport: Transport) -> None:
        """Give back what has left since the last time."""
        sent = self.size - min(self.size, transport.get_write_buffer_size())
        if sent:
            self.size -= sent
            self._since = None
            self._budget.release(sent)

    def drop(self) -> None:
        """Give all back: the transport is gone."""
        self._budget.release(self.size)
        self.size = 0

    def is_stalled(self, now: float) -> bool:
        """Look whether the peer takes them; return whether it has taken none for too long."""
        if self._since is None:
            self._since = now
        return self.size > 0 and now - self._since > _STALL_SECONDS
