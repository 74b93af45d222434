"""The place of a consumer in the one order of a topic, and how its turn there is to end."""

from __future__ import annotations

from collections.abc import Sequence

from weir.client.core.grants import Run, merged, without


class Vector:
    """By partition, below which offset all is done.

    Takes what is handed out and what is done, in any order; says what to keep.

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


class Ending:
    """How a turn is to end: at once, or once nothing is worked on.

    Wanted by whoever gives something back or pauses; several of them make one end."""

    def __init__(self) -> None:
        """Begin with none wanted."""
        self.clear()

    def clear(self) -> None:
        """Forget what was wanted: the turn is over."""
        self._wanted = self._waits = False
        self._delay_ms = 0
        self._untried = True

    def want(self, delay_ms: int, untried: bool, waits: bool = False) -> None:
        """Let the next turn begin in `delay_ms`; no attempt counts if all was `untried`.

        Where the first to want it `waits`, who works on something has time for it, until some fail.
        """
        self._waits = self._waits if self._wanted else waits
        self._wanted = True
        self._delay_ms = max(self._delay_ms, delay_ms)
        self._untried = self._untried and untried

    def due(self, working: bool) -> tuple[int, bool] | None:
        """Return the delay, and whether all was untried, if the turn is to end now."""
        if not self._wanted or (working and self._waits and self._untried):
            return None
        return self._delay_ms, self._untried
