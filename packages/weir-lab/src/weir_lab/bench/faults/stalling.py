"""`python -m weir_lab.bench.faults.stalling`: `weir`, on disks whose sync stands still now and
then.
"""

from __future__ import annotations

import os
import runpy
import threading
import time
from random import Random

#: Seconds that a sync stands still, and that pass until the next one does, on average: "1,5".
STALLS = "WEIR_BENCH_STALLS"


def stall(stall_s: float, every_s: float, random: Random) -> None:
    """Let the disk of this process stand still for so long, again and again: what is to be synced
    meanwhile waits for the end of that.
    """
    fdatasync, guard = os.fdatasync, threading.Lock()
    until, due = 0.0, time.monotonic() + every_s * (0.5 + random.random())

    def sync(file: int) -> None:
        nonlocal until, due
        with guard:
            now = time.monotonic()
            if now >= due:
                until = now + stall_s
                due = until + every_s * (0.5 + random.random())
            wait = until - now
        if wait > 0:
            time.sleep(wait)
        fdatasync(file)

    os.fdatasync = sync  # type: ignore[assignment]


if __name__ == "__main__":
    _stall_s, _, _every_s = os.environ[STALLS].partition(",")
    stall(float(_stall_s), float(_every_s), Random())
    runpy.run_module("weir.cli", run_name="__main__", alter_sys=True)
