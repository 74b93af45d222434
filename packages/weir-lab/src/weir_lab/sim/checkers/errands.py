"""Errands: what the processes of `weir work` are to do, and what is promised of it."""

from __future__ import annotations

from collections.abc import Iterator

from weir_lab.sim.history import History


class WorkDone:
    """Each errand is done by a process of `weir work`, those that became dead letters once they
    were redriven; and there are never more processes than the most.
    """

    name = "WorkDone"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was done with what was confirmed."""
        errands = history.errands
        if errands is None:
            return
        for value in sorted(errands.done):
            if value not in errands.sent:
                yield f"{value!r} was done, and sent by nobody"
        for value in sorted(errands.confirmed) if errands.drained else ():
            if not errands.done[value]:
                yield f"{value!r} was confirmed, and is not done"
