"""Hosts a shard on asyncio: does what the shard asks for, and tells it what comes of that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.counts import Histogram
from weir.broker.runtime.budget import Reservations
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.event_queue import EventQueue
from weir.host.flush_schedule import FlushSchedule
from weir.host.links.links import Links, ShardInfo
from weir.host.links.outbound import NodeAddress
from weir.host.shard_connections import LocalShard
from weir.host.shard_loop import ShardLoop
from weir.host.trunk_end import RemotePeer
from weir.host.trunks import Trunks
from weir.model.limits import CONNECTIONS_MAX
from weir.server.disk.flushes import Flushes
from weir.server.disk.position_saver import PositionSaver
from weir.server.disk.thread_pool import ThreadPool, checkpoint_saved, chore_done, read_done
from weir.server.network.connections import Network, Peer
from weir.server.network.shard_connections import ShardConnections
from weir.storage.disk import Disk
from weir.storage.format import checkpoint

log = logging.getLogger(__name__)


class Driver:
    """Hosts one shard on the running asyncio loop."""

    def __init__(
        self,
        shard: Shard,
        disks: Mapping[int, Disk],
        limits: ConnectionLimits | None = None,
        own: ShardInfo | None = None,
        positions: Mapping[int, PositionSaver] | None = None,
    ) -> None:
        """Drive `shard`, whose log number n lies on `disks[n]`; let peers in within `limits`. Other
        nodes are told what `own` says of it. `positions[n]` saves how far log n is durable.
        """
        self._shard = shard
        self._loop = loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = loop.create_future()
        nodes: dict[int, NodeAddress] = {}
        remote_peers: dict[int, RemotePeer] = {}
        found: set[str] = set()
        schedule = FlushSchedule(disks, nodes, loop.time)
        self._flushes = Flushes(disks, self, schedule, positions)
        self._queue = EventQueue(shard, schedule)
        self._pool = ThreadPool(disks, self._tell)
        limits = limits or ConnectionLimits()
        network = Network(found, self._accept)
        self._connections = Connections(
            self._queue, shard.budget, limits, network, remote_peers.get, loop.time,
            secrets.randbits(31) << 31, log,
        )  # fmt: skip
        self._actions: dict[type, Callable[..., None]] = {}
        self._turns = ShardLoop(
            shard, self._queue, self._connections, nodes, self._actions, self, loop.call_soon
        )
        #: Feeds one event and does what comes of it, unless events are gathered.
        self.handle = self._turns.handle
        self._run = self._turns.run
        self._wires = ShardConnections(self._turns, self._queue, network, found)
        self._local = LocalShard(
            shard, self._queue, self._connections, loop.call_soon, self._wires.later, log
        )
        self.trunks = Trunks(
            self._local, remote_peers, max(limits.connections_max, CONNECTIONS_MAX)
        )
        self.links = Links(
            self._local, self.trunks, own or ShardInfo(shard.identity, len(disks)), nodes, found,
            secrets.randbits(62), self._wires, secrets.SystemRandom(),
        )  # fmt: skip
        self._ready = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._actions |= {
            **self._connections.actions,
            ef.Pass: self.trunks.send,
            ef.SendToPeer: self.links.send,
            ef.Connect: self.links.connect,
            ef.Disconnect: self.links.disconnect,
            ef.EndLink: self.links.end_inbound,
            ef.EndTrunk: self.trunks.end,
            ef.StartFlush: self._flushes.start,
            ef.StartRead: self._start_read,
            ef.HoldReads: self._hold,
            ef.MakeSpare: self._make_spare,
            ef.SaveCheckpoint: self._save,
            ef.StartChore: self._chore,
            ef.Stopped: self._on_stopped,
            ef.ReplicaHalted: _halted,
        }

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the shard up, and let clients in when it leads all its groups; other nodes link
        before. With any of those it serves at once: who leads comes out between them.
        """
        self._turns.start()
        self._tick()
        await self.wait(self._ready)

    async def stop(self, drain_seconds: float) -> bool:
        """Drain: finish what is under way, save, hang up. False if time ran out."""
        drained = False
        if not self._broken.done():
            self.handle(ev.Stopping(acks_ms=int(drain_seconds * 500)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(self._stopped), drain_seconds)
                drained = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._connections.let_go("this node is stopping")
        self._run()
        self._connections.hang_up("this node is stopping")  # a shard that broke lets nobody go
        self.trunks.close()
        self.links.close()
        self._wires.close()
        self._flushes.stop()
        self._pool.shutdown()
        return drained

    def protocol(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self._turns, self._queue, self._connections.connection())

    def new_session(self) -> int:
        """Return a number that no session ever had."""
        return self._connections.new_session()

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event; raises what broke the shard, if that comes first."""
        waiter = asyncio.ensure_future(event.wait())
        try:
            either: set[asyncio.Future[Any]] = {waiter, self._broken}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
        finally:
            waiter.cancel()

    # -- events -------------------------------------------------------------------------------

    def gather(self) -> None:
        """Keep all events until `release`: the shard takes them as one."""
        self._queue.gather()

    def release(self) -> None:
        """Feed what was gathered."""
        self._queue.release()
        self._run()

    def serve(self) -> None:
        """The shard can serve."""
        self._ready.set()

    def broke(self, where: str, error: Exception) -> None:
        """Let everybody go: nothing that the shard says is to be believed any more."""
        log.critical("the shard broke at %s", where, exc_info=error)
        self._broken.set_exception(error)
        self._connections.cut()
        self.links.close()
        self._wires.close()

    # -- peers --------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many peers are connected."""
        return len(self._connections.open_now)

    @property
    def frames(self) -> int:
        """How many frames of peers have come so far."""
        return self._connections.frames

    @property
    def reservations(self) -> Reservations:
        """Which frames of peers are read that are not whole yet."""
        return self._connections.reservations

    @property
    def flush_seconds(self) -> dict[int, Histogram]:
        """By the log's number, how long its flushes took."""
        return self._flushes.seconds

    @property
    def held(self) -> bool:
        """Whether the byte budget is used up: peers only finish frames that they have begun."""
        return self._queue.held

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""
        self._loop.call_later(seconds, act)

    def leave(self, shards: Sequence[int]) -> None:
        """Cut the trunks to and from shards of this node that stand still."""
        self.trunks.leave(shards)
        self._run()

    async def join(self, end: socket.socket, shard: int, asks: bool) -> None:
        """Take one end of a trunk whose other end `shard` has; a new one replaces an old."""
        await self._wires.join(end, lambda transport: self.trunks.join(transport, shard, asks))

    def _accept(self, transport: asyncio.Transport, data: bytes) -> None:
        self._wires.adopt(transport, lambda address: self.links.accept(transport, data, address))

    # -- effects ------------------------------------------------------------------------------

    def _hold(self, effect: ef.HoldReads) -> None:
        self._connections.actions[ef.HoldReads](effect)
        self.trunks.update()

    def _start_read(self, effect: ef.StartRead) -> None:
        self._pool.run(effect, effect.reading.run, read_done)

    def _make_spare(self, effect: ef.MakeSpare) -> None:
        self._pool.make(effect, partial(self._filled, effect.log))

    def _filled(self, log: int) -> float:
        return next(writer.log.filled for writer in self._shard.writers if writer.number == log)

    def _save(self, effect: ef.SaveCheckpoint) -> None:
        self._pool.run(effect, partial(checkpoint.save, found=effect.data), checkpoint_saved)

    def _chore(self, effect: ef.StartChore) -> None:
        self._pool.run(effect, effect.chore.run, chore_done)

    def _tell(self, event: ev.Event) -> None:
        """Feed an event, from any thread."""
        self._loop.call_soon_threadsafe(self.handle, event)

    def _on_stopped(self, effect: ef.Stopped) -> None:
        self._stopped.set()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(ev.TICK_MS / 1000, self._tick)
        self._connections.check_connections()
        self.trunks.flush()
        self.handle(ev.Ticked())
        self.links.check_silence()  # last: pings go with the beats that this tick sent
        self._run()


def _halted(effect: ef.ReplicaHalted) -> None:
    fields = {"group": effect.group}
    log.critical("%s", effect.reason, exc_info=effect.error, extra={"fields": fields})
