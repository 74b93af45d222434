"""What the disk's threads are asked to do, and what the shard is told of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

from weir.broker.api import effects as ef
from weir.broker.api import events as ev
from weir.errors import DiskFailed
from weir.server.config.quantity import in_mib
from weir.server.exit_codes import EXIT_DISK
from weir.server.reminder import Reminder
from weir.storage.errors import LogDamaged
from weir.storage.segments.scrub import Scrubbed

log = logging.getLogger(__name__)


def read_done(effect: ef.StartRead, future: Future[Sequence[bytes]]) -> ev.ReadDone:
    """Return what became of a read."""
    error = future.exception()
    if error is None:
        return ev.ReadDone(effect.ticket, future.result())
    log.error("log %d: a read failed: %s", effect.log, error)
    at = error.position if isinstance(error, LogDamaged) else -1
    return ev.ReadDone(effect.ticket, (), f"the read failed: {error}", at)


def spare_made(reminder: Reminder, effect: ef.MakeSpare, future: Future[None]) -> ev.SpareMade:
    """Return what became of a segment in reserve; does not return if the disk failed.

    It is tried each second; the `reminder` says when to tell of it again.
    """
    error = _error(effect.log, future)
    if reminder.is_due(effect.log, error is not None):
        log.error(
            "log %d: no room for a segment in reserve: %s; free %s or more on that disk",
            effect.log,
            error,
            in_mib(effect.spare.size),
        )
    return ev.SpareMade(effect.log, effect.spare, made=error is None)


def checkpoint_saved(effect: ef.SaveCheckpoint, future: Future[int]) -> ev.CheckpointSaved:
    """Return what became of a checkpoint; does not return if the disk failed."""
    if (error := _error(effect.log, future)) is not None:
        # The log has everything; only the next start takes longer.
        log.error("log %d: the checkpoint was not saved: %s", effect.log, error)
        return ev.CheckpointSaved(effect.log, saved=False)
    return ev.CheckpointSaved(effect.log, saved=True, size=future.result())


def chore_done(effect: ef.StartChore, future: Future[Scrubbed | None]) -> ev.ChoreDone:
    """Return what became of a chore; does not return if the disk failed."""
    if (error := _error(effect.log, future)) is not None:
        log.warning("log %d: a chore was left undone: %s", effect.log, error)
    found = future.result() if error is None else None
    for bad in found.bad if found is not None else ():
        log.error("found by the scrub: %s", bad)
    return ev.ChoreDone(effect.log, effect.chore, found)


def die(number: int, error: BaseException) -> NoReturn:
    """End the process at once, from whichever thread (DESIGN §4 Log).

    What the page cache holds is unknown now: nothing may be retried, believed, or said to anybody.
    A restart reads the disk and finds out.
    """
    log.critical("log %d: the disk failed: %s", number, error)
    logging.shutdown()
    os._exit(EXIT_DISK)


def _error(number: int, future: Future[Any]) -> BaseException | None:
    error = future.exception()
    if isinstance(error, DiskFailed):
        die(number, error)
    return error
