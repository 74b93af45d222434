"""How long this disk takes to make 4 KiB durable, with nothing of ours in between."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from weir.model.limits import KIB, MIB

_WRITE = bytes(4 * KIB)
_FILE_BYTES = 4 * MIB
#: What a broker that gets one message at a time does between two syncs takes about so long. A disk
#: and cores that have rested for a moment are slower than those that are kept busy.
_REST_SECONDS = 0.0005


def sync_ms(folder: Path, count: int) -> list[float]:
    """Write 4 KiB into a file that is there already and fdatasync, `count` times; milliseconds.

    As a log does in a segment that was prepared: no size changes, so only data is synced. And at
    the pace of lone messages, with a rest of 0.5 ms before each, which is not counted.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        handle = file.fileno()
        os.pwrite(handle, bytes(_FILE_BYTES), 0)
        os.fsync(handle)
        found = []
        for number in range(count):
            at = number * len(_WRITE) % _FILE_BYTES
            time.sleep(_REST_SECONDS)
            began = time.perf_counter()
            os.pwrite(handle, _WRITE, at)
            os.fdatasync(handle)
            found.append((time.perf_counter() - began) * 1e3)
    return found
