"""How much a micro-batch takes, and when it is worth one; pure, it is given the clock's value.

Spark hands a source one limit, and has none that joins two: so the options decide, and what Spark
hands back only says whether to keep to them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: As long as Spark's source for Kafka waits for enough messages.
DELAY_DEFAULT = 900.0


@dataclass(frozen=True, slots=True)
class Admission:
    """What a micro-batch may hold; None means no limit. `delay` is in seconds."""

    rows_max: int | None = None
    #: Stored bytes, by the mean size of a message in its partition.
    bytes_max: int | None = None
    rows_min: int | None = None
    delay: float = DELAY_DEFAULT

    def limit(self, rows: int, size: float) -> int | None:
        """Return the most messages to take of `rows` that have `size` stored bytes; None: all."""
        if self.bytes_max is None or size <= self.bytes_max:
            return self.rows_max
        within = max(int(rows * self.bytes_max / size), 1)
        return within if self.rows_max is None else min(self.rows_max, within)


@dataclass
class Gathering:
    """Waits until enough has come for a micro-batch, and no longer than the options allow.

    The first one after a start waits for nothing: how long its messages have waited is not known.
    """

    _began: bool = False
    #: When the first message was seen that no micro-batch has taken.
    _since: float | None = None

    def admits(self, admission: Admission, rows: int, now: float) -> bool:
        """Return whether to take `rows` messages that are there, at `now` seconds; more than none.

        It counts as taken if so.
        """
        since = now if self._since is None else self._since
        enough = admission.rows_min is None or rows >= admission.rows_min
        if enough or not self._began or now - since >= admission.delay:
            self._began, self._since = True, None
            return True
        self._since = since
        return False
