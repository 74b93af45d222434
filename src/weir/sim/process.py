"""A simulated process: one shard over simulated disks, in virtual time; server.driver's twin."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.identity import Identity
from weir.broker.layout import Layout
from weir.broker.replica.restore import Opened
from weir.broker.shard import Shard, ShardSettings
from weir.errors import RemoteProtocolError
from weir.log import recovery
from weir.log.durable_position import DurablePosition, Owner
from weir.log.settings import Settings
from weir.sim.disk import SimDisk
from weir.sim.jobs import DiskEffect, Faults, Jobs
from weir.sim.links import Dial, Links
from weir.sim.network import End, Link, Way
from weir.sim.positions import Positions
from weir.sim.trunks import Trunks
from weir.sim.witness import Witness
from weir.sim.world import MS, SkewedTime, World
from weir.wire.connection import Connection

_Besides = (
    DiskEffect
    | ef.Answers
    | ef.Pass
    | ef.Hangup
    | ef.HoldReads
    | ef.Connect
    | ef.Disconnect
    | ef.EndLink
    | ef.EndTrunk
    | ef.Stopped
)

#: A shard's own port is so much above its number.
SHARD_PORT = 6900
#: A recovery has a few steps for each segment.
_RECOVERY_STEPS = 40


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run is played on: sizes small enough for rolls, reads, saves, refusals to happen."""

    #: Of each of the node's logs.
    log: Settings
    shard: ShardSettings
    #: How long a flush takes, in virtual microseconds, least and most.
    flush: tuple[int, int]
    logs: int = 1
    #: How many processes a node may have.
    shards_max: int = 3
    #: How often a process looks at the clock, in virtual microseconds.
    tick: int = ev.TICK_MS * MS
    #: Whether clients are told of the shards' own ports.
    ports: bool = False

    def __str__(self) -> str:
        """What was drawn, for the report of a run that failed."""
        log, shard, pairs = self.log, self.shard, self.shard.replication
        return (
            f"{self.logs} logs of segments of {log.segment_bytes:,} bytes, entries of "
            f"{log.entry_bytes_max:,}, a cache of {log.cache_bytes_max:,}, {log.spares} spares; "
            f"a budget of {shard.budget_bytes:,}, checkpoints after {shard.checkpoint_bytes:,}; "
            f"flushes of {self.flush} virtual µs; {pairs}"
        )


@dataclass(frozen=True, slots=True)
class Seat:
    """What a process has of its node: its clock, disks and faults; and of its set, who is in it."""

    world: World
    time: SkewedTime
    disks: Mapping[int, SimDisk]
    #: Where it lies how far each log had been durable.
    others: Mapping[int, SimDisk]
    machine: Machine
    faults: Faults
    identity: Identity
    #: Told of a process whose disk failed.
    disk_gone: Callable[[Process], None]
    #: Finds the processes of another node.
    dial: Dial
    witness: Witness


@dataclass(slots=True)
class _Session:
    """A connection as the process sees it."""

    number: int
    stream: Connection
    #: Whether it is being closed: nothing more is read from it.
    leaving: bool = False


class Process:
    """One shard of a node. It lives once: another one takes its place when it has ended."""

    def __init__(self, seat: Seat) -> None:
        """Have a seat in a node; `start` brings the shard up."""
        world = seat.world
        self.world = world
        self.disks = seat.disks
        self.node = seat.identity.node
        self.number = 0
        self.logs: list[int] = []
        self.shard: Shard | None = None
        #: Drawn at the start: what it has told others before, it has forgotten.
        self.run = world.dice.getrandbits(32)
        #: Whether everything is durable and saved, after it was told to stop.
        self.stopped = False
        self.trunks = Trunks(self)
        self.links = Links(self, seat.dial)
        self._seat = seat
        self._jobs = Jobs(self, seat.machine.flush, seat.faults)
        self._links: dict[Link, _Session] = {}
        self._by_number: dict[int, Link] = {}
        self._numbers = count(world.dice.getrandbits(31) << 31)
        self._held = False
        #: Whether it stands still.
        self.paused = False
        #: What happened while it was paused.
        self._backlog: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    @property
    def name(self) -> str:
        """Its node and its number, for the trace."""
        return f"{self.node}/{self.number}"

    # -- life and death ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it listens for clients."""
        return self.shard is not None and self.shard.ready

    def start(self, number: int, layout: Layout) -> None:
        """Recover the disks and run shard `number` on them.

        Raises what the recovery of a log raises, and `PowerCut` if it is cut short.
        """
        self.number = number
        self.logs = layout.logs_of(number)
        opened = [self._open(log) for log in self.logs]
        seat = self._seat
        identity = replace(seat.identity, shard=number)
        settings = seat.machine.shard
        if seat.machine.ports and layout.shards > 1:
            ports = tuple(SHARD_PORT + shard for shard in range(layout.shards))
            settings = replace(settings, ports=ports)
        self.shard = Shard(identity, opened, seat.time, settings, layout)
        self._do(self.shard.start())
        self._tick()

    def _open(self, log: int) -> Opened:
        disk = self.disks[log]
        if self.world.chance(self._seat.faults.recoveries):
            disk.cut_after(self.world.dice.randrange(_RECOVERY_STEPS))
        settings = replace(self._seat.machine.log, log=log)
        other = self._seat.others[log]
        file = DurablePosition(other, Owner(log, settings.system, 1))
        recovered = recovery.recover(disk, settings, file.position)
        disk.kill()  # takes a cut back that has not come
        self._jobs.positions[log] = Positions(self, other, file)
        return Opened(recovered.log, recovered.groups, recovered.body)

    def end(self, power: bool = False) -> None:
        """Lose all that is in memory; each job on a disk got as far as it got.

        Where the power went with it nobody is told.
        """
        self._seat.witness.look(self)
        self._jobs.abandon()
        self.shard = None
        self._backlog.clear()
        links, self._links = list(self._links), {}
        self._by_number.clear()
        for link in links:
            link.orphaned = link.open
            link.cut(silent=power)
        self.trunks.cut(power)
        self.links.cut(power)

    def disk_failed(self) -> None:
        """A write or a sync failed: nothing may be retried, believed, or said to anybody."""
        self._seat.disk_gone(self)

    def stop(self) -> None:
        """Drain, as a process does that is told to end."""
        if not self.asleep(self.stop):
            self.handle(ev.Stopping())

    def pause(self) -> None:
        """Stand still: time goes on, and what happens is handled by `go_on`."""
        self.paused = True

    def go_on(self) -> None:
        """Handle all that has happened in the meantime.

        What came on one connection keeps its order; which connection is read first is anybody's
        guess, and so is whether timers are heard of before.
        """
        if not self.paused:
            return
        self.paused = False
        backlog, self._backlog = self._backlog, deque()
        sources: dict[object, list[tuple[Callable[..., object], tuple[Any, ...]]]] = {}
        for do, arguments in backlog:
            source = arguments[0] if arguments and isinstance(arguments[0], Link) else do
            sources.setdefault(source, []).append((do, arguments))
        order = list(sources.values())
        if self.world.chance(0.7):
            self.world.dice.shuffle(order)
        for happened in order:
            for do, arguments in happened:
                do(*arguments)

    def asleep(self, do: Callable[..., object], *arguments: Any) -> bool:
        """Return whether the process stands still; then `do(*arguments)` is called later."""
        if self.paused:
            self._backlog.append((do, arguments))
        return self.paused

    # -- peers ---------------------------------------------------------------------------------

    def connect(self, client: End, up: Way, down: Way) -> Link:
        """Open a connection."""
        link = Link(self.world, client, self, up, down)
        session = _Session(self.new_session(), Connection())
        self._links[link] = session
        self._by_number[session.number] = link
        link.hold(self._held)
        self._greet(link, session.number)
        return link

    def _greet(self, link: Link, number: int) -> None:
        if not self.asleep(self._greet, link, number):
            self.handle(ev.Opened(number))

    def new_session(self) -> int:
        """Return a number that no session ever had."""
        return next(self._numbers)

    def received(self, link: Link, data: bytes) -> None:
        """Cut frames out of a peer's bytes and hand them to the shard."""
        if self.paused and self.asleep(self.received, link, data):
            return
        session = self._links.get(link)
        if session is None or session.leaving or self.shard is None:
            return
        stream = session.stream
        before = stream.pending
        try:
            frames = stream.receive(data)
        except RemoteProtocolError as error:
            self.world.note("dropped", str(error))
            link.cut()
            return
        self.shard.budget.take(stream.pending - before)
        if frames:
            self.handle(ev.Received(session.number, frames))

    def lost(self, link: Link) -> None:
        """A peer is gone."""
        if self.asleep(self.lost, link):
            return
        session = self._links.pop(link, None)
        if session is None or self.shard is None:
            return
        del self._by_number[session.number]
        self.shard.budget.release(session.stream.pending)
        self.handle(ev.Closed(session.number))

    def peers(self) -> list[Link]:
        """Return the connections of clients that are open as far as this side knows."""
        return list(self._links)

    # -- effects -------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Feed one event, unless the process has ended, and do what comes of it."""
        if self.shard is not None and (effects := self.shard.handle(event)):
            self._do(effects)

    def _do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            # Most are one of these two: as patterns they took twice as long.
            if isinstance(effect, ef.SendToPeer):
                if effect.charged:
                    self._release(effect.charged)
                self.links.send(effect.place, effect.quick, b"".join(effect.buffers))
            elif isinstance(effect, ef.Send):
                if effect.charged:
                    self._release(effect.charged)
                self._send(effect.session, b"".join(effect.buffers))
            else:
                self._do_besides(effect)

    def _do_besides(self, effect: _Besides) -> None:
        match effect:
            case ef.StartFlush():
                self._jobs.start(effect)
            case ef.Answers(replies):
                for session, reply in replies.items():
                    self._send(session, reply)
            case ef.Pass(shard, buffers, charged):
                assert self.shard is not None  # it has just asked for this
                self.shard.passed_on(shard, charged)
                self.trunks.send(shard, b"".join(buffers))
            case ef.Hangup(session, reason):
                self._hang_up(session, reason)
            case ef.HoldReads(held):
                self._hold(held)
            case ef.Connect(node):
                self.links.connect(node)
            case ef.Disconnect(node):
                self.links.disconnect(node)
            case ef.EndLink(place, reason) | ef.EndTrunk(place, reason):
                raise AssertionError(f"an honest node at place {place} was cut off: {reason}")
            case ef.Stopped():
                self.stopped = True
            case _:
                self._jobs.start(effect)

    def _release(self, charged: int) -> None:
        assert self.shard is not None  # it has just asked for this
        self.shard.budget.release(charged)

    def _send(self, session: int, data: bytes) -> None:
        self.world.note("send", session, zlib.crc32(data))
        if (link := self._by_number.get(session)) is not None:
            link.to_client(data)
        else:
            self.trunks.reply(session, data)

    def _hang_up(self, session: int, reason: str) -> None:
        self.world.note("hangup", reason)
        if (link := self._by_number.get(session)) is not None:
            self._links[link].leaving = True
            link.finish()
        else:
            self.trunks.hang_up(session, reason)

    def _hold(self, held: bool) -> None:
        self.world.note("hold", held)
        self._held = held
        for link in self._links:
            link.hold(held)
        self.trunks.hold(held)

    def _tick(self) -> None:
        if self.shard is None:
            return
        if not (self.paused and self.asleep(self._tick)):
            self.world.after(self._seat.machine.tick, self._tick)
            self.handle(ev.Ticked())
            self._seat.witness.look(self)
