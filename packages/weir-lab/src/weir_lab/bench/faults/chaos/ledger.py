"""What clients sent and were told, against what is read in the end. Pure.

A message is known by its producer and its number there, from 0 on
(`weir_lab.bench.harness.payload`). Nothing of this comes from a broker: the senders and the readers
record it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from weir_lab.bench.harness.payload import filler

#: The offset of a confirm that tells none.
NOWHERE = -1
#: What was confirmed before a kill may still be on its way for so long.
_ON_ITS_WAY_NS = 500_000_000
_HEAD = np.dtype([("number", "<u8"), ("producer", "<u4")])

Numbers = npt.NDArray[np.int64]


class Sent:
    """The ledger of one producer, whose confirms come in the order of its numbers."""

    __slots__ = ("_ns", "_offsets", "sent")

    def __init__(self) -> None:
        """Nothing is sent yet."""
        self.sent = 0
        self._ns = array("q")
        self._offsets = array("q")

    @property
    def confirmed(self) -> int:
        """How many messages were confirmed: the first so many."""
        return len(self._ns)

    @property
    def end(self) -> int:
        """The offset behind the last message that was confirmed; 0 if none was."""
        return self._offsets[-1] + 1 if self._offsets else 0

    @property
    def last_ns(self) -> int:
        """When the last message was confirmed; 0 if none was."""
        return self._ns[-1] if self._ns else 0

    @property
    def offsets(self) -> Numbers:
        """Where each confirmed message lies, or `NOWHERE`, by number."""
        return np.array(self._offsets, np.int64)

    def confirm(self, count: int, offset: int, now_ns: int) -> None:
        """Note that the next `count` messages lie from `offset` on (`NOWHERE`: it was not told)."""
        self._ns.extend([now_ns] * count)
        told = offset >= 0
        self._offsets.extend(range(offset, offset + count) if told else [NOWHERE] * count)

    def lag_ms(self, taken: Taken, since_ns: int, until_ns: int) -> float:
        """Return how long after its confirm a message was taken, at most, of those confirmed in
        [since, until]. One that was not taken at all counts as taken at `until_ns`.
        """
        first, last = bisect_left(self._ns, since_ns), bisect_right(self._ns, until_ns)
        told = np.array(self._ns[first:last], np.int64)
        late = taken.at(np.array(self._offsets[first:last], np.int64), until_ns) - told
        return max(0.0, float(late.max(initial=0)) / 1e6)

    def gap_ms(self, since_ns: int, until_ns: int) -> float:
        """Return the longest time without a confirm that ended in [since, until], or goes on.

        It may have begun before `since_ns`.
        """
        began, ended = self.gap(since_ns, until_ns)
        return (ended - began) / 1e6

    def gap(self, since_ns: int, until_ns: int) -> tuple[int, int]:
        """Return when that time began, and when it ended."""
        inside = self._ns[bisect_left(self._ns, since_ns) : bisect_right(self._ns, until_ns)]
        before = bisect_left(self._ns, since_ns)
        first = self._ns[before - 1] if before else since_ns
        times = np.array([first, *inside, until_ns], np.int64)
        longest = int(np.diff(times).argmax())
        return int(times[longest]), int(times[longest + 1])

    def gaps_ms(
        self, since_ns: int, until_ns: int, kills: Sequence[tuple[int, int]]
    ) -> tuple[float, float]:
        """Return the longest time without a confirm in [since, until] that no kill explains, and
        the longest that one does. A kill, from when to when, explains one: the longest of those
        that it lies in, or that began at most half a second later.
        """
        inside = self._ns[bisect_left(self._ns, since_ns) : bisect_right(self._ns, until_ns)]
        times = np.array([since_ns, *inside, until_ns], np.int64)
        widths = np.diff(times)
        explained = np.zeros(len(widths), bool)
        for began, ended in kills:
            first = max(0, int(np.searchsorted(times, began, side="right")) - 1)
            last = int(np.searchsorted(times, ended + _ON_ITS_WAY_NS, side="left"))
            if first < min(last, len(widths)):
                explained[first + int(widths[first:last].argmax())] = True
        others, own = widths[~explained], widths[explained]
        return float(others.max(initial=0)) / 1e6, float(own.max(initial=0)) / 1e6

    def a_slot(self, since_ns: int, slot_ns: int, slots: int) -> list[int]:
        """Return how many confirms came in each of `slots` slots of time from `since_ns` on."""
        edges = [bisect_left(self._ns, since_ns + slot_ns * n) for n in range(slots + 1)]
        return [b - a for a, b in pairwise(edges)]


class Taken:
    """When a reader of one partition got what lies below which offset."""

    def __init__(self) -> None:
        """Nothing came yet."""
        self._ends = array("q")
        self._ns = array("q")

    def note(self, end: int, now_ns: int) -> None:
        """Note that all below `end` has come."""
        self._ends.append(end)
        self._ns.append(now_ns)

    def at(self, offsets: Numbers, otherwise: int) -> Numbers:
        """Return when each of these offsets came; `otherwise` for those that did not."""
        places = np.searchsorted(np.array(self._ends, np.int64), offsets, side="right")
        return np.append(np.array(self._ns, np.int64), otherwise)[places]


class Read:
    """What a reader got of one partition, in the order in which it came."""

    def __init__(self, size: int) -> None:
        """Expect messages of `size` bytes."""
        #: Messages that nobody sent: of another size, or with other bytes.
        self.strange = 0
        self._size = size
        self._filler = np.frombuffer(filler(size), np.uint8)
        self._pieces: list[tuple[Numbers, Numbers, Numbers]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many messages came."""
        return self._count

    def take(self, first: int, offsets: memoryview, data: memoryview) -> None:
        """Note a value column, int32 offsets [n + 1] and their data, that lies from `first` on."""
        count = len(offsets) - 1
        self._count += count
        widths = np.diff(np.frombuffer(offsets, np.int32))
        whole = bytes(data[offsets[0] : offsets[count]])
        if (widths != self._size).any():
            self.strange += count
            return
        rows = np.frombuffer(whole, np.uint8).reshape(count, self._size)
        right = (rows[:, _HEAD.itemsize :] == self._filler).all(axis=1)
        self.strange += count - int(right.sum())
        heads = np.ascontiguousarray(rows[:, : _HEAD.itemsize]).view(_HEAD)[:, 0]
        places = np.arange(first, first + count, dtype=np.int64)
        self._pieces.append(
            (
                heads["producer"].astype(np.int64)[right],
                heads["number"].astype(np.int64)[right],
                places[right],
            )
        )

    def columns(self) -> tuple[Numbers, Numbers, Numbers]:
        """Return the producers, numbers and offsets of all messages."""
        nothing = np.empty(0, np.int64)
        producers, numbers, places = (
            np.concatenate([nothing, *(piece[at] for piece in self._pieces)]) for at in range(3)
        )
        return producers, numbers, places


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong; all 0 where every confirmed message came once, in order, where it should be.

    `lost`: confirmed, and not there. `repeated`: there more than once. `reordered`: behind a later
    one of its producer. `misplaced`: at another offset than its confirm said. `strange`: sent by
    nobody.
    """

    lost: int = 0
    repeated: int = 0
    reordered: int = 0
    misplaced: int = 0
    strange: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return self == Verdict()

    def __add__(self, other: Verdict) -> Verdict:
        """Return both together."""
        sums = (getattr(self, f.name) + getattr(other, f.name) for f in fields(Verdict))
        return Verdict(*sums)


def judge(sent: Mapping[int, Sent], read: Read) -> Verdict:
    """Hold the ledgers of all producers, by number, against what was read."""
    producers, numbers, places = read.columns()
    found = Verdict(strange=read.strange + int((~np.isin(producers, [*sent])).sum()))
    for producer, ledger in sent.items():
        of_it = producers == producer
        found += _judge(ledger, numbers[of_it], places[of_it])
    return found


def _judge(ledger: Sent, numbers: Numbers, places: Numbers) -> Verdict:
    known = numbers < ledger.sent
    strange = int((~known).sum())
    numbers, places = numbers[known], places[known]
    seen, first = np.unique(numbers, return_index=True)
    # In the order in which they came, without what came again.
    once = numbers[np.sort(first)]
    highest = np.maximum.accumulate(once) if len(once) else once
    where = np.full(ledger.sent, NOWHERE, np.int64)
    where[seen] = places[first]
    said = ledger.offsets
    there = where[: len(said)]
    return Verdict(
        lost=int((there == NOWHERE).sum()),
        repeated=len(numbers) - len(seen),
        reordered=int((once < highest).sum()),
        misplaced=int(((said != NOWHERE) & (there != NOWHERE) & (said != there)).sum()),
        strange=strange,
    )
