"""What consumers of a cluster in total order observe of its one cursor: what is acked is done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from weir_lab.sim.history import Handled, History, Record

Place = tuple[int, int]


class HandledOnce:
    """What a consumer was told that it did is done, in the one order: it is handed out in no later
    turn, and nothing is passed by.
    """

    name = "OneCursor"

    def check(self, history: History) -> Iterator[str]:
        """Compare what was acked with the turns that followed, and with what is there."""
        clusters: dict[str, list[Handled]] = defaultdict(list)
        for one in history.handled:
            clusters[one.cluster].append(one)
        for cluster, handled in clusters.items():
            yield from (f"{cluster}: {text}" for text in _again(handled))
            yield from (f"{cluster}: {text}" for text in _order(handled))
            yield from (f"{cluster}: {text}" for text in _left_out(handled, history.drained))


class OneHolder:
    """No consumer works in another's turn."""

    name = "OneTurn"

    def check(self, history: History) -> Iterator[str]:
        """Look for a turn that two consumers worked in."""
        holders: dict[tuple[str, int], str] = {}
        for one in history.handled:
            holder = holders.setdefault((one.cluster, one.fence), one.holder)
            if holder != one.holder:
                yield f"{one.cluster}: {holder} and {one.holder} have turn {one.fence}"


def _again(handled: list[Handled]) -> Iterator[str]:
    """A turn begins behind all that was done in those before it, as their numbers say."""
    done: dict[Place, int] = {}
    for one in sorted(handled, key=lambda each: each.fence):
        for row in one.rows:
            by = done.get(row[1:3], one.fence)
            if by < one.fence:
                yield f"{row} was acked in turn {by}, and handed out in turn {one.fence}"
        if one.acked >= 0:
            done.update((row[1:3], one.fence) for row in one.rows)


def _order(handled: list[Handled]) -> Iterator[str]:
    acked = [one for one in handled if one.acked >= 0]
    acked.sort(key=lambda one: one.fence)  # those of a turn stay in the order of their times
    for before, after in pairwise(acked):
        if before.rows[-1][:3] >= after.rows[0][:3]:
            yield f"{after.rows[0]} was done behind {before.rows[-1]}"


def _left_out(handled: list[Handled], drained: dict[int, list[Record]]) -> Iterator[str]:
    """In the end everything was done by somebody, or may have been."""
    done = {row[1:3] for one in handled if not one.back for row in one.rows}
    for partition, records in drained.items():
        for record in records:
            for offset in range(record.offset, record.offset + len(record.values)):
                if (partition, offset) not in done:
                    yield f"nobody did {offset} of partition {partition}"
