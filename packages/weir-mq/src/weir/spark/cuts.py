"""What a query asks of the broker while it is planned: where its topic stands, as cuts.

A bound given by time or barrier becomes a cut here, exactly: the broker answers by entries, which
hold several batches, so the first batches from there on are looked at. A cut at a barrier has all
messages stamped at or below one stamp, of all partitions, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, TypeVar

from msgspec import structs

from weir.client.core.delivered_batches import deliver
from weir.errors import BadOption, OffsetOutOfRange, Unavailable, UnknownTopic
from weir.model.ids import Address
from weir.model.limits import KIB, MIB
from weir.order.barrier import Barrier
from weir.order.cut_search import CutSearch
from weir.protocol.client.admin import AskStats, PartitionStats
from weir.protocol.client.messages import (
    PositionsReply,
    Reply,
    ResolveCut,
    ResolvedCut,
    TopicInfo,
    TopicPositions,
)
from weir.spark import planning
from weir.spark.blocking_client import BlockingClient, ask
from weir.spark.options import EVERYTHING, Bound, Earliest, Latest, Offsets, Options, Stamped
from weir.spark.planning import Cut, Lineages
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
    #: Where the topic is served, by the last cut; for the next request.
    _info: TopicInfo | None = None
    #: Those of its partitions, by the last cut.
    lineages: Lineages = field(default_factory=Lineages)

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
        self._check_selected(len(places))
        return Standing(info, places, selection)

    def _check_selected(self, count: int) -> None:
        if missing := sorted(
            (self.options.selection.partitions or frozenset()) - set(range(count))
        ):
            raise BadOption(
                f"option partitions names partition {missing[0]}; {self.options.topic} has "
                f"partitions 0 to {count - 1}"
            )

    def resolve_cut(self, request: ResolveCut) -> ResolvedCut | None:
        """Return a cut through the topic, in one round trip; None from a broker of a release that
        does not resolve them. One that is of an earlier lineage than is known is left for another.
        Raises `BadOption` if the query selects partitions that are not there.
        """

        def question(client: BlockingClient) -> ResolvedCut | None:
            found = client.resolve_cut(request)
            if found is not None and found.topics:
                self.lineages.take(found.lineages)
                info = found.topics[0].info
                if len(info.addresses) < self._least:
                    known = client.await_partitions(self.options.topic, info, self._least)
                    if len(known.addresses) > len(info.addresses):
                        found = client.resolve_cut(structs.replace(request, wait_ms=0))
                        self.lineages.take(() if found is None else found.lineages)
            return found

        found = self.ask(question)
        if found is not None and found.topics:
            for told in found.topics:
                self._check_selected(len(told.info.addresses))
            self._info = found.topics[0].info
        return found

    def take(self, info: TopicInfo) -> None:
        """Remember where the topic is served, for the next request."""
        self._info = info

    def describe(self) -> TopicInfo:
        """Ask where the topic's partitions are served, unless a cut has just told it. Raises
        `UnknownTopic`.
        """
        told, self._info = self._info, None
        if told is not None and len(told.addresses) >= self._least:
            return told

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
    #: The cut of the last look for news, for the request of the end that follows; and the committed
    #: ends as of then.
    _news: Cut | None = None
    _committed: Cut | None = None
    #: Whether the end that was told last is within the limits that were asked for.
    is_within_limits: bool = False

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
            case Stamped(stamp) if stamp > 1:
                # One in the past is told as a cut.
                found = self._resolved(stamp_max=stamp - 1)
                if found is not None and found.stamp == stamp - 1:
                    return Cut(found.epoch, found.positions, {}, found.stamp if self.wanted else 0)
        cut = self.cuts.resolve(name, bound)
        match bound:
            case Stamped(stamp) if self.wanted:
                return replace(cut, stamp=max(stamp - 1, 0))
        return cut

    def moved(
        self, since: Cut, wait_ms: int = 0, rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> bool:  # fmt: skip
        """Return whether something was committed that a cut does not hold; wait up to `wait_ms` for
        that. What `end` and `committed` return next is as of this, and within the limits.
        """
        self._news = self._committed = None
        self.is_within_limits = False
        found = self.cuts.resolve_cut(
            self._request(since, wait_ms=wait_ms, rows_max=rows_max or 0, bytes_max=bytes_max or 0)
        )
        if found is not None and not found.topics:
            self._committed = Cut(since.epoch, since.positions)
            return False
        if found is not None:
            news = self._cut_of(found)
            if not planning.differs(since, news):
                # Committed messages may be stamped above the barrier of an idle partition: the
                # request of the end asks all partitions how far they are complete now.
                return self._committed is not None and planning.differs(since, self._committed)
            self._news, self.is_within_limits = news, news.stamp > 0
            return True
        if not self.wanted:
            return True
        end = self.cuts.standing().end
        return end.epoch != since.epoch or any(
            end.positions.get(p, -1) != since.positions.get(p, 0)
            for p in end.positions.keys() | since.positions.keys()
        )

    def known_ends(self, keep: bool = False) -> Cut | None:
        """Return the committed ends as of what was asked last; None if they were taken, which this
        does unless it is to `keep` them.
        """
        known = self._committed
        if not keep:
            self._committed = None
        return known

    def news(self) -> Cut | None:
        """Return the cut that `moved` found, None if it was taken."""
        news, self._news = self._news, None
        return news

    def ends(self) -> Cut | None:
        """Return the committed ends as of now; None if the broker does not resolve cuts."""
        return self._resolved(by_partition=True)

    def end(self) -> Cut:
        """Return a cut that holds all that was committed until now.

        Raises `Unavailable` if a partition does not say for half a minute how far it is complete.
        """
        found = self.news() or self._resolved(latest=True)
        if found is not None:
            return found
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
        if rows_max is not None and planning.rows_between(start, end) > rows_max:
            found = self._resolved(start, stamp_max=end.stamp, rows_max=rows_max)
            if found is not None:
                return replace(planning.next_cut(start, found, None), stamp=found.stamp)
        return within(self.at, start, end, rows_max)

    def at(self, stamp: int, start: Cut, end: Cut) -> Cut:
        """Return the cut at a stamp, as far as it lies between two others."""
        resolved = self._resolved(stamp_max=stamp) if stamp else None
        if resolved is not None and resolved.stamp == stamp:
            found: Mapping[int, int] = resolved.positions
        else:
            found = self.cuts.first_from(self.cuts.standing(stamp + 1), stamp + 1)
        within = {
            p: min(max(found.get(p, 0), start.first(p, end)), behind)
            for p, behind in end.positions.items()
        }
        return Cut(end.epoch, within, end.begins, stamp)

    def _resolved(self, since: Cut | None = None, **fields: Any) -> Cut | None:
        """Ask for a cut behind another one; None if the broker does not resolve them."""
        found = self.cuts.resolve_cut(self._request(since, **fields))
        return None if found is None else self._cut_of(found)

    def _request(self, since: Cut | None, **fields: Any) -> ResolveCut:
        options = self.cuts.options
        if since is not None:
            fields["stamp"] = since.stamp
            fields["after"] = [TopicPositions(since.epoch, sorted(since.positions.items()))]
        fields.setdefault("by_partition", not self.wanted and "stamp_max" not in fields)
        selected = sorted(options.selection.partitions or ())
        return ResolveCut([options.topic], partitions=selected, **fields)

    def _cut_of(self, found: ResolvedCut) -> Cut:
        (topic,) = found.topics
        read = [p for p in range(len(topic.ends)) if self.cuts.options.selection.reads(p)]
        begins = {p: topic.starts[p] for p in read}
        ends = {p: topic.committed[p] for p in read}
        self._committed = Cut(topic.info.id, ends, begins)
        return Cut(topic.info.id, {p: topic.ends[p] for p in read}, begins, found.stamp)

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
    """Look for a cut with half of `rows_max` at least."""
    search = CutSearch(start.stamp, end.stamp, planning.rows_between(start, end) / rows_max)
    under, over = None, end
    while search.stamp:
        cut = at(search.stamp, start, end)
        portions = planning.rows_between(start, cut) / rows_max
        if portions > 1:
            over = cut
        elif portions:
            under = cut
        search.looked(portions)
    return under or over


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
