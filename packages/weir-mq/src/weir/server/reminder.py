"""When to tell of a trouble that lasts: at once, then once a minute."""

from __future__ import annotations

import time
from collections.abc import Hashable

_AGAIN_SECONDS = 60.0


class Reminder:
    """Remembers when each trouble was told last. Threads may share it if no two share a trouble."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        """Begin with nothing told."""
        self._told: dict[Hashable, float] = {}

    def is_due(self, trouble: Hashable, is_there: bool = True) -> bool:
        """Return whether to tell of a trouble now; one that ended and returns is told at once."""
        if not is_there:
            self._told.pop(trouble, None)
            return False
        now = time.monotonic()
        if now - self._told.get(trouble, float("-inf")) < _AGAIN_SECONDS:
            return False
        self._told[trouble] = now
        return True
