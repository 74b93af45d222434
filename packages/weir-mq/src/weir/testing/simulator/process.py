"""A simulated process: one shard over simulated disks, in virtual time; server.driver's twin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

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
from weir.host.shard_loop import EventQueue, ShardLoop
from weir.host.trunks import RemotePeer, Trunks
from weir.storage.format.durable_position import DurablePosition, Owner
from weir.storage.segment_files import Settings
from weir.testing.simulator.disk import SimDisk
from weir.testing.simulator.jobs import BESIDES, Faults, Jobs, Positions
from weir.testing.simulator.network import End, Link, Way
from weir.testing.simulator.sockets import Begin, Dial, Dialer, Network, Socket, Wired, adopt
from weir.testing.simulator.witness import Witness
from weir.testing.simulator.world import MS, SECOND, SkewedTime, World

#: From a connection to the turn in which it is accepted, with all others that came meanwhile, and
#: read, with all that is there to be read: who connects has mostly said something by then.
_ACCEPTED = (0, 6 * MS)
#: How often a process looks at who takes its replies, if it ticks more slowly.
_LOOK = 2 * ev.TICK_MS * MS
_STOPPING = "this node is stopping"
#: A shard's own port is so much above its number.
SHARD_PORT = 6900
#: That all shards of a node share.
PORT = 6800
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
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
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
    """Who starts the processes of a node, and is told what they say."""

    def served(self, process: Process) -> None:
        """A process serves."""

    def disk_gone(self, process: Process) -> None:
        """A disk of a process failed: it ends."""

    def trunk_lost(self, process: Process, shard: int) -> None:
        """A process cannot ask another shard any more."""


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
    keeper: Keeper
    #: Finds the processes of another node.
    dial: Dial
    witness: Witness


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
        #: Those of other nodes that it links to, and the peers of other shards, by session.
        self.nodes: dict[int, NodeAddress] = {}
        self._remote_peers: dict[int, RemotePeer] = {}
        self._seat = seat
        self._jobs = Jobs(self, seat.machine.flush, seat.faults)
        self._sockets: dict[Link, Socket] = {}
        #: Those to other nodes that this process has dialled.
        self._dialled: dict[Link, Socket] = {}
        self._queue: EventQueue | None = None
        self._connections: Connections[Socket] | None = None
        self._turns: ShardLoop | None = None
        #: Those that are accepted in the next turn, if there are any, and what is read then.
        self._accepting: list[Socket] = []
        self._readable: list[Socket] = []
        #: Those whose clients do not take their replies.
        self.full: list[Socket] = []
        self._looks = False
        #: Whether it stands still: it is paused, or waits for a flush that it runs itself.
        self.paused = False
        self.stands = self._flushing = False
        #: What happened while it was paused.
        self._backlog: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    @property
    def name(self) -> str:
        """Its node and its number, for the trace."""
        return f"{self.node}/{self.number}"

    # -- life and death ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether all that its shard has is led, and devices can be served, just now."""
        return self.shard is not None and self.shard.ready

    @property
    def serves(self) -> bool:
        """Whether clients can connect: as soon as they are let in, and until it ends."""
        return self._turns is not None and self._turns.serves

    @property
    def charged(self) -> int:
        """How many bytes of its budget are in use."""
        return 0 if self.shard is None else self.shard.budget.used

    def start(self, number: int, layout: Layout) -> None:
        """Recover the disks and run shard `number` on them.

        Raises what the recovery of a log raises, and `PowerCut` if it is cut short.
        """
        self.number = number
        self.logs = layout.logs_of(number)
        starts = [self._open(log) for log in self.logs]
        seat = self._seat
        identity = replace(seat.identity, shard=number)
        settings = seat.machine.shard
        ports = tuple(SHARD_PORT + shard for shard in range(layout.shards))
        ports = ports if layout.shards > 1 else ()
        if seat.machine.ports:
            settings = replace(settings, ports=ports)
        opened = [start.opened for start in starts]
        self.shard = Shard(identity, opened, seat.time, settings, layout)
        tell_durable(starts, self._jobs.positions)
        self.flushes = FlushSchedule(self.logs, self.nodes, self._seconds)
        queue = self._queue = EventQueue(self.shard, self.flushes)
        found: set[str] = set()
        connections = self._connections = Connections(
            queue, self.shard.budget, seat.machine.limits, Network(found),
            self._remote_peers.get, self._seconds, self.world.dice.getrandbits(31) << 31,
            _Notes(self.world),
        )  # fmt: skip
        local = LocalShard(self.shard, queue, connections, self._soon, self._later, connections.log)
        lost = partial(seat.keeper.trunk_lost, self)
        self.trunks = Trunks(local, self._remote_peers, lost)
        reached = (f"node{self.node}", PORT) if identity.members else ("", 0)
        own = ShardInfo(identity, len(self.disks), layout.shards, ports, *reached)
        dialer = Dialer(self, seat.dial, found)
        self.links = Links(
            local, self.trunks, own, self.nodes, found, self.run, dialer, self.world.dice
        )
        actions: dict[type, Callable[[Any], None]] = {
            **connections.actions,
            ef.HoldReads: self._hold,
            ef.StartFlush: self._start_flush,
            ef.Pass: self.trunks.send,
            ef.SendToPeer: self.links.send,
            ef.Connect: self.links.connect,
            ef.Disconnect: self.links.disconnect,
            ef.EndLink: self._end_link,
            ef.EndTrunk: self._end_link,
            ef.Stopped: self._on_stopped,
            ef.ReplicaHalted: _halted,
            **dict.fromkeys(BESIDES, self._jobs.start),
        }
        self._turns = ShardLoop(
            self.shard, queue, connections, self.nodes, actions, self, self._soon
        )
        self._turns.start()
        self.tick()

    def _open(self, log: int) -> LogStart:
        disk = self.disks[log]
        if self.world.chance(self._seat.faults.recoveries):
            disk.cut_after(self.world.dice.randrange(_RECOVERY_STEPS))
        settings = replace(self._seat.machine.log, log=log)
        other = self._seat.others[log]
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
        self.shard = self._queue = self._connections = self._turns = None
        self._backlog.clear()
        self._readable.clear()
        self._accepting.clear()
        links, self._sockets = list(self._sockets), {}
        for link in links:
            link.orphaned = link.open
            link.cut(silent=power)

    def disk_failed(self) -> None:
        """A write or a sync failed: nothing may be retried, believed, or said to anybody."""
        self._seat.keeper.disk_gone(self)

    def stop(self) -> None:
        """Drain, as a process does that is told to end."""
        if not self.asleep(self.stop):
            self.handle(ev.Stopping())

    def pause(self) -> None:
        """Stand still: time goes on, and what happens is handled by `go_on`."""
        self.paused = self.stands = True

    def go_on(self) -> None:
        """Stand still no longer."""
        self.stands = False
        self._wake()

    def flush_began(self) -> None:
        """Wait for the disk: nothing else is done until `flush_ended`."""
        self.paused = self._flushing = True

    def flush_ended(self, then: Callable[[], None]) -> None:
        """The disk is done: `then` comes before what has happened meanwhile."""
        self._flushing = False
        if self.stands:
            self._backlog.appendleft((then, ()))
        else:
            self.paused = False
            then()
            self.paused = True
            self._wake()

    def _wake(self) -> None:
        """Handle all that has happened in the meantime.

        What came on one connection keeps its order; which connection is read first is anybody's
        guess, and so is whether timers are heard of before.
        """
        if not self.paused or self.stands or self._flushing:
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

    def connect(self, client: End, up: Way, down: Way, site: str = "") -> Link:
        """Open a connection; `site` is where the client is, if it is another node."""
        assert self._connections is not None  # who listens has some
        link = Link(self.world, client, self, up, down)
        site = site or type(client).__name__
        socket = Socket(self, link, self._connections.connection(), site)
        self._sockets[link] = socket
        if not self._accepting:
            self.world.after(self.world.between(*_ACCEPTED), self._turn)
        self._accepting.append(socket)
        return link

    def take(self, link: Link, begin: Begin, asks: bool = False, far: bool = False) -> None:
        """Take this end of a connection to another process, which is one of another node if it is
        `far`.
        """
        socket = self._sockets[link] = Socket(self, link, Wired(begin), "", asks)
        if far:
            self._dialled[link] = socket
        socket.accept()
        self._run()

    def leave(self, shards: tuple[int, ...]) -> None:
        """Cut the trunks to and from shards of its node that stand still."""
        if self._queue is not None and not self.asleep(self.leave, shards):
            self.trunks.leave(shards)
            self._run()

    def sever(self) -> None:
        """Break all connections to other nodes that this process has dialled."""
        for link in list(self._dialled):
            link.cut()

    def accept_link(self, socket: Socket, data: bytes) -> None:
        """Take a connection over that another node made, and that began with `data`."""
        adopt(socket, lambda transport: self.links.accept(transport, data, socket.site))

    def received(self, link: Link, data: bytes) -> None:
        """Bytes of a peer are there to be read."""
        if self.paused and self.asleep(self.received, link, data):
            return
        if (socket := self._sockets.get(link)) is not None:
            socket.came(data)
            self._read(socket)

    def lost(self, link: Link) -> None:
        """A peer is gone."""
        if self.asleep(self.lost, link):
            return
        self._dialled.pop(link, None)
        if (socket := self._sockets.pop(link, None)) is not None:
            socket.lost()
            self._read(socket)

    def read_soon(self, socket: Socket) -> None:
        """Read what is there, in a turn of its own."""
        self.world.after(0, self._read_again, socket)

    def _read_again(self, socket: Socket) -> None:
        if self._queue is not None and not self.asleep(self._read_again, socket):
            self._read(socket)

    def _read(self, socket: Socket) -> None:
        """Read a socket, with others if some are to be accepted."""
        if self._accepting:
            self._readable.append(socket)
        else:
            socket.read()
            self._run()

    def _turn(self) -> None:
        """Accept who came, and read all that is there: it is one to the shard."""
        if self._queue is None or self.asleep(self._turn):
            return
        accepting, self._accepting = self._accepting, []
        readable, self._readable = self._readable, []
        self._queue.gather()
        for socket in accepting:
            socket.accept()
        for socket in readable:
            socket.read()
        self._queue.release()
        self._run()

    def peers(self) -> list[Link]:
        """Return the connections of clients that are open as far as this side knows."""
        return [link for link, socket in self._sockets.items() if socket.is_client]

    # -- effects -------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Feed one event, unless the process has ended, and do what comes of it."""
        if (queue := self._queue) is not None:
            queue.put(event)
            if not queue.waits:
                self._run()

    def _run(self) -> None:
        turns, connections = self._turns, self._connections
        if turns is None or connections is None:
            return
        turns.run()
        if not self._looks and (connections.watched or self.full):
            self._looks = True
            if self._seat.machine.tick > _LOOK:  # else its own tick does as well
                self.world.after(_LOOK, self._look)

    def serve(self) -> None:
        """Its shard can serve: who connects is served."""
        self.world.after(0, self._seat.keeper.served, self)

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
        if self._queue is not None and not self.asleep(self.behind, act):
            act()
            self._run()

    def _look(self) -> None:
        """Look at who takes its replies, though it is no time for a tick."""
        if not self.asleep(self._look):
            self._look_now()
            self._run()

    def _look_now(self) -> None:
        self._looks = False
        if self._connections is not None:
            self.full = [socket for socket in self.full if not socket.drain()]
            self._connections.check_connections()

    def _seconds(self) -> float:
        return self.world.now / SECOND

    def _flush(self, effect: ef.StartFlush) -> None:
        """Run a flush as a loop does that waits for it."""
        if self.shard is not None and not self.asleep(self._flush, effect):
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
        if self._connections is not None and not self.asleep(self._let_go):
            self._connections.end_sessions(_STOPPING)
            self._run()
            self._connections.hang_up(_STOPPING)

    def _hold(self, effect: ef.HoldReads) -> None:
        assert self._connections is not None  # its shard has just asked for this
        self._connections.actions[ef.HoldReads](effect)
        self.trunks.update()

    def tick(self) -> None:
        if self.shard is None:
            return
        if not (self.paused and self.asleep(self.tick)):
            self.world.after(self._seat.machine.tick, self.tick)
            self._look_now()
            self.trunks.flush()
            self.handle(ev.Ticked())
            self.links.check_silence()
            self._run()
            self._seat.witness.look(self)


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
    if asking.asleep(join, asking, serving, trunks):
        return
    link = trunks[asking.number, serving.number] = Link(asking.world, asking, serving)
    serving.take(link, lambda end: serving.trunks.join(end, asking.number, asks=False))
    asking.take(link, lambda end: asking.trunks.join(end, serving.number, asks=True), asks=True)
