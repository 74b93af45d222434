"""The promise about clocks: one that is wrong, among others that are right, is not gone by."""

from __future__ import annotations

from collections.abc import Iterator

from weir.model.limits import MAX_AHEAD_MS
from weir.model.stamp import milliseconds_of
from weir.testing.simulator.world import EPOCH_MS, MS
from weir_lab.sim.history import History

#: Two clocks that are right may differ so much, and what one gave may have been seen by another.
_AHEAD_MS = 2 * MAX_AHEAD_MS


class Timely:
    """While one clock at a time is wrong, no stamp lies far ahead of the time."""

    name = "Timely"

    def check(self, history: History) -> Iterator[str]:
        """Compare each confirm's stamp with when it came."""
        for publish in history.publishes if history.one_wrong else ():
            for confirm in publish.confirms:
                ahead = milliseconds_of(confirm.stamp) - (EPOCH_MS + confirm.at // MS)
                if confirm.stamp and ahead > _AHEAD_MS:
                    yield (
                        f"{publish.producer} {publish.sequence} in partition {publish.partition}: "
                        f"its stamp lies {ahead} ms ahead of the time"
                    )
