"""The event loop that nodes run on, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

log = logging.getLogger(__name__)

R = TypeVar("R")

#: Thresholds of the garbage collector's three generations. What passes through a broker is freed by
#: counting; looking for cycles after every 700 objects, as is the default, goes through all
#: sessions again and again while thousands of peers connect.
_COLLECT_AFTER = (50_000, 20, 10)


def run_loop(main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, on uvloop if that is installed. The process is for it alone."""
    gc.set_threshold(*_COLLECT_AFTER)
    gc.freeze()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def stop_by_signal(stopping: asyncio.Event) -> None:
    """Set `stopping` at SIGTERM or SIGINT; a second one ends the process at once.

    Its exit code is 128 plus the signal's number. What was confirmed is durable in any case.
    """
    loop = asyncio.get_running_loop()

    def received(number: int) -> None:
        if stopping.is_set():
            _end(number)
        log.info("draining; a second signal ends the node at once")
        stopping.set()

    with contextlib.suppress(ValueError, RuntimeError):  # signals only reach the main thread
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, received, number)


def _end(number: int) -> NoReturn:
    log.warning("ended by a second signal before everything was drained")
    logging.shutdown()
    os._exit(128 + number)
