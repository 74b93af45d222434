"""The components that host a shard on asyncio, in the order in which they are made."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping

from weir.broker.api import effects as ef
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.links import Links, ShardInfo
from weir.host.logs import FlushSchedule
from weir.host.outbound_link import NodeAddress
from weir.host.shard_connections import LocalShard
from weir.host.shard_loop import EventQueue, ShardLoop
from weir.host.trunks import RemotePeer, Trunks, nobody
from weir.model.limits import CONNECTIONS_MAX
from weir.server.disk.flushes import Flushes
from weir.server.disk.position_saver import PositionSaver
from weir.server.disk.thread_pool import ThreadPool
from weir.server.driver import Components, Driver, Lifecycle, TimedTurns, log
from weir.server.network.connections import Network
from weir.server.network.shard_connections import ShardConnections
from weir.storage.disk import Disk


def assemble(
    shard: Shard,
    disks: Mapping[int, Disk],
    limits: ConnectionLimits | None = None,
    own: ShardInfo | None = None,
    positions: Mapping[int, PositionSaver] | None = None,
    trunk_lost: Callable[[int], None] = nobody,
) -> Driver:
    """Return what drives `shard` on the running loop. Log number n lies on `disks[n]`, and
    `positions[n]` saves how far it is durable. Peers are let in within `limits`. Other nodes are
    told what `own` says of the shard; `trunk_lost` is told of each other shard of this node to
    which a trunk broke.
    """
    loop = asyncio.get_running_loop()
    limits = limits or ConnectionLimits()
    #: What each effect asks for: who does it adds it.
    actions: dict[type, Callable[..., None]] = {}
    #: What several components know: nodes that are linked to, the addresses at which nodes were
    #: found, and peers of other shards by their sessions here.
    nodes: dict[int, NodeAddress] = {}
    found: set[str] = set()
    remote_peers: dict[int, RemotePeer] = {}

    lifecycle = Lifecycle()
    schedule = FlushSchedule(disks, nodes, loop.time)
    queue = EventQueue(shard, schedule)
    network = Network(found)
    connections: Connections[asyncio.Transport] = Connections(
        queue, shard.budget, limits, network, remote_peers.get, loop.time,
        secrets.randbits(31) << 31, log,
    )  # fmt: skip
    turns = ShardLoop(shard, queue, connections, nodes, actions, lifecycle, loop.call_soon)
    timed = TimedTurns(turns)
    flushes = Flushes(disks, timed, schedule, positions)
    pool = ThreadPool(disks, timed.handle_from_thread)
    shard_connections = ShardConnections(turns, queue, network, found)
    local = LocalShard(shard, queue, connections, loop.call_soon, shard_connections.later, log)
    peers_max = max(limits.connections_max, CONNECTIONS_MAX)
    trunks = Trunks(local, remote_peers, trunk_lost, peers_max)
    links = Links(
        local, trunks, own or ShardInfo(shard.identity, len(disks)), nodes, found,
        secrets.randbits(62), shard_connections, secrets.SystemRandom(),
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
        ef.EndLink: links.end_inbound,
    }
    components = Components(
        lifecycle, queue, connections, turns, flushes, pool, shard_connections, trunks, links
    )
    return Driver(shard, components, actions)
