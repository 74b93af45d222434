"""The composition root of a shard: its folder, logs and components in the order in which they are
made, and how it is hosted on asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from weir.broker.api import effects as ef
from weir.broker.api.settings import Layout, ShardSettings
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.links import NO_BIRTHS, Links, ShardInfo
from weir.host.logs import FlushSchedule, LogStart, open_log, tell_durable
from weir.host.outbound_link import NodeAddress
from weir.host.shard_connections import LocalShard
from weir.host.shard_loop import EventQueue, Pace, ShardLoop
from weir.host.trunks import RemotePeer, Trunks, nobody
from weir.model.limits import CONNECTIONS_MAX, FIRST_SEGMENT_BYTES, MIB
from weir.server.config import Config, advertised
from weir.server.disk.file_disk import FileDisk, FolderInUse
from weir.server.disk.flushes import Flushes, PositionSaver
from weir.server.disk.node_folder import Founded, NodeFolder, Started, begin_log, generation_of
from weir.server.disk.thread_pool import ThreadPool
from weir.server.driver import Components, Driver, Lifecycle, Ticker, TimedTurns
from weir.server.exposure import CLOSED
from weir.server.interpreter import stop_by_signal
from weir.server.key_files import read_key_ring
from weir.server.network.certificate_files import certified
from weir.server.network.connections import Network, ShardConnections
from weir.server.network.poller import listening
from weir.server.network.tls import TlsAcceptor, TlsPolicy
from weir.server.observability.monitoring import observed
from weir.storage.disk import Disk
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.format.segment import segment_number
from weir.storage.segment_files import Settings

log = logging.getLogger(__name__)

#: How long a log may still be held by a process whose supervisor was killed.
ORPHAN_SECONDS = 10.0
_POLL_SECONDS = 0.05
#: How often a shard that stops says what is still open.
_TELL_SECONDS = 1.0
#: Descriptors that are no connections: the log, its segments, the folder, other shards.
_OWN_DESCRIPTORS = 256
_LAX = TlsPolicy()


class ShardSlot(msgspec.Struct, frozen=True):
    """Which shard of how many a process is, and the shards' own ports, by number."""

    shard: int = 0
    shards: int = 1
    ports: tuple[int, ...] = ()


class SystemTime:
    """The machine's clocks, behind the port `weir.order.clock.Time`."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since whenever; never falls."""
        return time.monotonic_ns() // 1_000_000


async def serve(
    config: Config, started: Started | None = None, stop: asyncio.Event | None = None
) -> bool:
    """Run a node of one shard on this loop until `stop` is set, or a signal comes.

    See `weir.server.processes.node.run`.
    """
    stopping = stop or asyncio.Event()
    stop_by_signal(stopping)
    folder = NodeFolder(config.node.data)
    founded = folder.found(config.node.logs)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(folder.held())
        hosted = hosting(config, founded, ShardSlot())
        driver, shard = await stack.enter_async_context(hosted)
        notifier = await stack.enter_async_context(observed(driver, shard, config, stopping))
        try:
            async with listening(driver, config.node.host, config.node.port) as (host, port):
                await driver.start()
                with folder.announced(host, port, started):
                    notifier.ready(f"serving from {config.node.data}")
                    await driver.wait(stopping)
                    notifier.stopping(config.stop.drain_seconds)
        finally:
            drained = await drain(driver, shard, config.stop.drain_seconds)
    log.info("stopped" if drained else "stopped before everything was drained")
    return drained


@contextlib.asynccontextmanager
async def hosting(
    config: Config,
    founded: Founded,
    share: ShardSlot,
    trunk_lost: Callable[[int], None] = nobody,
) -> AsyncIterator[tuple[Driver, Shard]]:
    """Recover a shard's logs, and have it and its driver while it lasts; they are not started.
    `trunk_lost` is told of each other shard of this node to which a trunk broke.
    """
    folder = NodeFolder(config.node.data)
    layout = Layout(founded.logs, share.shards)
    numbers = layout.logs_of(share.shard)
    disks: dict[int, FileDisk] = {}
    async with contextlib.AsyncExitStack() as stack:
        for number in numbers:
            disk = await _disk(folder.log(number, founded))
            disks[number] = stack.enter_context(contextlib.closing(disk))
            begin_log(folder, founded, number, disk)
        positions: dict[int, DurablePosition] = {}
        for number in numbers:
            place = disks[number]
            if config.log.position_folder:
                place = await _disk(Path(config.log.position_folder) / f"log-{number}")
                stack.enter_context(contextlib.closing(place))
            generation = generation_of(folder.life(number))
            owner = Owner(number, founded.system, generation)
            positions[number] = DurablePosition(place, owner)
        starts = [
            _open(
                disk,
                Settings(
                    log=number,
                    system=founded.system,
                    segment_bytes=config.log.segment_mib * MIB,
                    cache_bytes_max=config.memory.cache_mib * MIB // len(numbers),
                    spares=config.log.spares,
                    first_segment_bytes=FIRST_SEGMENT_BYTES,
                ),
                positions[number],
            )
            for number, disk in disks.items()
        ]
        logs = [start.opened for start in starts]
        was_closed = folder.access_mode() == CLOSED
        settings = ShardSettings(
            config.memory.budget_mib * MIB,
            ports=share.ports,
            device_in_hand=config.connections.device_in_hand,
            key_ring=read_key_ring(config.access.key_file, config.node.data),
            secret_bytes=secrets.token_bytes,
            stale_ms=int(config.access.stale_seconds * 1_000),
            cutoff_ms=int(config.access.cutoff_seconds * 1_000),
            was_closed=was_closed,
        )
        shard = Shard(founded.identity(share.shard), logs, SystemTime(), settings, layout)
        own = ShardInfo(
            shard.identity, founded.logs, share.shards, share.ports, *_reached(config, shard)
        )
        savers = {n: PositionSaver(n, file) for n, file in positions.items()}
        tell_durable(starts, savers)
        limits = allow_connections(config.connections.limits())
        policy = TlsPolicy(config.tls.plaintext, config.links.tls, was_closed)
        births = folder.births() if was_closed else {}
        driver = assemble(shard, disks, limits, own, savers, trunk_lost, policy, births)
        keeping = certified(driver.tls, config.tls, folder.path, share.shard, share.shards)
        await stack.enter_async_context(keeping)
        yield driver, shard


def _reached(config: Config, shard: Shard) -> tuple[str, int]:
    """Return where other nodes reach this one: as it was founded, unless that is set."""
    who = shard.identity
    founded = [(host, port) for node, host, port in who.members if node == who.node]
    return founded[0] if founded and not config.node.advertise else advertised(config)


async def _disk(folder: Path) -> FileDisk:
    """Open a log's folder; this process holds the node's folder, so one that has the log open is
    about to end.
    """
    until = asyncio.get_running_loop().time() + ORPHAN_SECONDS
    while True:
        try:
            return FileDisk(folder)
        except FolderInUse:
            if asyncio.get_running_loop().time() > until:
                raise
        await asyncio.sleep(_POLL_SECONDS)


def _open(disk: FileDisk, settings: Settings, file: DurablePosition) -> LogStart:
    """Recover a log, and tell of what was found at it."""
    if not file.found.count and any(segment_number(name) is not None for name in disk.names()):
        log.warning(
            "log %d has no valid durable position: %s. That is right at the first start of a "
            "new release, after a restore, and with another log.position_folder; else look at that "
            "folder. A tail of the log that vanished before now is not noticed",
            settings.log,
            file.found.bad,
            extra={"fields": {"log": settings.log}},
        )
    start = open_log(disk, settings, file)
    for hole in start.opened.holes:
        fields = {"log": hole.log, "segment": hole.segment, "position": hole.position}
        log.error("found at the start: %s", hole, extra={"fields": fields})
    return start


def allow_connections(limits: ConnectionLimits) -> ConnectionLimits:
    """Raise this process's limit of open files as far as it goes; return what that allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections_max + _OWN_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        _make_room(wanted)
        return limits
    _make_room(soft)
    fewer = max(soft - _OWN_DESCRIPTORS, soft // 2)
    return replace(limits, connections_max=fewer)


def _make_room(descriptors: int) -> None:
    """Let the table of this process's descriptors be as large as it may have to be: 8 bytes each.

    The system doubles a full one, and who opens a file waits 5 to 15 ms for that where a process
    has several threads: all peers of a shard would, in the middle of a burst.
    """
    with contextlib.suppress(OSError):  # it can do without
        some = os.open(os.devnull, os.O_RDONLY)
        try:
            os.close(fcntl.fcntl(some, fcntl.F_DUPFD_CLOEXEC, descriptors - 1))
        finally:
            os.close(some)


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


def assemble(
    shard: Shard,
    disks: Mapping[int, Disk],
    limits: ConnectionLimits | None = None,
    own: ShardInfo | None = None,
    positions: Mapping[int, PositionSaver] | None = None,
    trunk_lost: Callable[[int], None] = nobody,
    policy: TlsPolicy = _LAX,
    births: Mapping[int, int] = NO_BIRTHS,
) -> Driver:
    """Return what drives `shard` on the running loop. Log number n lies on `disks[n]`, and
    `positions[n]` saves how far it is durable. Peers are let in within `limits`. Other nodes are
    told what `own` says of the shard; `trunk_lost` is told of each other shard of this node to
    which a trunk broke. `policy` says which peers may connect without TLS; `births` are those that
    were known of nodes when this one ran last, in a closed set.
    """
    loop = asyncio.get_running_loop()
    limits = limits or ConnectionLimits()
    #: The action for each kind of effect: components add theirs.
    actions: dict[type, Callable[..., None]] = {}
    #: What several components know: nodes that are linked to, the addresses at which nodes were
    #: found, and peers of other shards by their sessions here.
    nodes: dict[int, NodeAddress] = {}
    found: set[str] = set()
    remote_peers: dict[int, RemotePeer] = {}

    ticker = Ticker()
    lifecycle = Lifecycle(ticker)
    schedule = FlushSchedule(disks, nodes, loop.time)
    queue = EventQueue(shard, schedule)
    network = Network(found)
    connections: Connections[asyncio.Transport] = Connections(
        queue, shard.budget, limits, network, remote_peers.get, loop.time,
        secrets.randbits(31) << 31, log,
    )  # fmt: skip
    turns = ShardLoop(shard, queue, connections, nodes, actions, lifecycle, loop.call_soon)
    timed = TimedTurns(turns)
    pace = Pace(shard, queue, connections, turns, nodes)
    flushes = Flushes(disks, timed, schedule, positions)
    pool = ThreadPool(disks, timed.handle_from_thread)
    tls = TlsAcceptor(connections, policy)
    shard_connections = ShardConnections(turns, queue, network, found, tls)
    local = LocalShard(shard, queue, connections, loop.call_soon, shard_connections.later, log)
    peers_max = max(limits.connections_max, CONNECTIONS_MAX)
    trunks = Trunks(local, remote_peers, trunk_lost, peers_max)
    links = Links(
        local, trunks, own or ShardInfo(shard.identity, len(disks)), nodes, found,
        secrets.randbits(62), shard_connections, secrets.SystemRandom(), policy.named_only, births,
    )  # fmt: skip
    # The last of them comes first.
    for cut in (shard_connections.close, links.close, connections.cut):
        lifecycle.cuts.callback(cut)
    actions |= {
        **connections.actions,
        ef.StartFlush: flushes.start,
        ef.Pass: trunks.send,
        ef.EndTrunk: trunks.end,
        ef.SendToPeer: links.send,
        ef.Connect: links.connect,
        ef.Disconnect: links.disconnect,
        ef.GuardLinks: links.guard,
        ef.EndLink: links.end_inbound,
    }
    components = Components(
        lifecycle, ticker, pace, queue, connections, turns, flushes, pool, shard_connections,
        trunks, links, tls,
    )  # fmt: skip
    return Driver(shard, components, actions)
