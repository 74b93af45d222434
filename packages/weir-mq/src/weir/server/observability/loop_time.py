"""What the thread of a shard's event loop does.

Its stack is sampled while asked for. A stage is a package of weir: the deepest one on the stack
when it is looked at. Nothing is sampled while nobody asks, so it costs nothing then.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import weir_raft

#: One page takes so long, and looks so often.
SECONDS = 2.0
EVERY_SECONDS = 0.005
#: A thread that waits for the interpreter gets it after so long. By default that is 5 ms: the loop
#: would have come to its end by then, and would always be seen waiting.
SWITCH_SECONDS = 2e-5

_ROOT = str(Path(__file__).parents[2]) + "/"
_RAFT = str(Path(weir_raft.__file__).parent) + "/"
#: What runs the loop: with nothing of weir's above it, the loop waits.
_HOSTS = (
    "server/interpreter.py",
    "server/processes/node.py",
    "server/processes/shard_process.py",
    "cli/",
)


def stage_of(frame: FrameType | None) -> str:
    """Return the stage of a stack: `server.disk`, `raft`, ...; "" while it waits."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_ROOT):
            name = file[len(_ROOT) :]
            return "" if name.startswith(_HOSTS) else ".".join(name.split("/")[:-1][:2])
        if file.startswith(_RAFT):
            return "raft"
        frame = frame.f_back
    return ""


class Sampled(NamedTuple):
    """Which parts of the time the thread computed and waited for a processor, and how often each
    stage was seen.
    """

    works: float
    waits: float
    stages: Counter[str]


class Stages:
    """Samples the thread that it is made in."""

    def __init__(self) -> None:
        """Look at the thread that calls."""
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        self._schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._is_busy = False

    async def sample(self, seconds: float = SECONDS) -> Sampled | None:
        """Return what the thread does in the next `seconds`; None if somebody else samples it."""
        if self._is_busy:
            return None
        self._is_busy = True
        try:
            return await asyncio.to_thread(self._look, seconds)
        finally:
            self._is_busy = False

    def _look(self, seconds: float) -> Sampled:
        found: Counter[str] = Counter()
        began, used, waited = time.monotonic(), time.clock_gettime(self._clock), self._waited()
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            while time.monotonic() < began + seconds:
                if stage := stage_of(sys._current_frames().get(self._thread)):
                    found[stage] += 1
                time.sleep(EVERY_SECONDS)
        finally:
            sys.setswitchinterval(before)
        took = time.monotonic() - began
        works = (time.clock_gettime(self._clock) - used) / took
        return Sampled(works, (self._waited() - waited) / took, found)

    def _waited(self) -> float:
        """Return the seconds that the thread was ready and had no processor; 0 if nobody tells."""
        try:
            return int(self._schedule.read_text(encoding="ascii").split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0
