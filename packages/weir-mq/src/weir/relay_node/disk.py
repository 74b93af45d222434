"""What a relay does on its disk, in threads: flushes, reads, checkpoints, files ahead of use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from weir.codec import Buffer
from weir.relay.state import RelayState
from weir.relay_node.store import RelayStore
from weir.storage.disk import Disk
from weir.storage.format import checkpoint
from weir.storage.segment_files import Spare

log = logging.getLogger(__name__)

R = TypeVar("R")
#: A disk without room is tried again after so many seconds.
_AGAIN = 1.0


class RelayDisk:
    """The store of a relay and the threads that work for it. The event loop calls all of it."""

    def __init__(self, disk: Disk, store: RelayStore) -> None:
        """Work on a disk for a store that lies there."""
        self._disk = disk
        self.store = store
        self._threads = ThreadPoolExecutor(4, "weir-relay")
        self._spares_wanted = asyncio.Event()
        #: Set where something may have to be flushed.
        self.dirty = asyncio.Event()

    @property
    def unsynced(self) -> int:
        """How many bytes were taken and are not durable yet."""
        return self.store.log.tail - self.store.log.reader.durable

    async def in_thread(self, work: Callable[..., R], *arguments: object) -> R:
        """Return what a function returns that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

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
                log.error("the disk takes nothing: %s; free some room", error)
                await asyncio.sleep(_AGAIN)
        self.store.log.flushed(flush)
        self._spares_wanted.set()
        return flush.tokens

    async def entries(self, group: int, indexes: Sequence[int]) -> dict[int, Buffer]:
        """Return by index the bytes of entries: those in memory, else what is durable. What was
        not synced and is in memory no more is missing. Raises `LogDamaged`.
        """
        found = self.store.cached(group, indexes)
        missing = [index for index in indexes if index not in found]
        reading, which = self.store.reading(group, missing) if missing else (None, [])
        if reading is not None:
            reading.pin()
            try:
                payloads = await self.in_thread(reading.run, self._disk)
            finally:
                reading.release()
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
            log.error("the checkpoint was not saved: %s", error)
            return
        self.store.saved()
        while (chore := self.store.log.next_chore()) is not None:
            await self.in_thread(chore.run, self._disk)

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
            log.error("no room for a segment in reserve: %s", error)
            spares.failed(spare)
            await asyncio.sleep(_AGAIN)
            return
        spares.made(spare)
        self.dirty.set()

    def close(self) -> None:
        """Return when the threads are done."""
        self._threads.shutdown(wait=True)
