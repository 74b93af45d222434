"""Devices that were replaced, and come for the first time.

The secret of the device before counts until the new one is used. So the first proof of the new one
is followed by an entry of the registry, and its welcome waits until that is applied here: from then
on the one before stays out of this shard, and of each partition in which the new one publishes.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Protocol

import msgspec

from weir.broker.forwarding.forwarder import NO_REPLY, Forwarder
from weir.broker.metadata.catalog import Catalog
from weir.errors import Refused
from weir.order.clock import Time
from weir.protocol.client.fleets import UseDevice

#: Nobody waits longer for the entry.
_WITHIN_MS = 5_000
_AGAIN_AFTER_MS = 500


class DeviceEntries(Protocol):
    """What proposes entries about devices, where this shard leads the registry."""

    def use_device(self, request: UseDevice, /) -> None:
        """Propose that the device of a generation is used. Raises `Unavailable`."""


class _Wait(msgspec.Struct):
    hub: int
    generation: int
    asked_ms: int
    until_ms: int


class Replacements:
    """Keeps sessions whose devices are the next generation of their hub."""

    __slots__ = ("_catalog", "_entries", "_forwarder", "_resumed", "_time", "_waiting")

    def __init__(
        self, catalog: Catalog, entries: DeviceEntries, forwarder: Forwarder, resumed: deque[int],
        time: Time,
    ) -> None:  # fmt: skip
        """Each session that need not wait any more goes to `resumed`."""
        self._catalog = catalog
        self._entries = entries
        self._forwarder = forwarder
        self._resumed = resumed
        self._time = time
        self._waiting: dict[int, _Wait] = {}

    def is_first(self, hub: int, generation: int) -> bool:
        """Return whether a device of this generation would be the first, while the one before may
        still come.
        """
        device = self._catalog.fleets.device(hub)
        return device.before >= 0 and generation == device.generation

    def wait(self, session: int, hub: int, generation: int) -> None:
        """Let a session wait until its device counts as used."""
        now = self._time.monotonic_ms()
        wait = self._waiting[session] = _Wait(hub, generation, now, now + _WITHIN_MS)
        self._ask(wait)

    def holds(self, session: int) -> bool:
        """Return whether a session waits here."""
        return session in self._waiting

    def proceed(self) -> None:
        """Fleets or devices have changed: let those go on whose device is used now, or too late."""
        for session, wait in list(self._waiting.items()):
            if not self.is_first(wait.hub, wait.generation):
                self._end(session)

    def check_deadlines(self) -> None:
        """Ask again what was not answered, and let nobody wait for ever."""
        now = self._time.monotonic_ms()
        for session, wait in list(self._waiting.items()):
            if now >= wait.until_ms:
                self._end(session)
            elif now - wait.asked_ms >= _AGAIN_AFTER_MS:
                wait.asked_ms = now
                self._ask(wait)

    def _end(self, session: int) -> None:
        del self._waiting[session]
        self._resumed.append(session)

    def _ask(self, wait: _Wait) -> None:
        request, forwarder = UseDevice(wait.hub, wait.generation), self._forwarder
        with suppress(Refused):  # it is asked again
            place = forwarder.routes.registry
            if place == forwarder.shard:
                self._entries.use_device(request)
            else:
                forwarder.ask_own(place, request, NO_REPLY)
