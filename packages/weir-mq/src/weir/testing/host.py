"""One life of a node: a shard on the running loop, from its start to its power cut.

The twin of `weir.server.driver` without threads: what that one gives to a thread happens here in
the next turn of the loop, so that the order of things is the same every time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity
from weir.broker.replica.restore import Opened
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.event_queue import EventQueue
from weir.host.flush_schedule import FlushSchedule
from weir.host.shard_loop import ShardLoop
from weir.model.limits import MIB
from weir.server.network.connections import Network, NoLinks, Peer
from weir.storage.format import checkpoint
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings
from weir.testing.disk import MemoryDisk

log = logging.getLogger(__name__)

#: What is done on the disk.
_ON_DISK = (
    ef.StartFlush, ef.StartRead, ef.MakeSpare, ef.SaveCheckpoint, ef.StartChore, ef.ReplicaHalted,
)  # fmt: skip
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
        self._queue = EventQueue(self._shard, self._flushes)
        nobody = Network(frozenset())
        self._connections = Connections(
            self._queue, self._shard.budget, ConnectionLimits(), nobody, lambda session: None,
            self._loop.time, life << 32, log,
        )  # fmt: skip
        self._turns = ShardLoop(
            self._shard, self._queue, self._connections, (), self._actions(), self,
            self._loop.call_soon,
        )  # fmt: skip
        #: Feeds one event and does what comes of it.
        self.handle = self._turns.handle
        #: What broke the shard: a bug of weir.
        self.error: Exception | None = None

    async def start(self) -> None:
        """Return when clients can be served."""
        self._turns.start()
        self._tick()
        await self._ready.wait()
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Stop at once, cutting everybody off."""
        self._queue.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self._ready.set()
        self.cut()

    def cut(self) -> None:
        """Cut everybody off; what they sent before is served, and they may come again."""
        self._connections.cut()

    def serve(self) -> None:
        """The shard can serve."""
        self._ready.set()

    def broke(self, where: str, error: Exception) -> None:
        """End: an exception is a bug."""
        log.critical("the node broke at %s", where, exc_info=error)
        self.error = error
        self.end()

    def protocol(self) -> Peer:
        """Return the protocol of a new connection."""
        return Peer(self._turns, self._queue, self._connections.connection(), NoLinks())

    # -- effects -------------------------------------------------------------------------------

    def _actions(self) -> dict[type, Callable[[Any], None]]:
        on_disk = dict.fromkeys(_ON_DISK, self._start)
        return {**self._connections.actions, **on_disk}

    def _start(self, effect: ef.Effect) -> None:
        """Have work on the disk done behind this turn."""
        if isinstance(effect, ef.StartFlush):
            self._flushes.start(effect)  # whoever is to run it, here it is the loop
        self._loop.call_soon(self._work, effect)

    def _work(self, effect: ef.Effect) -> None:
        """Do what touches the disk; the power may have been cut in between."""
        if self._queue.is_closed:
            return
        try:
            self._work_on(effect)
        except Exception as error:
            self.broke(type(effect).__name__, error)

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

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(ev.TICK_MS / 1_000, self._tick)
        self._connections.check_connections()
        self.handle(ev.Ticked())
