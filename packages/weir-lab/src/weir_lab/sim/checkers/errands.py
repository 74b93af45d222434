"""Errands: what the processes of `weir work` are to do, and what is promised of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir_lab.sim.history import History


@dataclass(slots=True)
class Errands:
    """Messages of a topic of their own, by value."""

    sent: set[bytes] = field(default_factory=set)
    confirmed: set[bytes] = field(default_factory=set)
    #: How often a handler came to its end with one, and how often it rejected it.
    done: Counter[bytes] = field(default_factory=Counter)
    rejected: Counter[bytes] = field(default_factory=Counter)
    #: Whether handlers reject nothing any more.
    mended: bool = False
    #: Whether nothing was left in the end, of dead letters neither.
    drained: bool = False


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
