"""One life of a node: a shard on the running loop, from its start to its power cut.

The twin of `weir.server.driver` without threads: what that one gives to a thread happens here in
the next turn of the loop, so that the order of things is the same every time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from itertools import count
from typing import cast

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.identity import Identity
from weir.broker.replica.restore import Opened
from weir.broker.shard import Shard
from weir.errors import RemoteProtocolError
from weir.log import checkpoint
from weir.log.recovery import recover
from weir.log.settings import Settings
from weir.model.limits import MIB
from weir.testing.disk import MemoryDisk
from weir.wire.connection import Connection

log = logging.getLogger(__name__)

_SYSTEM = 1
#: The least that holds batches of 8 MiB. A restart writes zeros over the rest of it.
_SEGMENT = 32 * MIB


class ShiftedTime:
    """The machine's clocks, moved on by `shift_ms`."""

    def __init__(self) -> None:
        """Begin in step with the machine."""
        self.shift_ms = 0

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000 + self.shift_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since whenever; never falls."""
        return time.monotonic_ns() // 1_000_000 + self.shift_ms


class Host:
    """Feeds events to a shard and does its effects. `end` is a power cut: nothing is finished."""

    def __init__(self, disk: MemoryDisk, clock: ShiftedTime, life: int) -> None:
        """Recover the disk; `start` comes next. `life` counts the starts of this disk."""
        settings = Settings(log=0, system=_SYSTEM, segment_bytes=_SEGMENT, spares=0)
        recovered = recover(disk, settings)
        opened = Opened(recovered.log, recovered.groups, recovered.body)
        self._shard = Shard(Identity(_SYSTEM), [opened], clock)
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._peers: dict[int, _Peer] = {}
        self._sessions = count(life << 32)
        self._ready = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._ended = False
        #: What broke the shard: a bug of weir.
        self.error: Exception | None = None

    async def start(self) -> None:
        """Return when clients can be served."""
        self._do(self._shard.start())
        self._tick()
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Stop at once, cutting everybody off."""
        self._ended = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._ready.set()
        self.cut()

    def cut(self) -> None:
        """Cut everybody off; what they sent before is served, and they may come again."""
        for peer in [*self._peers.values()]:
            peer.cut()

    def handle(self, event: ev.Event) -> None:
        """Feed one event and do what comes of it; an exception is a bug, and ends the host."""
        if self._ended:
            return
        try:
            self._do(self._shard.handle(event))
        except Exception as error:
            self._broke(type(event).__name__, error)

    def _broke(self, where: str, error: Exception) -> None:
        log.critical("the node broke at %s", where, exc_info=error)
        self.error = error
        self.end()

    # -- peers ---------------------------------------------------------------------------------

    def protocol(self) -> _Peer:
        """Return the protocol of a new connection."""
        return _Peer(self, next(self._sessions))

    def opened(self, peer: _Peer) -> None:
        """A peer connected."""
        if self._ended:
            peer.cut()
            return
        self._peers[peer.session] = peer
        self.handle(ev.Opened(peer.session))

    def closed(self, peer: _Peer) -> None:
        """A peer is gone."""
        if self._peers.pop(peer.session, None) is not None:
            self.handle(ev.Closed(peer.session))

    def charge(self, size: int) -> None:
        """Take bytes of the budget for a frame under way, or give them back (below 0)."""
        self._shard.budget.take(size)

    # -- effects -------------------------------------------------------------------------------

    def _do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.Send(session, buffers, charged):
                    self._shard.budget.release(charged)
                    if (peer := self._peers.get(session)) is not None:
                        peer.send(b"".join(buffers))
                case ef.Answers(replies):
                    for session, reply in replies.items():
                        if (peer := self._peers.get(session)) is not None:
                            peer.send(reply)
                case ef.Hangup(session):
                    if (peer := self._peers.get(session)) is not None:
                        peer.hang_up()
                case ef.HoldReads(hold):
                    for peer in self._peers.values():
                        peer.hold(hold)
                case _:
                    self._loop.call_soon(self._work, effect)
        if self._shard.ready:
            self._ready.set()

    def _work(self, effect: ef.Effect) -> None:
        """Do what touches the disk; the power may have been cut in between."""
        if self._ended:
            return
        try:
            self._work_on(effect)
        except Exception as error:
            self._broke(type(effect).__name__, error)

    def _work_on(self, effect: ef.Effect) -> None:
        disk = self._disk
        match effect:
            case ef.StartFlush(log, flush):
                flush.run(disk)
                self.handle(ev.Flushed(log, flush))
            case ef.StartRead(_, ticket, reading):
                self.handle(ev.ReadDone(ticket, reading.run(disk)))
            case ef.MakeSpare(log, spare):
                spare.run(disk)
                self.handle(ev.SpareMade(log, spare))
            case ef.SaveCheckpoint(log, data=data):
                self.handle(ev.CheckpointSaved(log, size=checkpoint.save(disk, data)))
            case ef.StartChore(log, chore):
                self.handle(ev.ChoreDone(log, chore, chore.run(disk)))
            case _:
                raise TypeError(f"a node of one shard is asked for {effect!r}")

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(ev.TICK_MS / 1_000, self._tick)
        self.handle(ev.Ticked())


class _Peer(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, host: Host, session: int) -> None:
        self.session = session
        self._host = host
        self._stream = Connection()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._host.opened(self)

    def data_received(self, data: bytes) -> None:
        before = self._stream.pending
        try:
            frames = self._stream.receive(data)
        except RemoteProtocolError:
            self.hang_up()
            return
        self._host.charge(self._stream.pending - before)
        if frames:
            self._host.handle(ev.Received(self.session, frames))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._host.charge(-self._stream.pending)
        self._host.closed(self)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def hold(self, hold: bool) -> None:
        if self._transport is not None:
            if hold:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
