"""How fast files are made ahead of their use: confirms share the disk, and do not wait for it.

Zeros that are written ahead make small flushes several times as quick. Where segments fill within
seconds flushes are large, the disk is the limit, and zeros would take half of it: then a file is
merely allocated.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

#: What was written in one unit of time is followed by so many in which others have the disk: also
#: one that takes a lot at first, and lets everybody wait for that afterwards.
_REST = 10.0
_REST_SECONDS = (0.02, 0.1)
#: A segment that would be filled in less is one of many; that is known once this part of it is.
_RUSH_SECONDS = 4.0
_KNOWN_FROM = 0.1


class Gently:
    """The pace of one file in reserve: slow, but no slower than the segment before it fills."""

    def __init__(self, filled: Callable[[], float], wait: Callable[[float], object]) -> None:
        """`filled` tells how much of that segment is used, from 0 to 1; `wait` lets seconds pass,
        or says at once that nobody needs the file any more.
        """
        self._filled = filled
        self._wait = wait
        #: When, and how full, the segment was seen first.
        self._seen = self._began = time.perf_counter()
        self._seen_filled = filled()

    def __call__(self, done: float) -> bool:
        """Wait after a step, unless the log would be at its end before the file is; return whether
        to write on.

        Raises `OSError` if the file is not needed any more.
        """
        now, filled = time.perf_counter(), self._filled()
        if filled < self._seen_filled:  # the log has gone on to the next
            self._seen, self._seen_filled = now, filled
        if filled >= 1.0 > self._seen_filled:
            return False  # a flush waits for this very file
        grown = filled - self._seen_filled
        if grown >= _KNOWN_FROM and grown * _RUSH_SECONDS > now - self._seen:
            return False
        if done > filled:
            least, most = _REST_SECONDS
            if self._wait(min(max(_REST * (now - self._began), least), most)):
                raise OSError(errno.ECANCELED, "the node stops, and needs no files ahead")
        self._began = time.perf_counter()
        return True
