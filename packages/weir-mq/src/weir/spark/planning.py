"""What a micro-batch holds: cuts, admission and ranges, all pure arithmetic (DESIGN §5 Spark).

A *cut* says for each partition which offset comes next. Spark stores cuts in its checkpoint,
compares them as JSON text, and replays the range between two of them after a crash, perhaps from
another process: so a cut holds nothing that moves by itself, and its keys have one order.

A vector of committed positions may be shortened to any offset (`next_cut`). A cut at a barrier,
which has a stamp, may not: see `weir.spark.cuts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from weir.errors import BadOption, CheckpointMismatch, NotLeader, OffsetOutOfRange, RangeLost
from weir.model.ids import group_of

#: Ranges that have no more messages together are read by one task.
SHARED_ROWS_MAX = 10_000
#: Of a topic with more partitions, an error does not say all offsets to begin at.
_TOLD_PARTITIONS = 32
#: Digits of a partition in JSON, so that the order of keys is the order of numbers.
_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Cut:
    """The next offset of each partition of one topic.

    `epoch` is the topic's id: ids are never reused, so a topic that was deleted and made again
    under its old name is not taken for the one that the checkpoint speaks of. `begins` says where
    partitions begin that a cut before this one does not know, if not at 0: retention may have been
    faster than the query. In the end of the first micro-batch, it says where each began. One at a
    barrier has its `stamp`: what lies before it is what was stamped at or below that; 0 is any
    other. In the end of a micro-batch that begins behind messages which retention deleted before
    the query read them, `lost` has the first offset of those, and `begins` the one behind them.
    Where `lineages` has a partition, all below its position is of the history that ends with that
    lineage (ADR 0211).
    """

    epoch: int
    positions: Mapping[int, int]
    begins: Mapping[int, int] = field(default_factory=dict)
    stamp: int = 0
    lost: Mapping[int, int] = field(default_factory=dict)
    lineages: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return what Spark stores: {"e": 1, "p": {"00000": 120, "00001": 7}}, and if there are
        any, in "b" the `begins`, in "g" the `lost`, in "l" the lineages, in "s" the stamp. Where
        all partitions are in one lineage, "l" is its number alone.
        """
        text: dict[str, object] = {"e": self.epoch, "p": _by_number(self.positions)}
        if self.begins:
            text["b"] = _by_number(self.begins)
        if self.lost:
            text["g"] = _by_number(self.lost)
        if self.lineages:
            numbers = {self.lineages.get(p, -1) for p in self.positions}
            text["l"] = min(numbers) if len(numbers) == 1 else _by_number(self.lineages)
        return {**text, "s": self.stamp} if self.stamp else text

    @property
    def bare(self) -> Cut:
        """The same cut, as one that no other comes before."""
        return Cut(self.epoch, self.positions, stamp=self.stamp, lineages=self.lineages)

    def first(self, partition: int, end: Cut) -> int:
        """Return where a micro-batch from this cut to `end` begins in a partition."""
        return self.positions.get(partition, end.begins.get(partition, 0))

    def since(self, start: Cut) -> Cut:
        """Return the cut at which the micro-batch from `start` to this one began when it was
        planned. Of the first, Spark stores no start, and asks anew where the query begins; by then
        that may be another place.
        """
        return Cut(start.epoch, {**start.positions, **self.begins}, start.begins, start.stamp)

    @classmethod
    def from_json(cls, offset: Mapping[str, object]) -> Cut:
        """Read what `to_json` wrote. Raises `CheckpointMismatch` for anything else."""
        match offset:
            case {"e": int(epoch), "p": dict(positions)}:
                told = offset.get("l", {})
                if isinstance(told, int):
                    told = dict.fromkeys(positions, told)
                match offset.get("b", {}), offset.get("s", 0), offset.get("g", {}), told:
                    case dict(begins), int(stamp), dict(lost), dict(lineages):
                        parts = [_from_numbers(one) for one in (positions, begins, lost, lineages)]
                        return cls(epoch, parts[0], parts[1], stamp, *parts[2:])
        raise CheckpointMismatch(
            f"{offset!r} is no offset of format('weir'): this checkpoint belongs to another "
            "source; give the query a checkpointLocation of its own"
        )


def _by_number(offsets: Mapping[int, int]) -> dict[str, int]:
    return {f"{p:0{_DIGITS}}": offset for p, offset in sorted(offsets.items())}


def _from_numbers(offsets: Mapping[str, int]) -> dict[int, int]:
    return {int(p): int(offset) for p, offset in offsets.items()}


@dataclass
class Lineages:
    """What brokers have said of the lineages of partitions, by group (ADR 0202, 0211)."""

    #: By rising number, each with its first offset.
    _told: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    #: Which one a partition is known to be in at least.
    _least: dict[int, int] = field(default_factory=dict)

    def expect(self, cut: Cut) -> None:
        """Take it that partitions are in the lineages of a cut, or in later ones."""
        for partition, lineage in cut.lineages.items():
            group = _group(cut, partition)
            self._least[group] = max(lineage, self._least.get(group, 0))

    def take(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Take what a broker says. Raises `NotLeader` of one that has not heard of a lineage that
        is known: it is left behind, and has what is not there any more.
        """
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        for group, lineage, at in rows:
            found[group] = (*found.get(group, ()), (lineage, at))
        for group, lineages in found.items():
            newest, least = lineages[-1][0], self._least.get(group, 0)
            if newest < least:
                raise NotLeader(
                    f"this node has not heard of lineage {least} of the partition, in which the "
                    "query has read: another one leads it",
                    0,
                )
            self._least[group] = newest
        self._told |= found

    def of(self, cut: Cut) -> Cut:
        """Return the cut with the lineages in which its partitions are, as far as they are told."""
        found = {p: self._told.get(_group(cut, p)) for p in sorted(cut.positions)}
        lineages = {p: told[-1][0] for p, told in found.items() if told}
        return Cut(cut.epoch, cut.positions, cut.begins, cut.stamp, cut.lost, lineages)

    def check(self, cut: Cut, name_of: Callable[[int], str]) -> None:
        """Raise `OffsetOutOfRange` where a later lineage began below the position of a cut: what
        was read from there on is not there any more. `name_of` names a partition.
        """
        forks: dict[int, int] = {}
        for partition, lineage in sorted(cut.lineages.items()):
            told = self._told.get(_group(cut, partition), ())
            fork = min((at for later, at in told if later > lineage), default=None)
            if fork is not None and fork < cut.positions.get(partition, 0):
                forks[partition] = fork
        if not forks:
            return
        partition, fork = next(iter(forks.items()))
        others = f" So it is in {len(forks)} partitions." if len(forks) > 1 else ""
        raise OffsetOutOfRange(
            f"the query has read {name_of(partition)} up to {cut.positions[partition]:,}, and a "
            f"later lineage began there at {fork:,}, when a core set was promoted: other messages "
            f"have these offsets now.{others} To read those, {_going_on(cut, forks)}. What the "
            "query has written of the messages that are gone stays written",
            fork,
        )


def _going_on(cut: Cut, forks: Mapping[int, int]) -> str:
    """Return how a query is begun that reads on where later lineages began."""
    way = "begin again with a new checkpointLocation"
    if not cut.epoch:
        return f"{way} and a startingTime before the promotion"
    if len(cut.positions) > _TOLD_PARTITIONS:
        rest = "with those of the checkpoint for the rest"
        return f"{way} and startingOffsets {_offsets(forks)}, {rest}"
    return f"{way} and startingOffsets {_offsets({**cut.positions, **forks})}"


def _offsets(positions: Mapping[int, int]) -> str:
    return json.dumps({str(p): at for p, at in sorted(positions.items())})


def _group(cut: Cut, partition: int) -> int:
    """Return the group of what is a partition of one topic, or a group, in a cut of several."""
    return group_of(cut.epoch, partition) if cut.epoch else partition


@dataclass(frozen=True, slots=True)
class Range:
    """Messages [first, behind) of one partition: the work of one task."""

    partition: int
    first: int
    behind: int

    def __len__(self) -> int:
        """Return the number of messages."""
        return self.behind - self.first


def over_gaps(start: Cut, end: Cut) -> Cut:
    """Return the cut at which to go on where retention has deleted what a query was to read next:
    `start`, or in such partitions, of which `lost` says where the query stood, a later one.
    """
    there = {p: min(at, end.positions.get(p, 0)) for p, at in end.begins.items()}
    later = {p: there[p] for p, at in start.positions.items() if there.get(p, 0) > at}
    lost = {p: start.positions[p] for p in later}
    return Cut(start.epoch, {**start.positions, **later}, start.begins, start.stamp, lost)


def gaps(end: Cut) -> list[Range]:
    """Return what a micro-batch that ends at `end` has passed over, in the order of partitions."""
    return [Range(p, first, end.begins[p]) for p, first in sorted(end.lost.items())]


def check_growth(topic: str, start: Cut, end: Cut) -> None:
    """Raise unless `end` continues `start`: same topic, no partition gone, no offset lower."""
    check_topic(topic, start, end)
    for partition, position in sorted(start.positions.items()):
        if partition not in end.positions:
            raise CheckpointMismatch(
                f"{topic} has no partition {partition} any more, but the checkpoint has read it "
                f"up to {position:,}: check the url, or use a new checkpointLocation"
            )
        if end.positions[partition] < position:
            raise RangeLost(
                f"{topic}/{partition} ends at {end.positions[partition]:,}, and the query has read "
                f"up to {position:,}: the broker lost messages or is another one. Check the url; "
                "to go on from what is there, use a new checkpointLocation"
            )


def check_topic(topic: str, start: Cut, end: Cut) -> None:
    """Raise `CheckpointMismatch` unless two cuts are of one topic."""
    if end.epoch != start.epoch:
        raise CheckpointMismatch(
            f"the checkpoint was written for the topic with id {start.epoch}; {topic!r} is now "
            f"{end.epoch}: it was deleted and made again. Use a new checkpointLocation"
        )


def check_order(topic: str, start: Cut, end: Cut) -> None:
    """Raise `BadOption` where a query would begin behind the place where it ends."""
    for partition, first in sorted(start.positions.items()):
        behind = end.positions.get(partition, first)
        if first > behind:
            raise BadOption(
                f"the query would begin at offset {first:,} of {topic}/{partition} and end at "
                f"{behind:,}: let the start option lie before the end option"
            )


def fill(lags: Mapping[int, int], rows_max: int | None) -> dict[int, int]:
    """Share `rows_max` messages out among partitions that lag behind: max-min fair.

    As water fills a vessel: short lags are drained whole, the others all get the same level, and
    nothing is left over while somebody lags. So a slow partition never waits for a busy one.
    """
    if rows_max is None or sum(lags.values()) <= rows_max:
        return dict(lags)
    shares: dict[int, int] = {}
    left = rows_max
    by_lag = sorted(lags, key=lambda partition: (lags[partition], partition))
    for place, partition in enumerate(by_lag):
        level = left // (len(by_lag) - place)
        shares[partition] = min(lags[partition], level)
        left -= shares[partition]
    return shares


def next_cut(start: Cut, end: Cut, rows_max: int | None) -> Cut:
    """Return the cut to read up to: at most `rows_max` messages from `start`, none past `end`.

    It moves whenever `end` lies behind `start` (counterexample 28): a limit below 1 counts as 1,
    because a cut that stays where it is would be returned for ever. A partition that `start` does
    not know was added later and begins where `end` says. Equal to `start` in JSON if nothing is
    new.
    """
    begin = {p: start.first(p, end) for p in end.positions}
    lags = {p: max(behind - begin[p], 0) for p, behind in end.positions.items()}
    shares = fill(lags, None if rows_max is None else max(rows_max, 1))
    begins = {p: at for p, at in begin.items() if at > 0 and p not in start.positions}
    return Cut(start.epoch, {p: begin[p] + share for p, share in shares.items()}, begins)


def rows_between(start: Cut, end: Cut) -> int:
    """Return how many messages lie between two cuts."""
    return sum(max(behind - start.first(p, end), 0) for p, behind in end.positions.items())


def moved(start: Cut, end: Cut) -> bool:
    """Tell whether there is a message between the two cuts."""
    return any(behind > start.first(p, end) for p, behind in end.positions.items())


def differs(start: Cut, end: Cut) -> bool:
    """Tell whether there is anything between two cuts, or `end` does not continue `start`."""
    partitions = start.positions.keys() | end.positions.keys()
    return start.epoch != end.epoch or any(
        end.positions.get(p, -1) != start.first(p, end) for p in partitions
    )


def ranges(start: Cut, end: Cut, tasks_min: int = 1, rows_max: int | None = None) -> list[Range]:
    """Cut [start, end) into tasks: at least `tasks_min` if there are so many messages.

    None has more than `rows_max` messages. Partitions are split in proportion to what they hold.
    """
    whole = [
        Range(p, start.first(p, end), behind)
        for p, behind in sorted(end.positions.items())
        if behind > start.first(p, end)
    ]
    total = sum(map(len, whole))
    if not whole:
        return []
    most = rows_max or total
    if tasks_min > len(whole):
        # Rounded down, so that the pieces are never fewer than asked for.
        most = min(most, max(total // tasks_min, 1))
    return [piece for part in whole for piece in _split(part, -(-len(part) // most))]


def shared(lengths: Sequence[int], tasks_min: int = 1, rows_max: int | None = None) -> list[slice]:
    """Return which neighbours of ranges with so many messages share a task: those that have few
    together, at most `rows_max`, and no more than lets `tasks_min` tasks be left.
    """
    # As much as a task takes to be started; but no less than asked for.
    most = min(SHARED_ROWS_MAX, rows_max or SHARED_ROWS_MAX, sum(lengths) // max(tasks_min, 1))
    found: list[slice] = []
    first = rows = 0
    for at, length in enumerate(lengths):
        if at > first and rows + length > most:
            found.append(slice(first, at))
            first = at
            rows = 0
        rows += length
    return [*found, slice(first, len(lengths))] if lengths else []


def _split(part: Range, pieces: int) -> Sequence[Range]:
    """Cut a range into pieces whose lengths differ by one at most."""
    at = [part.first + len(part) * i // pieces for i in range(pieces + 1)]
    return [Range(part.partition, lo, hi) for lo, hi in pairwise(at)]
