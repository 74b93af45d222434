"""Runs a relay node until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from weir.client.connection.network_client import NetworkClient
from weir.client.connection.system import SYSTEM
from weir.errors import DiskFailed
from weir.model.ids import NODE_MAX
from weir.relay_node.disk import RelayDisk, ThreadPool
from weir.relay_node.folder import BadRelayFolder, Founded, RelayFolder
from weir.relay_node.gate import RelayGate
from weir.relay_node.host import RelayConfig, RelayHost, check_system, reach
from weir.relay_node.listener import Listener, RelayTls
from weir.relay_node.monitoring import RelayMonitor
from weir.relay_node.requests import RelayRequests
from weir.relay_node.store import RelayStore, settings_of
from weir.server.config import TlsConfig
from weir.server.disk.file_disk import die
from weir.server.network.addresses import in_words
from weir.server.network.certificate_files import certified

log = logging.getLogger(__name__)


class Started(NamedTuple):
    """A relay that serves: who it is, where clients connect, and the port of its pages, 0 without
    any.
    """

    founded: Founded
    host: str
    port: int
    metrics_port: int


Tell = Callable[[Started], None]

#: Numbers from here on are drawn for relays that no topology names.
_DRAWN_FROM = NODE_MAX // 2
_AGAIN = 1.0


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
    folder = RelayFolder.open(path)
    try:
        found = await find(config, folder, stop)
        if found is not None:
            await _serve(config, folder, *found, at, started, stop)
    finally:
        folder.close()


async def find(
    config: RelayConfig, folder: RelayFolder, stop: asyncio.Event
) -> tuple[Founded, NetworkClient | None] | None:
    """Return who this relay is. A new one waits for the core, whose system it becomes a part of;
    None if it is to stop before that.
    """
    founded = folder.founded()
    if founded is not None:
        asked = config.brokerset, config.node or founded.node
        if asked != (founded.brokerset, founded.node):
            raise BadRelayFolder(
                f"{folder.path} is that of node {founded.node} of BrokerSet {founded.brokerset}, "
                f"not of node {asked[1]} of {asked[0]}: a relay keeps both for good"
            )
        return _checked_privacy(config, folder, founded), None
    tries = 0
    while not stop.is_set():
        tries += 1
        if (network := await reach(config, tries)) is not None:
            assert network.welcome is not None
            node = config.node or SYSTEM.get().dice().randrange(_DRAWN_FROM, NODE_MAX)
            system = network.welcome.system
            founded = Founded(system, config.brokerset, node, config.is_private)
            check_system(founded, network.welcome, config)
            folder.found(founded)
            return founded, network
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _AGAIN)
    return None


def _checked_privacy(config: RelayConfig, folder: RelayFolder, founded: Founded) -> Founded:
    """Return who a relay is, which is private from its first start as a user on. Raises
    `BadRelayFolder` for a start as nobody with what only users may read.
    """
    if founded.private and not config.is_private:
        raise BadRelayFolder(
            f"{folder.path} holds what a user may read, and not everybody: name that user again, "
            "as in weirs://USER@HOST, or remove the folder, and what everybody may read is pulled"
        )
    if config.is_private and not founded.private:
        founded = msgspec.structs.replace(founded, private=True)
        folder.found(founded)
    return founded


async def _serve(
    config: RelayConfig, folder: RelayFolder, founded: Founded, network: NetworkClient | None,
    at: tuple[str, int], started: Tell, stop: asyncio.Event,
) -> None:  # fmt: skip
    disk, threads = folder.disk(), ThreadPool()
    try:
        settings = settings_of(founded.system)
        store = await threads.run(partial(RelayStore.open, disk, settings))
        relay = RelayHost(config, folder, founded, RelayDisk(disk, store, threads))
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
