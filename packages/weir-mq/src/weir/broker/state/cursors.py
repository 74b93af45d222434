"""Clusters that read a whole topic in total order: one cursor each, kept in partition 0's group.

The cursor is a place in the one order, as a vector: the offset of each partition below which all is
done. Who reads on from there holds a *turn*; its fencing number is the index of the entry that gave
it, and an entry with an older one changes nothing (counterexample 22).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from weir.broker.records.control import CursorMoved, CursorSought, CursorTaken
from weir.broker.state.clusters import AT_ONCE, NOBODY
from weir.model.stamp import milliseconds_of

#: Of how many turns that are over it is remembered what was done in them.
_ENDED_MAX = 16


@dataclass(frozen=True, slots=True)
class EndedTurn:
    """How far a turn came; if it was given back, for how many ms, and whether it was untried."""

    offsets: tuple[int, ...]
    given_back: tuple[int, bool] | None = None


@dataclass(slots=True)
class Cursor:
    """How far a cluster is, and whose turn it is until `deadline`, a stamp.

    `offsets` by partition; those of partitions that joined later are 0. `attempts` counts the turns
    that were taken here and did not get on. A `paused` one gives no turns.
    """

    offsets: tuple[int, ...] = ()
    fence: int = 0
    consumer: int = NOBODY
    deadline: int = AT_ONCE
    attempts: int = 0
    paused: bool = False
    #: By fencing number, turns that are over: so a repeat of what was done is told from what came
    #: too late. It decides nothing else, and no snapshot holds it.
    ended: dict[int, EndedTurn] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Take up what a snapshot says of the last turn, if that is over."""
        if self.consumer == NOBODY:
            self._end()

    def take(self, index: int, record: CursorTaken) -> bool:
        """Give the turn under fencing number `index`, unless another had it first."""
        if self.fence != record.after or self.paused:
            return False
        self._end()
        self.fence, self.consumer, self.deadline = index, record.consumer, record.deadline
        if not self.offsets:
            self.offsets = record.offsets
        self.attempts += 1
        return True

    def move(self, record: CursorMoved) -> bool:
        """Let the holder of the turn get on, or end it; False if it is another's by now.

        One that ends `untried` does not count. One that goes on untried has nothing to do: what
        comes next was never tried.
        """
        if self.fence != record.fence or self.consumer == NOBODY:
            return False
        # One that was sent before another may come behind it, over another connection.
        offsets = tuple(map(max, zip_longest(record.offsets, self.offsets, fillvalue=0)))
        if offsets != self.offsets:
            self.offsets, self.attempts = offsets, 1
        self.deadline = record.deadline
        if record.ends:
            self.consumer = NOBODY
            self.attempts = max(self.attempts - record.untried, 0)
            self._end(ending_of(record))
        elif record.untried:
            self.attempts = 0
        return True

    def _end(self, given_back: tuple[int, bool] | None = None) -> None:
        """Remember how far the turn came, unless that is known or a seek has ended it."""
        if self.fence > 0 and self.fence not in self.ended:
            self.ended[self.fence] = EndedTurn(self.offsets, given_back)
            if len(self.ended) > _ENDED_MAX:
                del self.ended[next(iter(self.ended))]

    def was_done(self, fence: int, offsets: Sequence[int], ending: tuple[int, bool] | None) -> bool:
        """Whether all below `offsets` was done in a turn that is over, which was given back so if
        there is an `ending`; False also where that is not known any more.
        """
        turn = self.ended.get(fence)
        if turn is None or ending not in (None, turn.given_back):
            return False
        return all(said <= done for said, done in zip_longest(offsets, turn.offsets, fillvalue=0))

    def seek(self, record: CursorSought) -> None:
        """Go on elsewhere: whoever has the turn has it no more."""
        self.ended.clear()
        self.offsets = record.offsets
        self.consumer, self.deadline, self.attempts = NOBODY, AT_ONCE, 0
        self.fence = -abs(self.fence)

    def release(self, consumer: int) -> bool:
        """The holder is gone: the turn is anybody's at once."""
        if self.consumer != consumer:
            return False
        self.consumer, self.deadline = NOBODY, AT_ONCE
        self._end()
        return True


def ending_of(record: CursorMoved) -> tuple[int, bool] | None:
    """Return for how many ms a move gives its turn back, and whether untried; None: it keeps it."""
    if not record.ends:
        return None
    delay_ms = milliseconds_of(record.deadline) - milliseconds_of(record.stamp)
    return max(delay_ms, 0), record.untried


class Cursors(dict[str, Cursor]):
    """The cursors of a topic's clusters, by name."""

    def done_in(self, partition: int) -> dict[str, int]:
        """Return the offset of a partition below which each cluster is done; 0 where it has not
        come to that partition.
        """
        return {
            name: cursor.offsets[partition] if partition < len(cursor.offsets) else 0
            for name, cursor in self.items()
        }

    def release(self, consumer: int) -> bool:
        """A consumer is gone; return whether it had a turn."""
        released = [cursor.release(consumer) for cursor in self.values()]
        return any(released)

    def encode(self) -> list[tuple[object, ...]]:
        """Return what `decode` makes the same cursors of."""
        return [
            (name, c.offsets, c.fence, c.consumer, c.deadline, c.attempts, c.paused)
            for name, c in self.items()
        ]

    @classmethod
    def decode(cls, rows: Iterable[Sequence[object]]) -> Cursors:
        """Return the cursors that gave these rows."""
        cursors = cls()
        for name, offsets, *fields in rows:
            cursors[name] = Cursor(tuple(offsets), *fields)  # type: ignore[index,arg-type]
        return cursors
