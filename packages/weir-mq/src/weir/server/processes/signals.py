"""How a node is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import NoReturn

log = logging.getLogger(__name__)


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
