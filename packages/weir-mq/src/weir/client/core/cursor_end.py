"""How a turn in total order is to end: at once, or once nothing is worked on."""

from __future__ import annotations


class Ending:
    """Wanted by whoever gives something back or pauses; several of them make one end."""

    def __init__(self) -> None:
        """Begin with none wanted."""
        self.clear()

    def clear(self) -> None:
        """Forget what was wanted: the turn is over."""
        self._wanted = self._waits = False
        self._delay_ms = 0
        self._untried = True

    def want(self, delay_ms: int, untried: bool, waits: bool = False) -> None:
        """Let the next turn begin in `delay_ms`; no attempt counts if all was `untried`.

        Where the first to want it `waits`, who works on something has time for it, until some fail.
        """
        self._waits = self._waits if self._wanted else waits
        self._wanted = True
        self._delay_ms = max(self._delay_ms, delay_ms)
        self._untried = self._untried and untried

    def due(self, working: bool) -> tuple[int, bool] | None:
        """Return the delay, and whether all was untried, if the turn is to end now."""
        if not self._wanted or (working and self._waits and self._untried):
            return None
        return self._delay_ms, self._untried
