"""Durations as people write them: "5ms", "2s", "1h". Text needs a unit; a number is seconds."""

from __future__ import annotations

import math
import re

_UNITS = {
    "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0
}  # fmt: skip
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d|w)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def seconds(duration: str | float) -> float:
    """Return a duration in seconds. Raises `ValueError` naming the units for anything else."""
    if isinstance(duration, str):
        text = duration.strip().replace("_", "")
        if found := _DURATION.fullmatch(text):
            return float(found[1]) * _UNITS[found[2]]
        if _NUMBER.fullmatch(text):
            raise ValueError(
                f"{duration!r} has no unit: write {text}s, {text}m, {text}h or {text}d "
                f"(seconds, minutes, hours, days), or {text}ms"
            )
    elif math.isfinite(duration) and duration >= 0:
        return float(duration)
    raise ValueError(
        f"{duration!r} is no duration: write a number and one of {', '.join(_UNITS)} "
        'as in "5ms", or seconds from 0 on'
    )
