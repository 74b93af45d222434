"""How fast files are made ahead of their use: confirms share the disk, and do not wait for it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable

#: What was written in one unit of time is followed by so many in which others have the disk: also
#: one that takes a lot at first, and lets everybody wait for that afterwards.
_REST = 10.0
_REST_SECONDS = (0.02, 0.1)


class Gently:
    """The pace of one file in reserve: slow, but no slower than the segment before it fills."""

    def __init__(self, filled: Callable[[], float], wait: Callable[[float], object]) -> None:
        """`filled` tells how much of that segment is used, from 0 to 1; `wait` lets seconds pass,
        or says at once that nobody needs the file any more.
        """
        self._filled = filled
        self._wait = wait
        self._began = time.perf_counter()

    def __call__(self, done: float) -> None:
        """Wait after a step, unless the log would be at its end before the file is.

        Raises `OSError` if the file is not needed any more.
        """
        if done > self._filled():
            took = time.perf_counter() - self._began
            least, most = _REST_SECONDS
            if self._wait(min(max(_REST * took, least), most)):
                raise OSError(errno.ECANCELED, "the node stops, and needs no files ahead")
        self._began = time.perf_counter()
