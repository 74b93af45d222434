"""Warns of what an operator must mend: a wrong clock, a full disk. At once, then once a minute."""

from __future__ import annotations

import asyncio
import logging
import time

from weir.broker.shard import Shard
from weir.model.limits import MIB

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_AGAIN_SECONDS = 60.0


class TroublesTold:
    """Looks once a second while it is entered."""

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        #: By kind of trouble, when it was told last.
        self._told: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> TroublesTold:
        self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        astray_ms = self._shard.clock_astray_ms
        if self._is_due("clock", bool(astray_ms)):
            log.warning(
                "the clock of this node is %.1f s %s those of the others: set it right "
                "(as by NTP). Until then this node leads nothing and uses their time",
                abs(astray_ms) / 1_000,
                "ahead of" if astray_ms > 0 else "behind",
                extra={"fields": {"clock_astray_ms": astray_ms}},
            )
        needed = self._shard.needed_bytes
        if self._is_due("disk", bool(needed)):
            log.warning(
                "the disk is full: publishes are refused, acks and reads go on. Free %s MiB or "
                "more on it, or add a disk",
                f"{-(-needed // MIB):,}",
                extra={"fields": {"needed_bytes": needed}},
            )

    def _is_due(self, kind: str, is_there: bool) -> bool:
        """Return whether to tell of a trouble now; one that ended and returns is told at once."""
        if not is_there:
            self._told.pop(kind, None)
            return False
        now = time.monotonic()
        if now - self._told.get(kind, float("-inf")) < _AGAIN_SECONDS:
            return False
        self._told[kind] = now
        return True
