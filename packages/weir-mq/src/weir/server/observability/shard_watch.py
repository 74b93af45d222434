"""Watches a shard, and says in its status what an operator should know.

Changes of leaders: one line a second at most. What must be mended, as a wrong clock or a full disk:
at once, then once a minute.
"""

from __future__ import annotations

import asyncio
import logging

from weir.broker.shard import Shard
from weir.server.config.quantity import in_mib
from weir.server.reminder import Reminder

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_LOOK_SECONDS = 1.0


class LeaderChanges:
    """Tells of leaders while it is entered; a node that was founded alone has nothing to tell."""

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        self._begun = self._lost = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> LeaderChanges:
        if self._shard.identity.members:
            self._tell()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_EVERY_SECONDS, self._tell)
        counts = self._shard.counts
        begun, lost = counts.leads_begun - self._begun, counts.leads_lost - self._lost
        if begun or lost:
            self._begun, self._lost = counts.leads_begun, counts.leads_lost
            led = self._shard.partitions_led
            fields = {"led": led, "begun": begun, "lost": lost}
            words = "leads %d partitions: %d more, %d fewer"
            log.info(words, led, begun, lost, extra={"fields": fields})


class OperatorWarnings:
    """Warns of what must be mended: looks once a second while it is entered."""

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        self._reminder = Reminder()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> OperatorWarnings:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        astray_ms = self._shard.clock_astray_ms
        if self._reminder.is_due("clock", bool(astray_ms)):
            log.warning(
                "the clock of this node is %.1f s %s those of the others: correct it "
                "(for example by NTP). Until then this node leads nothing and uses the median",
                abs(astray_ms) / 1_000,
                "ahead of" if astray_ms > 0 else "behind",
                extra={"fields": {"clock_astray_ms": astray_ms}},
            )
        needed = self._shard.needed_bytes
        if self._reminder.is_due("disk", bool(needed)):
            log.warning(
                "the disk is full: publishes are refused, acks and reads continue. Free %s or "
                "more on it, or add a disk",
                in_mib(needed),
                extra={"fields": {"needed_bytes": needed}},
            )
        short = self._shard.short
        if self._reminder.is_due("disks of others", short is not None) and short is not None:
            log.warning(
                "%s: publishes that need them are refused, acks and reads continue. Free %s or "
                "more there, or add disks",
                short,
                in_mib(short.needed_bytes),
                extra={"fields": {"needed_bytes": short.needed_bytes, "nodes": short.nodes}},
            )
