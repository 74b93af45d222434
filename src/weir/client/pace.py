"""How many messages a consumer asks for at a time: what it handles in about a second."""

from __future__ import annotations

#: Seconds of work that a grant may hold: messages that wait in it are kept from other consumers.
WORK = 1.0
#: Of a lease, the part that the work of one grant may take.
_OF_LEASE = 0.125
_GROWTH = 4


class Pace:
    """Begins with single messages, and follows what was measured; `most` is the user's bound."""

    __slots__ = ("_most", "_work", "size")

    def __init__(self, most: int, lease: float) -> None:
        """Take the most messages of a grant, and the seconds of a lease."""
        self._most = most
        self._work = min(WORK, lease * _OF_LEASE)
        #: Messages to ask for.
        self.size = 1

    @property
    def ahead(self) -> bool:
        """Whether to have the next grant here before the last one is done: the work is quick."""
        return self.size > 1 or self._most == 1

    def restart(self) -> None:
        """Begin with single messages again."""
        self.size = 1

    def took(self, messages: int, seconds: float, partitions: int) -> None:
        """Learn that so many messages took so long; each of the `partitions` may grant some."""
        if messages < 1:
            return
        fits = messages * self._work / max(seconds, 1e-6) / max(partitions, 1)
        self.size = max(1, min(int(fits), self.size * _GROWTH, self._most))
