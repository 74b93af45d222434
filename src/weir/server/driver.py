"""Hosts a shard on asyncio: does what the shard asks for, and tells it what comes of that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.counts import Histogram
from weir.broker.reservations import Reservations, Unfinished
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.feed import Feed
from weir.host.flush_schedule import FlushSchedule
from weir.host.shard_loop import ShardLoop
from weir.log import checkpoint
from weir.log.disk import Disk
from weir.model.limits import CONNECTIONS_MAX
from weir.server.disk_pool import DiskPool
from weir.server.driving import Lane
from weir.server.flushes import Flushes
from weir.server.jobs import checkpoint_saved, chore_done, read_done
from weir.server.links import Links, Own
from weir.server.position_saver import PositionSaver
from weir.server.transport import Network, Peer
from weir.server.trunk import Trunks
from weir.wire.device import DeviceRequest
from weir.wire.frame import ClientFrame

log = logging.getLogger(__name__)


class Driver:
    """Hosts one shard on the running asyncio loop."""

    def __init__(
        self,
        shard: Shard,
        disks: Mapping[int, Disk],
        limits: ConnectionLimits | None = None,
        own: Own | None = None,
        positions: Mapping[int, PositionSaver] | None = None,
    ) -> None:
        """Drive `shard`, whose log number n lies on `disks[n]`; let peers in within `limits`. Other
        nodes are told what `own` says of it. `positions[n]` saves how far log n is durable.
        """
        self._shard = shard
        self._loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = self._loop.create_future()
        limits = limits or ConnectionLimits()
        self.trunks = Trunks(self, max(limits.connections_max, CONNECTIONS_MAX))
        self.links = Links(self, self.trunks, own or Own(shard.identity, len(disks)))
        schedule = FlushSchedule(disks, self.links.nodes, self._loop.time)
        self._flushes = Flushes(disks, self, schedule, positions)
        self._feed = Feed(shard, schedule)
        self._pool = DiskPool(disks, self._tell)
        self._connections = Connections(
            self._feed, shard.budget, limits,
            Network(self.links.found, self.links.accept), self.trunks.guest, self._loop.time,
            secrets.randbits(31) << 31, log,
        )  # fmt: skip
        # Connections of other shards have a pool of their own, which holds the largest frames.
        self._lanes: Unfinished[Lane] = Unfinished(self._connections.reservations.limit // 2)
        self._ready = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._actions: dict[type, Callable[..., None]] = {
            **self._connections.actions,
            ef.Pass: self.trunks.send,
            ef.SendToPeer: self.links.send,
            ef.Connect: self.links.connect,
            ef.Disconnect: self.links.disconnect,
            ef.EndLink: self.links.end_inbound,
            ef.EndTrunk: self.trunks.end,
            ef.ReplicaHalted: _halted,
            ef.StartFlush: self._flushes.start,
            ef.StartRead: self._start_read,
            ef.HoldReads: self._hold,
            ef.MakeSpare: self._make_spare,
            ef.SaveCheckpoint: self._save,
            ef.StartChore: self._chore,
            ef.Stopped: self._on_stopped,
        }
        self._turns = ShardLoop(
            shard, self._feed, self._connections, self.links.nodes, self._actions, self,
            self._loop.call_soon,
        )  # fmt: skip
        #: Feeds one event and does what comes of it, unless events are gathered.
        self.handle = self._turns.handle
        self._run = self._turns.run

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
        self._flushes.stop()
        self._pool.shutdown()
        return drained

    def protocol(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self._turns, self._feed, self._connections.connection())

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
        """Keep all events until `settle`: the shard takes them as one."""
        self._feed.gather()

    def settle(self) -> None:
        """Feed what was gathered."""
        self._feed.release()
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
        return self._feed.held

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""
        self._loop.call_later(seconds, act)

    def received(self, session: int, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Whole frames of another shard's peer came in."""
        self._connections.receive(session, frames)
        if not self._feed.waits:
            self._run()

    def arrived(self, event: ev.Arrived) -> None:
        """Devices that another shard let in came at once."""
        self._feed.arrive(event)
        if not self._feed.waits:
            self._run()

    def lane_brought(self, lane: Lane, size: int) -> None:
        """Of the frame under way on a connection of another shard there are `size` bytes now."""
        self._lanes.came(lane, size)
        for slowest in self._lanes.overflow():
            log.warning("a connection of another shard was cut: its frame waited longest")
            slowest.cut()

    def release(self, size: int) -> None:
        """Give back bytes of the budget that were sent."""
        self._shard.budget.release(size)

    def passed_on(self, shard: int, size: int) -> None:
        """Give back bytes of the budget that another shard of this node was sent."""
        self._shard.passed_on(shard, size)

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
        self._connections.tick()
        self.trunks.tick()
        self.links.tick()
        self.handle(ev.Ticked())


def _halted(effect: ef.ReplicaHalted) -> None:
    fields = {"group": effect.group}
    log.critical("%s", effect.reason, exc_info=effect.error, extra={"fields": fields})
