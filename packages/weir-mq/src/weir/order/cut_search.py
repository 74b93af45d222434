"""Finds an earlier cut through the one order of many partitions, where all there is would be too
much at once.

A cut lies between two messages of that order, so it is never shortened to an offset: a lower stamp
is looked for, and always one with something before it (counterexample 28).
"""

from __future__ import annotations

#: How full a portion is to be, of what it may hold, and from when on it will do.
_WANTED, _ENOUGH = 0.75, 0.5


class CutSearch:
    """Looks for the stamp of a cut between two others, such that what lies before it fits a limit:
    where that would be if messages came at a steady rate, and in the middle, in turn.

    Ask what lies before `stamp` until it is 0, and say so by `looked`; `chosen` is the stamp of the
    cut then. What lies before a cut is told in portions: 1.0 fills one.
    """

    __slots__ = ("_above", "_below", "_found", "_least", "_most", "_over", "_steady", "chosen",
                 "stamp")  # fmt: skip

    def __init__(self, least: int, most: int, portions: float, hint: int = 0) -> None:
        """Look above `least`, before which nothing lies, and below `most`, before which so many
        `portions` do. With a `hint`, there first: little lies before that.
        """
        self._least = least
        self._most = self._over = most
        self._below, self._above = 0.0, portions
        self._found = 0
        self._steady = True
        #: What is to be looked at next; 0 once the cut is found.
        self.stamp = 0
        self.chosen = most
        if portions > 1:
            self._next()
            if self.stamp and least < hint < most:
                self.stamp, self._steady = hint, True

    def looked(self, portions: float) -> None:
        """So much lies before the cut at `stamp`."""
        stamp = self.stamp
        if portions > 1:
            self._over = self._most = stamp
            self._above = portions
        else:
            self._least, self._below = stamp, portions
            if portions:
                self._found = stamp
            if portions >= _ENOUGH:
                self._end()
                return
        self._next()

    def _next(self) -> None:
        least, most = self._least, self._most
        if most - least <= 1:
            self._end()
            return
        stamp = (least + most) // 2
        below, above = self._below, self._above
        if self._steady and below < _WANTED < above:
            stamp = least + int((most - least) * ((_WANTED - below) / (above - below)))
            stamp = min(max(stamp, least + 1), most - 1)
        self._steady = not self._steady
        self.stamp = stamp

    def _end(self) -> None:
        self.stamp = 0
        # With nothing before any of them, the next cut is taken, though it holds too much.
        self.chosen = self._found or self._over


def portions_of(rows: int, size: int, rows_max: int, bytes_max: int) -> float:
    """Return how many portions of at most `rows_max` messages and `bytes_max` bytes (0: no limit)
    so many messages and bytes make.
    """
    by_rows = rows / rows_max if rows_max else 0.0
    by_size = size / bytes_max if bytes_max else 0.0
    # Where only bytes are limited, a message of no known size is something all the same.
    return max(by_rows, by_size) or (1e-9 if rows and (rows_max or bytes_max) else 0.0)
