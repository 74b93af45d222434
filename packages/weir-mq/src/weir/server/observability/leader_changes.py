"""Says in the status when partitions change their leader: one line a second at most."""

from __future__ import annotations

import asyncio
import logging

from weir.broker.shard import Shard

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0


class LeadsTold:
    """Tells while it is entered; of a node that was founded alone there is nothing to tell."""

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        self._begun = self._lost = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> LeadsTold:
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
