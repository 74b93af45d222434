"""Says in the status which partitions change their leader: one line a second at most."""

from __future__ import annotations

import logging

from weir.broker.shard import Shard

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0


class LeadsTold:
    """What was told of a shard's leaderships; of those of a lone node there is nothing to tell."""

    __slots__ = ("_begun", "_lost", "_shard", "_told_at")

    def __init__(self, shard: Shard) -> None:
        """Begin with nothing told."""
        self._shard = shard
        self._begun = self._lost = 0
        self._told_at = 0.0

    def tick(self, now: float) -> None:
        """Tell what has changed, `now` in seconds of the loop's clock."""
        counts = self._shard.counts
        begun, lost = counts.leads_begun - self._begun, counts.leads_lost - self._lost
        if not (begun or lost) or now - self._told_at < _EVERY_SECONDS:
            return
        self._begun, self._lost, self._told_at = counts.leads_begun, counts.leads_lost, now
        if self._shard.identity.members:
            led = self._shard.partitions_led
            fields = {"led": led, "begun": begun, "lost": lost}
            log.info("leads %d partitions: began %d, lost %d", led, begun, lost,
                     extra={"fields": fields})  # fmt: skip
