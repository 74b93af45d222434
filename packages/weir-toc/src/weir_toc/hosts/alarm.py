"""The timer of a host: it rings at a deadline of synchronised time, and knows how late it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from weir_toc.hosts.control_link import ControlLink


class Alarm:
    """One timer, which rings once for each time that it is set."""

    def __init__(self, link: ControlLink, ring: Callable[[], None]) -> None:
        self._link = link
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0
        #: How late it has rung at most, in nanoseconds: as long this process did not run.
        self.late_max = 0

    def set(self, due: int) -> None:
        """Ring at `due`, in place of any other time."""
        if self._handle is not None:
            if self._due == due:
                return
            self._handle.cancel()
        self._due = due
        wait = max(0.0, (due - self._link.now()) / 1e9)
        self._handle = asyncio.get_running_loop().call_later(wait, self._rings)

    def cancel(self) -> None:
        """Ring no more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _rings(self) -> None:
        self._handle = None
        self.late_max = max(self.late_max, self._link.now() - self._due)
        self._ring()
