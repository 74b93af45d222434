"""The flushes of a shard, as they are run: by a thread a log, or by the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.broker.api.counts import Histogram
from weir.host.flush_schedule import FlushSchedule
from weir.server.disk.flush_thread import Flusher
from weir.server.disk.jobs import die
from weir.server.disk.loop_wakeup import Bell
from weir.server.disk.position_saver import PositionSaver
from weir.storage.disk import Disk
from weir.storage.segments.flush import Flush


class Telling(Protocol):
    """A driver, as its flushes use it: it takes what comes of them, and keeps time."""

    def handle(self, event: ev.Event) -> None:
        """Feed one event and do what comes of it."""

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` after a while."""


class Flushes:
    """Has flushes run where the schedule says: by a thread a log, or by the loop."""

    def __init__(
        self,
        disks: Mapping[int, Disk],
        driver: Telling,
        schedule: FlushSchedule,
        positions: Mapping[int, PositionSaver] | None = None,
    ) -> None:
        """Flush log number n on `disks[n]`. How far it is durable is saved by `positions[n]`, if
        there is one.
        """
        self._positions = positions or {}
        self._driver = driver
        self._schedule = schedule
        self._loop = asyncio.get_running_loop()
        self._bell = Bell(self._loop)
        self._flushers = {n: self._flusher(n, disk) for n, disk in disks.items()}

    def _flusher(self, number: int, disk: Disk) -> Flusher:
        name, done = f"weir-flush-{number}", self._in_loop(number)
        if (saver := self._positions.get(number)) is None:
            return Flusher(name, disk, done)
        return Flusher(name, disk, done, reached=saver.reached)

    @property
    def seconds(self) -> dict[int, Histogram]:
        """By the log's number, how long its flushes took."""
        return {number: flusher.seconds for number, flusher in self._flushers.items()}

    def start(self, effect: ef.StartFlush) -> None:
        """Run a flush; `Flushed` comes when it is durable, never before this returns."""
        if self._schedule.start(effect):
            self._loop.call_soon(self._run, effect.log)  # what this turn sends is out first
        else:
            self._flushers[effect.log].start(effect.flush)

    def stop(self) -> None:
        """Return once all that was started has run, or is given up; nobody hears of it."""
        for number, flush in self._schedule.inline.items():
            self._flushers[number].start(flush)
        self._schedule.inline.clear()
        for flusher in self._flushers.values():
            flusher.stop()
        for saver in self._positions.values():
            saver.stop()
        self._bell.close()

    def _run(self, number: int) -> None:
        flush = self._schedule.inline.pop(number, None)
        if flush is None:  # `stop` gave it to the thread
            return
        try:
            is_durable = self._flushers[number].run(flush)
        except Exception as error:
            die(number, error)
        if is_durable:
            self._flushed(number, flush)

    def _in_loop(self, number: int) -> Callable[[Flush, BaseException | None], None]:
        def done(flush: Flush, error: BaseException | None) -> None:
            if error is not None:
                die(number, error)
            self._bell.ring(partial(self._flushed, number, flush))

        return done

    def _flushed(self, number: int, flush: Flush) -> None:
        event, rest = self._schedule.flushed(number, flush, self._flushers[number].took_seconds)
        if rest:
            self._driver.later(rest, partial(self._driver.handle, ev.Rested(number)))
        self._driver.handle(event)
