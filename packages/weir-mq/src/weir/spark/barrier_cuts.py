"""Cuts at barriers: all messages stamped at or below one stamp, of all partitions, and no others.

Any two queries that read up to the same barrier have read the same messages, in whichever portions
(DESIGN §5 Spark). A cut lies between two messages of the one order, so it is never shortened to an
offset: under a limit an earlier barrier is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter

from weir.errors import Unavailable
from weir.order.barrier import Barrier
from weir.protocol.client.messages import TopicInfo
from weir.spark import planning
from weir.spark.blocking_client import BlockingClient
from weir.spark.bounds import Bound, Latest, Stamped
from weir.spark.cuts import Cuts
from weir.spark.planning import Cut

#: How long a broker may wait for barriers before it answers with what there is.
_WAIT_MS = 1_000


@dataclass
class Complete:
    """Finds barriers of one topic and what lies before them; picklable, as `Cuts` is."""

    cuts: Cuts
    _wanted: bool | None = None

    @property
    def wanted(self) -> bool:
        """Whether the query is to be cut at barriers; its topic says so unless an option does."""
        if self._wanted is None:
            self._wanted = (self.cuts.options.order or self.cuts.describe().order) == "total"
        return self._wanted

    def resolve(self, name: str, bound: Bound) -> Cut:
        """Return the cut that a bound means now, as `Cuts.resolve`."""
        match bound:
            case Latest() if self.wanted:
                return self.end()
            case Stamped(stamp) if self.wanted:
                return replace(self.cuts.resolve(name, bound), stamp=max(stamp - 1, 0))
        return self.cuts.resolve(name, bound)

    def moved(self, since: Cut) -> bool:
        """Return whether something was committed that a cut does not hold."""
        end = self.cuts.standing().end
        return end.epoch != since.epoch or any(
            end.positions.get(p, -1) != since.positions.get(p, 0)
            for p in end.positions.keys() | since.positions.keys()
        )

    def end(self) -> Cut:
        """Return a cut that holds all that was committed until now.

        Raises `Unavailable` if a partition does not say for half a minute how far it is complete.
        """
        _, before = self._reached(0)
        stamp = max(barrier.stamp for barrier in before.values())
        info, behind = self._reached(stamp)
        nothing = Barrier(0, 0)
        positions = {
            p: self.cuts.first_above(
                info, p, stamp, before.get(p, nothing).through, behind[p].through
            )
            for p in sorted(behind)
            if self.cuts.options.selection.reads(p)
        }
        begins = self.cuts.standing().begin.positions
        return Cut(info.id, positions, begins, stamp)

    def within(self, start: Cut, end: Cut, rows_max: int | None) -> Cut:
        """Return the cut to read up to: `end`, or an earlier one, so that there are `rows_max`
        messages at most; but always the next one, even if it has more (counterexample 28).
        """
        cut = end
        if rows_max is not None and planning.rows_between(start, end) > rows_max:
            cut = self._shorter(start, end, rows_max)
        return replace(planning.advance(start, cut, None), stamp=cut.stamp)

    def _shorter(self, start: Cut, end: Cut, rows_max: int) -> Cut:
        """Look for a cut with half of `rows_max` at least: where it would be if messages came at a
        steady rate, and in the middle, in turn.
        """
        found = over = end
        least, most = start.stamp, end.stamp
        below, above = 0, planning.rows_between(start, end)
        wanted = max(rows_max * 3 // 4, 1)
        steady = True
        while most - least > 1:
            stamp = (least + most) // 2
            if steady and below < wanted < above:
                stamp = least + (most - least) * (wanted - below) // (above - below)
                stamp = min(max(stamp, least + 1), most - 1)
            steady = not steady
            cut = self.at(stamp, start, end)
            rows = planning.rows_between(start, cut)
            if rows > rows_max:
                over, most, above = cut, stamp, rows
            else:
                least, below = stamp, rows
                if rows:
                    found = cut
                if 2 * rows >= rows_max:
                    break
        return found if below else over

    def at(self, stamp: int, start: Cut, end: Cut) -> Cut:
        """Return the cut at a stamp, as far as it lies between two others."""
        found = self.cuts.first_from(self.cuts.standing(stamp + 1), stamp + 1)
        within = {
            p: min(max(found.get(p, 0), start.first(p, end)), behind)
            for p, behind in end.positions.items()
        }
        return Cut(end.epoch, within, end.begins, stamp)

    def _reached(self, stamp: int) -> tuple[TopicInfo, dict[int, Barrier]]:
        return self.cuts.ask(_question(self.cuts.options.topic, stamp))


def _question(
    topic: str, stamp: int
) -> Callable[[BlockingClient], tuple[TopicInfo, dict[int, Barrier]]]:
    """Return a question: how far is the order complete, once all partitions are at `stamp`, or at 0
    as of now?
    """

    def question(client: BlockingClient) -> tuple[TopicInfo, dict[int, Barrier]]:
        info = client.describe(topic)
        told = client.barriers(info.id, stamp, _WAIT_MS)
        if not told.reached or len(told.registers) > len(info.addresses):
            least = min(told.registers, key=itemgetter(1), default=(0, 0, 0))[0]
            raise Unavailable(
                f"partition {least} of {topic} has not said how far it is complete: has it a "
                "leader? `weir doctor` tells; .option('order', 'partition') reads without barriers"
            )
        return info, {p: Barrier(at, through) for p, at, through in told.registers}

    return question
