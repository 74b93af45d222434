"""Readers that merge partitions in which many batches have one stamp, in rooms of any size.

Micro-batches lie in some partitions, each in several batches; partitions join and end. What a
reader fetches is cut anywhere, also within a stamp; it is told barriers now and then; now and then
it begins anew at its cursor, also within a batch. In the end every reader has given the one order.
No fetch waits for ever: the partition that the others wait for has room.
"""

from __future__ import annotations

import random
import time
import zlib
from bisect import bisect_right
from typing import NamedTuple

from weir.errors import RemoteProtocolError
from weir.order.barrier import NO_BOUND, Barrier, Merge, Roster
from weir_lab.sim.outcome import Outcome
from weir_lab.sim.shape import Shape

_EVENTS, _FOUNDED, _JOINERS = (4, 30), (1, 4), 2
#: Batches of a micro-batch in one partition, messages of a batch, and batches of an answer.
_BATCHES, _MESSAGES, _ANSWER = (1, 8), (1, 3), (1, 4)
_PART, _MICRO, _JOINS, _ENDS = 0.7, 0.4, 0.1, 0.05
#: Bytes that a reader holds of a partition; a message has one.
_ROOMS = (1, 2, 5, 1_000)
_READERS = 3
#: How likely it is told a barrier beside an answer, begins anew, and hears early who joined.
_TOLD, _ANEW, _EARLY = 0.3, 0.02, 0.2

Place = tuple[int, int, int]


class Stored(NamedTuple):
    """A batch: its stamp, and the offsets [first, behind) of its messages."""

    stamp: int
    first: int
    behind: int


class Topic:
    """What lies in the partitions of a topic in the end."""

    def __init__(self, dice: random.Random) -> None:
        """Publish at random."""
        self.logs: list[list[Stored]] = [[] for _ in range(dice.randint(*_FOUNDED))]
        self.founded = len(self.logs)
        #: By partition that has joined, the floor that all of it is stamped above; by one that has
        #: ended, the stamp that nothing of it lies above.
        self.floors: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.stamp = 0
        #: How many parts of micro-batches have several batches.
        self.repeats = 0
        for _ in range(dice.randint(*_EVENTS)):
            self.stamp += dice.randint(1, 3)
            self._happen(dice)

    def _happen(self, dice: random.Random) -> None:
        chance = dice.random()
        live = [p for p in range(len(self.logs)) if p not in self.ends]
        if chance < _JOINS and len(self.floors) < _JOINERS:
            self.floors[len(self.logs)] = self.stamp
            self.logs.append([])
        elif chance < _JOINS + _ENDS and len(live) > 1:
            self.ends[dice.choice(live[1:])] = self.stamp
        elif chance < _JOINS + _ENDS + _MICRO:
            for partition in live:
                if dice.random() < _PART:
                    count = dice.randint(*_BATCHES)
                    self.repeats += count > 1
                    self._publish(dice, partition, count)
        else:
            self._publish(dice, dice.choice(live), 1)

    def _publish(self, dice: random.Random, partition: int, count: int) -> None:
        log = self.logs[partition]
        for _ in range(count):
            first = log[-1].behind if log else 0
            log.append(Stored(self.stamp, first, first + dice.randint(*_MESSAGES)))

    def end(self, partition: int) -> int:
        """The offset behind the last message."""
        log = self.logs[partition]
        return log[-1].behind if log else 0

    @property
    def order(self) -> list[Place]:
        """Every message's place in the one order."""
        return sorted(
            (batch.stamp, partition, offset)
            for partition, log in enumerate(self.logs)
            for batch in log
            for offset in range(batch.first, batch.behind)
        )


class MergingReader:
    """Reads a topic to its end; `found` is what it broke, as (promise, sentence)."""

    def __init__(self, topic: Topic, dice: random.Random) -> None:
        """Begin at the beginning of each partition."""
        self._topic = topic
        self._dice = dice
        self._room = dice.choice(_ROOMS)
        #: Whether none but the partition that is waited for is served.
        self._is_slow = dice.random() < 0.3
        self.rows: list[Place] = []
        self.found: list[tuple[str, str]] = []
        #: Answers that ended within a stamp; and how often it began anew within one.
        self.cuts = self.anew = 0
        self._cursor: dict[int, int] = {}
        self._begin(topic.founded)

    def _begin(self, count: int) -> None:
        start = {partition: self._cursor.get(partition, 0) for partition in range(count)}
        self._merge: Merge[Stored] = Merge(Roster(start), start, self._room)
        #: Partitions of which nothing new comes.
        self._over: set[int] = set()

    def read(self) -> None:
        """Read on until all is given, or something is wrong."""
        batches = sum(map(len, self._topic.logs))
        # Each turn gives a batch or ends a partition; to begin anew is the only way back.
        left = batches + 2 * len(self._topic.logs)
        while len(self._over) < len(self._topic.logs) and not self.found:
            if left == 0:
                self.found.append(("Live", f"it waits for ever behind {self._cursor}"))
                return
            left -= 1
            self._serve(self._next())
            self._give()
            if self._dice.random() < _ANEW and self._room > 1:
                self._begin_anew()
                left = batches + 2 * len(self._topic.logs)

    def _next(self) -> int:
        merge, (_, waited) = self._merge, self._merge.roster.frontier
        if self._is_slow:
            return waited
        left = [p for p in range(len(merge.roster)) if p not in self._over]
        return self._dice.choice([p for p in left if merge.wants(p)])

    def _serve(self, partition: int) -> None:
        """Answer with what lies in a partition, and perhaps with a barrier; or say that this is
        all there is.
        """
        merge, dice, log = self._merge, self._dice, self._topic.logs[partition]
        at = bisect_right(log, merge.next(partition), key=lambda batch: batch.behind)
        answer = log[at : at + dice.randint(*_ANSWER)]
        stamp, through = self._barrier(partition, at + len(answer))
        reached = max([stamp, *(batch.stamp for batch in answer)])
        if not partition and self._join(reached):
            return  # nothing of the answer is used before they are known
        try:
            for batch in answer:
                first = max(batch.first, merge.next(partition))
                size = batch.behind - first
                merge.push(partition, batch.stamp, first, batch.behind, size, batch)
        except RemoteProtocolError as error:
            self.found.append(("OneOrder", str(error)))
            return
        if answer:
            follows = log[at + len(answer) : at + len(answer) + 1]
            is_cut = any(batch.stamp == answer[-1].stamp for batch in follows)
            self.cuts += is_cut
            merge.received(partition, answer[-1].stamp - is_cut)
        if stamp:
            merge.barrier(partition, Barrier(stamp, through))
        if merge.roster.register(partition) == NO_BOUND:
            self._over.add(partition)

    def _barrier(self, partition: int, behind: int) -> tuple[int, int]:
        """Return what its leader promises: nothing, something, or that no more comes."""
        topic, log = self._topic, self._topic.logs[partition]
        if behind == len(log):
            if partition not in topic.ends:
                return NO_BOUND, topic.end(partition)
            self._merge.roster.end(partition, topic.ends[partition])
            return topic.ends[partition], topic.end(partition)
        if self._dice.random() < _TOLD:
            # All below a batch that is stamped higher than the one before lies in front of it.
            at = self._dice.randint(behind, len(log) - 1)
            if log[at].stamp > log[at - 1].stamp:
                return self._dice.randint(log[at - 1].stamp, log[at].stamp - 1), log[at].first
        return 0, 0

    def _join(self, reached: int) -> bool:
        """Take partitions whose floor lies below what partition 0 tells; whether there are any."""
        count = len(self._merge.roster)
        for partition, floor in self._topic.floors.items():
            if partition not in self._merge:
                if floor >= reached and self._dice.random() > _EARLY:
                    break
                self._merge.roster.join(partition, floor)
                self._merge.add(partition, self._cursor.get(partition, 0))
        return len(self._merge.roster) > count

    def _give(self) -> None:
        for stamp, partition, offset, _, batch in self._merge.take():
            self.rows += [(stamp, partition, place) for place in range(offset, batch.behind)]
            self._cursor[partition] = batch.behind
        _, waited = self._merge.roster.frontier
        if waited not in self._over and not self._merge.wants(waited):
            self.found.append(("Live", f"partition {waited} is waited for and has no room"))

    def _begin_anew(self) -> None:
        """Begin anew where somebody stopped before, perhaps within a batch."""
        kept = self._dice.randint(0, len(self.rows))
        self.anew += 0 < kept < len(self.rows) and self.rows[kept - 1][0] == self.rows[kept][0]
        self.rows = self.rows[:kept]
        self._cursor = {partition: offset + 1 for _, partition, offset in self.rows}
        self._begin(self._dice.choice((self._topic.founded, len(self._topic.logs))))


def play_merges(seed: int, shape: Shape) -> Outcome:
    """Let readers merge one topic, each with cuts and a room of its own; all give one order."""
    began, dice = time.perf_counter(), random.Random(seed)
    topic = Topic(dice)
    order = topic.order
    violations: list[tuple[str, str]] = []
    cuts = 0
    for number in range(_READERS):
        reader = MergingReader(topic, random.Random(dice.randrange(1 << 32)))
        reader.read()
        violations += reader.found
        cuts += reader.cuts
        if not reader.found and reader.rows != order:
            at = next(
                (i for i, (a, b) in enumerate(zip(reader.rows, order, strict=False)) if a != b),
                min(len(reader.rows), len(order)),
            )
            given, belongs = reader.rows[at : at + 1], order[at : at + 1]
            text = f"reader {number} gave {given} as number {at}, where {belongs} belongs"
            violations.append(("OneOrder", text))
    trace = zlib.crc32(repr((order, cuts)).encode())
    return Outcome(
        seed, shape, f"{len(topic.logs)} partitions, {topic.repeats} parts of several batches",
        cuts, len(order), violations, f"{trace:016x}", time.perf_counter() - began, 0.0,
    )  # fmt: skip
