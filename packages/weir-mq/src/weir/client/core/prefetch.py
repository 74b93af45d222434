"""How many messages a consumer asks for at a time: what it handles in about a second."""

from __future__ import annotations

import math

#: Seconds of work that a grant may hold: messages that wait in it are kept from other consumers.
WORK = 1.0
#: Of a lease, the part that the work of one grant may take.
_OF_LEASE = 0.125
#: Seconds of work that are remembered: a message or two that are quick by chance say little.
_REMEMBERED = 5.0


class Pace:
    """Begins with single messages, as if each took all of a second, and follows what was measured
    in the last few seconds of work; `most` is the user's bound.
    """

    __slots__ = ("_done", "_fits", "_most", "_work", "_worked", "size")

    def __init__(self, most: int, lease: float) -> None:
        """Take the most messages of a grant, and the seconds of a lease."""
        self._most = most
        self._work = min(WORK, lease * _OF_LEASE)
        self.restart()

    @property
    def ahead(self) -> bool:
        """Whether to have the next grant here before the last one is done: the work is quick."""
        return self._fits >= 1.0

    def restart(self) -> None:
        """Begin with single messages again."""
        #: Messages to ask for.
        self.size = 1
        #: How many may be asked for, in parts of a message too; none before it is known.
        self._fits = 0.0
        #: Messages, and the seconds that they took. Both fade.
        self._done = self._worked = 1.0

    def took(self, messages: int, seconds: float, partitions: int) -> None:
        """Learn that so many messages took so long; each of the `partitions` may grant some."""
        if messages < 1:
            return
        fading = math.exp(-seconds / _REMEMBERED)
        self._done = self._done * fading + messages
        self._worked = self._worked * fading + max(seconds, 1e-6)
        self._fits = self._done / self._worked * self._work / max(partitions, 1)
        self.size = max(1, min(int(self._fits), self._most))
