"""The inside of a process of the demo: what it is to do, what it tells, and when it ends.

Its task is its only argument, as JSON. It writes a `Status` a line to stdout; a line on stdin is
its cue, and the end of stdin means that its parent has ended: then it ends, too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from weir.errors import WeirError

#: A parent that is gone needs no reasons.
ORPHANED = 3
#: Statuses are for a person's eye.
_TELL_SECONDS = 0.05

T = TypeVar("T", bound=msgspec.Struct)


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a worker is: `done` messages handled `of` so many, where it knows how many."""

    state: str = "starts"
    done: int = 0
    of: int | None = None
    error: str = ""


def now_us() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1_000


class Stage:
    """A worker's line to the process that started it."""

    def __init__(self) -> None:
        """Take over stdin and stdout."""
        #: Set once the parent has given a cue that was not waited for yet.
        self.cue = threading.Event()
        # Whatever else prints in here, a JVM for one, must not get between the lines.
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._told = 0.0
        threading.Thread(target=self._listen, name="weir-demo-parent", daemon=True).start()

    def tell(self, state: str, done: int = 0, of: int | None = None, error: str = "") -> None:
        """Say how far this worker is."""
        self._out.write(msgspec.json.encode(Status(state, done, of, error)) + b"\n")
        self._told = time.monotonic()

    def tell_now_and_then(self, state: str, done: int = 0, of: int | None = None) -> None:
        """Say how far this worker is, unless that was just said."""
        if time.monotonic() - self._told > _TELL_SECONDS:
            self.tell(state, done, of)

    def wait_for_cue(self) -> None:
        """Return once the parent has given its cue, or its next one. It ends us if it ends."""
        self.cue.wait()
        self.cue.clear()

    def _listen(self) -> None:
        # Not sys.stdin: its lock would be waited for when the interpreter ends.
        while os.read(sys.stdin.fileno(), 4096):
            self.cue.set()
        if os.getpgrp() == os.getpid():
            # What it has started, a JVM for one, might not see for long that nobody is there.
            os.killpg(0, signal.SIGKILL)
        os._exit(ORPHANED)


def work(kind: type[T], perform: Callable[[T, Stage], None]) -> None:
    """Be a worker process: read the task, perform it, and end with 0, or 1 and the reason told."""
    stage = Stage()
    try:
        perform(msgspec.json.decode(sys.argv[1], type=kind), stage)
    except (WeirError, OSError) as error:
        stage.tell("failed", error=" ".join(str(error).split()))
        sys.exit(1)
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        stage.tell("failed", error=f"{type(error).__name__}: {first}")
        raise
