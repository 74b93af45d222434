"""How a node is told to stop, and what it says until everything is drained."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import NoReturn

from weir.broker.shard import Shard
from weir.server.driver import Driver

log = logging.getLogger(__name__)

_TELL_SECONDS = 1.0


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


async def drain(driver: Driver, shard: Shard, seconds: float) -> bool:
    """Stop the driver within `seconds`, and tell every second what is still open."""
    teller = asyncio.get_running_loop().create_task(_tell(driver, shard))
    try:
        return await driver.stop(seconds)
    finally:
        teller.cancel()


async def _tell(driver: Driver, shard: Shard) -> None:
    while True:
        await asyncio.sleep(_TELL_SECONDS)
        open_now = {
            "connections": driver.connections,
            "bytes_under_way": shard.budget.used,
            "logs_busy": sum(not writer.idle for writer in shard.writers),
        }
        log.info("still draining", extra={"fields": open_now})


def _end(number: int) -> NoReturn:
    log.warning("ended by a second signal before everything was drained")
    logging.shutdown()
    os._exit(128 + number)
