"""The simulated host: one shard over a simulated disk, in virtual time; server.driver's twin."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.identity import Identity
from weir.broker.restore import Opened
from weir.broker.shard import Shard, ShardSettings
from weir.errors import DiskFailed, RemoteProtocolError, WeirError
from weir.log import checkpoint, recovery
from weir.log.flush import Flush
from weir.log.scrub import Scrubbed
from weir.log.settings import Settings
from weir.sim.disk import PowerCut, SimDisk
from weir.sim.network import End, Link
from weir.sim.world import MS, SkewedTime, World
from weir.wire.connection import Connection

_READ = (50, 8 * MS)
_SPARE = (1 * MS, 60 * MS)
_SAVE = (1 * MS, 40 * MS)
_BOOT = (5 * MS, 120 * MS)
#: A job has a dozen steps at most; a recovery has a few for each segment.
_JOB_STEPS = 8
_RECOVERY_STEPS = 40


@dataclass(slots=True)
class _Session:
    """A connection as the host sees it."""

    number: int
    stream: Connection


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """Work on the disk that takes virtual time: `run` it, then report what `done` makes of it."""

    name: str
    run: Callable[[], Any]
    done: Callable[[Any, OSError | None], None]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run is played on: sizes small enough for rolls, reads, saves, refusals to happen."""

    log: Settings
    shard: ShardSettings
    #: How long a flush takes, in virtual microseconds, least and most.
    flush: tuple[int, int]


class Host:
    """A node that may be cut from power, killed and started again."""

    def __init__(self, world: World, machine: Machine) -> None:
        """Be down; `start` is what brings it up."""
        self.world = world
        self.time = SkewedTime(world)
        self.disk = SimDisk(world.dice)
        self.boots = 0
        #: Why the node can never be started again; empty while it can.
        self.ruined = ""
        self.shard: Shard | None = None
        #: How likely one read or flush fails, while faults are on.
        self.read_failures = 0.0
        self.flush_failures = 0.0
        self.recovery_cuts = 0.0
        self._machine = machine
        self._links: dict[Link, _Session] = {}
        self._by_number: dict[int, Link] = {}
        self._numbers = count()
        self._jobs: list[_Job] = []
        self._held = False
        self.stopped = False

    @property
    def up(self) -> bool:
        """Whether the process runs."""
        return self.shard is not None

    # -- life and death ------------------------------------------------------------------------

    def start(self) -> None:
        """Recover the disk and run a shard on it. The power may fail while it recovers."""
        if self.up or self.ruined:
            return
        if self.world.chance(self.recovery_cuts):
            self.disk.cut_after(self.world.dice.randrange(_RECOVERY_STEPS))
        try:
            opened = self._open()
        except PowerCut:
            self.world.note("cut in recovery")
            self._end(power=self.world.chance(0.5))
            self.restart()
            return
        except WeirError as error:
            self.ruined = str(error)
            self.world.note("ruined", self.ruined)
            return
        self.disk.kill()  # nothing happened: takes a cut back that has not come
        self.boots += 1
        self.stopped = False
        self._held = False
        self._numbers = count(self.world.dice.getrandbits(31) << 31)
        identity = Identity(system=self._machine.log.system)
        self.shard = Shard(identity, [opened], self.time, self._machine.shard)
        self.world.note("start", self.boots)
        self._do(self.shard.start())
        self._tick(self.boots)

    def restart(self) -> None:
        """Start again after a while."""
        self.world.after(self.world.between(*_BOOT), self.start)

    def die(self, power: bool) -> None:
        """Lose the process, or the power with it: each job on the disk got as far as it got."""
        if not self.up:
            return
        self.world.note("power cut" if power else "kill", len(self._jobs))
        for job in self._jobs:
            self._abandon(job)
        self._end(power)

    def _end(self, power: bool) -> None:
        self.shard = None
        self._jobs.clear()
        if power:
            self.disk.crash()
        else:
            self.disk.kill()
        links, self._links = list(self._links), {}
        self._by_number.clear()
        for link in links:
            link.cut()

    def _abandon(self, job: _Job) -> None:
        """Do some of a job's steps, perhaps all or none; nobody hears of it."""
        if self.world.chance(0.1):
            return
        # Mostly in the first steps: a flush has two, and what matters is what it leaves half done.
        self.disk.cut_after(int(_JOB_STEPS * self.world.dice.random() ** 3))
        try:
            job.run()
        except (PowerCut, OSError, DiskFailed) as end:
            self.world.note("abandoned", job.name, type(end).__name__)
        self.disk.kill()  # the next job has a cut of its own

    def _open(self) -> Opened:
        recovered = recovery.recover(self.disk, self._machine.log)
        return Opened(recovered.log, recovered.groups, recovered.body)

    # -- peers ---------------------------------------------------------------------------------

    def connect(self, client: End) -> Link | None:
        """Open a connection; None while nobody listens."""
        if self.shard is None or not self.shard.ready:
            return None
        link = Link(self.world, client, self)
        session = _Session(next(self._numbers), Connection())
        self._links[link] = session
        self._by_number[session.number] = link
        link.hold(self._held)
        self._handle(ev.Opened(session.number))
        return link

    def received(self, link: Link, data: bytes) -> None:
        """Cut frames out of a peer's bytes and hand them to the shard."""
        session = self._links.get(link)
        if session is None or self.shard is None:
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
            self._handle(ev.Received(session.number, frames))

    def lost(self, link: Link) -> None:
        """A peer is gone."""
        session = self._links.pop(link, None)
        if session is None or self.shard is None:
            return
        del self._by_number[session.number]
        self.shard.budget.release(session.stream.pending)
        self._handle(ev.Closed(session.number))

    def links(self) -> list[Link]:
        """Return the connections that are open as far as this side knows."""
        return list(self._links)

    def stop(self) -> None:
        """Drain, as a node does that is told to end."""
        self._handle(ev.Stopping())

    # -- effects -------------------------------------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        if self.shard is not None:
            self._do(self.shard.handle(event))

    def _do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.Send(session, buffers, charged):
                    assert self.shard is not None  # it has just asked for this
                    self.shard.budget.release(charged)
                    self._send(session, b"".join(buffers))
                case ef.StartFlush():
                    self._flush(effect)
                case ef.StartRead():
                    self._read(effect)
                case ef.MakeSpare():
                    self._spare(effect)
                case ef.SaveCheckpoint():
                    self._save(effect)
                case ef.StartChore():
                    self._chore(effect)
                case ef.Hangup(session, reason):
                    self.world.note("hangup", reason)
                    if (link := self._by_number.get(session)) is not None:
                        link.finish()
                case ef.HoldReads(held):
                    self._hold(held)
                case ef.Stopped():
                    self.stopped = True

    def _send(self, session: int, data: bytes) -> None:
        self.world.note("send", session, zlib.crc32(data))
        if (link := self._by_number.get(session)) is not None:
            link.to_client(data)

    def _hold(self, held: bool) -> None:
        self.world.note("hold", held)
        self._held = held
        for link in self._links:
            link.hold(held)

    def _flush(self, effect: ef.StartFlush) -> None:
        def done(_: None, error: OSError | None) -> None:
            if error is None:
                self._handle(ev.Flushed(effect.log, effect.flush))
            else:  # no room for a new segment: as the real flusher does
                self._flush(effect)

        self._start("flush", lambda: self._run_flush(effect.flush), done, self._machine.flush)

    def _run_flush(self, flush: Flush) -> None:
        if self.world.chance(self.flush_failures):
            self.disk.fail_next("sync", errno.EIO)
        flush.run(self.disk)

    def _read(self, effect: ef.StartRead) -> None:
        def run() -> list[bytes]:
            if self.world.chance(self.read_failures):
                self.disk.fail_next("read", errno.EIO)
            return effect.reading.run(self.disk)

        def done(payloads: list[bytes], error: OSError | None) -> None:
            if error is None:
                self._handle(ev.ReadDone(effect.ticket, payloads))
            else:
                self._handle(ev.ReadDone(effect.ticket, (), f"the read failed: {error}"))

        self._start("read", run, done, _READ)

    def _spare(self, effect: ef.MakeSpare) -> None:
        def done(_: None, error: OSError | None) -> None:
            self._handle(ev.SpareMade(effect.log, effect.spare, error is None))

        self._start("spare", lambda: effect.spare.run(self.disk), done, _SPARE)

    def _save(self, effect: ef.SaveCheckpoint) -> None:
        def done(_: None, error: OSError | None) -> None:
            self._handle(ev.CheckpointSaved(effect.log, error is None))

        self._start("save", lambda: checkpoint.save(self.disk, effect.data), done, _SAVE)

    def _chore(self, effect: ef.StartChore) -> None:
        def done(found: Scrubbed | None, error: OSError | None) -> None:
            self._handle(ev.ChoreDone(effect.log, effect.chore, found))

        self._start("chore", lambda: effect.chore.run(self.disk), done, _SAVE)

    def _start(
        self,
        name: str,
        run: Callable[[], Any],
        done: Callable[[Any, OSError | None], None],
        delay: tuple[int, int],
    ) -> None:
        job = _Job(name, run, done)
        self._jobs.append(job)
        self.world.after(self.world.between(*delay), self._finish, job)

    def _finish(self, job: _Job) -> None:
        if job not in self._jobs:
            return  # a crash came first
        self._jobs.remove(job)
        result, failed = None, None
        try:
            result = job.run()
        except DiskFailed:
            self.world.note("disk failed", job.name)
            self._end(power=False)
            self.restart()
            return
        except OSError as error:
            failed = error
        self.world.note(job.name, failed is None)
        job.done(result, failed)

    def _tick(self, boot: int) -> None:
        if self.up and boot == self.boots:
            self.world.after(ev.TICK_MS * MS, self._tick, boot)
            self._handle(ev.Ticked())
