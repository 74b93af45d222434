"""What a query asks of the broker while it is planned: where its topic stands, as cuts.

A bound given by time or barrier becomes a cut here, exactly: the broker answers by entries, which
hold several batches, so the first batches from there on are looked at. A cut at a barrier has all
messages stamped at or below one stamp, of all partitions, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TypeVar

from weir.client.core.delivered_batches import deliver
from weir.errors import BadOption, OffsetOutOfRange, Unavailable, UnknownTopic
from weir.model.ids import Address
from weir.model.limits import KIB, MIB
from weir.order.barrier import Barrier
from weir.protocol.client.admin import AskStats, PartitionStats
from weir.protocol.client.messages import PositionsReply, Reply, TopicInfo
from weir.spark import planning
from weir.spark.blocking_client import BlockingClient, ask
from weir.spark.options import EVERYTHING, Bound, Earliest, Latest, Offsets, Options, Stamped
from weir.spark.planning import Cut
from weir.spark.selection import Selection

T = TypeVar("T")
#: Asked for where a bound is looked for: mostly it lies in the first entry, so more comes later.
_LOOK_BYTES = 4 * KIB
_MORE = 8
#: So many bounds are remembered; a query that runs for long looks for ever new ones.
_FOUND_MAX = 4_096
#: How long a broker may wait for barriers before it answers with what there is.
_WAIT_MS = 1_000


@dataclass(frozen=True)
class Standing:
    """A topic as of one moment: where each partition begins and ends."""

    info: TopicInfo
    places: list[PositionsReply]
    #: Of them, those that the query reads.
    selection: Selection = EVERYTHING

    @property
    def partitions(self) -> list[int]:
        """The partitions that the query reads."""
        return [p for p in range(len(self.places)) if self.selection.reads(p)]

    @property
    def begin(self) -> Cut:
        """The first offsets that are still there."""
        return Cut(self.info.id, {p: self.places[p].start for p in self.partitions})

    @property
    def end(self) -> Cut:
        """The offsets behind the last committed messages."""
        return Cut(self.info.id, {p: self.places[p].end for p in self.partitions})


@dataclass
class Cuts:
    """Resolves bounds for one topic; picklable, as it holds no connection."""

    options: Options
    #: (partition, stamp) of bounds that were found: they never move again.
    _found: dict[tuple[int, int], int] = field(default_factory=dict)
    #: So many partitions the topic has at least, though a node may not have heard of all of them.
    _least: int = 0

    def expect(self, partitions: Iterable[int]) -> None:
        """Take it that the topic has these: a node that has not heard of them is asked until it
        has, or is sure that they are not there.
        """
        self._least = max([self._least, *(partition + 1 for partition in partitions)])

    def standing(self, stamp: int = 0) -> Standing:
        """Ask where the topic stands; `at` of each place is meant for `stamp`.

        Raises `BadOption` if the query selects partitions that are not there.
        """
        topic, selection = self.options.topic, self.options.selection
        self.expect(selection.partitions or ())

        def question(client: BlockingClient) -> tuple[TopicInfo, list[PositionsReply]]:
            found = client.positions(topic, stamp)
            if len(found[1]) < self._least:
                client.await_partitions(topic, found[0], self._least)
                found = client.positions(topic, stamp)
            return found

        info, places = self.ask(question)
        if missing := sorted((selection.partitions or frozenset()) - set(range(len(places)))):
            raise BadOption(
                f"option partitions names partition {missing[0]}; {self.options.topic} has "
                f"partitions 0 to {len(places) - 1}"
            )
        return Standing(info, places, selection)

    def describe(self) -> TopicInfo:
        """Ask where the topic's partitions are served. Raises `UnknownTopic`."""

        def question(client: BlockingClient) -> TopicInfo:
            info = client.describe(self.options.topic)
            if len(info.addresses) < self._least:
                info = client.await_partitions(self.options.topic, info, self._least)
            return info

        return self.ask(question)

    def resolve(self, name: str, bound: Bound) -> Cut:
        """Return the cut that a bound means now; `name` is its option's, for errors.

        Raises `BadOption` for offsets that are not there.
        """
        match bound:
            case Earliest():
                return self.standing().begin
            case Latest():
                return self.standing().end
            case Offsets(by_partition):
                self.expect(by_partition)
                standing = self.standing()
                self._check(name, by_partition, standing)
                rest = standing.end if name.startswith("ending") else standing.begin
                return Cut(rest.epoch, {**rest.positions, **by_partition})
            case Stamped(stamp):
                standing = self.standing(stamp)
                return Cut(standing.info.id, self.first_from(standing, stamp))

    def first_from(self, standing: Standing, stamp: int) -> dict[int, int]:
        """Return each partition's first offset stamped `stamp` or later; its end if there is none.

        `standing` must have been asked for this stamp.
        """
        return {
            partition: self._exact(standing, partition, stamp) for partition in standing.partitions
        }

    def _exact(self, standing: Standing, partition: int, stamp: int) -> int:
        place = standing.places[partition]
        known = self._found.get((partition, stamp))
        if known is not None:
            return min(max(known, place.start), place.end)
        at = self._first_stamped(standing.info, partition, stamp, place.at, place.end)
        if at < place.end:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[partition, stamp] = at
        return at

    def first_above(
        self, info: TopicInfo, partition: int, stamp: int, begin: int, behind: int
    ) -> int:
        """Return the first offset in [begin, behind) stamped above `stamp`, or `behind`."""
        return self._first_stamped(info, partition, stamp + 1, begin, behind)

    def _first_stamped(
        self, info: TopicInfo, partition: int, stamp: int, at: int, behind: int
    ) -> int:
        size = _LOOK_BYTES
        while at < behind:
            address, topic = info.addresses[partition], self.options.topic
            found, at = self.ask(_first_stamped(address, topic, partition, at, stamp, size))
            if found:
                break
            size = min(size * _MORE, MIB)
        return min(at, behind)

    def bytes_between(self, start: Cut, end: Cut) -> float:
        """Return about how many stored bytes lie between two cuts, by the mean size of the messages
        that a partition holds.
        """
        lags = {
            p: behind - start.first(p, end)
            for p, behind in end.positions.items()
            if behind > start.first(p, end)
        }

        def question(client: BlockingClient) -> list[Reply]:
            info = client.describe(self.options.topic)
            places = [info.addresses[p] for p in lags if p < len(info.addresses)]
            return client.requests([AskStats(place) for place in places])

        means = [
            one.bytes / one.messages if isinstance(one, PartitionStats) and one.messages else 0.0
            for one in self.ask(question)
        ]
        return sum(lag * mean for lag, mean in zip(lags.values(), means, strict=False))

    def _check(self, name: str, given: Mapping[int, int], standing: Standing) -> None:
        topic, places = self.options.topic, standing.places
        for partition, offset in given.items():
            if not 0 <= partition < len(places):
                raise BadOption(
                    f"{name} names partition {partition}; {topic} has partitions 0 to "
                    f"{len(places) - 1}"
                )
            if not standing.selection.reads(partition):
                raise BadOption(
                    f"{name} names partition {partition}, which the option partitions leaves out"
                )
            first, behind = places[partition].start, places[partition].end
            if not first <= offset <= behind:
                raise BadOption(
                    f"{name} names offset {offset:,} of {topic}/{partition}, which holds "
                    f"{first:,} to {behind:,}"
                )

    def ask(self, question: Callable[[BlockingClient], T]) -> T:
        """Ask a broker for half a minute if need be. Raises `UnknownTopic`."""
        options = self.options
        try:
            return ask(options.hosts, question)
        except UnknownTopic as error:
            places = ", ".join(f"{host}:{port}" for host, port in options.hosts)
            raise UnknownTopic(
                f"{places} has no topic {options.topic!r}: check the options topic and url, or "
                f"create it with `weir topic create {options.topic}`"
            ) from error


def _first_stamped(
    address: Address, topic: str, partition: int, at: int, stamp: int, max_bytes: int
) -> Callable[[BlockingClient], tuple[bool, int]]:
    """Return a question: is the bound in the next portion from `at` on, and where, or how far."""

    def question(client: BlockingClient) -> tuple[bool, int]:
        try:
            fetched = client.fetch(address, at, max_bytes)
        except OffsetOutOfRange as error:
            if error.detail <= at:
                raise
            # Retention goes on: nothing is left before that. If the query has not read it, it is
            # told when it comes to read.
            return False, error.detail
        behind = fetched.next_offset
        for part in deliver(fetched.batches, address.group, topic, partition, at, behind):
            if part.batch.header.stamp >= stamp:
                return True, part.offset
        # With nothing there the end has been reached: no offset is skipped by giving up here.
        return behind <= at, max(behind, at)

    return question


@dataclass
class BarrierCuts:
    """Finds barriers of one topic and what lies before them; picklable, as `Cuts` is.

    Any two queries that read up to the same barrier have read the same messages, in whichever
    portions (DESIGN §5 Spark). A cut lies between two messages of the one order, so it is never
    shortened to an offset: under a limit an earlier barrier is taken.
    """

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
        _, before = self.reached(0)
        stamp = max(barrier.stamp for barrier in before.values())
        info, behind = self.reached(stamp)
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
        return within(self.at, start, end, rows_max)

    def at(self, stamp: int, start: Cut, end: Cut) -> Cut:
        """Return the cut at a stamp, as far as it lies between two others."""
        found = self.cuts.first_from(self.cuts.standing(stamp + 1), stamp + 1)
        within = {
            p: min(max(found.get(p, 0), start.first(p, end)), behind)
            for p, behind in end.positions.items()
        }
        return Cut(end.epoch, within, end.begins, stamp)

    def reached(self, stamp: int) -> tuple[TopicInfo, dict[int, Barrier]]:
        """Return how far each partition is complete, once all are at `stamp`; of 0, as of now.

        Raises `Unavailable` if a partition does not say so for half a minute.
        """
        return self.cuts.ask(_ask_barriers(self.cuts.options.topic, stamp))


def within(at: Callable[[int, Cut, Cut], Cut], start: Cut, end: Cut, rows_max: int | None) -> Cut:
    """Return the cut to read up to: `end`, or an earlier one, so that there are `rows_max` messages
    at most; but always the next one, even if it has more (counterexample 28).

    `at` gives the cut at a stamp, as far as it lies between two others.
    """
    cut = end
    if rows_max is not None and planning.rows_between(start, end) > rows_max:
        cut = _shorter(at, start, end, rows_max)
    return replace(planning.next_cut(start, cut, None), stamp=cut.stamp)


def _shorter(at: Callable[[int, Cut, Cut], Cut], start: Cut, end: Cut, rows_max: int) -> Cut:
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
        cut = at(stamp, start, end)
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


def _ask_barriers(
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
