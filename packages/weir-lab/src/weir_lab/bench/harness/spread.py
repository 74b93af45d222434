"""What a row of samples is like: its percentiles."""

from __future__ import annotations

from collections.abc import Sequence


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the sample that `share` of all do not exceed; `ordered` rises and is not empty."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def percentiles(samples: Sequence[float], *shares: float) -> list[float | None]:
    """Return a percentile for each share of 1; None for all where there is no sample."""
    if not samples:
        return [None for _ in shares]
    ordered = sorted(samples)
    return [percentile(ordered, share) for share in shares]
