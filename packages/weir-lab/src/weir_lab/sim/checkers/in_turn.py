"""What clusters that read in total order promise: one cursor, and one turn at a time (DESIGN §5).

A turn's fencing number is the place of its entry in a log, so turns follow each other as their
numbers do, whatever was heard of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

from weir.testing.simulator.world import MS
from weir_lab.sim.checkers.seeking import between
from weir_lab.sim.history import History, Move, Record, SeekAll, TurnTaken, Work

Offsets = tuple[int, ...]


class _Story(NamedTuple):
    """All of one cluster; turns in the order of their numbers."""

    turns: list[TurnTaken]
    moves: list[Move]
    works: list[Work]
    seeks: list[SeekAll]


class OneCursor:
    """Acked messages are done, in the one order, and never handed out again; others are never
    skipped; and a late ack changes nothing (counterexample 22). But a seek begins anew.
    """

    name = "OneCursor"

    def check(self, history: History) -> Iterator[str]:
        """Compare turns with the moves of before, moves with later turns, and work with the end."""
        for cluster, story in _stories(history).items():
            for text in (
                *_places(story),
                *_late(story),
                *_order(story),
                *_left_out(story, history.drained),
            ):
                yield f"{cluster}: {text}"


class OneTurn:
    """No consumer has another's turn, and turns in which nothing got done are counted.

    The length of a turn is known in a run of one shard whose clock no fault moves.
    """

    name = "OneTurn"

    def check(self, history: History) -> Iterator[str]:
        """Compare each turn with the one before it."""
        for cluster, story in _stories(history).items():
            yield from _beyond(cluster, story)
            for before, after in pairwise(story.turns):
                if before.fence == after.fence:
                    who = f"{before.holder} and {after.holder}"
                    yield f"{cluster}: {who} have turn {before.fence}"
                elif not between(story.seeks, before.asked, after.arrived):
                    if not history.skewed:
                        yield from _early(cluster, story, before, after)
                    yield from _uncounted(cluster, story, before, after)


def _beyond(cluster: str, story: _Story) -> Iterator[str]:
    """A consumer that was told that its turn is over begins no more messages in it."""
    over: dict[int, int] = {}
    for move in story.moves:
        if move.stale >= 0:
            over[move.fence] = min(move.stale, over.get(move.fence, move.stale))
    for work in story.works:
        if work.fence in over and work.began > over[work.fence]:
            yield f"{cluster}: {work.rows} were begun in turn {work.fence}, which was over"


def _stories(history: History) -> dict[str, _Story]:
    found: dict[str, _Story] = defaultdict(lambda: _Story([], [], [], []))
    for turn in sorted(history.turns, key=lambda one: one.fence):
        found[turn.cluster].turns.append(turn)
    for move in history.moves:
        found[move.cluster].moves.append(move)
    for work in history.works:
        found[work.cluster].works.append(work)
    for seek in history.sought:
        found[seek.cluster].seeks.append(seek)
    return found


def _places(story: _Story) -> Iterator[str]:
    """A turn begins at a place that somebody named, and nothing that was known lies behind it."""
    for turn in story.turns:
        named = {_cut(s.offsets) for s in story.seeks if s.sent <= turn.arrived}
        named |= {_cut(move.offsets) for move in story.moves if move.fence < turn.fence}
        if _cut(turn.offsets) not in named | {()}:
            yield f"turn {turn.fence} begins at {turn.offsets}, where nobody said to be"
        for least, why in _known(story, turn):
            if not _reaches(turn.offsets, least):
                yield f"turn {turn.fence} begins at {turn.offsets}: {least} {why}"


def _known(story: _Story, turn: TurnTaken) -> Iterator[tuple[Offsets, str]]:
    """Yield places that a turn cannot lie before, for no seek can have come between."""
    moves = [one for one in story.moves if one.fence < turn.fence and one.confirmed >= 0]
    for move in moves:
        if not between(story.seeks, move.sent, turn.arrived):
            yield move.offsets, f"was reached in turn {move.fence}"
    for before in story.turns:
        if before.fence < turn.fence and not between(story.seeks, before.asked, turn.arrived):
            yield before.offsets, f"was where turn {before.fence} began"
    for seek in story.seeks:
        later = [one for one in story.seeks if one is not seek]
        past = seek.done and seek.settled <= turn.asked
        if past and not between(later, seek.sent, turn.arrived):
            yield seek.offsets, "was sought"


def _late(story: _Story) -> Iterator[str]:
    """A consumer whose turn ended, by another's turn, a seek, or its own word, is told so."""
    turns = {turn.fence: turn for turn in story.turns}
    for move in story.moves:
        if move.confirmed < 0:
            continue
        mine = turns[move.fence]
        for turn in story.turns:
            if turn.fence > move.fence and turn.arrived < move.sent:
                yield f"a move of turn {move.fence} counts, and turn {turn.fence} was known"
        for seek in story.seeks:
            if seek.done and mine.arrived < seek.sent and seek.settled < move.sent:
                yield f"a move of turn {move.fence} counts after a seek to {seek.offsets}"
        for end in story.moves:
            if end.ends and end.fence == move.fence and 0 <= end.confirmed < move.sent:
                yield f"a move of turn {move.fence} counts, which had been given back"


def _order(story: _Story) -> Iterator[str]:
    """What is done for good was done once, in the one order."""
    reached: dict[int, list[Move]] = defaultdict(list)
    for move in story.moves:
        if move.confirmed >= 0:
            reached[move.fence].append(move)
    done = [work for work in story.works if work.done and _is_acked(work, reached[work.fence])]
    done.sort(key=lambda work: work.fence)  # those of a turn stay in the order of their times
    for before, after in pairwise(done):
        falls = before.rows[-1][:3] >= after.rows[0][:3]
        if falls and not between(story.seeks, before.began, after.began):
            yield f"{after.rows[0]} was done behind {before.rows[-1]}"


def _is_acked(work: Work, moves: Sequence[Move]) -> bool:
    last = work.rows[-1]
    return any(_reaches(move.offsets, (0,) * last.partition + (last.offset + 1,)) for move in moves)


def _left_out(story: _Story, drained: dict[int, list[Record]]) -> Iterator[str]:
    """In the end everything behind the last seek was done since."""
    place: Offsets = ()
    since = 0
    for seek in story.seeks:
        if not seek.done:
            return  # nobody knows whether it happened, or will
        place, since = seek.offsets, seek.sent
    done = {row[1:3] for work in story.works if work.done and work.began >= since
            for row in work.rows}  # fmt: skip
    for partition, records in drained.items():
        first = place[partition] if partition < len(place) else 0
        for record in records:
            for offset in range(max(record.offset, first), record.offset + len(record.values)):
                if (partition, offset) not in done:
                    yield f"nobody did {offset} of partition {partition}"


def _early(cluster: str, story: _Story, before: TurnTaken, after: TurnTaken) -> Iterator[str]:
    """Find a turn that was given while another lasted."""
    if not before.lease_ms or 0 <= before.gone <= after.arrived:
        return
    until = before.asked + before.lease_ms * MS
    for move in story.moves:
        if move.fence != before.fence:
            continue
        if move.ends and move.sent <= after.arrived:
            return
        if move.confirmed >= 0:
            until = max(until, move.sent + move.lease_ms * MS)
    if after.arrived < until:
        yield (
            f"{cluster}: {before.holder} has turn {before.fence} until {until // MS} ms: at "
            f"{after.arrived // MS} ms {after.holder} has turn {after.fence}"
        )


def _uncounted(cluster: str, story: _Story, before: TurnTaken, after: TurnTaken) -> Iterator[str]:
    """Find a turn that counts no more than one in which the same was begun in vain."""
    if _cut(before.offsets) != _cut(after.offsets) or after.attempts > before.attempts:
        return
    fences = range(before.fence, after.fence)
    moved = [move for move in story.moves if move.fence in fences]
    if any(move.untried or move.offsets != before.offsets for move in moved):
        return
    if any(work.fence == before.fence for work in story.works):
        yield (
            f"{cluster}: turn {after.fence} is number {after.attempts} at {after.offsets}, and "
            f"turn {before.fence} was number {before.attempts}"
        )


def _reaches(offsets: Offsets, other: Offsets) -> bool:
    """Whether a place lies nowhere before another."""
    return all(one >= least for one, least in zip_longest(offsets, other, fillvalue=0))


def _cut(offsets: Offsets) -> Offsets:
    """Return a place without the partitions that nothing was done in."""
    length = len(offsets)
    while length and not offsets[length - 1]:
        length -= 1
    return offsets[:length]
