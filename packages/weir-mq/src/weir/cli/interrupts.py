"""Ctrl-C, SIGTERM and a closed terminal, as an error at a place where one can be dealt with."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The user has seen enough; `number` is the signal that said so."""

    def __init__(self, number: int) -> None:
        """Take the signal's number."""
        super().__init__(signal.Signals(number).name)
        self.number = number


class Signals:
    """Notes signals while its block runs. `check` raises; what cleans up is never cut short."""

    def __init__(self) -> None:
        """Begin with no signal seen."""
        self.number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.number is not None:
            raise Interrupted(self.number)

    def __enter__(self) -> Signals:
        # Python lets no other thread set handlers, and runs them in none.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number
