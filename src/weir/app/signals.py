"""SIGTERM and Ctrl-C: the first lets all apps of a process end, the second does not wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Iterator

log = logging.getLogger("weir.app")

_CAUGHT = (signal.SIGTERM, signal.SIGINT)
#: What the first signal sets: of all applications that run in the main thread's event loop.
_stops: list[asyncio.Event] = []


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT; the second does what it always did."""
    if threading.current_thread() is not threading.main_thread():
        yield  # nobody sends signals to another thread
        return
    loop = asyncio.get_running_loop()

    def first() -> None:
        log.info("stopping: what runs may end; a second signal does not wait")
        for one in _stops:
            one.set()
        release()

    def release() -> None:
        for number in _CAUGHT:
            loop.remove_signal_handler(number)

    if not _stops:
        for number in _CAUGHT:
            loop.add_signal_handler(number, first)
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            release()
