"""`Node`: a broker that a test starts, cuts off, crashes, and whose time it moves on.

Its disk is in memory: what was not synced is lost when the power is cut, and nothing else. The
simulator's disk tears and reorders too; this one is for applications, whose tests want to see the
same every time. `Host` is the twin of `weir.server.driver` without threads: what that one gives to
a thread happens here in the next turn of the loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from weir.access.wrapping import KEY_BYTES, KeyRing
from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, ShardSettings
from weir.broker.replica.checkpoints import Opened
from weir.broker.shard import Shard
from weir.client.connection.system import Background, BackgroundThread
from weir.codec import Buffer
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.logs import FlushSchedule
from weir.host.shard_loop import EventQueue, ShardLoop
from weir.model.limits import MIB
from weir.server.network.connections import Network, NoLinks, Peer
from weir.storage.disk import Pacer, at_once
from weir.storage.format import checkpoint
from weir.storage.recovery import recover
from weir.storage.segment_files import Settings

log = logging.getLogger(__name__)

#: What is done on the disk.
_ON_DISK = (
    ef.StartFlush, ef.StartRead, ef.MakeSpare, ef.SaveCheckpoint, ef.StartChore, ef.ReplicaHalted,
)  # fmt: skip
#: What is done about links to other nodes, of which there are none.
_OF_LINKS = ef.Connect, ef.Disconnect, ef.GuardLinks
_SYSTEM = 1
#: The least that holds batches of 8 MiB. A restart writes zeros over the rest of it.
_SEGMENT = 32 * MIB
_HOST = "127.0.0.1"
#: Far above what a start takes; it is there so that nothing waits for ever.
_START_WITHIN = 30.0
#: What is accepted just then gets a protocol, which hangs up; else nobody would ever close it.
_ACCEPTING_TURNS = 3


class MemoryDisk:
    """The port `weir.storage.disk.Disk`. Only `write` needs a `sync`; all else is durable at once.

    A write past the end of a file is a `ValueError`: a bug of the log.
    """

    def __init__(self) -> None:
        """Begin with an empty folder."""
        self._files: dict[str, bytearray] = {}
        #: By file, what lay where something unsynced was written, in the order of the writes.
        self._before: dict[str, list[tuple[int, bytes]]] = {}

    def crash(self) -> None:
        """Take back every write since its file's last sync."""
        for name, changes in self._before.items():
            file = self._files[name]
            for offset, data in reversed(changes):
                file[offset : offset + len(data)] = data
        self._before.clear()

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self._files)

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""
        return len(self._file(name))

    def create(self, name: str, size: int, pace: Pacer = at_once) -> None:
        """Make a file of `size` zeros."""
        if name in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._files[name] = bytearray(size)

    def zero(self, name: str, pace: Pacer = at_once) -> None:
        """Make an existing file all zeros."""
        self.replace(name, bytes(self.size(name)))

    def write(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all `buffers` one behind the other; lost by a crash until the next sync."""
        file, data = self._file(name), b"".join(buffers)
        end = offset + len(data)
        if not 0 <= offset <= end <= len(file):
            raise ValueError(f"write of {len(data):,} at {offset:,} reaches past {name}'s end")
        self._before.setdefault(name, []).append((offset, bytes(file[offset:end])))
        file[offset:end] = data

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return up to `length` bytes, synced or not."""
        return bytes(self._file(name)[offset : offset + length])

    def sync(self, name: str) -> None:
        """Make the file's writes durable."""
        self._file(name)
        self._before.pop(name, None)

    def replace(self, name: str, data: Buffer) -> None:
        """Make `data` the whole file."""
        self._before.pop(name, None)
        self._files[name] = bytearray(data)

    def remove(self, name: str) -> None:
        """Remove the file."""
        self._file(name)
        del self._files[name]
        self._before.pop(name, None)

    def close(self) -> None:
        """Nothing to give up: the disk outlives its users."""

    def _file(self, name: str) -> bytearray:
        file = self._files.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return file


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
        self._shard = Shard(Identity(_SYSTEM), [opened], clock, _settings())
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

    def wake(self) -> None:
        """It never rests."""

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
        on_disk: dict[type, Callable[[Any], None]] = dict.fromkeys(_ON_DISK, self._start)
        links: dict[type, Callable[[Any], None]] = dict.fromkeys(_OF_LINKS, _no_links)
        return {**self._connections.actions, **on_disk, **links}

    def _start(self, effect: ef.Effect) -> None:
        """Have work on the disk done behind this turn."""
        if isinstance(effect, ef.StartFlush):
            self._flushes.start(effect)  # the event loop runs it here
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


def node(port: int = 0) -> Node:
    """Return a node to enter with `with` or `async with`; `port` 0 takes a free one."""
    return Node(port)


class Node:
    """A broker in memory, in a thread of its own. Every method returns once it has taken effect."""

    def __init__(self, port: int = 0) -> None:
        """Be down, with an empty disk; entering starts it."""
        self.port = port
        self._disk = MemoryDisk()
        self._clock = ShiftedTime()
        self._lives = 0
        self._background: Background | None = None
        self._host: Host | None = None
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where to connect to; the same after a restart."""
        return f"weir://{_HOST}:{self.port}"

    @property
    def up(self) -> bool:
        """Whether it is running."""
        return self._host is not None and self._host.error is None

    def start(self) -> Node:
        """Start from what the disk holds. Raises `OSError` if the port is taken."""
        if self._background is None:
            self._background = BackgroundThread("weir-node")
        if self._host is None:
            self._background.run(self._start())
        return self

    def crash(self) -> None:
        """Cut the power: connections end, and what was not synced is lost. `start` brings it back.

        Everything that was confirmed was synced. What was under way may be there or not.
        """
        if self._background is not None:
            self._background.run(self._crash())

    def restart(self) -> None:
        """Cut the power, and start again on the same port."""
        self.crash()
        self.start()

    def cut(self) -> None:
        """Cut all connections, as a firewall does; clients may connect again at once."""
        if self._background is not None:
            self._background.run(self._cut())

    def advance(self, seconds: float) -> None:
        """Move the node's clocks forward: leases end, waits run out, "-10m" moves.

        From then on its stamps are ahead of the machine's clock. The application's own clock does
        not move, nor do times made from it, like `datetime.now()`. Raises `ValueError` below 0.
        """
        if seconds < 0:
            raise ValueError(f"advance({seconds}): give 0 or more seconds")
        self._clock.shift_ms += int(seconds * 1_000)
        if self._background is not None:
            self._background.run(self._look())

    def close(self) -> None:
        """End the node and discard its disk. Raises the exception that broke it, if any.

        Connections are cut: close clients first.
        """
        background, self._background = self._background, None
        if background is None:
            return
        broken = self._host.error if self._host is not None else None
        try:
            background.run(self._crash())
        finally:
            background.stop()
            self._disk = MemoryDisk()
        if broken is not None:
            raise broken

    def __enter__(self) -> Node:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Node:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    # -- in the thread -------------------------------------------------------------------------

    async def _start(self) -> None:
        self._lives += 1
        host = Host(self._disk, self._clock, self._lives)
        try:
            async with asyncio.timeout(_START_WITHIN):
                await host.start()
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(host.protocol, _HOST, self.port)
        except BaseException as error:
            host.end()
            self._disk.crash()
            raise host.error or error from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._host = host

    async def _crash(self) -> None:
        server, self._server = self._server, None
        host, self._host = self._host, None
        loop = asyncio.get_running_loop()
        for listening in server.sockets if server is not None else ():
            loop.remove_reader(listening)
        if host is not None:
            host.end()
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        if server is not None:
            server.close()
        self._disk.crash()

    async def _cut(self) -> None:
        if self._host is not None:
            self._host.cut()

    async def _look(self) -> None:
        if self._host is not None:
            self._host.handle(ev.Ticked())


def _settings() -> ShardSettings:
    """Return settings of a node that draws secrets, and wraps them by a key that ends with it."""
    ring = KeyRing([secrets.token_bytes(KEY_BYTES)])
    return ShardSettings(secret_bytes=secrets.token_bytes, key_ring=ring)


def _no_links(effect: ef.Connect | ef.Disconnect | ef.GuardLinks) -> None:
    """Do nothing: a node that has no network keeps no links, and nobody links to it."""
