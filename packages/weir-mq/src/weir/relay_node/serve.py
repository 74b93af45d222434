"""Runs a relay node until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from weir.client.connection.network_client import NetworkClient
from weir.errors import DiskFailed
from weir.relay_node.disk import RelayDisk, ThreadPool
from weir.relay_node.folder import FOUNDED, BadRelayFolder, Founded, RelayFolder
from weir.relay_node.gate import RelayGate
from weir.relay_node.host import RelayConfig, RelayHost, find
from weir.relay_node.listener import Listener, RelayTls
from weir.relay_node.monitoring import RelayMonitor
from weir.relay_node.requests import RelayRequests
from weir.relay_node.store import RelayStore, settings_of
from weir.server.config import TlsConfig
from weir.server.disk.file_disk import FileDisk, die, foreign_files
from weir.server.network.addresses import in_words
from weir.server.network.certificate_files import certified
from weir.server.status import Reminder

log = logging.getLogger(__name__)


class Started(NamedTuple):
    """A relay that serves: its identity, where clients connect, and the port of its pages, 0
    without any.
    """

    founded: Founded
    host: str
    port: int
    metrics_port: int


Tell = Callable[[Started], None]

_LOG = "log"


def open_folder(path: Path) -> RelayFolder:
    """Open a folder, made if it is not there. Raises `FolderInUse`, `OSError`, `BadRelayFolder`."""
    if (path / "node.json").exists():
        raise BadRelayFolder(
            f"{path} is the folder of a node of the core: give the relay one of its own"
        )
    if not (path / FOUNDED).exists() and (foreign := foreign_files(path, FOUNDED)):
        raise BadRelayFolder(
            f"{path} holds other files ({foreign}) and no relay: give --data an empty folder, or "
            "one that does not exist yet"
        )
    return RelayFolder(path, FileDisk(path), lambda: FileDisk(path / _LOG))


async def run_until_signal(
    config: RelayConfig, path: Path, at: tuple[str, int], started: Tell
) -> None:
    """Do what `run` does until SIGINT or SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await run(config, path, at, started, stop)


async def run(
    config: RelayConfig, path: Path, at: tuple[str, int], started: Tell,
    stop: asyncio.Event,
) -> None:  # fmt: skip
    """Relay from the core to clients `at` a host and port; `started` is told where once it listens.
    Returns after `stop`, when all that came is durable.

    Raises `BadRelayFolder`, `FolderInUse`, `LogDamaged`, `BadAddress`, `BadCertificate` and
    `OSError`.
    """
    folder = open_folder(path)
    try:
        found = await find(config, folder, stop)
        if found is not None:
            await _serve(config, folder, *found, at, started, stop)
    finally:
        folder.close()


async def _serve(
    config: RelayConfig, folder: RelayFolder, founded: Founded, network: NetworkClient | None,
    at: tuple[str, int], started: Tell, stop: asyncio.Event,
) -> None:  # fmt: skip
    disk, threads = folder.disk(), ThreadPool()
    try:
        settings = settings_of(founded.system)
        store = await threads.run(partial(RelayStore.open, disk, settings))
        relay = RelayHost(config, folder, founded, RelayDisk(disk, store, threads, Reminder()))
        tls = RelayTls()
        gate = RelayGate(relay, RelayRequests(relay))
        listener = Listener(gate, tls)
        relay.start(network)
        try:
            async with AsyncExitStack() as stack:
                files = TlsConfig(*(config.tls or ()))
                await stack.enter_async_context(certified(tls, files, folder.path, shard=0))
                with in_words(*at, "--port"):
                    await listener.start(*at)
                monitor = RelayMonitor(
                    relay, tls, lambda: listener.connections, gate.cluster_counts
                )
                pages = 0
                if config.metrics is not None:
                    with in_words(*config.metrics, "--metrics"):
                        listening = monitor.pages().listening(*config.metrics)
                        pages = await stack.enter_async_context(listening)
                started(Started(founded, at[0], listener.port, pages))
                await _until(stop, relay)
        finally:
            await listener.stop()
            await relay.stop()
    finally:
        disk.close()


async def _until(stop: asyncio.Event, relay: RelayHost) -> None:
    """Return once the relay is to stop. Raises what ended it before."""
    stopping = asyncio.ensure_future(stop.wait())
    failing = asyncio.ensure_future(relay.ended())
    await asyncio.wait((stopping, failing), return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, failing):
        if task.done():
            try:
                task.result()
            except DiskFailed as error:
                die(0, error)
