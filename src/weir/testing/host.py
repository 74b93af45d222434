"""One life of a node: a shard on the running loop, from its start to its power cut.

The twin of `weir.server.driver` without threads: what that one gives to a thread happens here in
the next turn of the loop, so that the order of things is the same every time.
"""

from __future__ import annotations

import asyncio
import logging
import time

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.identity import Identity
from weir.broker.replica.restore import Opened
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.feed import Feed
from weir.host.flush_schedule import FlushSchedule
from weir.log import checkpoint
from weir.log.recovery import recover
from weir.log.settings import Settings
from weir.model.limits import MIB
from weir.server.transport import Network, Peer
from weir.testing.disk import MemoryDisk

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
        self._ready = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._flushes = FlushSchedule((0,), (), self._loop.time)
        self._feed = Feed(self._shard, self._flushes)
        nobody = Network(frozenset(), lambda transport, data: transport.abort())
        self._connections = Connections(
            self._feed, self._shard.budget, ConnectionLimits(), nobody, lambda session: None,
            self._loop.time, life << 32, log,
        )  # fmt: skip
        self._lining = False
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
        self._feed.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self._ready.set()
        self.cut()

    def cut(self) -> None:
        """Cut everybody off; what they sent before is served, and they may come again."""
        self._connections.cut()

    def handle(self, event: ev.Event) -> None:
        """Feed one event and do what comes of it; an exception is a bug, and ends the host."""
        feed = self._feed
        feed.put(event)
        if not feed.waits:
            self.run()

    def run(self) -> None:
        """Let the shard take what is in its feed, and do what comes of it, until that is empty."""
        feed, connections = self._feed, self._connections
        try:
            while not feed.waits:
                if not feed.events:
                    if not connections.more:
                        break
                    connections.go_on()
                    continue
                self._do(feed.take())
                behind = feed.follow()
                if behind is None:
                    self._loop.call_soon(self._settle)
                else:
                    self._do(behind)
            if connections.line and not self._lining:
                self._lining = True
                self._loop.call_soon(self._serve_line)
        except Exception as error:
            self._broke("events", error)

    def _serve_line(self) -> None:
        self._lining = False
        self._connections.serve_line()
        self.run()

    def _settle(self) -> None:
        try:
            self._do(self._feed.settle())
        except Exception as error:
            self._broke("settling", error)

    def _broke(self, where: str, error: Exception) -> None:
        log.critical("the node broke at %s", where, exc_info=error)
        self.error = error
        self.end()

    def protocol(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self, self._feed, self._connections.connection())

    # -- effects -------------------------------------------------------------------------------

    def _do(self, effects: list[ef.Effect]) -> None:
        actions = self._connections.actions
        for effect in effects:
            actions.get(type(effect), self._start)(effect)
        if self._shard.ready:
            self._ready.set()

    def _start(self, effect: ef.Effect) -> None:
        """Have work on the disk done behind this turn."""
        if isinstance(effect, ef.StartFlush):
            self._flushes.start(effect)  # whoever is to run it, here it is the loop
        self._loop.call_soon(self._work, effect)

    def _work(self, effect: ef.Effect) -> None:
        """Do what touches the disk; the power may have been cut in between."""
        if self._feed.is_closed:
            return
        try:
            self._work_on(effect)
        except Exception as error:
            self._broke(type(effect).__name__, error)

    def _work_on(self, effect: ef.Effect) -> None:
        disk = self._disk
        match effect:
            case ef.StartFlush(log, flush):
                self._flushes.inline.pop(log, None)
                began = time.perf_counter()
                flush.run(disk)
                event, rest = self._flushes.flushed(log, flush, time.perf_counter() - began)
                if rest:
                    self._loop.call_later(rest, self.handle, ev.Rested(log))
                self.handle(event)
            case ef.StartRead(_, ticket, reading):
                self.handle(ev.ReadDone(ticket, reading.run(disk)))
            case ef.MakeSpare(log, spare):
                spare.run(disk)
                self.handle(ev.SpareMade(log, spare))
            case ef.SaveCheckpoint(log, data=data):
                self.handle(ev.CheckpointSaved(log, size=checkpoint.save(disk, data)))
            case ef.StartChore(log, chore):
                self.handle(ev.ChoreDone(log, chore, chore.run(disk)))
            case ef.ReplicaHalted(error=error):
                raise error
            case _:
                raise TypeError(f"a node of one shard is asked for {effect!r}")

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(ev.TICK_MS / 1_000, self._tick)
        self._connections.tick()
        self.handle(ev.Ticked())
