"""Durations as people write them: "5ms", "2s", "1h", or a number of seconds."""

from __future__ import annotations

import math
import re

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")


def seconds(duration: str | float) -> float:
    """Return a duration in seconds. Raises `ValueError` naming the units for anything else."""
    if isinstance(duration, str):
        if found := _DURATION.fullmatch(duration.strip()):
            return float(found[1]) * _UNITS[found[2]]
    elif math.isfinite(duration) and duration >= 0:
        return float(duration)
    raise ValueError(
        f"{duration!r} is no duration: write a number and one of {', '.join(_UNITS)} "
        'as in "5ms", or seconds from 0 on'
    )
