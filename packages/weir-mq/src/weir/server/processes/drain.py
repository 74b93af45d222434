"""What a shard that stops says until everything is drained."""

from __future__ import annotations

import asyncio
import logging

from weir.broker.shard import Shard
from weir.server.driver import Driver

log = logging.getLogger(__name__)

_TELL_SECONDS = 1.0


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
