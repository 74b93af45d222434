"""Sizes and durations as people write them: "64MiB", "1.5 GiB", "7d", "500ms"."""

from __future__ import annotations

import re

_SIZES: dict[str, float] = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_MIB = 1 << 20
#: Powers of a thousand, as disks are sold.
_SIZES |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_TEXT = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def quantity(text: str, unit: str) -> float:
    """Return `text` as a number of `unit`s, exactly. A size or a count without a unit of its own is
    one already; a duration needs one.

    Raises `ValueError`, with the units that would do.
    """
    units: dict[str, float] = next((u for u in (_SIZES, _TIMES) if unit in u), {})
    found = _TEXT.fullmatch(text.strip().replace("_", ""))
    if found is None or (found[2] and found[2] not in units):
        like = f"; units: {', '.join(units)}" if units else ""
        raise ValueError(f"is {text!r}: write a number{like}")
    if units is _TIMES and not found[2]:
        raise ValueError(
            f"is {text!r}, which has no unit: write {found[1]}s, {found[1]}m or {found[1]}h "
            "(seconds, minutes, hours)"
        )
    number = float(found[1])
    return number * units[found[2]] / units[unit] if found[2] else number


def in_mib(size: int) -> str:
    """Return the whole MiB that hold so many bytes, in words: "1,024 MiB"."""
    return f"{-(-size // _MIB):,} MiB"
