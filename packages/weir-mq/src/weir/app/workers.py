"""The workers of a subscription: who has nothing to do, and who wants nobody beside it.

The handlers of a process share a room: one of them may want that nothing happens beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from weir.app.work_queue import WorkQueue
from weir.errors import WeirError

#: Who is to be alone waits so long for those who are at work, and is alone for so long, in seconds.
CLEARED = 10.0
ALONE = 60.0

_rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, Room] = WeakKeyDictionary()

Worker = asyncio.Task[None]

T = TypeVar("T")


class Guest(Protocol):
    """The workers of a subscription."""

    @property
    def busy(self) -> int:
        """How many are at work."""

    def pause(self) -> None:
        """Give back all that did not begin."""

    async def quiet(self) -> None:
        """Return when the broker knows what is settled, and given back, and grants no more. Raises
        `WeirError`.
        """


class Room:
    """All workers of an event loop, whatever they subscribed to: a process ends with all of it."""

    def __init__(self) -> None:
        """Begin empty."""
        self.guests: set[Guest] = set()
        #: Set while anybody may begin something; and when all are idle.
        self._opened = asyncio.Event()
        self._opened.set()
        self._calm = asyncio.Event()

    @staticmethod
    def here() -> Room:
        """Return the one of the event loop that runs."""
        return _rooms.setdefault(asyncio.get_running_loop(), Room())

    def leave(self, guest: Guest) -> None:
        """Forget a guest; the room too, once nobody is in it: a loop may be one of many."""
        self.guests.discard(guest)
        if not self.guests:
            _rooms.pop(asyncio.get_running_loop(), None)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or is about to be: none may begin anything."""
        return not self._opened.is_set()

    @property
    def busy(self) -> int:
        """How many are at work."""
        return sum(guest.busy for guest in self.guests)

    def idles(self) -> None:
        """Take note that somebody is at work no more."""
        if self.closed and not self.busy:
            self._calm.set()

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._opened.wait()

    async def close(self, mine: Guest) -> Alone:
        """Let one of `mine` be alone: nothing begins, what did not is given back, and all that was
        done is told. Who is at work may end, within `CLEARED` seconds.

        Call it idly, and not while it is `closed`: what one holds who waits for that dies with who
        is alone. Raises `WeirError` where what `mine` did cannot be told.
        """
        assert not self.closed
        self._opened.clear()
        alone = Alone(self)
        try:
            for guest in self.guests:
                guest.pause()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEARED):
                    while self.busy:
                        self._calm.clear()
                        await self._calm.wait()
            others = [_quiet(guest) for guest in self.guests if guest is not mine]
            await asyncio.gather(mine.quiet(), *others)
        except BaseException:
            alone.end()
            raise
        return alone

    def open(self) -> None:
        """Let the others begin again."""
        self._opened.set()


class Alone:
    """Somebody is alone in a room until `end`, or for `ALONE` seconds: what hangs must not keep
    all others from their work.
    """

    def __init__(self, room: Room) -> None:
        """Begin; the time runs from `begin` on."""
        self._room: Room | None = room
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Let the time run."""
        self._timer = asyncio.get_running_loop().call_later(ALONE, self.end)

    def end(self) -> None:
        """Let the others begin again; nothing happens if they have."""
        if self._timer is not None:
            self._timer.cancel()
        room, self._room = self._room, None
        if room is not None:
            room.open()


async def _quiet(guest: Guest) -> None:
    """Let a guest tell what it has done; where it cannot, its own messages come again."""
    with contextlib.suppress(WeirError, TimeoutError):
        async with asyncio.timeout(CLEARED):
            await guest.quiet()


class Workers:
    """Tasks that work beside each other, in a room with those of other subscriptions."""

    def __init__(self, taking: WorkQueue) -> None:
        """Begin with none; they take what they work on from `taking`."""
        self.all: set[Worker] = set()
        #: Those that wait for something to do.
        self.idle: set[Worker] = set()
        self._taking = taking
        self._room = Room.here()
        self._room.guests.add(self)

    @property
    def busy(self) -> int:
        """How many are at work."""
        return len(self.all) - len(self.idle)

    @property
    def closed(self) -> bool:
        """Whether one is alone, or waits to be: none may begin anything."""
        return self._room.closed

    async def idly(self, worker: Worker, wait: Coroutine[Any, Any, T]) -> T:
        """Wait, as one who has nothing to do and may be cancelled."""
        self.idle.add(worker)
        self._room.idles()
        try:
            return await wait
        finally:
            self.idle.discard(worker)

    def over(self, worker: Worker) -> None:
        """Forget one that has ended."""
        self.all.discard(worker)
        self._room.idles()
        if not self.all:
            self._room.leave(self)

    async def admitted(self) -> None:
        """Wait until nobody is alone."""
        await self._room.admitted()

    async def close(self) -> Alone:
        """Be alone in the process until the end of what is returned. See `Room.close`."""
        return await self._room.close(self)

    # What the room asks of its guests.

    def pause(self) -> None:
        """Give back all that did not begin."""
        self._taking.pause()

    async def quiet(self) -> None:
        """Return when the broker knows what is settled, and given back, and grants no more. Raises
        `WeirError`.
        """
        await self._taking.quiet()
