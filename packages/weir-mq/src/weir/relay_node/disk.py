"""What a relay does on its disk, in threads: flushes, reads, checkpoints, files ahead of use.

A disk that is full, or fails to create, replace, read or remove a file, ends nothing: what failed
is tried again, and an operator is told at once and then each minute. A failed write or sync raises
`DiskFailed`, which ends the process: what the disk holds is unknown then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from weir.codec import Buffer
from weir.relay.state import RelayState
from weir.relay_node.store import RelayStore
from weir.storage.disk import Disk
from weir.storage.format import checkpoint
from weir.storage.segment_files import Spare
from weir.storage.segment_lifecycle import Chore

log = logging.getLogger(__name__)

R = TypeVar("R")
#: A disk that failed at something is tried again after so many seconds.
_AGAIN = 1.0


class Reminder(Protocol):
    """Remembers when each trouble was told last."""

    def is_due(self, trouble: Hashable, is_there: bool = True) -> bool:
        """Return whether to tell of a trouble now; one that ended and returns is told at once."""


class DiskTroubles:
    """What a disk fails at now, by kind: told at once, then each minute, and when it is over."""

    def __init__(self, reminder: Reminder) -> None:
        """Begin without any."""
        self._reminder = reminder
        #: By kind, what an operator is to know.
        self.now: dict[str, str] = {}

    def failed(self, kind: str, words: str, error: OSError) -> None:
        """Something of a `kind` failed; `words` say what that means."""
        self.now[kind] = f"{words}: {error}"
        if self._reminder.is_due(kind):
            log.error("%s: %s", words, error)

    def worked(self, kind: str) -> None:
        """Something of a `kind` was done."""
        if self.now.pop(kind, None) is not None:
            self._reminder.is_due(kind, is_there=False)
            log.warning("the disk works again: %s", kind)


class Threads(Protocol):
    """Where a relay does what blocks."""

    async def run(self, work: Callable[[], R]) -> R:
        """Return what a function returns that blocks."""

    def close(self) -> None:
        """Return when nothing runs any more."""


class ThreadPool:
    """Threads of this process."""

    def __init__(self) -> None:
        """Start threads as they are needed."""
        self._pool = ThreadPoolExecutor(4, "weir-relay")

    async def run(self, work: Callable[[], R]) -> R:
        """Return what a function returns that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Return when the threads are done."""
        self._pool.shutdown(wait=True)


class RelayDisk:
    """The store of a relay and the threads that work for it. The event loop calls all of it."""

    def __init__(
        self, disk: Disk, store: RelayStore, threads: Threads, reminder: Reminder
    ) -> None:  # fmt: skip
        """Work on a disk for a store that lies there; `reminder` says when to tell of a trouble."""
        self._disk = disk
        self.store = store
        self._threads = threads
        self._spares_wanted = asyncio.Event()
        self._chores_wanted = asyncio.Event()
        self._chore: Chore | None = None
        #: Set, and another one taken, once one more flush is durable.
        self.flushed = asyncio.Event()
        self.troubles = DiskTroubles(reminder)
        #: Set where something may have to be flushed.
        self.dirty = asyncio.Event()

    @property
    def unsynced(self) -> int:
        """How many bytes were taken and are not durable yet."""
        return self.store.log.tail - self.store.log.reader.durable

    @property
    def is_full(self) -> bool:
        """Whether the last flush found no room: nothing is to be pulled until one does."""
        return "flush" in self.troubles.now

    async def in_thread(self, work: Callable[..., R], *arguments: object) -> R:
        """Return what a function returns that blocks."""
        return await self._threads.run(partial(work, *arguments))

    async def flush(self) -> tuple[object, ...] | None:
        """Make durable what is staged; return the tokens of its entries, None if nothing was. A
        full disk is waited for. Raises `DiskFailed`.
        """
        flush = self.store.next_flush()
        if flush is None:
            return None
        while True:
            try:
                await self.in_thread(flush.run, self._disk)
                break
            except OSError as error:
                words = (
                    "the disk takes nothing, so nothing is pulled; readers go on; free some room"
                )
                self.troubles.failed("flush", words, error)
                await asyncio.sleep(_AGAIN)
        self.troubles.worked("flush")
        self.store.log.flushed(flush)
        self._spares_wanted.set()
        flushed, self.flushed = self.flushed, asyncio.Event()
        flushed.set()
        return flush.tokens

    async def entries(self, group: int, indexes: Sequence[int]) -> dict[int, Buffer]:
        """Return by index the bytes of entries: those in memory, else what is durable. What was
        not synced and is in memory no more is missing. Raises `LogDamaged`, and `OSError` where the
        disk does not give them.
        """
        found = self.store.cached(group, indexes)
        missing = [index for index in indexes if index not in found]
        reading, which = self.store.reading(group, missing) if missing else (None, [])
        if reading is not None:
            reading.pin()
            try:
                payloads = await self.in_thread(reading.run, self._disk)
            except OSError as error:
                self.troubles.failed("read", "readers do not get what the disk cannot read", error)
                raise
            finally:
                reading.release()
            self.troubles.worked("read")
            found.update(zip(which, payloads, strict=False))
        return found

    async def save_checkpoint(self, states: Mapping[int, RelayState]) -> None:
        """Save a checkpoint, if all is durable, and give back what it frees."""
        data = self.store.checkpoint(states)
        if data is None:
            return
        try:
            await self.in_thread(checkpoint.save, self._disk, data)
        except OSError as error:
            self.troubles.failed("checkpoint", "no checkpoint is saved, and no room freed", error)
            return
        self.troubles.worked("checkpoint")
        self.store.saved()
        self._chores_wanted.set()

    async def run_chores(self) -> None:
        """Write index files and free what a checkpoint freed, for as long as this is not cancelled.
        What the disk does not take is tried again: a segment that is not removed is room lost.
        """
        while True:
            await self._chores_wanted.wait()
            self._chores_wanted.clear()
            while not await self._do_chores():
                await asyncio.sleep(_AGAIN)

    async def end_chores(self) -> None:
        """Do what is left when a relay stops. What fails, or may still run, the next start does."""
        if self._chore is None:
            await self._do_chores()

    async def _do_chores(self) -> bool:
        """Do what is to be done, up to what fails; return whether nothing did."""
        while (chore := self._chore or self.store.log.next_chore()) is not None:
            self._chore = chore
            try:
                await self.in_thread(chore.run, self._disk)
            except OSError as error:
                self.troubles.failed("files", "old files of the log are not removed", error)
                return False
            self._chore = None
        self.troubles.worked("files")
        return True

    async def make_spares(self) -> None:
        """Make files ahead of their use, for as long as this is not cancelled."""
        spares = self.store.log.spares
        while True:
            while (spare := spares.wants()) is not None:
                await self._make(spare)
            self._spares_wanted.clear()
            await self._spares_wanted.wait()

    async def _make(self, spare: Spare) -> None:
        spares = self.store.log.spares
        try:
            await self.in_thread(spare.run, self._disk)
        except OSError as error:
            self.troubles.failed("reserve", "no room for a segment in reserve", error)
            spares.failed(spare)
            await asyncio.sleep(_AGAIN)
            return
        self.troubles.worked("reserve")
        spares.made(spare)
        self.dirty.set()

    def close(self) -> None:
        """Return when the threads are done."""
        self._threads.close()
