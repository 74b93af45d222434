"""What a hole may have superseded: entries before it, by others that it took and that were true.

An entry supersedes those of its group at its index and above (Raft's conflict rule). Where one was
lost that did, what it superseded still lies there and looks sound, and nothing is missing: others
may follow it as if it had been the one before them. Their terms tell that it can be so. A group
with one voter never superseded anything, which a log cannot know: its host says whether it matters.
"""

from __future__ import annotations

from itertools import takewhile

from weir.storage.entries.group_index import GroupIndex
from weir.storage.format.frame import frame_size

#: The least that one lost entry took.
_FRAME_BYTES = frame_size(1)


class Doubts:
    """Collects them while a start joins what it finds, in the order of log positions."""

    __slots__ = ("_dark", "_found")

    def __init__(self) -> None:
        #: From where to where nobody knows whose frames lay there.
        self._dark: list[tuple[int, int]] = []
        #: By group, index and position of entries in doubt, superseded since or not.
        self._found: dict[int, list[tuple[int, int]]] = {}

    def darken(self, start: int, end: int) -> None:
        """Nobody knows whose frames lay between two log positions."""
        self._dark.append((start, end))

    def weigh(self, group: int, index: GroupIndex, position: int, upto: int, term: int) -> None:
        """Doubt what entry `upto`, of a term and at a position, follows, if others that followed
        on each other up to it fit into what was lost in between.

        Those of its own term are its leader's, and so is all before them.
        """
        last = min(upto - 1, index.last)
        newest = index.get(last) if self._dark else None
        if newest is None or newest.term >= term:
            return
        lost = ((a, b) for a, b in self._dark if newest.position < a < position)
        room = sum((end - start) // _FRAME_BYTES for start, end in lost) - (upto - 1 - last)
        older = (index.get(at) for at in range(last, max(index.first - 1, last - room), -1))
        for one in takewhile(lambda one: one is not None and one.term < term, older):
            assert one is not None
            self._found.setdefault(group, []).append((one.index, one.position))

    def restart(self, group: int) -> None:
        """Nothing counts of a group that was taken so far."""
        self._found.pop(group, None)

    def of(self, group: int, index: GroupIndex | None) -> tuple[int, ...]:
        """Return the entries of a group that are in doubt, in order."""
        if index is None:
            return ()
        there = {
            at
            for at, position in self._found.get(group, ())
            if (one := index.get(at)) is not None and one.position == position and one.term
        }
        return tuple(sorted(there))
