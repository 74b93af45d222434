"""What a relay knows of how far the one order of a topic is complete, for all its readers. Pure.

Marks come from an upper node, as answers to `AwaitMark`. Each is a fact of the order, and does not
change: so the relay tells each reader what it was told once, whatever that reader knows. It needs
nothing of what is stored here: a reader waits for the messages that a mark counts on. Marks that
come with pulls follow their messages, and say what is here (`MarkRegisters`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weir.relay.messages import Mark


class OrderFact(NamedTuple):
    """All messages of the first `partitions` partitions of a topic that are ever stamped at or
    below `stamp` are committed. Those that are stamped above what was asked for lie below these
    offsets, as (partition, offset) each; a partition that is left out has none of them. `ended` of
    the partitions have ended.
    """

    stamp: int
    partitions: int
    throughs: Sequence[tuple[int, int]]
    ended: int = 0


class TopicMarks:
    """What marks of one topic said, put together. With 0 partitions nothing is known."""

    __slots__ = ("_awaited", "_ended", "_offsets", "_partitions", "stamp")

    def __init__(self) -> None:
        """Nothing is known."""
        #: By partition, the offset below which all lies up to the stamp, and the mark that said it:
        #: nothing is stamped above that one and at or below the newest.
        self._offsets: dict[int, tuple[int, int]] = {}
        #: That of the newest mark; 0 before there is one.
        self.stamp = 0
        #: That of the newest one that came because somebody had waited for it.
        self._awaited = 0
        self._partitions = 0
        self._ended = 0

    def take(self, above: int, mark: OrderFact, *, is_awaited: bool) -> bool:
        """Take a mark that was asked for `above` a stamp, and came because it `is_awaited`, or at
        the end of its time; return whether it says anything new.

        A set of partitions never changes. A larger one begins anew: of a partition that a mark
        leaves out, it says nothing about what lies at or below `above`.
        """
        if mark.partitions < self._partitions or not mark.stamp:
            return False
        if mark.partitions > self._partitions:
            self._offsets.clear()
            self.stamp = self._awaited = self._partitions = 0
            if above:
                return False
            self._partitions = mark.partitions
        elif above > self.stamp or mark.stamp <= self.stamp:
            if is_awaited:
                self._awaited = max(self._awaited, min(mark.stamp, self.stamp))
            return False
        self.stamp = mark.stamp
        self._awaited = mark.stamp if is_awaited else self._awaited
        self._ended = max(self._ended, mark.ended)
        for partition, offset in mark.throughs:
            known, _ = self._offsets.get(partition, (0, 0))
            self._offsets[partition] = max(offset, known), mark.stamp
        return True

    def reached(self, above: int, stamp: int) -> bool:
        """Whether a request need not wait that asks for a mark at `stamp` or above, or with 0 for
        the next mark that is waited for, and `above` the last one that was used.
        """
        return (self.stamp if stamp else self._awaited) > above and self.stamp >= stamp

    def since(self, above: int) -> OrderFact:
        """Return what is known by now, for a reader that was told all up to a stamp."""
        throughs = [(p, offset) for p, (offset, at) in self._offsets.items() if at > above]
        return OrderFact(self.stamp, self._partitions, throughs, self._ended)


class MarkRegisters:
    """The newest mark of each partition of a topic: how far its one order is complete here.

    It is complete up to the lowest of them, over all partitions of the roster as partition 0 knew
    it; a partition that was not heard of keeps all back (docs/COUNTEREXAMPLES.md 4 and 6).
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        """Know of no mark."""
        self._marks: dict[int, Mark] = {}

    def say(self, partition: int, mark: Mark) -> None:
        """Take a mark of a partition, whose messages up to it have come."""
        held = self._marks.get(partition)
        if held is None or mark.stamp > held.stamp:
            self._marks[partition] = mark

    def cut(self, partition: int) -> None:
        """Messages of a partition were taken back: its marks hold no more."""
        self._marks.pop(partition, None)

    def barrier(self) -> tuple[int, int]:
        """Return of how many partitions all messages are here up to which stamp; (0, 0) if one of
        them was not heard of. The set grows only with what partition 0 says.
        """
        first = self._marks.get(0)
        if first is None:
            return 0, 0
        marks = [self._marks.get(partition) for partition in range(first.partitions)]
        stamps = [mark.stamp for mark in marks if mark is not None]
        return (first.partitions, min(stamps)) if len(stamps) == len(marks) else (0, 0)
