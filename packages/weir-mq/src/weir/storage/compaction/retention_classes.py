"""Retention classes: what outlives its neighbours is copied once, to what goes when it goes.

One message that is kept for a month keeps the whole segment in which it lies, and copying what is
alive along with new messages copies it again and again (counterexample 12). So a closed segment
that is mostly dead gives its survivors to segments of their own class, and a class segment is never
copied from: no byte is copied twice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.model.topic import FOREVER
from weir.storage.format.index_file import IndexFile
from weir.storage.format.rows import gone
from weir.storage.format.segment import BLOCK, Segment
from weir.storage.group_index import GroupIndex
from weir.storage.spare_files import Spare

_HOUR_MS = 3_600_000
#: The longest retention of each class but the last, in milliseconds.
_BOUNDS_MS = (_HOUR_MS, 24 * _HOUR_MS, 7 * 24 * _HOUR_MS, 30 * 24 * _HOUR_MS)
#: The class of all that is kept longer, for ever, or up to a size.
LONGEST = len(_BOUNDS_MS) + 1
_NO_RUN = (1, 0)


def class_of(retention_ms: int) -> int:
    """Return the retention class of a topic that keeps messages for so long."""
    if retention_ms == FOREVER:
        return LONGEST
    return bisect_left(_BOUNDS_MS, retention_ms) + 1


@dataclass(slots=True, eq=False)
class ClassSegment:
    """One segment of copies. Frames up to byte `saved` of its file stand in a durable checkpoint,
    up to `done` are durable, up to `tail` are being written.

    It is `missing` its file until that is made, and `lost` if a start did not find it as it was.
    """

    segment: Segment
    saved: int = BLOCK
    done: int = BLOCK
    tail: int = BLOCK
    #: First and last index of rows of saved entries, by group. A group of which none are needed
    #: stays, without a row, since its frames lie here.
    runs: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    missing: Spare | None = None
    lost: bool = False
    #: Whether damaged entries lie here of which nobody can say which they were: it stays.
    unknown: bool = False
    #: Whether something is damaged: nothing is added, and an index file would not tell of it.
    damaged: bool = False
    #: Up to which byte an index file tells, or one that was given out.
    indexed: int = BLOCK

    def note(self, group: int, first: int, last: int) -> None:
        """Take entries into the runs, joined with those before where they follow on them."""
        runs = self.runs.setdefault(group, [])
        if runs and runs[-1][1] + 1 == first:
            first, _ = runs.pop()
        runs.append((first, last))

    def forget(self, group: int) -> None:
        """Nothing that lies here of a group is needed any more."""
        if group in self.runs:
            self.runs[group] = []

    def needed(self, groups: Mapping[int, GroupIndex]) -> bool:
        """Whether an entry that lies here is still needed, as far as is known."""
        return self.unknown or any(
            group in groups and groups[group].first <= max((last for _, last in runs), default=-1)
            for group, runs in self.runs.items()
        )

    def index_file(self, groups: Mapping[int, GroupIndex], floors: Mapping[int, int]) -> IndexFile:
        """Return where the entries lie that are left of those that stand in a checkpoint; `floors`
        says of groups that are gone since which log position.
        """
        self.indexed = self.saved
        sections = [
            (
                group,
                groups[group].rows_of(first, last)
                if group in groups
                else gone(floors.get(group, 0)),
            )
            for group, runs in self.runs.items()
            for first, last in runs or [_NO_RUN]
        ]
        return IndexFile(self.segment, sections, self.saved)
