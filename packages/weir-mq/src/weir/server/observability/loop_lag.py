"""How late the event loop comes to what it was asked to do: the time others keep it busy."""

from __future__ import annotations

import asyncio

from weir.broker.api.counts import Histogram

_EVERY_SECONDS = 0.1
_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class LoopLag:
    """Measures while it is entered; `seconds` has what was found."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self.seconds = Histogram(_BOUNDS)
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> LoopLag:
        self._arm()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_EVERY_SECONDS, self._look, loop.time() + _EVERY_SECONDS)

    def _look(self, due: float) -> None:
        self.seconds.add(max(asyncio.get_running_loop().time() - due, 0.0))
        self._arm()
