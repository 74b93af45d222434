"""What a simulated process does on its disks: each job takes virtual time, and may fail.

`Positions` saves how far a log is durable, a while after each flush, as `server.disk.flushes`
does. Its dice and its disk are its own, so that a world is the same with it and without it.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, get_args

import msgspec

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.runtime.reads import MessageReading
from weir.codec import Buffer
from weir.errors import DiskFailed
from weir.storage.errors import LogDamaged
from weir.storage.format import checkpoint
from weir.storage.format.durable_position import DurablePosition
from weir.storage.log import Flush
from weir.storage.scrub import Scrubbed
from weir.testing.simulator.disk import PowerCut, SimDisk
from weir.testing.simulator.running import RunningProcess
from weir.testing.simulator.world import MS, SECOND

#: The latest that a save begins after the flush that it speaks of.
_WITHIN = 20 * MS
_FAILS = 0.02
#: A save has two steps, and making the file a few more.
_STEPS = 7
#: How work on a disk may fail and leave the process running.
Failed = OSError | LogDamaged
#: What is done on a disk besides flushes.
Beside = ef.StartRead | ef.MakeSpare | ef.SaveCheckpoint | ef.StartChore
BESIDES: tuple[type[Beside], ...] = get_args(Beside)

_READ = (50, 8 * MS)
_SPARE = (1 * MS, 60 * MS)
_SAVE = (1 * MS, 40 * MS)
#: A job has a dozen steps at most.
_JOB_STEPS = 8


class Positions:
    """Saves the newest position of one log while a process lives."""

    def __init__(self, process: RunningProcess, disk: SimDisk, file: DurablePosition) -> None:
        """Save to a file on a disk that the process has opened at its start."""
        self._process = process
        self._disk = disk
        self._file = file
        self._dice = random.Random(process.run)
        self._newest = file.position
        self._waits = self._is_over = False

    def reached(self, position: int) -> None:
        """A flush up to a position has returned."""
        self._newest = max(self._newest, position)
        if not self._waits:
            self._waits = True
            self._process.world.after(self._dice.randint(1, _WITHIN), self._save)

    def abandon(self) -> None:
        """The process has ended: a save that was due got as far as it got."""
        if self._waits and self._dice.random() < 0.5:
            self._disk.cut_after(self._dice.randrange(_STEPS))
            self._run()
            self._disk.kill()
        self._is_over = True

    def _save(self) -> None:
        if self._is_over:
            return
        # A loop that waits for its disk keeps no thread waiting.
        if self._process.standstill.is_paused:
            self._process.world.after(_WITHIN, self._save)
            return
        self._waits = False
        if self._dice.random() < _FAILS:
            self._disk.fail_next(self._dice.choice(("write", "sync")), errno.EIO)
        self._run()

    def _run(self) -> None:
        with suppress(PowerCut, OSError, DiskFailed):  # nobody waits for it
            self._file.save(self._newest)


class Faults(msgspec.Struct):
    """How likely one read or one flush fails, and a recovery is cut short; how slow the disk is."""

    reads: float = 0.0
    flushes: float = 0.0
    recoveries: float = 0.0
    #: How many times longer than usual everything takes.
    slow: int = 1

    def end(self) -> None:
        """Let nothing fail any more."""
        self.reads = self.flushes = self.recoveries = 0.0


class _Job(msgspec.Struct, eq=False):
    """Work on a disk that takes virtual time: `run` it, then report what `done` makes of it."""

    name: str
    disk: SimDisk
    run: Callable[[], Any]
    done: Callable[[Any, Failed | None], None]


class Jobs:
    """All that is under way on the disks of one process."""

    def __init__(self, process: RunningProcess, flush: tuple[int, int], faults: Faults) -> None:
        """Work for `process`; a flush takes `flush` µs, least and most."""
        self._process = process
        self._world = process.world
        self._flush_takes = flush
        self._faults = faults
        self._jobs: list[_Job] = []
        #: By log, what saves how far it is durable.
        self.positions: dict[int, Positions] = {}

    def start(
        self, effect: ef.StartRead | ef.MakeSpare | ef.SaveCheckpoint | ef.StartChore
    ) -> None:
        """Do what a shard asks of a disk besides flushes, in a while."""
        match effect:
            case ef.StartRead():
                self._read(effect)
            case ef.MakeSpare(log, spare):
                self._later("spare", log, spare.run, self._spare_made(effect), _SPARE)
            case ef.SaveCheckpoint(log, _, data):
                self._later(
                    "save",
                    log,
                    lambda disk: checkpoint.save(disk, data),
                    lambda size, error: self._process.handle(
                        ev.CheckpointSaved(log, error is None, size or 0)
                    ),
                    _SAVE,
                )
            case ef.StartChore(log, chore):
                self._later("chore", log, chore.run, self._chore_done(effect), _SAVE)

    def abandon(self) -> None:
        """The process has ended: each job got as far as it got, and nobody hears of it."""
        for positions in self.positions.values():
            positions.abandon()
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if self._world.chance(0.1):
                continue
            # Mostly in the first steps: a flush has two, and what matters is what it leaves half
            # done.
            job.disk.cut_after(int(_JOB_STEPS * self._world.dice.random() ** 3))
            try:
                job.run()
            except (PowerCut, OSError, DiskFailed) as end:
                self._world.note("abandoned", job.name, type(end).__name__)
            job.disk.kill()  # the next job has a cut of its own

    def flush_inline(self, effect: ef.StartFlush) -> None:
        """Run a flush while the process waits for it."""
        run, done = self._run_flush(effect.flush), self._flushed(effect, self._world.now)
        job = self._job("flush", effect.log, run, done)
        self._process.standstill.flush_began()
        self._world.after(self._takes(self._flush_takes), self._finish_inline, job)

    def flush(self, effect: ef.StartFlush) -> None:
        """Run a flush beside what the process does."""
        run, done = self._run_flush(effect.flush), self._flushed(effect, self._world.now)
        self._later("flush", effect.log, run, done, self._flush_takes)

    def _flushed(self, effect: ef.StartFlush, began: int) -> Callable[[None, Failed | None], None]:
        process, log, flush = self._process, effect.log, effect.flush

        def done(_: None, error: Failed | None) -> None:
            if error is not None:  # no room for a new segment: as the real flusher does
                self.flush(effect)
                return
            self.positions[log].reached(flush.end)
            seconds = (self._world.now - began) / SECOND
            event, rest = process.flushes.flushed(log, flush, seconds)
            if rest:
                self._world.after(int(rest * SECOND), self._rested, log)
            process.handle(event)

        return done

    def _rested(self, log: int) -> None:
        if not self._process.standstill.asleep(self._rested, log):
            self._process.handle(ev.Rested(log))

    def _run_flush(self, flush: Flush) -> Callable[[SimDisk], None]:
        def run(disk: SimDisk) -> None:
            if self._world.chance(self._faults.flushes):
                disk.fail_next("sync", errno.EIO)
            flush.run(disk)

        return run

    def _read(self, effect: ef.StartRead) -> None:
        def run(disk: SimDisk) -> list[Buffer]:
            # A state to be packed or decoded, and a pause, read nothing.
            if self._world.chance(self._faults.reads) and isinstance(
                effect.reading, MessageReading
            ):
                disk.fail_next("read", errno.EIO)
            return list(effect.reading.run(disk))

        def done(payloads: list[Buffer], error: Failed | None) -> None:
            if error is None:
                self._process.handle(ev.ReadDone(effect.ticket, payloads))
            else:
                at = error.position if isinstance(error, LogDamaged) else -1
                failure = f"the read failed: {error}"
                self._process.handle(ev.ReadDone(effect.ticket, (), failure, at))

        self._later("read", effect.log, run, done, _READ)

    def _spare_made(self, effect: ef.MakeSpare) -> Callable[[None, Failed | None], None]:
        def done(_: None, error: Failed | None) -> None:
            self._process.handle(ev.SpareMade(effect.log, effect.spare, error is None))

        return done

    def _chore_done(
        self, effect: ef.StartChore
    ) -> Callable[[Scrubbed | None, Failed | None], None]:
        def done(found: Scrubbed | None, error: Failed | None) -> None:
            self._process.handle(ev.ChoreDone(effect.log, effect.chore, found))

        return done

    def _later(
        self,
        name: str,
        log: int,
        run: Callable[[SimDisk], Any],
        done: Callable[[Any, Failed | None], None],
        delay: tuple[int, int],
    ) -> None:
        job = self._job(name, log, run, done)
        self._world.after(self._takes(delay), self._finish, job)

    def _job(
        self,
        name: str,
        log: int,
        run: Callable[[SimDisk], Any],
        done: Callable[[Any, Failed | None], None],
    ) -> _Job:
        disk = self._process.disks[log]
        job = _Job(name, disk, lambda: run(disk), done)
        self._jobs.append(job)
        return job

    def _takes(self, delay: tuple[int, int]) -> int:
        return self._world.between(*delay) * self._faults.slow

    def _finish_inline(self, job: _Job) -> None:
        if job in self._jobs:
            self._process.standstill.flush_ended(lambda: self._finish(job))

    def _finish(self, job: _Job) -> None:
        if job not in self._jobs:
            return  # the process ended first
        if self._process.standstill.asleep(self._finish, job):
            return
        self._jobs.remove(job)
        result, failed = None, None
        try:
            result = job.run()
        except DiskFailed:
            self._world.note("disk failed", self._process.name, job.name)
            self._process.disk_failed()
            return
        except (OSError, LogDamaged) as error:
            failed = error
        self._world.note(job.name, self._process.name, failed is None)
        job.done(result, failed)
