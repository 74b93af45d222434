"""What was sent to a peer, or to another shard, and has not left this process: memory it holds."""

from __future__ import annotations

from weir.host.ports import Transport

#: While the budget is used up, a peer that takes none of its replies for so long is cut.
_STALL_SECONDS = 10.0


class UnsentBytes:
    """Bytes that are charged to a budget until they have left this process.

    The owner gives back to the budget what `release` and `drop` return.
    """

    __slots__ = ("_since", "deadline", "size")

    def __init__(self) -> None:
        """Begin without any."""
        #: How many there are.
        self.size = 0
        #: By when the other side has to take them, in seconds; 0 while it has time.
        self.deadline = 0.0
        #: Since which look the other side has taken none of them.
        self._since: float | None = None

    def release(self, transport: Transport) -> int:
        """Return how many have left since the last time."""
        sent = self.size - min(self.size, transport.get_write_buffer_size())
        if sent:
            self.size -= sent
            self._since = None
        return sent

    def drop(self) -> int:
        """Return how many there were: the transport is gone, and all of them with it."""
        dropped, self.size = self.size, 0
        return dropped

    def is_late(self, now: float) -> bool:
        """Return whether the time to take them is over."""
        return 0.0 < self.deadline <= now

    def is_stalled(self, now: float) -> bool:
        """Look whether they are taken; return whether none was for too long."""
        if self._since is None:
            self._since = now
        return self.size > 0 and now - self._since > _STALL_SECONDS
