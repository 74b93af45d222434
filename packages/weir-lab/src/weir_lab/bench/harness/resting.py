"""Waiting until the disk is at rest: a node that was just founded still fills files in reserve.

So does a peer with its own, and the system with what the last side left unwritten. For seconds, a
sync takes as long as what is in front of it: that is no part of what brokers are compared by.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

_SECTOR_BYTES = 512
#: A disk to which less is written within a look is at rest.
_LITTLE_BYTES = 1 << 20
_LOOK_SECONDS = 1.0


def written() -> int:
    """Return how many bytes were written to this machine's disks; 0 where that is not told."""
    try:
        lines = Path("/proc/diskstats").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[9]) for line in lines) * _SECTOR_BYTES


async def disk_at_rest(
    most_seconds: float,
    look: Callable[[], int] = written,
    look_seconds: float = _LOOK_SECONDS,
) -> bool:
    """Return once hardly anything is written to the disk any more, True; or, False, when that
    takes longer than `most_seconds`. With 0 that is at once.
    """
    until = time.monotonic() + most_seconds
    before = look()
    while time.monotonic() < until:
        await asyncio.sleep(look_seconds)
        before, last = look(), before
        if before - last < _LITTLE_BYTES:
            return True
    return False
