"""A simulated process: one shard over simulated disks, in virtual time; server.driver's twin."""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.identity import Identity
from weir.broker.layout import Layout
from weir.broker.restore import Opened
from weir.broker.shard import Shard, ShardSettings
from weir.errors import DiskFailed, RemoteProtocolError
from weir.log import checkpoint, recovery
from weir.log.errors import LogDamaged
from weir.log.flush import Flush
from weir.log.scrub import Scrubbed
from weir.log.settings import Settings
from weir.sim.disk import PowerCut, SimDisk
from weir.sim.network import End, Link
from weir.sim.trunks import Trunks
from weir.sim.world import MS, SkewedTime, World
from weir.wire.connection import Connection

#: How work on a disk may fail and leave the process running.
Failed = OSError | LogDamaged

_READ = (50, 8 * MS)
_SPARE = (1 * MS, 60 * MS)
_SAVE = (1 * MS, 40 * MS)
#: A job has a dozen steps at most; a recovery has a few for each segment.
_JOB_STEPS = 8
_RECOVERY_STEPS = 40


@dataclass(slots=True)
class Faults:
    """How likely one read or one flush fails, and a recovery is cut short."""

    reads: float = 0.0
    flushes: float = 0.0
    recoveries: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a run is played on: sizes small enough for rolls, reads, saves, refusals to happen."""

    #: Of each of the node's logs.
    log: Settings
    shard: ShardSettings
    #: How long a flush takes, in virtual microseconds, least and most.
    flush: tuple[int, int]
    logs: int = 1


@dataclass(slots=True)
class _Session:
    """A connection as the process sees it."""

    number: int
    stream: Connection
    #: Whether it is being closed: nothing more is read from it.
    leaving: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """Work on a disk that takes virtual time: `run` it, then report what `done` makes of it."""

    name: str
    disk: SimDisk
    run: Callable[[], Any]
    done: Callable[[Any, Failed | None], None]


class Process:
    """One shard of a node. It lives once: another one takes its place when it has ended."""

    def __init__(
        self,
        world: World,
        time: SkewedTime,
        disks: Mapping[int, SimDisk],
        machine: Machine,
        faults: Faults,
        disk_gone: Callable[[Process], None],
    ) -> None:
        """Work on `disks`, by number of the log; `disk_gone` is told when one of them failed."""
        self.world = world
        self.disks = disks
        self.number = 0
        self.shard: Shard | None = None
        #: Whether everything is durable and saved, after it was told to stop.
        self.stopped = False
        self.trunks = Trunks(self)
        self._time = time
        self._machine = machine
        self._faults = faults
        self._disk_gone = disk_gone
        self._links: dict[Link, _Session] = {}
        self._by_number: dict[int, Link] = {}
        self._numbers = count(world.dice.getrandbits(31) << 31)
        self._jobs: list[_Job] = []
        self._held = False

    # -- life and death ------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it listens."""
        return self.shard is not None and self.shard.ready

    def start(self, number: int, layout: Layout) -> None:
        """Recover the disks and run shard `number` on them.

        Raises what the recovery of a log raises, and `PowerCut` if it is cut short.
        """
        self.number = number
        opened = [self._open(log) for log in layout.logs_of(number)]
        identity = Identity(system=self._machine.log.system, shard=number)
        self.shard = Shard(identity, opened, self._time, self._machine.shard, layout)
        self._do(self.shard.start())
        self._tick()

    def _open(self, log: int) -> Opened:
        disk = self.disks[log]
        if self.world.chance(self._faults.recoveries):
            disk.cut_after(self.world.dice.randrange(_RECOVERY_STEPS))
        recovered = recovery.recover(disk, replace(self._machine.log, log=log))
        disk.kill()  # takes a cut back that has not come
        return Opened(recovered.log, recovered.groups, recovered.body)

    def end(self) -> None:
        """Lose all that is in memory; each job on a disk got as far as it got."""
        for job in self._jobs:
            self._abandon(job)
        self.shard = None
        self._jobs.clear()
        links, self._links = list(self._links), {}
        self._by_number.clear()
        for link in links:
            link.cut()
        self.trunks.cut()

    def _abandon(self, job: _Job) -> None:
        """Do some of a job's steps, perhaps all or none; nobody hears of it."""
        if self.world.chance(0.1):
            return
        # Mostly in the first steps: a flush has two, and what matters is what it leaves half done.
        job.disk.cut_after(int(_JOB_STEPS * self.world.dice.random() ** 3))
        try:
            job.run()
        except (PowerCut, OSError, DiskFailed) as end:
            self.world.note("abandoned", job.name, type(end).__name__)
        job.disk.kill()  # the next job has a cut of its own

    # -- peers ---------------------------------------------------------------------------------

    def connect(self, client: End) -> Link:
        """Open a connection."""
        link = Link(self.world, client, self)
        session = _Session(self.new_session(), Connection())
        self._links[link] = session
        self._by_number[session.number] = link
        link.hold(self._held)
        self.handle(ev.Opened(session.number))
        return link

    def new_session(self) -> int:
        """Return a number that no session ever had."""
        return next(self._numbers)

    def received(self, link: Link, data: bytes) -> None:
        """Cut frames out of a peer's bytes and hand them to the shard."""
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
        session = self._links.pop(link, None)
        if session is None or self.shard is None:
            return
        del self._by_number[session.number]
        self.shard.budget.release(session.stream.pending)
        self.handle(ev.Closed(session.number))

    def links(self) -> list[Link]:
        """Return the connections that are open as far as this side knows."""
        return list(self._links)

    # -- effects -------------------------------------------------------------------------------

    def handle(self, event: ev.Event) -> None:
        """Feed one event, unless the process has ended, and do what comes of it."""
        if self.shard is not None:
            self._do(self.shard.handle(event))

    def _do(self, effects: list[ef.Effect]) -> None:
        for effect in effects:
            match effect:
                case ef.Send(session, buffers, charged):
                    self._release(charged)
                    self._send(session, b"".join(buffers))
                case ef.Pass(shard, buffers, charged):
                    assert self.shard is not None  # it has just asked for this
                    self.shard.passed_on(shard, charged)
                    self.trunks.send(shard, b"".join(buffers))
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
                    self._hang_up(session, reason)
                case ef.HoldReads(held):
                    self._hold(held)
                case ef.Stopped():
                    self.stopped = True

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

    def _flush(self, effect: ef.StartFlush) -> None:
        def done(_: None, error: Failed | None) -> None:
            if error is None:
                self.handle(ev.Flushed(effect.log, effect.flush))
            else:  # no room for a new segment: as the real flusher does
                self._flush(effect)

        disk = self.disks[effect.log]
        self._start("flush", disk, lambda: self._run_flush(disk, effect.flush), done,
                    self._machine.flush)  # fmt: skip

    def _run_flush(self, disk: SimDisk, flush: Flush) -> None:
        if self.world.chance(self._faults.flushes):
            disk.fail_next("sync", errno.EIO)
        flush.run(disk)

    def _read(self, effect: ef.StartRead) -> None:
        disk = self.disks[effect.log]

        def run() -> list[bytes]:
            if self.world.chance(self._faults.reads):
                disk.fail_next("read", errno.EIO)
            return effect.reading.run(disk)

        def done(payloads: list[bytes], error: Failed | None) -> None:
            if error is None:
                self.handle(ev.ReadDone(effect.ticket, payloads))
            else:
                at = error.position if isinstance(error, LogDamaged) else -1
                self.handle(ev.ReadDone(effect.ticket, (), f"the read failed: {error}", at))

        self._start("read", disk, run, done, _READ)

    def _spare(self, effect: ef.MakeSpare) -> None:
        def done(_: None, error: Failed | None) -> None:
            self.handle(ev.SpareMade(effect.log, effect.spare, error is None))

        disk = self.disks[effect.log]
        self._start("spare", disk, lambda: effect.spare.run(disk), done, _SPARE)

    def _save(self, effect: ef.SaveCheckpoint) -> None:
        def done(_: None, error: Failed | None) -> None:
            self.handle(ev.CheckpointSaved(effect.log, error is None))

        disk = self.disks[effect.log]
        self._start("save", disk, lambda: checkpoint.save(disk, effect.data), done, _SAVE)

    def _chore(self, effect: ef.StartChore) -> None:
        def done(found: Scrubbed | None, error: Failed | None) -> None:
            self.handle(ev.ChoreDone(effect.log, effect.chore, found))

        disk = self.disks[effect.log]
        self._start("chore", disk, lambda: effect.chore.run(disk), done, _SAVE)

    def _start(
        self,
        name: str,
        disk: SimDisk,
        run: Callable[[], Any],
        done: Callable[[Any, Failed | None], None],
        delay: tuple[int, int],
    ) -> None:
        job = _Job(name, disk, run, done)
        self._jobs.append(job)
        self.world.after(self.world.between(*delay), self._finish, job)

    def _finish(self, job: _Job) -> None:
        if job not in self._jobs:
            return  # the process ended first
        self._jobs.remove(job)
        result, failed = None, None
        try:
            result = job.run()
        except DiskFailed:
            self.world.note("disk failed", self.number, job.name)
            self._disk_gone(self)
            return
        except (OSError, LogDamaged) as error:
            failed = error
        self.world.note(job.name, self.number, failed is None)
        job.done(result, failed)

    def _tick(self) -> None:
        if self.shard is not None:
            self.world.after(ev.TICK_MS * MS, self._tick)
            self.handle(ev.Ticked())
