"""Seeks of operators: what one may have come between is not compared."""

from __future__ import annotations

from collections.abc import Iterable

from weir_lab.sim.history import Grant, History, Return, Seek, SeekAll


def between(seeks: Iterable[Seek | SeekAll], since: int, until: int) -> bool:
    """Whether a seek may have happened in a span of time; one without an answer, at any later."""
    return any(s.sent <= until and (s.settled >= since or not s.done) for s in seeks)


def sought(history: History, what: Grant | Return, until: int) -> bool:
    """Whether a seek may have come between something of a cluster and a later time."""
    since = what.pulled if isinstance(what, Grant) else what.sent
    place = (what.partition, what.cluster)
    return between((s for s in history.seeks if (s.partition, s.cluster) == place), since, until)
