"""The composition root of a node: folder, log, shard, driver, sockets, signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable

from weir.broker.restore import CHECKPOINT, Opened
from weir.broker.shard import Shard, ShardSettings
from weir.log.recovery import recover
from weir.log.settings import Settings
from weir.model.limits import MIB
from weir.server.clock import SystemTime
from weir.server.config import Config
from weir.server.disk import FileDisk
from weir.server.driver import Driver
from weir.server.folder import NodeFolder

log = logging.getLogger(__name__)

Started = Callable[[str, int], None]


def run(config: Config, started: Started | None = None) -> bool:
    """Run a node until SIGTERM or SIGINT, then drain. Returns False if draining took too long.

    `started` is told host and port once clients may connect. Raises `WeirError` if the folder or
    the log cannot be used, and `OSError` if the port cannot.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(config, started))
    return uvloop.run(serve(config, started))


async def serve(
    config: Config, started: Started | None = None, stop: asyncio.Event | None = None
) -> bool:
    """Run a node on this loop until `stop` is set, or a signal comes. See `run`."""
    stopping = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ValueError, RuntimeError):  # signals only reach the main thread
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
    folder = NodeFolder(config.node.data)
    identity = folder.found()
    with contextlib.closing(FileDisk(folder.log(0))) as disk:
        settings = Settings(
            log=0,
            system=identity.system,
            segment_bytes=config.log.segment_mib * MIB,
            cache_bytes_max=config.memory.cache_mib * MIB,
            spares=config.log.spares,
        )
        checkpoint = disk.read(CHECKPOINT, 0, disk.size(CHECKPOINT)) if _has(disk) else b""
        recovered = recover(disk, settings)
        opened = Opened(recovered.log, recovered.groups, checkpoint)
        shard = Shard(
            identity, [opened], SystemTime(), ShardSettings(config.memory.budget_mib * MIB)
        )
        driver = Driver(shard, [disk])
        try:
            await driver.start()
            async with _listening(driver, config, folder, started):
                await driver.wait(stopping)
        finally:
            drained = await driver.stop(config.stop.drain_seconds)
    log.info("stopped" if drained else "stopped before everything was drained")
    return drained


@contextlib.asynccontextmanager
async def _listening(
    driver: Driver, config: Config, folder: NodeFolder, started: Started | None
) -> AsyncIterator[None]:
    """Accept connections, and tell the world where, for as long as it lasts."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(driver.protocol, config.node.host, config.node.port)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        folder.announce(host, port)
        log.info("listening on %s:%d", host, port)
        if started is not None:
            started(host, port)
        yield
    finally:
        server.close()
        folder.withdraw()


def _has(disk: FileDisk) -> bool:
    return CHECKPOINT in disk.names()
