"""How far a simulated log is durable, saved a while after each flush; server.position_saver's twin.

Its dice and its disk are its own, so that a world is the same with it and without it.
"""

from __future__ import annotations

import errno
import random
from contextlib import suppress

from weir.errors import DiskFailed
from weir.storage.format.durable_position import DurablePosition
from weir.testing.simulator.disk import PowerCut, SimDisk
from weir.testing.simulator.ports import RunningProcess
from weir.testing.simulator.world import MS

#: The latest that a save begins after the flush that it speaks of.
_WITHIN = 20 * MS
_FAILS = 0.02
#: A save has two steps, and making the file a few more.
_STEPS = 7


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
        if self._process.stands:  # a loop that waits for its disk keeps no thread waiting
            self._process.world.after(_WITHIN, self._save)
            return
        self._waits = False
        if self._dice.random() < _FAILS:
            self._disk.fail_next(self._dice.choice(("write", "sync")), errno.EIO)
        self._run()

    def _run(self) -> None:
        with suppress(PowerCut, OSError, DiskFailed):  # nobody waits for it
            self._file.save(self._newest)
