"""How the threads of a log wake the loop: sooner than `call_soon_threadsafe` does."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable


class Bell:
    """Calls back in the loop, in order, what other threads ask for.

    A lone confirm waits for this. The loop's own way wakes it, lets it look at all its sockets once
    more, and only then calls; an event file is one of those sockets.
    """

    __slots__ = ("_asked", "_file", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen until `close`."""
        self._asked: deque[Callable[[], None]] = deque()
        self._loop = loop
        self._file = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._file, self._rung)

    def ring(self, act: Callable[[], None]) -> None:
        """Let the loop call `act`. For any thread; not after `close`."""
        self._asked.append(act)
        os.eventfd_write(self._file, 1)

    def close(self) -> None:
        """Call nothing any more. Nobody may ring from here on."""
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _rung(self) -> None:
        os.eventfd_read(self._file)
        asked = self._asked
        for _ in range(len(asked)):
            asked.popleft()()
