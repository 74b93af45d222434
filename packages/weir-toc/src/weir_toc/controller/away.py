"""What processes tell of their commit barriers, and who holds others back without a connection.

It holds back their barriers, or memory that a receiver needs for others. Nobody can ask such a
process why, and the controller cannot forward for it if a path of it is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from weir_toc.controller.failures import FailureState
from weir_toc.topology import rack_of


def passed(processes: Iterable[int], commits: Mapping[int, int]) -> int:
    """Return the stamp that the commit barriers of all racks of these processes have passed.

    `commits` are the barriers that some of them have used. The switch of a rack sends the same to
    all of its processes, so one of each is enough. One of all would not be: if other racks go on
    without it, their frozen registers give its failure stamp, and these may be lower than what it
    has delivered. Without processes it is 0.
    """
    racks: dict[int, int] = {}
    for process in processes:
        rack = rack_of(process)
        racks[rack] = max(racks.get(rack, 0), commits.get(process, 0))
    return min(racks.values(), default=0)


class Away:
    """What one leader knows of who is not connected to it. Times are those of `Pacing`."""

    def __init__(self, answer: int) -> None:
        """`answer` is how long a node may take to answer, in nanoseconds."""
        self._answer = answer
        #: The highest commit barrier that each process has told to this leader.
        self._commits: dict[int, int] = {}
        #: The highest of all, when it rose, and when one was told.
        self._committed = self._committed_at = self._told_at = 0
        #: Since when each process that goes on has not been connected.
        self._since: dict[int, int] = {}
        #: Since when each process is asked for memory through this leader, and when it was last.
        self._asked: dict[int, tuple[int, int]] = {}

    def told(self, now: int, process: int, commit: int) -> None:
        """Note the commit barrier that a process which goes on tells."""
        self._commits[process] = max(commit, self._commits.get(process, 0))
        if commit > self._committed:
            self._committed, self._committed_at = commit, now
        self._told_at = now

    def asked(self, now: int, process: int) -> None:
        """A receiver asks a process through this leader to confirm a smaller window."""
        since, _ = self._asked.get(process, (now, now))
        self._asked[process] = since, now

    def passed(self, failures: FailureState) -> int:
        """Return the stamp that the commit barriers of all racks have passed that go on."""
        return passed(failures.processes, self._commits)

    def silent(self, now: int, failures: FailureState, connected: frozenset[int]) -> list[int]:
        """Return the processes to give up, in rising order.

        They have not been connected for the time of an answer, and for as long they are asked for
        memory, or the barriers that others tell have stood, though no failure is dealt with.
        """
        if len(self._commits) > len(failures.processes):  # some have failed
            for process in self._commits.keys() - failures.processes:
                del self._commits[process]
        away = failures.processes - connected
        for process in [one for one in self._since if one not in away]:
            del self._since[process]
        due = [one for one in away if self._since.setdefault(one, now + self._answer) <= now]
        if failures.is_undecided or failures.failures:
            self._committed_at = now
        for process, (_, last) in [*self._asked.items()]:
            if now - last >= self._answer // 2:  # it has confirmed, or is gone
                del self._asked[process]
        if self._told_at - self._committed_at < self._answer:
            due = [one for one in due if now - self._asked.get(one, (now,))[0] >= self._answer]
        for process in due:
            self._since[process] = now + self._answer
        return sorted(due)
