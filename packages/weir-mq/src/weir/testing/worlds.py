"""`World`: an application of yours and a set of nodes in virtual time, with faults, from a seed.

`Process` is one of the application, which is started again when it ends by a fault; `Faults` breaks
things, by the seed or by hand. Everything happens in one thread and is decided by the seed: what
fails, when, and in which order things happen within an instant. A seed that fails is run again, and
fails again.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from weir.app.app import App
from weir.broker.api.settings import CUTOFF_MS, STALE_MS, Replication, ShardSettings
from weir.client.client import Connecting, connect
from weir.model.limits import KIB, MIB
from weir.storage.segment_files import Settings
from weir.testing.simulator.brokerset import BrokerSet
from weir.testing.simulator.clients.database import Database, engine_of
from weir.testing.simulator.clients.loop import VirtualLoop
from weir.testing.simulator.clients.process import Mishaps, current
from weir.testing.simulator.clients.process import Process as SimulatedProcess
from weir.testing.simulator.host import Host
from weir.testing.simulator.nemesis import FaultPlan, Storm
from weir.testing.simulator.process import PORT, Machine
from weir.testing.simulator.world import MS, SECOND
from weir.testing.simulator.world import World as VirtualTime

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: What a process runs: called at each start.
Main = Callable[[], App | Awaitable[object]]

_MISHAPS = replace(Mishaps(), terminated=0.3)
#: How long a supervisor waits before it starts a process again that has ended.
_AGAIN = (100 * MS, 2 * SECOND)
#: So many ends by an exception are no fault of the world's any more.
_ENDS_MAX = 100
_LOOK = 0.02
R = TypeVar("R")

#: What a user awaits in a world: `async def scenario(world)`.
Scenario = Callable[["World"], Awaitable[object]]

_SYSTEM = 0x57454952
_NODES_MAX = 7
#: How long nodes have to start for the first time.
_STARTED_WITHIN = 30 * SECOND
#: So many of the last events are in the report of a failure.
_EVENTS = 20
_SITES = (-1, -2)
#: What a batch may have at most: what the simulated disks hold is in memory.
_ENTRY_BYTES = 2 * MIB
#: A larger value is sent in pieces of this size, so that each fits into an entry.
_CHUNK_BYTES = 512 * KIB
#: A quick disk, a slow one, and a very slow one; least and most in virtual µs.
_FLUSHES = ((60, 2 * MS), (200, 25 * MS), (5 * MS, 100 * MS))


class Surroundings(msgspec.Struct):
    """What all processes of a world have in common."""

    virtual: VirtualTime
    brokers: BrokerSet
    database: Database
    url: str
    #: A larger value is sent in pieces of this size.
    chunk_bytes: int
    #: What fails the run.
    error: BaseException | None = None


class Process(SimulatedProcess):
    """A process of the application, which is started again when it ends by a fault."""

    def __init__(
        self, around: Surroundings, main: Main, name: str, site: int, immune: bool = False
    ) -> None:
        """Be down; `World.start` starts it. What an immune one raises fails the run."""
        super().__init__(around.virtual, around.brokers, name, site, _MISHAPS, around.chunk_bytes)
        #: What it raised, or what its callbacks and tasks raised that nobody caught.
        self.errors: list[BaseException | str] = []
        #: Whether `main` has returned.
        self.finished = False
        self.spared = immune
        self._around = around
        self._immune = immune
        self._run = main
        self._stopping = False
        self._task: asyncio.Task[object] | None = None

    # -- for scenarios -------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        """Whether it runs just now."""
        return self._loop is not None

    async def wait(self) -> None:
        """Wait until `main` has returned, or the `App` has ended that `stop` told to end."""
        while not self.finished:
            await asyncio.sleep(_LOOK)

    async def stop(self) -> None:
        """Send it SIGTERM, and wait until it has ended. Only an `App` hears of it."""
        self._stopping = True
        while not self.finished:
            self.terminate()
            await asyncio.sleep(_LOOK)

    def kill(self) -> None:
        """Lose the process, its connections first, once the caller awaits something.

        Nothing that its tasks do while they end is seen outside. Another life begins after a while.
        """
        self.world.after(0, super().kill)

    def pause(self, seconds: float) -> None:
        """Let it stand still for so many virtual seconds."""
        self.stand(int(seconds * SECOND))

    def jump_clock(self, seconds: float) -> None:
        """Set its wall clock forward by so many seconds, or back, until it is started anew."""
        self._skew_us += int(seconds * SECOND)

    @property
    def whereabouts(self) -> str:
        """Where it waits, for the report of a run that does not end."""
        places = []
        waits: object = self._task.get_coro() if self._task is not None else None
        while waits is not None and (frame := getattr(waits, "cr_frame", None)) is not None:
            places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
            waits = getattr(waits, "cr_await", None)
        return f"{self.name} waits in {' > '.join(places)}" if places else f"{self.name} is down"

    # -- lives ---------------------------------------------------------------------------------

    def spare(self, spared: bool) -> None:
        """Let nothing befall it any more, or let things befall it again."""
        before, self.spared = self.spared, spared or self._immune
        if before and not self.spared:
            self.expose()

    def started(self) -> None:
        """Begin a life."""
        self._task = None

    async def main(self) -> None:
        """Run what it is to run, once; see what becomes of the process then."""
        mine = self._loop
        self._task = asyncio.current_task()
        error: Exception | None = None
        told = False
        try:
            found = self._run()
            if isinstance(found, App):
                told = True
                await found.run(self._around.url)
            elif inspect.isawaitable(found):
                await found
            else:
                raise TypeError(f"{self.name} is to return an App or a coroutine, not {found!r}")
        except Exception as raised:
            error = raised
        if mine is None or mine is not self._loop:
            return  # it was killed
        if error is not None:
            self._raised(error, mine)
        elif told and not self._stopping:
            self._again(mine)  # a supervisor's: it was told to end
        else:
            self.finished = True
            self.world.note("ended", self.name)
            self.world.after(0, self._over, mine)

    def failed(self, uncaught: list[str]) -> None:
        """Keep what nobody caught."""
        self.errors += uncaught

    def _die(self, silent: bool) -> None:
        self._around.database.cut(self.name)
        super()._die(silent)

    def _raised(self, error: Exception, mine: VirtualLoop) -> None:
        self.world.note("raised", self.name, type(error).__name__)
        forgiven = not self.spared and not isinstance(error, AssertionError)
        if forgiven and len(self.errors) < _ENDS_MAX:
            self.errors.append(error)
            self._again(mine)
        else:
            self._around.error = self._around.error or error

    def _again(self, mine: VirtualLoop) -> None:
        self.world.after(0, self._over, mine)
        if not self._stopping:
            self.world.after(self.world.between(*_AGAIN), self.start)
        else:
            self.finished = True

    def _over(self, mine: VirtualLoop) -> None:
        if mine is self._loop:
            self._die(silent=False)


def world(seed: int, nodes: int = 3, faults: bool | tuple[str, ...] = True) -> World:
    """Return a world with 1 to 7 nodes to `run` a scenario in.

    `faults` are drawn by the seed, of all kinds, or of the named kinds: "kill", "depose" (who leads
    is killed), "kill shard", "stop", "pause", "skew" (clocks), "part", "slow", "cut" (the network),
    "fail disk", "fill disk", "slow disk". With False there are only faults that you cause.
    """
    return World(seed, nodes, faults)


class World:
    """Nodes, processes and their faults. A world runs once; `weir.testing.world` makes one."""

    def __init__(
        self,
        seed: int,
        nodes: int = 3,
        faults: bool | tuple[str, ...] = True,
        without_news_ms: tuple[int, int] = (STALE_MS, CUTOFF_MS),
        sets: Sequence[int] = (),
    ) -> None:
        """Be ready to `run`. See `weir.testing.world` for what is to be given. A shard without
        news of the registry is stale, and then cut off, after `without_news_ms`. `sets` has the id
        of the BrokerSet of each node.
        """
        if not 1 <= nodes <= _NODES_MAX:
            raise ValueError(f"nodes={nodes}: give 1 to {_NODES_MAX}")
        self.seed = seed
        #: Dice for your own choices, so that they follow from the seed too.
        self.random = Random(f"scenario {seed}")
        #: What to do to see this run again; a failure is told with it.
        self.replay = ""
        self._settings = f"seed={seed}, nodes={nodes}" + ("" if faults is True else f", {faults=}")
        self._virtual = virtual = VirtualTime(seed)
        self._brokers = BrokerSet(virtual, _machine(virtual, *without_news_ms), nodes, sets)
        self._database = Database(virtual)
        url = "weir://" + ",".join(f"node{node}:{PORT}" for node in self._brokers.hosts)
        self._around = Surroundings(virtual, self._brokers, self._database, url, _CHUNK_BYTES)
        self._processes: list[Process] = []
        kinds = faults if isinstance(faults, tuple) else ()
        plan = FaultPlan(sites=_SITES, kinds=kinds)
        self._has_faults = bool(faults)
        #: Breaks things: by the seed, and by hand.
        self.faults = Faults(virtual, self._brokers, self._database, self._processes, plan)
        self._ran = False
        #: The trace's hash when the scenario was over.
        self._ended_as = ""

    # -- for scenarios -------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where to connect to: all nodes."""
        return self._around.url

    @property
    def brokers(self) -> BrokerSet:
        """The nodes and the links between them, for tests that look inside."""
        return self._brokers

    @property
    def time(self) -> float:
        """Virtual seconds since the world began."""
        return self._virtual.now / SECOND

    @property
    def trace_hash(self) -> str:
        """A hash of everything that happened: equal for equal runs."""
        return self._ended_as or self._virtual.trace_hash

    def connect(self, **options: Any) -> Connecting:
        """Connect from the calling process, as `weir.connect` with this world's `url`."""
        return connect(self.url, **options)

    def start(self, main: Main, name: str | None = None) -> Process:
        """Start a process of the application; more than one may be started of the same `main`.

        `main` is called without arguments at each start of the process, and returns an `App`, which
        is run against this world's nodes, or a coroutine. Create everything in it that a process
        has in memory: what it shares with others survives kills, unlike real memory. While there
        are faults the process is killed, paused and stopped at random, and a process that ends by
        an exception is restarted, as by a supervisor. An `AssertionError`, or an exception while
        there are no faults, fails the run.
        """
        name = name or f"process-{len(self._processes)}"
        if any(one.name == name for one in self._processes):
            raise ValueError(f"a process is called {name!r}: give each a name of its own")
        site = _SITES[len(self._processes) % len(_SITES)]
        process = Process(self._around, main, name, site)
        process.spare(not self.faults.on)
        self._processes.append(process)
        process.start()
        return process

    def engine(self) -> AsyncEngine:
        """Return SQLAlchemy's engine of the calling process, for the world's one database.

        It is SQLite. Transactions run one at a time. While there are faults, connections break in
        statements, before commits, and after them. Needs `weir-mq[inbox]`.
        """
        return engine_of(self._database, current().name)

    async def in_thread(self, call: Callable[[], R]) -> R:
        """Run blocking code in a thread of the calling process; return its result. `weir.sync`
        works in it, and in handlers that are plain functions. Nothing else may block.
        """
        return await current().in_thread(call)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the committed rows that a query finds; other users of the database are cut off.

        It takes no time and never fails: use it for the assertions at the end.
        """
        return self._database.rows(statement)

    def heal(self) -> None:
        """End all faults: nodes are up or starting, and nothing fails from now on."""
        self.faults.stop()

    # -- running -------------------------------------------------------------------------------

    def run(self, scenario: Scenario, seconds: float = 600.0) -> None:
        """Run `scenario(world)` in a process of its own, which has no faults.

        Its connections cross the network like all others. Faults begin once the nodes are up. The
        world ends with it. Raises its exceptions, those of processes that count as failures, and
        `TimeoutError` after that many virtual seconds, each with a note how to run it again.
        """
        if self._ran:
            raise RuntimeError("this world is over: make another one")
        self._ran = True
        name = getattr(scenario, "__qualname__", repr(scenario))
        self.replay = self.replay or f"weir.testing.world({self._settings}).run({name})"
        with _no_collection():
            try:
                self._run(scenario, seconds)
            except BaseException as error:
                error.add_note(self._report())
                raise
            finally:
                self._ended_as = self.trace_hash
                self._close()

    def _run(self, scenario: Scenario, seconds: float) -> None:
        virtual, brokers = self._virtual, self._brokers
        brokers.start()
        virtual.run(_STARTED_WITHIN, lambda: _are_ready(brokers))

        async def main() -> None:
            await scenario(self)

        if self._has_faults:
            self.faults.start()
        else:
            self.faults.stop()
        process = Process(self._around, main, "scenario", _SITES[0], immune=True)
        self._processes.append(process)
        process.start()
        until = virtual.now + int(seconds * SECOND)
        virtual.run(until, lambda: process.finished or self._around.error is not None)
        if self._around.error is not None:
            raise self._around.error
        if not process.finished:
            raise TimeoutError(f"not over after {seconds:g} virtual seconds: {process.whereabouts}")
        if brokers.ruined:
            raise AssertionError(f"a bug of weir: a node cannot start again: {brokers.ruined}")
        if brokers.witness.complaints:
            raise AssertionError(f"a bug of weir: {brokers.witness.complaints}")

    def _close(self) -> None:
        for process in self._processes:
            process.retire()
        self._brokers.die(power=False)
        with suppress(Exception):
            self._database.sqlite.close()

    def _report(self) -> str:
        errors = [f"  {one.name}: {error!r}" for one in self._processes for error in one.errors]
        return "\n".join(
            [
                f"the last events of seed {self.seed}, virtual seconds first:",
                *(
                    f"  {at / SECOND:.6f} {' '.join(map(str, what))}"
                    for at, *what in self._virtual.recent[-_EVENTS:]
                ),
                *(["what processes raised:", *errors[-_EVENTS:]] if errors else []),
                f"{self.faults.count} faults in {self.time:.1f} virtual seconds, trace hash "
                f"{self.trace_hash}",
                f"run it again: {self.replay}",
            ]
        )


def _are_ready(brokers: BrokerSet) -> bool:
    return all(host.running and all(one.ready for one in host.running) for host in brokers.all)


def _machine(virtual: VirtualTime, stale_ms: int, cutoff_ms: int) -> Machine:
    """Draw what nodes are like: as in production, but with small segments and few logs."""
    dice = virtual.dice
    logs, flush = dice.choice((1, 1, 2)), dice.choice(_FLUSHES)
    log = Settings(
        log=0, system=_SYSTEM, segment_bytes=8 * MIB, entry_bytes_max=_ENTRY_BYTES, spares=0
    )
    shard = ShardSettings(
        checkpoint_bytes=dice.choice((64 * KIB, MIB)),
        replication=Replication(append_bytes_max=dice.choice((16 * KIB, MIB))),
        random=dice.random,
        secret_bytes=dice.randbytes,
        stale_ms=stale_ms,
        cutoff_ms=cutoff_ms,
    )
    return Machine(log, shard, flush, logs, ports=True)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let no collection of garbage, whose time the seed does not know, finish what others hold."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class Faults:
    """What breaks nodes, their network, disks and clocks, processes, and the database.

    Nodes are named by their numbers, from 1 on. What is done by hand lasts as long as it says, or
    until `stop`. Seconds are virtual.
    """

    def __init__(
        self,
        virtual: VirtualTime,
        brokers: BrokerSet,
        database: Database,
        processes: Sequence[Process],
        plan: FaultPlan,
    ) -> None:
        """Break nothing yet."""
        #: Whether the seed breaks things.
        self.on = False
        self._virtual = virtual
        self._brokers = brokers
        self._database = database
        self._processes = processes
        self._plan = plan
        self._storm = Storm(virtual, brokers, plan)
        self._before = self._by_hand = 0
        database.calm = True

    @property
    def count(self) -> int:
        """How many there were; those of the database and of processes are not counted."""
        return self._before + self._storm.faults + self._by_hand

    def start(self) -> None:
        """Let the seed break things from now on."""
        if self.on:
            return
        self.on = True
        self._before += self._storm.faults
        self._storm = Storm(self._virtual, self._brokers, self._plan)
        self._storm.start()
        self._database.calm = False
        for process in self._processes:
            process.spare(False)

    def stop(self) -> None:
        """Break nothing more, and mend all that is broken: nodes are up, or on their way."""
        self.on = False
        self._storm.stop()
        self._database.calm = True
        for process in self._processes:
            process.spare(True)
            process.go_on()

    # -- by hand -------------------------------------------------------------------------------

    def kill(self, node: int, down: float = 1.0) -> None:
        """End a node at once, as `kill -9` does; it starts again after so many seconds."""
        self._lose(node, down, power=False)

    def cut_power(self, node: int, down: float = 1.0) -> None:
        """End a node at once; what its disks had not synced is lost, or torn."""
        self._lose(node, down, power=True)

    def pause(self, node: int, seconds: float) -> None:
        """Let a node stand still, as a virtual machine does that is moved."""
        self._host(node, "").pause(int(seconds * SECOND))

    def isolate(self, *nodes: int) -> None:
        """Cut nodes off from the others and from all clients; among them they hear each other."""
        for node in nodes:
            self._host(node)
        net = self._brokers.net
        for node in nodes:
            for other in (*self._brokers.hosts, *self._plan.sites):
                if other not in nodes:
                    net.close(node, other)
                    net.close(other, node)

    def divide(self, *nodes: int) -> None:
        """Cut nodes off from the others, and with them every second process of the application: on
        both sides there are nodes and clients.
        """
        for node in nodes:
            self._host(node)
        here = (*nodes, _SITES[1])
        net = self._brokers.net
        for one in here:
            for other in (*self._brokers.hosts, _SITES[0]):
                if other not in here:
                    net.close(one, other)
                    net.close(other, one)

    def slow(self, node: int, times: int) -> None:
        """Let all that goes to and from a node take so many times as long."""
        self._host(node)
        for other in (*self._brokers.hosts, *self._plan.sites):
            if other != node:
                self._brokers.net.way(node, other).slow = times
                self._brokers.net.way(other, node).slow = times

    def rejoin(self) -> None:
        """Open the network again, and make it quick."""
        self._brokers.net.heal()

    def cut(self, node: int) -> None:
        """Break all connections to a node; clients may come again at once."""
        for process in self._host(node).running:
            process.sockets.sever()

    def jump_clock(self, node: int, seconds: float) -> None:
        """Set the wall clock of a node so far ahead, or back, of the right time."""
        self._host(node).hardware.time.skew_ms = int(seconds * 1_000)

    def fail_disk(self, node: int) -> None:
        """Let the next write of a node fail: it ends at once, and starts again."""
        next(iter(self._host(node).hardware.disks.values())).fail_next("write", errno.EIO)

    def fill_disk(self, node: int) -> None:
        """Leave no room on a node's disks, until `stop`."""
        self._host(node).hardware.fill(True)

    def _lose(self, node: int, down: float, power: bool) -> None:
        host = self._host(node, "")
        host.die(power)
        host.restart(int(down * SECOND))

    def _host(self, node: int, what: str = "by hand") -> Host:
        host = self._brokers.hosts.get(node)
        if host is None:
            raise ValueError(f"no node {node}: there are 1 to {len(self._brokers.hosts)}")
        self._by_hand += 1
        if what:
            self._virtual.note(what, node)
        return host
