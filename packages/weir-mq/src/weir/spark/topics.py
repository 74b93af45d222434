"""What a query reads: one topic, or several that are cut at one barrier.

Several topics are one to the arithmetic of `weir.spark.planning`: their cut has the number of a
partition's Raft group, which no other partition of any topic has, where a cut of one topic has the
number of the partition. All of them are cut at one stamp, whatever their own order is, so a
scattering, which has one stamp in all topics, lies before the cut with all its parts or with none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from weir.client.connection.system import SYSTEM
from weir.errors import BadRequest, CheckpointMismatch, Refused, UnknownTopic
from weir.model.ids import group_of, partition_of, topic_of
from weir.model.limits import CUT_TOPICS_MAX
from weir.model.topic import split_name
from weir.protocol.client.admin import ListTopics, TopicInfo, TopicList
from weir.protocol.client.messages import ResolveCut, TopicPositions
from weir.spark import planning
from weir.spark.blocking_client import BlockingClient
from weir.spark.cuts import BarrierCuts, Cuts, within
from weir.spark.fetcher import Portion, Source, portions
from weir.spark.options import Bound, Latest, Offsets, Options, Stamped
from weir.spark.planning import Cut, Lineages

#: While nothing moves, it is looked so often for topics that begin to match; in seconds.
LIST_EVERY = 1.0

T = TypeVar("T")


class Topics(Protocol):
    """What a query reads, as `OneTopic` and `SeveralTopics` are."""

    @property
    def at_barriers(self) -> bool:
        """Whether the query is to be cut at barriers."""

    def begin(self, bound: Bound) -> Cut:
        """Return the cut at which a query begins. Raises `BadOption`."""

    def until(self, bound: Bound) -> Cut:
        """Return the cut at which a query ends. Raises `BadOption`."""

    @property
    def is_within_limits(self) -> bool:
        """Whether the cut that `moved` found is within the limits that it was given."""

    def moved(
        self, since: Cut, wait_ms: int = 0, rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> bool:  # fmt: skip
        """Return whether something was committed that a cut does not hold; wait up to `wait_ms` for
        that. The end that is asked for next is as of this, and within the limits.
        """

    def known_ends(self, keep: bool = False) -> Cut | None:
        """Return the committed ends as of what was asked last; None if they were taken, which this
        does unless it is to `keep` them.
        """

    def barrier(self) -> Cut:
        """Return a cut at a barrier that holds all that was committed until now."""

    def committed(self, ending: Bound | None) -> Cut:
        """Return the committed ends, or where a query ends if that is less; and where each
        partition begins.
        """

    def at(self, stamp: int, start: Cut, end: Cut) -> Cut:
        """Return the cut at a stamp, as far as it lies between two others."""

    def within(self, start: Cut, end: Cut, rows_max: int | None) -> Cut:
        """Return the last cut at a barrier, up to `end`, that has `rows_max` messages at most; but
        at least the next one.
        """

    def bytes_between(self, start: Cut, end: Cut) -> float:
        """Return about how many stored bytes lie between two cuts."""

    def expect(self, cut: Cut) -> None:
        """Take it that partitions of a cut are there, in its lineages or in later ones."""

    def in_lineages(self, cut: Cut) -> Cut:
        """Return a cut with the lineages that its partitions are in, as far as they are told."""

    def check_lineages(self, cut: Cut) -> None:
        """Raise `OffsetOutOfRange` where later lineages do not have what was read up to a cut."""

    def check_growth(self, start: Cut, end: Cut) -> None:
        """Raise unless `end` continues `start`."""

    def check_topics(self, start: Cut, end: Cut) -> None:
        """Raise `CheckpointMismatch` unless the topics of `start` are in `end`."""

    def check_order(self, start: Cut, end: Cut) -> None:
        """Raise `BadOption` where a query would begin behind the place where it ends."""

    def portions(self, begin: Cut, behind: Cut) -> list[Portion]:
        """Return what reads [begin, behind). Raises `CheckpointMismatch` if a topic is gone."""

    def to_json(self, cut: Cut) -> dict[str, object]:
        """Return what Spark stores of a cut."""

    def from_json(self, offset: Mapping[str, object]) -> Cut:
        """Read what `to_json` wrote. Raises `CheckpointMismatch` for anything else."""


def topics_of(options: Options) -> Topics:
    """Return what a query reads; no broker is asked yet. It is picklable."""
    return SeveralTopics(options) if options.topics else OneTopic(options)


class OneTopic:
    """A topic, cut at barriers if it is in total order, or an option says so."""

    def __init__(self, options: Options, lineages: Lineages | None = None) -> None:
        """Keep the options; share the `lineages` of several topics."""
        self.options = options
        self._cuts = Cuts(options, lineages=lineages or Lineages())
        self._barriers = BarrierCuts(self._cuts)

    @property
    def at_barriers(self) -> bool:
        """As the option `order` says, or else the topic."""
        return self._barriers.wanted

    def begin(self, bound: Bound) -> Cut:
        """As of now."""
        return self._barriers.resolve("startingOffsets", bound)

    def until(self, bound: Bound) -> Cut:
        """As of now."""
        return self._barriers.resolve("endingOffsets", bound)

    @property
    def is_within_limits(self) -> bool:
        """As the broker resolves it."""
        return self._barriers.is_within_limits

    def moved(
        self, since: Cut, wait_ms: int = 0, rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> bool:  # fmt: skip
        """In any of the partitions that the query reads."""
        return self._barriers.moved(since, wait_ms, rows_max, bytes_max)

    def known_ends(self, keep: bool = False) -> Cut | None:
        """Of the partitions that the query reads."""
        return self._barriers.known_ends(keep)

    def barrier(self) -> Cut:
        """Raises `Unavailable` if a partition does not say how far it is complete."""
        return self._barriers.end()

    def reached(self, stamp: int) -> int:
        """Return the highest stamp at which a partition is complete, once all are at `stamp`; of 0,
        as of now.
        """
        _, barriers = self._barriers.reached(stamp)
        return max(barrier.stamp for barrier in barriers.values())

    def below(self, stamp: int) -> Cut:
        """Return the cut that has all messages stamped at or below `stamp`, once they are there."""
        self.reached(stamp)
        standing = self._cuts.standing(stamp + 1)
        positions = {
            p: self._cuts.first_above(standing.info, p, stamp, place.at, place.end)
            for p, place in enumerate(standing.places)
        }
        return Cut(standing.info.id, positions, standing.begin.positions, stamp)

    def committed(self, ending: Bound | None) -> Cut:
        """As of now, or as of the last look for news."""
        if ending is None:
            news = None if self.at_barriers else self._barriers.news()
            ends = news or self._barriers.ends()
            if ends is not None:
                return ends
        standing = self._cuts.standing(ending.stamp if isinstance(ending, Stamped) else 0)
        end = Cut(standing.info.id, standing.end.positions, standing.begin.positions)
        match ending:
            case Stamped(stamp):
                least: Mapping[int, int] = self._cuts.first_from(standing, stamp)
            case Offsets(by_partition):
                least = by_partition
            case _:
                return end
        shortened = {p: min(at, least.get(p, at)) for p, at in end.positions.items()}
        return Cut(end.epoch, shortened, end.begins)

    def at(self, stamp: int, start: Cut, end: Cut) -> Cut:
        """All messages stamped at or below it, and no others."""
        return self._barriers.at(stamp, start, end)

    def within(self, start: Cut, end: Cut, rows_max: int | None) -> Cut:
        """Looked for by stamps."""
        return self._barriers.within(start, end, rows_max)

    def bytes_between(self, start: Cut, end: Cut) -> float:
        """By the mean size of a partition's messages."""
        return self._cuts.bytes_between(start, end)

    def expect(self, cut: Cut) -> None:
        """A node that has not heard of them is asked until it has."""
        self._cuts.expect(cut.positions)
        self._cuts.lineages.expect(cut)

    def in_lineages(self, cut: Cut) -> Cut:
        """By the last cut that was resolved."""
        return self._cuts.lineages.of(cut)

    def check_lineages(self, cut: Cut) -> None:
        """By the last cut that was resolved."""
        self._cuts.lineages.check(cut, lambda partition: f"{self.options.topic}/{partition}")

    def check_growth(self, start: Cut, end: Cut) -> None:
        """Same topic, no partition gone, no offset lower."""
        planning.check_growth(self.options.topic, start, end)

    def check_topics(self, start: Cut, end: Cut) -> None:
        """By its id."""
        planning.check_topic(self.options.topic, start, end)

    def check_order(self, start: Cut, end: Cut) -> None:
        """In each partition."""
        planning.check_order(self.options.topic, start, end)

    def told(self, info: TopicInfo) -> None:
        """Remember where the partitions are served, for the next request."""
        self._cuts.take(info)

    def describe(self) -> TopicInfo:
        """Ask where the partitions are served. Raises `UnknownTopic`."""
        return self._cuts.describe()

    def check_there(self, behind: Cut) -> TopicInfo:
        """Return the topic if it is the one that a cut is of, with all its partitions."""
        self._cuts.expect(behind.positions)
        info = self._cuts.describe()
        # Whether the messages are still there shows when they are read.
        there = {p: behind.positions.get(p, 0) for p in range(len(info.addresses))}
        planning.check_growth(self.options.topic, behind, Cut(info.id, there))
        return info

    def portions(self, begin: Cut, behind: Cut) -> list[Portion]:
        """By tasks; a replay gets the same."""
        return portions(self.options, self.check_there(behind), begin, behind)

    def to_json(self, cut: Cut) -> dict[str, object]:
        """The topic's id, and offsets by partition."""
        return cut.to_json()

    def from_json(self, offset: Mapping[str, object]) -> Cut:
        """Also of a query of several topics, which is told apart."""
        if "t" in offset:
            raise CheckpointMismatch(
                f"the checkpoint was written by a query of several topics, and this one reads "
                f"{self.options.topic!r}: give the option topics as it was, or use a new "
                "checkpointLocation"
            )
        return Cut.from_json(offset)


@dataclass
class SeveralTopics:
    """The topics of a list of names and prefixes, all in one cut.

    A topic that begins to match enters at the next cut, with its first message.
    """

    options: Options
    #: By id; those that are there.
    _topics: dict[int, OneTopic] = field(default_factory=dict)
    #: By id, of all that were heard of.
    _names: dict[int, str] = field(default_factory=dict)
    _listed: float | None = None
    #: As the last look for news has them, until they are taken: a cut, and the committed ends.
    _news: Cut | None = None
    _committed: Cut | None = None
    is_within_limits: bool = False
    _lineages: Lineages = field(default_factory=Lineages)

    @property
    def at_barriers(self) -> bool:
        """Unless an option says that each partition is cut by itself."""
        return self.options.order != "partition"

    def begin(self, bound: Bound) -> Cut:
        """Each topic at the same bound."""
        return self._bound(bound, lambda topic: topic.begin(bound))

    def until(self, bound: Bound) -> Cut:
        """Each topic at the same bound."""
        return self._bound(bound, lambda topic: topic.until(bound))

    def _bound(self, bound: Bound, resolve: Callable[[OneTopic], Cut]) -> Cut:
        if isinstance(bound, Latest) and self.at_barriers:
            return self.barrier()
        self._list()
        stamp = bound.stamp - 1 if isinstance(bound, Stamped) and self.at_barriers else 0
        return joined(self._each(resolve), max(stamp, 0))

    def moved(
        self, since: Cut, wait_ms: int = 0, rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> bool:  # fmt: skip
        """In any of the topics; or one is gone."""
        self._news = self._committed = None
        self.is_within_limits = False
        self._list_now_and_then()
        parts = split(since)
        if parts.keys() - self._topics.keys():
            return True
        found = self._resolved(
            since, wait_ms=wait_ms, rows_max=rows_max or 0, bytes_max=bytes_max or 0
        )
        if found is not None:
            if not found.positions:
                return False
            if not planning.differs(since, found):
                # As with one topic: there may be more than the barriers cover yet.
                ends = self._committed or since
                return planning.differs(since, replace(ends, begins=found.begins))
            self._news, self.is_within_limits = found, found.stamp > 0
            return True
        if parts.keys() - self._topics.keys():  # as was found out meanwhile
            return True
        for id, topic in self._topics.items():
            with _naming(topic):
                if topic.moved(parts.get(id, Cut(id, {}))):
                    return True
        return False

    def known_ends(self, keep: bool = False) -> Cut | None:
        """Of all topics."""
        known = self._committed
        if not keep:
            self._committed = None
        return known

    def barrier(self) -> Cut:
        """Raises `Unavailable` if a partition does not say how far it is complete."""
        news, self._news = self._news, None
        if news is None:
            self._list()
            news = self._resolved(latest=True)
        while news is not None and self._may_grow:
            # Looked at once more: what the topics have promised by now, no scattering of theirs
            # with a topic that is made later is stamped at or below.
            known = self._topics.keys()
            self._list()
            if self._topics.keys() == known:
                break
            news = self._resolved(latest=True)
        if news is not None:
            return news
        stamp = max(self._each(lambda topic: topic.reached(0)), default=0)
        self._list()  # as above
        return joined(self._each(lambda topic: topic.below(stamp)), stamp)

    @property
    def _may_grow(self) -> bool:
        return any(name.endswith("*") for name in self.options.topics)

    def _resolved(self, since: Cut | None = None, **fields: Any) -> Cut | None:
        """Ask for a cut through all topics, without any position if nothing is new; None if the
        broker does not resolve them, or not through so many.
        """
        if since is not None:
            fields["stamp"] = since.stamp
            fields["after"] = [
                TopicPositions(id, sorted(part.positions.items()))
                for id, part in split(since).items()
            ]
        names = [topic.options.topic for topic in self._topics.values()]
        if len(names) > CUT_TOPICS_MAX:
            return None
        fields.setdefault("by_partition", not self.at_barriers)
        request = ResolveCut(names, **fields)
        try:
            asker = Cuts(replace(self.options, topic=names[0]), lineages=self._lineages)
            found = asker.resolve_cut(request)
        except BadRequest:  # they have more partitions together than one cut goes through
            return None
        except UnknownTopic:  # one was deleted since
            self._list()
            return None
        if found is None:
            return None
        if not found.topics:
            self._committed = since
            return Cut(0, {})
        parts, ends = [], []
        for told in found.topics:
            id, begins = told.info.id, dict(enumerate(told.starts))
            self._there(id).told(told.info)
            parts.append(Cut(id, dict(enumerate(told.ends)), begins))
            ends.append(Cut(id, dict(enumerate(told.committed))))
        self._committed = joined(ends)
        return joined(parts, found.stamp)

    def committed(self, ending: Bound | None) -> Cut:
        """Of each topic by itself."""
        self._list_now_and_then()
        if ending is None:
            news, self._news = (None if self.at_barriers else self._news), None
            ends = news or self._resolved(by_partition=True)
            if ends is not None:
                return ends
        return joined(self._each(lambda topic: topic.committed(ending)))

    def at(self, stamp: int, start: Cut, end: Cut) -> Cut:
        """All messages stamped at or below it, of all topics, and no others."""
        before = split(start)
        found = []
        for id, part in split(end).items():
            with _naming(topic := self._there(id)):
                found.append(topic.at(stamp, before.get(id, Cut(id, {})), part))
        return joined(found, stamp)

    def within(self, start: Cut, end: Cut, rows_max: int | None) -> Cut:
        """Looked for by stamps, here or by the broker."""
        if rows_max is not None and planning.rows_between(start, end) > rows_max:
            found = self._resolved(start, stamp_max=end.stamp, rows_max=rows_max)
            if found is not None:
                return replace(planning.next_cut(start, found, None), stamp=found.stamp)
        return within(self.at, start, end, rows_max)

    def bytes_between(self, start: Cut, end: Cut) -> float:
        """By the mean size of a partition's messages."""
        before = split(start)
        return sum(
            self._there(id).bytes_between(before.get(id, Cut(id, {})), part)
            for id, part in split(end).items()
        )

    def expect(self, cut: Cut) -> None:
        """A node that has not heard of them is asked until it has."""
        for id, part in split(cut).items():
            if (topic := self._topics.get(id)) is not None:
                topic.expect(part)
        self._lineages.expect(cut)

    def in_lineages(self, cut: Cut) -> Cut:
        """By the last cut that was resolved."""
        return self._lineages.of(cut)

    def check_lineages(self, cut: Cut) -> None:
        """By the last cut that was resolved."""
        self._lineages.check(
            cut, lambda group: f"{self._names[topic_of(group)]}/{partition_of(group)}"
        )

    def check_growth(self, start: Cut, end: Cut) -> None:
        """All topics are still there, with their partitions, and no offset is lower."""
        self.check_topics(start, end)
        parts = split(end)
        for id, before in split(start).items():
            planning.check_growth(self._names[id], before, parts[id])

    def check_topics(self, start: Cut, end: Cut) -> None:
        """By their ids."""
        parts = split(end)
        for id in split(start):
            if id not in parts:
                raise self._gone(id)

    def check_order(self, start: Cut, end: Cut) -> None:
        """In each partition of each topic."""
        before = split(start)
        for id, part in split(end).items():
            planning.check_order(self._names[id], before.get(id, Cut(id, {})), part)

    def portions(self, begin: Cut, behind: Cut) -> list[Portion]:
        """By tasks; a replay gets the same."""
        infos: dict[int, TopicInfo] = {}
        for id, part in split(behind).items():
            topic = self._topics.get(id) or self._topic(self._names[id])
            with _naming(topic):
                infos[id] = topic.check_there(part)
        options = self.options
        gaps = planning.gaps(behind)
        ranges = planning.ranges(begin, behind, options.partitions_min, options.partition_rows_max)
        found = []
        for number, one in enumerate([*gaps, *ranges]):
            info, partition = infos[topic_of(one.partition)], partition_of(one.partition)
            place, way = info.addresses[partition], options.read_from
            lineage = behind.lineages.get(one.partition, -1)
            source = Source(options.hosts, info.full_name, place, options.large, way, lineage)
            there = replace(one, partition=partition)
            found.append(Portion(source, there, number < len(gaps)))
        return found

    def to_json(self, cut: Cut) -> dict[str, object]:
        """Return {"t": {"a": {"e": 1, "p": {"00000": 120}}, "b": ...}} by name, with the stamp."""
        parts = split(cut)
        by_name = sorted((self._names[id], replace(part, stamp=0)) for id, part in parts.items())
        text: dict[str, object] = {"t": {name: part.to_json() for name, part in by_name}}
        return {**text, "s": cut.stamp} if cut.stamp else text

    def from_json(self, offset: Mapping[str, object]) -> Cut:
        """Also of a query of one topic, which is told apart."""
        match offset:
            case {"t": dict(topics)}:
                parts = {str(name): Cut.from_json(part) for name, part in topics.items()}
                self._names |= {part.epoch: name for name, part in parts.items()}
                stamp = offset.get("s", 0)
                if isinstance(stamp, int):
                    return joined(parts.values(), stamp)
        raise CheckpointMismatch(
            f"{offset!r} is no offset of a query of several topics: this checkpoint belongs to "
            "another query; give this one a checkpointLocation of its own"
        )

    def _topic(self, name: str) -> OneTopic:
        return OneTopic(replace(self.options, topic=name, topics=()), self._lineages)

    def _list(self) -> None:
        """Find out which topics match now. Raises `UnknownTopic` for a name that is not there, or
        if there is none.
        """
        found: dict[int, str] = {}
        for wanted in self.options.topics:
            if wanted.endswith("*"):
                found |= self._beginning_with(wanted.removesuffix("*"))
            else:
                info = self._topic(wanted).describe()
                found[info.id] = info.full_name
        if not found:
            raise UnknownTopic(
                f"no topic begins with {' or '.join(self.options.topics)}: check the options "
                "topics and url, or create one with `weir topic create`"
            )
        self._names |= found
        self._topics = {
            id: self._topics.get(id) or self._topic(name)
            for id, name in sorted(found.items(), key=lambda one: one[1])
        }
        self._listed = SYSTEM.get().monotonic()

    def _list_now_and_then(self) -> None:
        now = SYSTEM.get().monotonic()
        if self._listed is None or now - self._listed >= LIST_EVERY:
            self._list()

    def _beginning_with(self, prefix: str) -> dict[int, str]:
        namespace, first = split_name(prefix + "x")
        first = first.removesuffix("x")
        question = Cuts(self.options)
        found: dict[int, str] = {}
        # Names are told in order, behind this one.
        after, more = (f"{namespace}/{first[:-1]}" if len(first) > 1 else ""), True
        while more:
            told = question.ask(_listing(namespace, after))
            found |= {one.id: one.full_name for one in told.topics if one.name.startswith(first)}
            last = told.topics[-1].name if told.topics else ""
            more = told.more and bool(last) and (last.startswith(first) or last < first)
            after = f"{namespace}/{last}"
        return found

    def _each(self, question: Callable[[OneTopic], T]) -> list[T]:
        answers = []
        for topic in self._topics.values():
            with _naming(topic):
                answers.append(question(topic))
        return answers

    def _there(self, id: int) -> OneTopic:
        topic = self._topics.get(id)
        if topic is None:
            raise self._gone(id)
        return topic

    def _gone(self, id: int) -> CheckpointMismatch:
        name = self._names[id]
        again = name in {one.options.topic for one in self._topics.values()}
        matches = any(_is_in(wanted, name) for wanted in self.options.topics)
        if again:
            why = "it was deleted and made again"
        elif matches:
            why = "it was deleted"
        else:
            why = "the option topics leaves it out: give it again"
        return CheckpointMismatch(
            f"the checkpoint has read the topic {name!r} with id {id}, which this query does not "
            f"find: {why}. To go on without it, use a new checkpointLocation"
        )


def _is_in(wanted: str, name: str) -> bool:
    """Whether a full name is, or begins with, what the option `topics` lists."""
    if not wanted.endswith("*"):
        return name == wanted
    prefix = wanted.removesuffix("*")
    same = split_name(prefix + "x")[0] == split_name(name)[0]
    return same and name.startswith(prefix)


@contextmanager
def _naming(topic: OneTopic) -> Iterator[None]:
    """Name the topic in refusals."""
    try:
        yield
    except Refused as error:
        error.add_note(f"the query asked for the topic {topic.options.topic!r}")
        raise


def joined(parts: Iterable[Cut], stamp: int = 0) -> Cut:
    """Return cuts of several topics as one, by Raft groups."""
    positions: dict[int, int] = {}
    begins: dict[int, int] = {}
    lost: dict[int, int] = {}
    lineages: dict[int, int] = {}
    for part in parts:
        for kind, numbers in (
            (positions, part.positions),
            (begins, part.begins),
            (lost, part.lost),
            (lineages, part.lineages),
        ):
            kind |= {group_of(part.epoch, p): one for p, one in numbers.items()}
    return Cut(0, positions, begins, stamp, lost, lineages)


def split(cut: Cut) -> dict[int, Cut]:
    """Return a cut of several topics as one of each, by id; all have its stamp."""
    found: dict[int, list[dict[int, int]]] = {}
    for kind, numbers in enumerate((cut.positions, cut.begins, cut.lost, cut.lineages)):
        for group, one in numbers.items():
            kinds = found.setdefault(topic_of(group), [{}, {}, {}, {}])
            kinds[kind][partition_of(group)] = one
    return {
        id: Cut(id, positions, begins, cut.stamp, lost, lineages)
        for id, (positions, begins, lost, lineages) in sorted(found.items())
    }


def _listing(namespace: str, after: str) -> Callable[[BlockingClient], TopicList]:
    """Return a question: which topics of a namespace come after this full name?"""

    def question(client: BlockingClient) -> TopicList:
        reply = client.request(ListTopics(namespace, after))
        assert isinstance(reply, TopicList)  # decoded by the opcode of the request
        return reply

    return question
