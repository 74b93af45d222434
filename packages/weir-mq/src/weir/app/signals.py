"""SIGTERM and Ctrl-C: the first lets all apps of a process end, the second does not wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

from weir.client.connection.system import SYSTEM

log = logging.getLogger("weir.app")


class _Stops:
    """What the first signal sets: of all applications that run in an event loop."""

    def __init__(self, tells: bool) -> None:
        self._tells = tells
        self.events: list[asyncio.Event] = []
        self._release: Callable[[], None] | None = None

    def catch(self) -> None:
        self._release = SYSTEM.get().signals(self._first)

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()

    def _first(self) -> None:
        if self._tells:
            log.info("stopping: waiting for running handlers; a second signal does not wait")
        for one in self.events:
            one.set()
        self.release()


_all: WeakKeyDictionary[asyncio.AbstractEventLoop, _Stops] = WeakKeyDictionary()


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event, tells: bool = True) -> Iterator[None]:
    """Set `stop` at the first SIGTERM or SIGINT; the second does what it always did.

    The log says so, unless the first one in an event loop has it that `tells` is false.
    """
    loop = asyncio.get_running_loop()
    stops = _all.setdefault(loop, _Stops(tells))
    if not stops.events:
        stops.catch()
    stops.events.append(stop)
    try:
        yield
    finally:
        stops.events.remove(stop)
        if not stops.events:
            stops.release()
            _all.pop(loop, None)
