"""Cuts through topics, resolved here for queries that plan their next read: a barrier, and its
offsets (DESIGN §5 Spark).

One request waits for news, asks for the barriers of all topics, has the partitions cut at the least
of them, and under a limit looks for an earlier cut. Each step ends in a finding that is acted on
behind the event. So it takes the one that asks one round trip, and shards a few among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec import structs

from weir.broker.barriers.barriers import BarrierAnswers, OrderReached, gone
from weir.broker.barriers.offsets import Located, LocationFound, OffsetLocator, lineages_of
from weir.broker.metadata.registry import Registry
from weir.broker.partition.topics import Topics
from weir.broker.runtime.outbox import Caller, Outbox
from weir.broker.runtime.session import Session
from weir.errors import BadRequest, Overloaded, Refused, Unavailable
from weir.model.ids import group_of, partition_of
from weir.model.limits import (
    CUT_PARTITIONS_MAX,
    CUTS_AT_ONCE_MAX,
    CUTS_PARTITIONS_MAX,
    RETRY_AFTER_MS,
    WAIT_MS_MAX,
)
from weir.model.topic import Topic
from weir.order.clock import Time, stamp_at
from weir.order.cut_search import CutSearch, portions_of
from weir.protocol.client.order import Barriers, ResolveCut, ResolvedCut, TopicCut

#: How long barriers and offsets may take before it is said that they do.
_RESOLVED_MS = 5_000

#: What is told of a partition that was not asked for.
_UNKNOWN = (0, 0, 0)

#: By group, where a cut lies.
Places = dict[int, Located]


class _Resolution(msgspec.Struct, eq=False):
    """A cut that is not resolved yet; `until_ms` is monotonic."""

    number: int
    caller: Caller
    request: ResolveCut
    #: The topics' ids, in the order in which they were asked for.
    topics: list[int]
    partitions: int
    until_ms: int = 0
    #: The groups of which news were waited for.
    awaited: set[int] = msgspec.field(default_factory=set)
    #: By group, the offset that was read up to.
    after: dict[int, int] = msgspec.field(default_factory=dict)
    #: By topic, what was said of it; None if it is gone.
    barriers: dict[int, Barriers | None] = msgspec.field(default_factory=dict)
    #: By topic, how many partitions it has.
    counts: dict[int, int] = msgspec.field(default_factory=dict)
    #: Whether barriers are asked for again, at the highest of the first answers.
    again: bool = False
    #: The location that is under way.
    location: int = 0
    #: Where the cut lies, and its stamp, 0 for committed ends; {} until that is found.
    stamp: int = 0
    places: Places = msgspec.field(default_factory=dict)
    #: An earlier cut is looked for: the best ones so far that fit the limit, and that do not.
    search: CutSearch | None = None
    under: tuple[int, Places] | None = None
    over: tuple[int, Places] | None = None
    #: Whether all is known, but where partitions are served.
    is_placed: bool = False

    def portions(self, places: Places) -> float:
        """Return how many portions lie before a cut."""
        rows = size = 0
        for group, one in places.items():
            # `after` may be far below what is still there: to read on fails then, and says so.
            rows += max(one.behind - self.after.get(group, one.start), 0)
            size += one.size
        return portions_of(rows, size, self.request.rows_max, self.request.bytes_max)


class CutAnswers:
    """Answers those who ask for cuts."""

    __slots__ = ("_count", "_locations", "_orders", "_outbox", "_partitions", "_registry", "_time",
                 "_topics", "locator", "resolutions")  # fmt: skip

    def __init__(
        self, topics: Topics, registry: Registry, orders: BarrierAnswers, locator: OffsetLocator,
        outbox: Outbox, time: Time,
    ) -> None:  # fmt: skip
        """Ask `orders` for barriers and `locator` for offsets; nobody asks yet."""
        self._topics = topics
        self._registry = registry
        self._orders = orders
        self.locator = locator
        self._outbox = outbox
        self._time = time
        #: By number; by that of the location that is under way; and the partitions of all.
        self.resolutions: dict[int, _Resolution] = {}
        self._locations: dict[int, _Resolution] = {}
        self._partitions = 0
        self._count = 0

    def ask(self, session: Session, caller: Caller, request: ResolveCut) -> None:
        """Answer later. Raises `UnknownTopic`, `Unauthorized`, `BadRequest` or `Overloaded`."""
        topics = [self._topics.named(name) for name in request.topics]
        _check(topics)
        partitions = sum(topic.partitions for topic in topics)
        if (
            len(self.resolutions) >= CUTS_AT_ONCE_MAX
            or self._partitions + partitions > CUTS_PARTITIONS_MAX
        ):
            raise Overloaded("too many cuts are resolved: try again shortly", RETRY_AFTER_MS)
        self._count += 1
        ids = [topic.id for topic in topics]
        one = _Resolution(self._count, caller, request, ids, partitions)
        one.after = {group_of(read.topic, partition): offset
                     for read in request.after if read.topic in ids
                     for partition, offset in read.offsets if partition < CUT_PARTITIONS_MAX
                     }  # fmt: skip
        self.resolutions[one.number] = one
        self._partitions += partitions
        if request.wait_ms:
            self._await_news(one, topics)
        else:
            self._begin(one)

    def proceed(self) -> None:
        """Take the next step with each cut of which something was found."""
        reached, found = self._orders.reached, self.locator.found
        if self.locator:
            self.locator.look_for_news()
        while reached or found:
            if reached:
                self._take_barriers(reached.popleft())
            else:
                self._take_places(found.popleft())

    def check_deadlines(self) -> None:
        """Refuse those that take too long, and answer those whose partitions have a place by now.

        Barriers that are waited for in vain come at their own deadline.
        """
        self.locator.check_deadlines()
        for one in [one for one in self.resolutions.values() if one.is_placed]:
            self._reply(one)

    def session_closed(self, session: int) -> None:
        """Forget a peer that is gone."""
        self.locator.session_closed(session)
        for one in [one for one in self.resolutions.values() if one.caller.session == session]:
            self._end(one)

    # -- steps -------------------------------------------------------------------------------

    def _await_news(self, one: _Resolution, topics: Sequence[Topic]) -> None:
        until_ms = self._time.monotonic_ms() + min(one.request.wait_ms, WAIT_MS_MAX)
        one.awaited = {group for topic in topics for group in topic.groups()}
        ends = dict.fromkeys(one.awaited, 0)
        self._locate(one, self._wanted(one, ends), 0, until_ms, news=True)

    def _groups_of(self, one: _Resolution) -> set[int]:
        """Return the groups that the topics have by now: some may have joined during a wait."""
        found = (self._topics.catalog.by_id(number) for number in one.topics)
        return {group for topic in found if topic is not None for group in topic.groups()}

    def _begin(self, one: _Resolution) -> None:
        """Ask how far all partitions are complete; or, each by itself, where it ends."""
        if not one.request.by_partition:
            self._ask_barriers(one, self._first_stamp(one.request))
            return
        one.until_ms = self._time.monotonic_ms() + _RESOLVED_MS
        ends: dict[int, int] = {}
        for number in one.topics:
            topic = self._topics.catalog.by_id(number)
            if topic is None:
                self._refuse(one, gone(number))
                return
            one.counts[number] = topic.partitions
            ends |= dict.fromkeys(topic.groups(), 0)
        self._locate(one, self._wanted(one, ends), 0, one.until_ms)

    def _wanted(self, one: _Resolution, ends: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """Return, of these groups, those that are asked for, with how far they were read; `ends`
        are the offsets below which all lies that is to be found.
        """
        wanted, after = set(one.request.partitions), one.after
        return {group: (after.get(group, 0), end) for group, end in ends.items()
                if not wanted or partition_of(group) in wanted}  # fmt: skip

    def _first_stamp(self, request: ResolveCut) -> int:
        """Return the stamp that partitions have to be at; 0 where all are asked anew."""
        past = request.stamp_max and request.stamp_max < stamp_at(self._time.wall_ms())
        return request.stamp_max if past else 0

    def _ask_barriers(self, one: _Resolution, stamp: int) -> None:
        one.until_ms = self._time.monotonic_ms() + _RESOLVED_MS
        one.barriers = {}
        try:
            for topic in one.topics:
                self._orders.await_order(topic, stamp, one.until_ms, one.caller, one.number)
        except Refused as error:
            self._refuse(one, error)

    def _take_barriers(self, told: OrderReached) -> None:
        one = self.resolutions.get(told.cut)
        if one is None or one.location or told.topic not in one.topics:
            return
        one.barriers[told.topic] = told.barriers
        if len(one.barriers) < len(one.topics):
            return
        known = list(_known(one))
        for topic, barriers in one.barriers.items():
            if barriers is None:
                self._refuse(one, gone(topic))
                return
            if not barriers.reached:
                self._refuse(one, self._slow(topic, barriers))
                return
        stamps = [stamp for barriers in known for _, stamp, _ in barriers.registers]
        highest, least = max(stamps), min(stamps)
        if one.request.latest and not one.again and least < highest:
            # What was confirmed before may be stamped as high as the one that is furthest.
            one.again = True
            self._ask_barriers(one, highest)
            return
        if one.request.stamp_max:
            least = min(least, one.request.stamp_max)
        one.stamp = least
        one.counts = {barriers.topic: len(barriers.registers) for barriers in known}
        ends = {group_of(barriers.topic, partition): through
                for barriers in known for partition, _, through in barriers.registers}  # fmt: skip
        self._locate(one, self._wanted(one, ends), least, one.until_ms)

    def _slow(self, topic: int, barriers: Barriers) -> Refused:
        partition = min(barriers.registers, key=itemgetter(1))[0]
        info = self._topics.catalog.by_id(topic)
        name = info.full_name if info is not None else str(topic)
        return Unavailable(
            f"partition {partition} of {name} has not said for {_RESOLVED_MS // 1_000} s how far "
            "it is complete: has it a leader? `weir doctor` tells"
        )

    def _locate(
        self, one: _Resolution, asked: dict[int, tuple[int, int]], stamp: int, until_ms: int,
        news: bool = False,
    ) -> None:  # fmt: skip
        if not asked:
            self._refuse(one, BadRequest("none of `partitions` exists: name partitions of a topic"))
            return
        one.location = self.locator.locate(asked, stamp, until_ms, news)
        self._locations[one.location] = one

    def _take_places(self, ended: LocationFound) -> None:
        one = self._locations.pop(ended.number, None)
        if one is None:
            return
        one.location = 0
        if not one.until_ms:  # it waited for news
            if ended.found or ended.missing or self._groups_of(one) > one.awaited:
                # Of what nobody told about, it is asked properly whether there is more.
                self._begin(one)
            else:
                self._outbox.reply(one.caller, ResolvedCut(0, []))
                self._end(one)
        elif ended.missing:
            self._give_up(one, ended)
        elif one.search is not None:
            self._narrow(one, ended.found)
        else:
            self._look_for_less(one, ended.found)

    def _give_up(self, one: _Resolution, ended: LocationFound) -> None:
        """The time is up: of the cuts looked at, the best one will do; without one, say so."""
        best = one.under or one.over
        if best is not None:
            self._place(one, *best)
            return
        group = min(ended.missing)
        topic = self._topics.catalog.by_id(group >> 16)
        name = f"{topic.full_name if topic else '?'}/{partition_of(group)}"
        slow = Unavailable(f"{name} has not said where it is cut: has it a leader that answers?")
        self._refuse(one, ended.error or slow)

    def _look_for_less(self, one: _Resolution, places: Places) -> None:
        request, portions = one.request, one.portions(places)
        if request.by_partition or portions <= 1:
            self._place(one, one.stamp, places)
            return
        one.over = one.stamp, places
        stamps = [found.next_stamp for found in places.values() if found.next_stamp]
        one.search = CutSearch(request.stamp, one.stamp, portions, min(stamps, default=1) - 1)
        self._go_on_narrowing(one, places)

    def _narrow(self, one: _Resolution, places: Places) -> None:
        search, portions = one.search, one.portions(places)
        assert search is not None  # it asked for these
        if portions > 1:
            one.over = search.stamp, places
        elif portions:
            one.under = search.stamp, places
        search.looked(portions)
        assert one.over is not None  # all there is holds too much
        self._go_on_narrowing(one, one.over[1])

    def _go_on_narrowing(self, one: _Resolution, over: Places) -> None:
        search = one.search
        assert search is not None  # it was begun
        if not search.stamp:
            best = one.under or one.over
            assert best is not None  # it began with one
            self._place(one, *best)
            return
        # What lies before an earlier cut lies before the next later one.
        asked = {group: (one.after.get(group, 0), found.behind) for group, found in over.items()}
        self._locate(one, asked, search.stamp, one.until_ms)

    # -- ends --------------------------------------------------------------------------------

    def _place(self, one: _Resolution, stamp: int, places: Places) -> None:
        one.stamp, one.places, one.is_placed = stamp, places, True
        self._reply(one)

    def _reply(self, one: _Resolution) -> None:
        """Answer, unless this shard has not heard yet where all partitions are served."""
        cuts: list[TopicCut] = []
        lineages: list[tuple[int, int, int]] = []
        for topic in one.topics:
            found = self._topics.catalog.by_id(topic)
            if found is None:
                self._refuse(one, gone(topic))
                return
            info, count = self._registry.describe(found), one.counts[topic]
            if len(info.addresses) < count:
                if self._time.monotonic_ms() >= one.until_ms:
                    late = f"this node has not heard of all partitions of {found.full_name} yet"
                    self._refuse(one, Unavailable(f"{late}: ask again shortly"))
                return
            if len(info.addresses) > count:
                info = structs.replace(info, addresses=info.addresses[:count])
            places = [one.places.get(address.group) for address in info.addresses]
            told = [(p.start, p.behind, p.committed) if p is not None else _UNKNOWN for p in places]
            starts, ends, committed = map(list, zip(*told, strict=True))
            cuts.append(TopicCut(info, starts, ends, committed))
            lineages += lineages_of(place for place in places if place is not None)
        self._outbox.reply(one.caller, ResolvedCut(one.stamp, cuts, lineages))
        self._end(one)

    def _refuse(self, one: _Resolution, error: Refused) -> None:
        self._outbox.refuse(one.caller, error)
        self._end(one)

    def _end(self, one: _Resolution) -> None:
        if self.resolutions.pop(one.number, None) is None:
            return
        self._partitions -= one.partitions
        if one.location:
            self.locator.forget(one.location)
            self._locations.pop(one.location, None)


def _known(one: _Resolution) -> Iterator[Barriers]:
    for topic in one.topics:
        barriers = one.barriers.get(topic)
        if barriers is not None:
            yield barriers


def _check(topics: Sequence[Topic]) -> None:
    """Raise `BadRequest` for topics that are named twice, or are too many."""
    if len({topic.id for topic in topics}) < len(topics):
        raise BadRequest("a topic is named twice: name each once")
    partitions = sum(topic.partitions for topic in topics)
    if partitions > CUT_PARTITIONS_MAX:
        raise BadRequest(
            f"these topics have {partitions:,} partitions, and a cut goes through "
            f"{CUT_PARTITIONS_MAX:,} at most: ask for fewer topics at once"
        )
