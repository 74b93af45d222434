"""Feeding events to a shard, one or many at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from weir.broker import effects as ef
from weir.broker import events as ev
from weir.broker.shard import Shard
from weir.wire.device import DeviceHello, DevicePublishes
from weir.wire.trunk import Arrival

log = logging.getLogger(__name__)

_PUBLISHING = frozenset[type]((DeviceHello, DevicePublishes))


class Feeding:
    """What a driver is to its shard: tells it what happens, and does what comes of that."""

    def __init__(self, shard: Shard) -> None:
        """Feed `shard` on the running loop."""
        self._shard = shard
        self._loop = asyncio.get_running_loop()
        self._held = self._settling = False
        self._gathered: list[ev.Event] | None = None
        self._broken: asyncio.Future[None] = self._loop.create_future()

    def _do(self, effects: list[ef.Effect]) -> None:
        """Do effects, in order."""

    def _confirms_soon(self) -> bool:
        """Whether the loop is about to run a flush: what is confirmed by it is not to wait."""
        return False

    def broke(self) -> None:
        """The shard broke: nothing that it says is to be believed any more."""

    def handle(self, event: ev.Event) -> None:
        """Feed one event and do what comes of it.

        An exception that gets here is a bug, and may have left an entry half applied: nothing that
        the shard says is to be believed from here on. `wait` raises it; a restart reads the log.
        """
        if self._gathered is not None:
            self._gathered.append(event)
        elif not self._broken.done():
            self._feed((event,))

    def greeted(self, session: int, hello: object, publishes: object) -> bool:
        """Take what a peer said first as one with others' if it is a device's hello and publishes,
        and it was `Opened` just now; return whether that is so.
        """
        gathered = self._gathered
        if not gathered or type(hello) is not DeviceHello or type(publishes) is not DevicePublishes:
            return False
        opened = gathered[-1]
        if type(opened) is not ev.Opened or opened.session != session:
            return False
        gathered.pop()
        arrival = Arrival(session, hello, publishes)
        before = gathered[-1] if gathered else None
        whence = opened.principal, opened.place
        if type(before) is ev.Arrived and (before.principal, before.place) == whence:
            before.arrivals.append(arrival)
        else:
            gathered.append(ev.Arrived([arrival], *whence))
        return True

    def gather(self) -> None:
        """Keep all events until `settle`: the shard takes them as one, for the price of one."""
        if self._gathered is None:
            self._gathered = []

    def settle(self) -> None:
        """Feed what was gathered."""
        gathered, self._gathered = self._gathered, None
        if gathered and not self._broken.done():
            self._feed(gathered)

    def _feed(self, events: Sequence[ev.Event]) -> None:
        try:
            if effects := self._shard.take(*events):
                self._do(effects)
            if type(events[0]) is ev.Flushed:  # which is fed alone
                self._settle_soon()
            elif self._shard.budget.is_news(self._held):
                self._do(self._shard.settle())
            elif self._confirms_soon():
                self._settle_soon()
            elif not all(map(_only_publishes, events)):
                self._do(self._shard.settle())
        except Exception as error:
            self._broke(type(events[0]).__name__, error)

    def _settle_soon(self) -> None:
        """Settle behind this turn, and behind a flush that the loop is about to run: the confirms
        of both are out before.
        """
        if not self._settling:
            self._settling = True
            self._loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._settling = False
        try:
            if not self._broken.done():
                self._do(self._shard.settle())
        except Exception as error:
            self._broke("settling", error)

    def _broke(self, where: str, error: Exception) -> None:
        log.critical("the shard broke at %s", where, exc_info=error)
        self._broken.set_exception(error)
        self.broke()

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event; raises what broke the shard, if that comes first."""
        waiter = asyncio.ensure_future(event.wait())
        try:
            either: set[asyncio.Future[Any]] = {waiter, self._broken}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._broken.done():
                self._broken.result()
        finally:
            waiter.cancel()


def _only_publishes(event: ev.Event) -> bool:
    """Whether an event makes nothing possible but a flush: nothing is to be settled behind it."""
    if isinstance(event, ev.Received):
        return all(type(frame) in _PUBLISHING for frame in event.frames)
    return isinstance(event, ev.Opened | ev.Arrived)  # who has said nothing yet, or that
