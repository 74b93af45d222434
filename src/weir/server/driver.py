"""The only loop: feeds events to the shard and does its effects, in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.counts import Histogram
from weir.broker.reservations import Incoming, Reservations, Unfinished
from weir.broker.shard import Shard
from weir.log import checkpoint
from weir.log.disk import Disk
from weir.server.disk_pool import DiskPool
from weir.server.doors import Doors, Lobby
from weir.server.driving import Lane
from weir.server.feeding import Feeding
from weir.server.flushes import Flushes
from weir.server.jobs import checkpoint_saved, chore_done, read_done
from weir.server.links import Links, Own
from weir.server.position_saver import PositionSaver
from weir.server.transport import Peer
from weir.server.trunk import Trunks
from weir.wire.device import DevicePublishes, DeviceRequest
from weir.wire.frame import ClientFrame

log = logging.getLogger(__name__)

#: How often all peers are looked at.
SWEEP_SECONDS = 5.0
#: A turn of those in line takes at most so many frames.
_TURN_FRAMES = 1_024


class Driver(Feeding):
    """Hosts one shard on the running asyncio loop."""

    def __init__(
        self,
        shard: Shard,
        disks: Mapping[int, Disk],
        doors: Doors | None = None,
        own: Own | None = None,
        positions: Mapping[int, PositionSaver] | None = None,
    ) -> None:
        """Drive `shard`, whose log number n lies on `disks[n]`; let peers in through `doors`. Other
        nodes are told what `own` says of it. `positions[n]` saves how far log n is durable.
        """
        super().__init__(shard)
        self._flushes = Flushes(disks, self, lambda: not self.links.nodes, positions)
        self._pool = DiskPool(disks, self._tell)
        self._doors = doors or Doors()
        self._lobby: Lobby[Peer] = Lobby(self._doors.accepts_per_second, self._loop.time())
        self._sweep_at = 0.0
        self._peers: dict[int, Peer] = {}
        self._watched: dict[int, Peer] = {}
        self.trunks = Trunks(self)
        self.links = Links(self, self.trunks, own or Own(shard.identity, len(disks)))
        # Unique over restarts, because a session's id outlives it as a grant's consumer.
        self._sessions = count(secrets.randbits(31) << 31)
        self._serves = False
        self._frames = 0
        #: Peers of which frames wait in line.
        self._line: dict[Peer, None] = {}
        self._lining = False
        self._reservations = Reservations(shard.budget.limit, self._loop.time())
        # Connections of other shards have a pool of their own, which holds the largest frames.
        self._lanes: Unfinished[Lane] = Unfinished(self._reservations.limit // 2)
        self._ready = asyncio.Event()
        self._stopped = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._actions: dict[type, Callable[..., None]] = {
            ef.Send: self._send,
            ef.Answers: self._answer,
            ef.Pass: self.trunks.send,
            ef.SendToPeer: self.links.send,
            ef.Connect: self.links.connect,
            ef.Disconnect: self.links.disconnect,
            ef.EndLink: self.links.end_inbound,
            ef.EndTrunk: self.trunks.end,
            ef.StartFlush: self._flushes.start,
            ef.StartRead: self._start_read,
            ef.Hangup: self._hang_up,
            ef.HoldReads: self._hold,
            ef.MakeSpare: self._make_spare,
            ef.SaveCheckpoint: self._save,
            ef.StartChore: self._chore,
            ef.Stopped: self._on_stopped,
        }

    # -- life ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the shard up, and let clients in when it leads all its groups; other nodes link
        before. With any of those it serves at once: who leads comes out between them.
        """
        self._lobby.closed = True
        self._do(self._shard.start())
        self._tick()
        await self.wait(self._ready)
        self._lobby.closed = False

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
        self.gather()
        for session in self._peers:
            self.handle(ev.LetGo(session, "this node is stopping"))
        self.settle()
        for peer in list(self._peers.values()):  # a shard that broke lets nobody go
            peer.hang_up("this node is stopping")
        self.trunks.close()
        self.links.close()
        self._flushes.stop()
        self._pool.shutdown()
        return drained

    def protocol(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self, next(self._sessions))

    def new_session(self) -> int:
        """Return a number that no session ever had."""
        return next(self._sessions)

    def _confirms_soon(self) -> bool:
        return bool(self._flushes.lone)

    def broke(self) -> None:
        """Let everybody go: nothing that the shard says is to be believed any more."""
        for peer in list(self._peers.values()):
            peer.cut()
        self.links.close()

    # -- peers --------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many peers are connected."""
        return len(self._peers)

    @property
    def frames(self) -> int:
        """How many frames of peers have come so far."""
        return self._frames

    @property
    def reservations(self) -> Reservations:
        """Which frames of peers are read that are not whole yet."""
        return self._reservations

    @property
    def flush_seconds(self) -> dict[int, Histogram]:
        """By the log's number, how long its flushes took."""
        return self._flushes.seconds

    @property
    def held(self) -> bool:
        """Whether the byte budget is used up: peers only finish frames that they have begun."""
        return self._held

    def now(self) -> float:
        """Seconds since whenever; never falls."""
        return self._loop.time()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""
        self._loop.call_later(seconds, act)

    def opened(self, peer: Peer) -> None:
        """A peer connected."""
        most = self._doors.connections_max
        found = self.links.found
        peer.may_link = self._lobby.closed or (bool(found) and peer.host in found)
        if len(self._peers) >= most and not peer.may_link:
            peer.hang_up(f"{most:,} connections are open")
            return
        self._peers[peer.session] = peer
        enters = self._lobby.may_enter(peer, self.now())
        if enters:
            self.handle(ev.Opened(peer.session))
            peer.enter()
        if self._held or not enters:  # later: uvloop begins to read behind connection_made
            peer.update()
            self._loop.call_soon(peer.update)

    def _enter(self, peer: Peer) -> None:
        if peer.session in self._peers:
            self.handle(ev.Opened(peer.session))
            peer.enter()

    def received(self, session: int, frames: Sequence[ClientFrame | DeviceRequest]) -> None:
        """Whole frames came in."""
        self._flushes.asked += len(frames)
        for frame in frames:
            self._frames += len(frame.sns) if type(frame) is DevicePublishes else 1
        if not (len(frames) == 2 and self.greeted(session, *frames)):
            self.handle(ev.Received(session, frames))

    def arrived(self, event: ev.Arrived) -> None:
        """Devices that another shard let in came at once."""
        self._flushes.asked += 2 * len(event.arrivals)  # a hello and publishes each
        self.handle(event)

    def in_line(self, peer: Peer) -> None:
        """A peer brought more frames than it may be served at once: serve them by parts."""
        self._line[peer] = None
        if not self._lining:
            self._lining = True
            self._loop.call_soon(self._serve_line)

    def _serve_line(self) -> None:
        """Serve a part of each that is in line, until the frames of a turn are served."""
        until = self._frames + _TURN_FRAMES
        peers, self._line = [*self._line], {}
        for at, peer in enumerate(peers):
            if self._frames >= until:
                self._line = dict.fromkeys((*peers[at:], *self._line))
                break
            peer.serve_part()
        self._lining = bool(self._line)
        if self._lining:
            self._loop.call_soon(self._serve_line)

    def closed(self, peer: Peer) -> None:
        """A peer is gone."""
        if self._peers.pop(peer.session, None) is not None:
            self.handle(ev.Closed(peer.session))

    def arrived_of(self, frame: Incoming, came: int, size: int) -> None:
        """Of a frame of `size` bytes, which is not whole, there are `came` now."""
        self._reservations.arrived(frame, came, size)
        if self._reservations.is_due:
            self._settle_frames()

    def ended_of(self, frame: Incoming) -> None:
        """A frame is whole, or its connection is over."""
        self._reservations.ended(frame)
        if self._reservations.is_due:
            self._settle_frames()

    def _settle_frames(self) -> None:
        for frame in self._reservations.advance(self.now()):
            if (peer := self._peers.get(frame.connection)) is not None:
                peer.settle_frame(frame)

    def lane_brought(self, lane: Lane, size: int) -> None:
        """Of the frame under way on a connection of another shard there are `size` bytes now."""
        self._lanes.came(lane, size)
        for slowest in self._lanes.overflow():
            log.warning("a connection of another shard was cut: its frame waited longest")
            slowest.cut()

    def take(self, size: int) -> None:
        """Take bytes of the budget while effects are done; the next event sees to the rest."""
        self._shard.budget.take(size)

    def watch(self, peer: Peer) -> None:
        """Look at a peer at every tick until all that was charged for it is sent."""
        self._watched[peer.session] = peer

    def release(self, size: int) -> None:
        """Give back bytes of the budget that were sent."""
        self._shard.budget.release(size)

    def passed_on(self, shard: int, size: int) -> None:
        """Give back bytes of the budget that another shard of this node was sent."""
        self._shard.passed_on(shard, size)

    # -- effects ------------------------------------------------------------------------------

    def _do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            self._actions[type(effect)](effect)
        if not self._serves and (self._shard.ready or self.links.nodes):
            self._serves = True
            self._ready.set()

    def _send(self, effect: ef.Send) -> None:
        peer = self._peers.get(effect.session) or self.trunks.guest(effect.session)
        if peer is not None:
            peer.send(effect.buffers, effect.charged)
        else:
            self.release(effect.charged)

    def _answer(self, effect: ef.Answers) -> None:
        peers, trunks = self._peers, self.trunks
        for session, reply in effect.replies.items():
            if (peer := peers.get(session)) is not None:
                peer.send((reply,), 0)
            elif (guest := trunks.guest(session)) is not None:
                guest.answer(reply)

    def _hang_up(self, effect: ef.Hangup) -> None:
        peer = self._peers.get(effect.session) or self.trunks.guest(effect.session)
        if peer is not None:
            peer.hang_up(effect.reason)

    def _hold(self, effect: ef.HoldReads) -> None:
        self._held = effect.hold
        log.warning("byte budget: reading is %s", "held" if effect.hold else "resumed")
        for peer in list(self._peers.values()):
            peer.update()
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
        for peer in list(self._peers.values() if self._held else self._watched.values()):
            if not peer.tick():
                self._watched.pop(peer.session, None)
        self.trunks.tick()
        self.links.tick()
        if self._reservations.is_due:
            self._settle_frames()
        self.handle(ev.Ticked())
        for peer in self._lobby.entering(self.now()):
            self._enter(peer)
            peer.update()
        if self.now() >= self._sweep_at:
            self._sweep_at = self.now() + SWEEP_SECONDS
            for peer in list(self._peers.values()):
                peer.sweep(self._doors)
