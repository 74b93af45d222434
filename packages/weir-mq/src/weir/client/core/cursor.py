"""Where a consumer is in the one order of a topic: by partition, below which offset all is done."""

from __future__ import annotations

from collections.abc import Sequence

from weir.client.core.runs import Run, merged, without


class Vector:
    """Takes what is handed out and what is done, in any order; says what to keep.

    Nothing of a later place is handed out before all of the earlier is done, so the offsets below
    which all is done are one place in the order, or lie in the batch that is worked on.
    """

    def __init__(self, offsets: Sequence[int] = ()) -> None:
        """Begin where all below `offsets` is done."""
        self._cursor = dict(enumerate(offsets))
        #: By partition, what was handed out and is not done; and what of it was given back.
        self._open: dict[int, list[Run]] = {}
        self._back: dict[int, list[Run]] = {}
        self._behind = dict(self._cursor)

    @property
    def offsets(self) -> tuple[int, ...]:
        """All below is done, by partition."""
        return tuple(self._cursor.get(p, 0) for p in range(max(self._cursor, default=-1) + 1))

    @property
    def has_open(self) -> bool:
        """Whether something that was handed out is neither done nor given back."""
        return any(without(runs, self._back.get(p, [])) for p, runs in self._open.items())

    def hand_out(self, partition: int, first: int, behind: int) -> None:
        """Messages [first, behind) are worked on; there is none before them but what was done."""
        self._open.setdefault(partition, []).append((first, behind))
        self._behind[partition] = behind
        self._settle(partition)

    def back(self, partition: int, first: int, behind: int) -> None:
        """Nobody works on messages [first, behind) any more; they are not done."""
        self._back[partition] = merged([*self._back.get(partition, []), (first, behind)])

    def done(self, partition: int, first: int, behind: int) -> None:
        """Messages [first, behind) are done."""
        self._open[partition] = without(self._open.get(partition, []), [(first, behind)])
        self._settle(partition)

    def _settle(self, partition: int) -> None:
        runs = self._open[partition]
        self._cursor[partition] = min((first for first, _ in runs), default=self._behind[partition])
