"""Processes without a connection that may hold the commit barriers of all. It is given the time.

Nobody can ask them why, and the controller cannot forward for them if a path of theirs is cut.
"""

from __future__ import annotations

from weir_toc.controller.failures import FailureState


class Away:
    """What one leader knows of who is not connected to it. Times are those of `Pacing`."""

    def __init__(self, answer: int) -> None:
        """`answer` is how long a node may take to answer, in nanoseconds."""
        self._answer = answer
        #: The highest commit barrier that a process which goes on has told to this leader, when it
        #: rose, and when one was told.
        self.committed = 0
        self._committed_at = self._told_at = 0
        #: Since when each process that goes on has not been connected.
        self._since: dict[int, int] = {}

    def told(self, now: int, commit: int) -> None:
        """Note the commit barrier that a process which goes on tells."""
        if commit > self.committed:
            self.committed, self._committed_at = commit, now
        self._told_at = now

    def silent(self, now: int, failures: FailureState, connected: frozenset[int]) -> list[int]:
        """Return the processes to give up, in rising order.

        They have not been connected for the time of an answer, and for as long the barriers that
        others tell have stood, though no failure is dealt with.
        """
        away = failures.processes - connected
        for process in [one for one in self._since if one not in away]:
            del self._since[process]
        due = [one for one in away if self._since.setdefault(one, now + self._answer) <= now]
        if failures.is_undecided or failures.failures:
            self._committed_at = now
        if self._told_at - self._committed_at < self._answer:
            return []
        for process in due:
            self._since[process] = now + self._answer
        return sorted(due)
