"""Hosts a shard on asyncio: does what the shard asks for, and tells it what comes of that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.counts import Histogram
from weir.broker.runtime.budget import Reservations
from weir.broker.shard import Shard
from weir.host.connections import Connections
from weir.host.links import Links
from weir.host.shard_loop import EventQueue, Pace, ShardLoop
from weir.host.trunks import Trunks
from weir.server.disk.flushes import Flushes
from weir.server.disk.thread_pool import ThreadPool, checkpoint_saved, chore_done, read_done
from weir.server.network.connections import NodeLinks, Peer, ShardConnections
from weir.server.network.tls import TlsAcceptor
from weir.storage.format import checkpoint

log = logging.getLogger(__name__)


#: The upper ends of the classes of how late ticks are, in seconds.
_LAG_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Ticker:
    """The timer of a shard's ticks, on the running loop; `lag` has how late the loop ran it.

    A timer of its own for that would wake an idle process more often than all else does.
    """

    def __init__(self) -> None:
        """Begin without one."""
        self.lag = Histogram(_LAG_SECONDS)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tick: Callable[[], None] | None = None
        #: When the tick is due, by the loop's clock.
        self._due = 0.0

    def call_after(self, milliseconds: int, tick: Callable[[], None]) -> None:
        """Call `tick` once, so much later, and nothing that was to be called before."""
        self.cancel()
        self._tick = tick
        seconds = milliseconds / 1_000
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_later(seconds, self._run, tick)

    def wake(self) -> None:
        """The shard's rest is over: its next tick comes as after any other tick."""
        if self._tick is not None:
            self.call_after(ev.TICK_MS, self._tick)

    def cancel(self) -> None:
        """Call nothing any more."""
        self._tick = None
        if self._timer is not None:
            self._timer.cancel()

    def _run(self, tick: Callable[[], None]) -> None:
        self.lag.add(max(self._loop.time() - self._due, 0.0))
        tick()


class Lifecycle:
    """Whether a shard can serve, has stopped, or broke: for those who wait for it."""

    def __init__(self, ticker: Ticker) -> None:
        """Begin with neither. `ticker` is woken with the shard."""
        #: Ends a rest of the shard.
        self.wake = ticker.wake
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        #: Closed at once when the shard breaks: components add what they open.
        self.cuts = contextlib.ExitStack()

    def serve(self) -> None:
        """The shard can serve."""
        self.ready.set()

    def broke(self, where: str, error: Exception) -> None:
        """Let everybody go: nothing that the shard says is to be believed any more."""
        log.critical("the shard broke at %s", where, exc_info=error)
        self.broken.set_exception(error)
        self.cuts.close()

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event; raises what broke the shard, if that comes first."""
        waiter = asyncio.ensure_future(event.wait())
        try:
            either: set[asyncio.Future[Any]] = {waiter, self.broken}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self.broken.done():
                self.broken.result()
        finally:
            waiter.cancel()


class TimedTurns:
    """Lets a shard take an event, now or later."""

    def __init__(self, turns: ShardLoop) -> None:
        """Have `turns` take them, on the running loop."""
        self.handle = turns.handle
        self._loop = asyncio.get_running_loop()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""
        self._loop.call_later(seconds, act)

    def handle_from_thread(self, event: ev.Event) -> None:
        """Take an event, from any thread."""
        self._loop.call_soon_threadsafe(self.handle, event)


class Components(NamedTuple):
    """What hosts a shard, in the order in which it is made (see `weir.server.assembly`)."""

    lifecycle: Lifecycle
    ticker: Ticker
    pace: Pace
    queue: EventQueue
    connections: Connections[asyncio.Transport]
    turns: ShardLoop
    flushes: Flushes
    pool: ThreadPool
    shard_connections: ShardConnections
    trunks: Trunks
    links: Links
    tls: TlsAcceptor


class Driver:
    """Hosts one shard on the running asyncio loop."""

    def __init__(
        self,
        shard: Shard,
        components: Components,
        actions: dict[type, Callable[..., None]],
    ) -> None:
        """Drive `shard`. `actions` do what its effects ask for; the driver adds its own."""
        self._shard = shard
        self._lifecycle = components.lifecycle
        self._ticker = components.ticker
        self._pace = components.pace
        self._queue = components.queue
        self._connections = components.connections
        self._turns = components.turns
        self._flushes = components.flushes
        self._pool = components.pool
        self._shard_connections = components.shard_connections
        self.trunks = components.trunks
        self.links = components.links
        #: Opens what begins with a TLS handshake.
        self.tls = components.tls
        self._node_links = NodeLinks(self._shard_connections, self.links, components.tls)
        #: Takes one event and does what comes of it, unless events are gathered.
        self.handle = self._turns.handle
        actions |= {
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
        before. With any of those it serves at once: they find the leaders among themselves.
        """
        self._turns.start()
        self._tick()
        await self.wait(self._lifecycle.ready)

    async def stop(self, drain_seconds: float) -> bool:
        """Drain: finish what is under way, save, hang up. False if time ran out."""
        drained = False
        if not self._lifecycle.broken.done():
            self.handle(ev.Stopping(acks_ms=int(drain_seconds * 500)))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.wait(self._lifecycle.stopped), drain_seconds)
                drained = True
        self._ticker.cancel()
        self._connections.end_sessions("this node is stopping")
        self._turns.run()
        self._connections.hang_up("this node is stopping")  # a shard that broke lets nobody go
        self.trunks.close()
        self.links.close()
        self._shard_connections.close()
        self._flushes.stop()
        self._pool.shutdown()
        return drained

    def protocol(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self._turns, self._queue, self._connections.connection(), self._node_links)

    def new_session(self) -> int:
        """Return a number that no session ever had."""
        return self._connections.new_session()

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event; raises what broke the shard, if that comes first."""
        await self._lifecycle.wait(event)

    # -- events -------------------------------------------------------------------------------

    def gather(self) -> None:
        """Keep all events until `release`: the shard takes them as one."""
        self._queue.gather()

    def release(self) -> None:
        """Feed what was gathered."""
        self._queue.release()
        self._turns.run()

    # -- peers --------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many peers are connected."""
        return len(self._connections.open_now)

    @property
    def frames(self) -> int:
        """How many frames of peers have come so far."""
        return self._queue.frames

    @property
    def reservations(self) -> Reservations:
        """Which frames of peers are read that are not whole yet."""
        return self._connections.reservations

    @property
    def flush_seconds(self) -> dict[int, Histogram]:
        """By the log's number, how long its flushes took."""
        return self._flushes.seconds

    @property
    def loop_lag(self) -> Histogram:
        """How many seconds late the loop ran the timer of ticks."""
        return self._ticker.lag

    @property
    def held(self) -> bool:
        """Whether the byte budget is used up: peers only finish frames that they have begun."""
        return self._queue.held

    def leave(self, shards: Sequence[int]) -> None:
        """Cut the trunks to and from shards of this node that stand still."""
        self.trunks.leave(shards)
        self._turns.run()

    async def join(self, end: socket.socket, shard: int, asks: bool) -> None:
        """Take one end of a trunk whose other end `shard` has; a new one replaces an old."""
        await self._shard_connections.join(
            end, lambda transport: self.trunks.join(transport, shard, asks)
        )

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

    def _on_stopped(self, effect: ef.Stopped) -> None:
        self._lifecycle.stopped.set()

    def _tick(self) -> None:
        self._ticker.call_after(ev.TICK_MS, self._tick)
        self._pace.ticking()
        self._connections.check_connections()
        self.trunks.flush()
        self.handle(ev.Ticked())
        self.links.check_silence()  # last: pings go with the beats that this tick sent
        self._turns.run()
        if rest_ms := self._pace.rest_ms():
            self._ticker.call_after(rest_ms, self._tick)


def _halted(effect: ef.ReplicaHalted) -> None:
    fields = {"group": effect.group}
    log.critical("%s", effect.reason, exc_info=effect.error, extra={"fields": fields})
