"""A simulated process: one shard over simulated disks, in virtual time; server.driver's twin."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.settings import Identity, Layout, ShardSettings
from weir.broker.shard import Shard
from weir.host.accept_queue import ConnectionLimits
from weir.host.connections import Connections
from weir.host.links import Links, ShardInfo
from weir.host.logs import FlushSchedule, LogStart, open_log, tell_durable
from weir.host.outbound_link import NodeAddress
from weir.host.shard_connections import LocalShard
from weir.host.shard_loop import EventQueue, Pace, ShardLoop
from weir.host.trunks import RemotePeer, Trunks
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk
from weir.testing.simulator.jobs import BESIDES, Faults, Jobs, Positions
from weir.testing.simulator.network import Link
from weir.testing.simulator.running import Standstill
from weir.testing.simulator.sockets import Dial, Dialer, Network, Socket, Sockets, Wired
from weir.testing.simulator.witness import Witness
from weir.testing.simulator.world import MS, SECOND, SkewedTime, World

#: How often a process looks whether peers take its replies, if it ticks more slowly.
_LOOK = 2 * ev.TICK_MS * MS
_STOPPING = "this node is stopping"
#: A shard's own port is so much above its number.
SHARD_PORT = 6900
#: That all shards of a node share.
PORT = 6800
#: A recovery has a few steps for each segment.
_RECOVERY_STEPS = 40


class Machine(msgspec.Struct, frozen=True):
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
    limits: ConnectionLimits = msgspec.field(default_factory=ConnectionLimits)
    #: Whether clients are told of the shards' own ports.
    ports: bool = False

    def __str__(self) -> str:
        """What was drawn, for the report of a run that failed."""
        log, shard, pairs = self.log, self.shard, self.shard.replication
        return (
            f"{self.logs} logs of segments of {log.segment_bytes:,} bytes, entries of "
            f"{log.entry_bytes_max:,}, a cache of {log.cache_bytes_max:,}, {log.spares} spares; "
            f"a budget of {shard.budget_bytes:,}, checkpoints after {shard.checkpoint_bytes:,}; "
            f"flushes of {self.flush} virtual µs; {self.limits}; {pairs}"
        )


class Keeper(Protocol):
    """Starts the processes of a node, and receives their messages."""

    def served(self, process: Process) -> None:
        """A process serves."""

    def disk_gone(self, process: Process) -> None:
        """A disk of a process failed: it ends."""

    def trunk_lost(self, process: Process, shard: int) -> None:
        """A process cannot ask another shard any more."""


class Hardware:
    """What a node's processes run on, and what outlives them: its clock and its disks."""

    def __init__(self, world: World, node: int, logs: int) -> None:
        """Have an empty disk for each log."""
        self.time = SkewedTime(world)
        self.disks = {number: SimDisk(world.dice) for number in range(logs)}
        #: Other disks, which say how far each log had been durable; they have dice of their own.
        self.others = {n: SimDisk(random.Random(node << 8 | n)) for n in range(logs)}
        #: How likely what fails.
        self.faults = Faults()
        self._world = world

    def stop(self, power: bool) -> None:
        """Let what is under way get as far as it got; with the power lose what was not synced."""
        for disk in (*self.disks.values(), *self.others.values()):
            if power:
                disk.crash()
            else:
                disk.kill()

    def replace(self, log: int) -> SimDisk:
        """Put an empty disk in the place of a log's; return it."""
        disk = self.disks[log] = SimDisk(self._world.dice)
        self.others[log] = SimDisk(random.Random(log))
        return disk

    def fill(self, full: bool) -> None:
        """Leave no room for new files, or leave some again."""
        for disk in self.disks.values():
            disk.full = full


class Seat(msgspec.Struct, frozen=True):
    """What a process has of its node, which it runs on, and of its set: the members."""

    world: World
    hardware: Hardware
    machine: Machine
    identity: Identity
    keeper: Keeper
    #: Finds the processes of another node.
    dial: Dial
    witness: Witness


class Process:
    """One shard of a node. It lives once: another one takes its place when it has ended."""

    def __init__(self, seat: Seat, number: int, layout: Layout) -> None:
        """Recover the disks of shard `number`; `start` brings it up.

        Raises what the recovery of a log raises, and `PowerCut` if it is cut short.
        """
        world = seat.world
        self.world = world
        self.number = number
        #: Drawn at the start: what it has told others before, it has forgotten.
        self.run = world.dice.getrandbits(32)
        #: Whether everything is durable and saved, after it was told to stop.
        self.stopped = False
        self.standstill = Standstill(world)
        self._seat = seat
        self._jobs = Jobs(self, seat.machine.flush, seat.hardware.faults)
        logs = layout.logs_of(number)
        starts = [self._open(log) for log in logs]
        identity = replace(seat.identity, shard=number)
        settings = seat.machine.shard
        ports = tuple(SHARD_PORT + shard for shard in range(layout.shards))
        ports = ports if layout.shards > 1 else ()
        if seat.machine.ports:
            settings = replace(settings, ports=ports)
        opened = [start.opened for start in starts]
        shard = Shard(identity, opened, seat.hardware.time, settings, layout)
        #: None once the process has ended.
        self.shard: Shard | None = shard
        tell_durable(starts, self._jobs.positions)
        #: Those of other nodes that it links to, and the peers of other shards, by session.
        nodes: dict[int, NodeAddress] = {}
        remote_peers: dict[int, RemotePeer] = {}
        self.flushes = FlushSchedule(logs, nodes, self._seconds)
        queue = self._queue = EventQueue(shard, self.flushes)
        found: set[str] = set()
        connections = self._connections = Connections(
            queue, shard.budget, seat.machine.limits, Network(found), remote_peers.get,
            self._seconds, world.dice.getrandbits(31) << 31, _Notes(world),
        )  # fmt: skip
        look_after = _LOOK if seat.machine.tick > _LOOK else 0
        self.sockets = Sockets(self, queue, connections, look_after)
        local = LocalShard(shard, queue, connections, self._soon, self._later, connections.log)
        self.trunks = Trunks(local, remote_peers, partial(seat.keeper.trunk_lost, self))
        reached = (f"node{self.node}", PORT) if identity.members else ("", 0)
        own = ShardInfo(identity, len(self.disks), layout.shards, ports, *reached)
        dialer = Dialer(self.sockets, seat.dial, found)
        self.links = Links(local, self.trunks, own, nodes, found, self.run, dialer, world.dice)
        actions: dict[type, Callable[[Any], None]] = {
            **connections.actions,
            ef.HoldReads: self._hold,
            ef.StartFlush: self._start_flush,
            ef.Pass: self.trunks.send,
            ef.SendToPeer: self.links.send,
            ef.Connect: self.links.connect,
            ef.Disconnect: self.links.disconnect,
            ef.GuardLinks: self.links.guard,
            ef.EndLink: self._end_link,
            ef.EndTrunk: self._end_link,
            ef.Stopped: self._on_stopped,
            ef.ReplicaHalted: _halted,
            **dict.fromkeys(BESIDES, self._jobs.start),
        }
        turns = ShardLoop(shard, queue, connections, nodes, actions, self, self._soon)
        self._pace = Pace(shard, queue, connections, turns, nodes, seat.machine.tick // MS)

    @property
    def node(self) -> int:
        """The id of its node."""
        return self._seat.identity.node

    @property
    def name(self) -> str:
        """Its node and its number, for the trace."""
        return f"{self.node}/{self.number}"

    @property
    def disks(self) -> Mapping[int, SimDisk]:
        """Those of its node, by log."""
        return self._seat.hardware.disks

    # -- life and death ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether all that its shard has is led, and devices can be served, just now."""
        return self.shard is not None and self.shard.ready

    @property
    def serves(self) -> bool:
        """Whether clients can connect: as soon as they are let in, and until it ends."""
        return self.shard is not None and self._pace.turns.serves

    @property
    def charged(self) -> int:
        """How many bytes of its budget are in use."""
        return 0 if self.shard is None else self.shard.budget.used

    def start(self) -> None:
        """Run the shard."""
        self._pace.turns.start()
        self.tick()

    def _open(self, log: int) -> LogStart:
        hardware = self._seat.hardware
        disk = hardware.disks[log]
        if self.world.chance(hardware.faults.recoveries):
            disk.cut_after(self.world.dice.randrange(_RECOVERY_STEPS))
        settings = replace(self._seat.machine.log, log=log)
        other = hardware.others[log]
        file = DurablePosition(other, Owner(log, settings.system, 1))
        start = open_log(disk, settings, file)
        disk.kill()  # takes a cut back that has not come
        self._jobs.positions[log] = Positions(self, other, file)
        return start

    def end(self, power: bool = False) -> None:
        """Lose all that is in memory; each job on a disk got as far as it got.

        Where the power went with it nobody is told.
        """
        self._seat.witness.look(self)
        self._jobs.abandon()
        self.shard = None
        self.standstill.forget()
        self.sockets.end(power)

    def disk_failed(self) -> None:
        """A write or a sync failed: nothing may be retried, believed, or said to anybody."""
        self._seat.keeper.disk_gone(self)

    def stop(self) -> None:
        """Drain, as a process does that is told to end."""
        if not self.standstill.asleep(self.stop):
            self.handle(ev.Stopping())

    # -- peers ---------------------------------------------------------------------------------

    def leave(self, shards: tuple[int, ...]) -> None:
        """Cut the trunks to and from shards of its node that stand still."""
        if self.shard is not None and not self.standstill.asleep(self.leave, shards):
            self.trunks.leave(shards)
            self.turn()

    def accept_link(self, socket: Socket, data: bytes) -> None:
        """Take a connection over that another node made, and that began with `data`."""
        socket.change(Wired(lambda transport: self.links.accept(transport, data, socket.site)))

    # -- effects -------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Feed one event, unless the process has ended, and do what comes of it."""
        if self.shard is not None:
            self._queue.put(event)
            if not self._queue.waits:
                self.turn()

    def turn(self) -> None:
        """Let the shard take what it was told, and do what comes of it, unless it has ended."""
        if self.shard is not None:
            self._pace.turns.run()
            self.sockets.watch()

    def serve(self) -> None:
        """Its shard can serve: who connects is served."""
        self.world.after(0, self._seat.keeper.served, self)

    def wake(self) -> None:
        """Its rest is over."""
        self._tick_after(self._seat.machine.tick)

    def broke(self, where: str, error: Exception) -> None:
        """An exception is a bug, of which the run tells."""
        raise error

    def _soon(self, act: Callable[[], None]) -> None:
        """Call something behind what else happens in this instant."""
        self.world.after(0, self.behind, act)

    def _later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        self.world.after(int(seconds * SECOND), self.behind, act)
        return _keep_the_timer

    def behind(self, act: Callable[[], None]) -> None:
        """Do something in a turn of its own, and let the shard take what comes of it."""
        if self.shard is not None and not self.standstill.asleep(self.behind, act):
            act()
            self.turn()

    def _seconds(self) -> float:
        return self.world.now / SECOND

    def _flush(self, effect: ef.StartFlush) -> None:
        """Run a flush as a loop does that waits for it."""
        if self.shard is not None and not self.standstill.asleep(self._flush, effect):
            del self.flushes.inline[effect.log]
            self._jobs.flush_inline(effect)

    def _start_flush(self, effect: ef.StartFlush) -> None:
        if self.flushes.start(effect):
            self.world.after(0, self._flush, effect)
        else:
            self._jobs.flush(effect)

    def _end_link(self, effect: ef.EndLink | ef.EndTrunk) -> None:
        raise AssertionError(f"an honest node at place {effect.place} was cut off: {effect.reason}")

    def _on_stopped(self, effect: ef.Stopped) -> None:
        self.stopped = True
        self.world.after(0, self._let_go)

    def _let_go(self) -> None:
        """End all connections, as a server does that has drained."""
        if self.shard is not None and not self.standstill.asleep(self._let_go):
            self._connections.end_sessions(_STOPPING)
            self.turn()
            self._connections.hang_up(_STOPPING)

    def _hold(self, effect: ef.HoldReads) -> None:
        self._connections.actions[ef.HoldReads](effect)
        self.trunks.update()

    def _tick_after(self, delay: int) -> None:
        """Let the next tick come so much later, and no other that was to come."""
        self._pace.number += 1
        self.world.after(delay, self.tick, self._pace.number)

    def tick(self, number: int = 0) -> None:
        if self.shard is None or number != self._pace.number:
            return
        if not (self.standstill.lasts and self.standstill.asleep(self.tick, number)):
            self._tick_after(self._seat.machine.tick)
            self._pace.ticking()
            self.sockets.check()
            self.trunks.flush()
            self.handle(ev.Ticked())
            self.links.check_silence()
            self.turn()
            self._seat.witness.look(self)
            if rest_ms := self._pace.rest_ms():
                self._tick_after(rest_ms * MS)


def _keep_the_timer() -> None:
    """Let what was asked for later come: who asked knows then that it is over."""


class _Notes:
    """Puts into the trace what is said of connections."""

    def __init__(self, world: World) -> None:
        self._world = world

    def info(self, text: str, *given: object, extra: object = None) -> None:
        self._world.note("told", text % given)

    warning = info

    def error(self, text: str, *given: object, extra: object = None) -> None:
        raise AssertionError(text % given)


def _halted(effect: ef.ReplicaHalted) -> None:
    """No honest node writes what another cannot apply: it is a crash of the broker."""
    raise effect.error


def join(asking: Process, serving: Process, trunks: dict[tuple[int, int], Link]) -> None:
    """Let a process ask another of its node by a new trunk, in the place of an older one; note it
    in `trunks`, by the numbers of both.
    """
    if asking.shard is None or serving.shard is None:
        return
    if asking.standstill.asleep(join, asking, serving, trunks):
        return
    link = Link(asking.world, asking.sockets, serving.sockets)
    trunks[asking.number, serving.number] = link
    serving.sockets.take(link, lambda end: serving.trunks.join(end, asking.number, asks=False))
    asking.sockets.take(
        link, lambda end: asking.trunks.join(end, serving.number, asks=True), asks=True
    )
