"""Lines on standard output that say what runs, written by a thread of their own.

Nobody waits for a reader: not Raft for a pipe that is full, and nothing ends because a pipe is
closed. Lines beyond a limit are dropped and counted.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections import deque
from types import TracebackType
from typing import Self, TextIO

from weir_toc.hosts.frames import Frame

#: Lines that wait for the reader of standard output.
LINES_MAX = 1_000
#: How long the end waits for lines that are not written yet.
END_SECONDS = 1.0


class Announcer:
    """Writes lines to an output; the end of the block waits for them for a second."""

    def __init__(self, output: int | TextIO, as_json: bool) -> None:
        """Write to `output`, by preference a file descriptor.

        The buffers of a file of Python have a lock, for which the end of the program would wait. A
        program that has replaced its standard output may have no descriptor to write to.
        """
        self._output = output
        self._as_json = as_json
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        #: Whether the last write succeeded.
        self._is_open = True
        self._dropped = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._write, name="announcer", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.flush()

    def say(self, event: str, facts: Frame) -> None:
        """Write one line soon; never wait. A line `dropped` follows once others did not fit."""
        with self._changed:
            if not self._is_open:
                return
            if len(self._lines) >= LINES_MAX:
                self._dropped += 1
                return
            if self._dropped:
                self._lines.append(self._line("dropped", {"lines": self._dropped}))
                self._dropped = 0
            self._lines.append(self._line(event, facts))
            self._changed.notify_all()

    def flush(self, seconds: float = END_SECONDS) -> bool:
        """Wait until all lines are written, or none can be; return whether that is so by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, seconds)

    def _line(self, event: str, facts: Frame) -> bytes:
        if self._as_json:
            return json.dumps({"event": event, **facts}).encode() + b"\n"
        words = " ".join([event, *(f"{key}={value}" for key, value in facts.items())])
        return words.encode(errors="backslashreplace") + b"\n"

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines[0]
            try:
                while line:
                    line = line[self._written(line) :]
            except (OSError, ValueError):  # nobody can read it any more
                with self._changed:
                    self._is_open = False
                    self._lines.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._lines.popleft()
                self._changed.notify_all()

    def _written(self, line: bytes) -> int:
        output = self._output
        if not isinstance(output, int):
            encoding = output.encoding or "utf-8"  # it may not have all letters of a name
            output.write(line.decode().encode(encoding, "backslashreplace").decode(encoding))
            output.flush()
            return len(line)
        try:
            return os.write(output, line)
        except BlockingIOError:  # another process has set the pipe so
            select.select([], [output], [])
            return 0
