"""`python -m weir.bench.stalling`: `weir`, on disks whose sync stands still now and then."""

from __future__ import annotations

import os
import threading
import time
from random import Random

from weir.cli.main import run

#: Seconds that a sync stands still, and that pass until the next one does, on average: "1,5".
STALLS = "WEIR_BENCH_STALLS"


def stall(stall_s: float, every_s: float, random: Random) -> None:
    """Let a sync of this process stand still for so long, again and again."""
    fdatasync, guard = os.fdatasync, threading.Lock()
    due = time.monotonic() + every_s * (0.5 + random.random())

    def sync(file: int) -> None:
        nonlocal due
        with guard:
            stands_still = time.monotonic() >= due
            if stands_still:
                due = time.monotonic() + stall_s + every_s * (0.5 + random.random())
        if stands_still:
            time.sleep(stall_s)
        fdatasync(file)

    os.fdatasync = sync  # type: ignore[assignment]


if __name__ == "__main__":
    _stall_s, _, _every_s = os.environ[STALLS].partition(",")
    stall(float(_stall_s), float(_every_s), Random())
    run()
